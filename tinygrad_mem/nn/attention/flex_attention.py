"""A stand-in for ``torch.nn.attention.flex_attention``, so that published files import: it is refused when it is called."""

from __future__ import annotations

from typing import Any

from ... import absent as _absent
from ...errors import NotOfferedError

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_INSTEAD = "use nn.functional.scaled_dot_product_attention with a mask"


class _Refused:
    """A function that may be imported, and refuses to run."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(f"nn.attention.flex_attention.{self.__name__}: {_INSTEAD}")


class BlockMask:
    """Which blocks of scores are computed: never made, so that no mask is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(f"nn.attention.flex_attention.BlockMask: {_INSTEAD}")


class AuxRequest(BlockMask):
    """What to answer beside the result: never made."""


flex_attention = _Refused("flex_attention")
create_block_mask = _Refused("create_block_mask")
create_mask = _Refused("create_mask")
and_masks = _Refused("and_masks")
or_masks = _Refused("or_masks")
noop_mask = _Refused("noop_mask")


__getattr__ = _absent.refuses("nn.attention.flex_attention")
