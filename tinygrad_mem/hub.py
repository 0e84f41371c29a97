"""A stand-in for ``torch.hub``, so that published files import: nothing is downloaded."""

from __future__ import annotations

from typing import Any

from .errors import NotOfferedError

_BY_HAND = "download the weights yourself, convert them to safetensors, and load() them; build the model without pretrained"


def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Not offered: nothing is downloaded.

    Raises:
        NotOfferedError: always.
    """
    raise NotOfferedError(f"hub.load_state_dict_from_url: {url} is not downloaded: {_BY_HAND}")


def __getattr__(name: str) -> object:
    raise AttributeError(f"hub.{name} is not offered: {_BY_HAND}")
