"""A stand-in for ``torch.nn.attention.flex_attention``, so that published files import: it is refused when it is called."""

from __future__ import annotations

from typing import Any

from ..errors import NotOfferedError
from .refused import refused

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_PLACE, _INSTEAD = "nn.attention.flex_attention", "use nn.functional.scaled_dot_product_attention with a mask"


class BlockMask:
    """The blocks of scores that are computed. It is never made, so no mask is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(f"{_PLACE}.{type(self).__name__}: {_INSTEAD}")


class AuxRequest(BlockMask):
    """A request for more than the result. It is never made."""


globals().update(refused(_PLACE, "flex_attention create_block_mask create_mask and_masks or_masks noop_mask", _INSTEAD))
