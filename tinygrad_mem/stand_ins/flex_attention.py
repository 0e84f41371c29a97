"""A stand-in for ``torch.nn.attention.flex_attention``, so that published files import: it is refused when it is called."""

from __future__ import annotations

from .refused import never_made, refused

_DEFAULT_SPARSE_BLOCK_SIZE = 128
_PLACE, _INSTEAD = "nn.attention.flex_attention", "use nn.functional.scaled_dot_product_attention with a mask"


BlockMask, AuxRequest = (never_made(_PLACE, name, _INSTEAD) for name in ("BlockMask", "AuxRequest"))
globals().update(refused(_PLACE, "flex_attention create_block_mask create_mask and_masks or_masks noop_mask", _INSTEAD))
