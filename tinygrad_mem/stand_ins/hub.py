"""A stand-in for ``torch.hub``, so that published files import: nothing is downloaded."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlparse as urlparse

from ..errors import NotOfferedError

_BY_HAND = "download the weights yourself, convert them to safetensors, and load() them; build the model without pretrained"


def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Not offered: nothing is downloaded. Raises: NotOfferedError: always."""
    raise NotOfferedError(f"hub: {url} is not downloaded: {_BY_HAND}")


load_url = download_url_to_file = load_state_dict_from_url  # the first is its name in torch.utils.model_zoo


def _get_torch_home() -> str:
    """Return the folder for downloaded files."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    return os.path.join(cache, "tinygrad_mem")


def get_dir() -> str:
    """Return the folder for files that were downloaded by hand."""
    return os.path.join(_get_torch_home(), "hub")


class tqdm(nullcontext):
    """The wrapper that published files put around downloads: the iterable itself, without a bar."""

    def __init__(self, iterable: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(self)
        self.iterable = iterable

    def __iter__(self) -> Any:
        return iter(self.iterable)

    def update(self, n: Any = 1) -> None:
        """Do nothing: there is no bar."""

    close = update


HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
"""Finds the digits of a checksum in the name of a file."""
