"""A stand-in for modules of PyTorch's ``DTensor`` that published files import, and call only for parameters in parts."""

from __future__ import annotations

from ..distributed.tensor.placement import _INSTEAD
from ..distributed.tensor.placement import DTensor as DTensor
from ..distributed.tensor.placement import Partial as Partial
from ..distributed.tensor.placement import Placement as Placement
from ..distributed.tensor.placement import Replicate as Replicate
from ..distributed.tensor.placement import Shard as Shard
from .refused import never_made, refused

_StridedShard = never_made("distributed.tensor.placement_types", "_StridedShard", _INSTEAD)
HuggingFaceStorageReader, HuggingFaceStorageWriter = (
    never_made("distributed.checkpoint.hf_storage", name, "use `load` and `save`, whose files may be safetensors")
    for name in ("HuggingFaceStorageReader", "HuggingFaceStorageWriter")
)
globals().update(refused("distributed.tensor._utils", "compute_local_shape_and_global_offset", _INSTEAD))
globals().update(refused("distributed._functional_collectives", "wait_tensor all_to_all_single_autograd", _INSTEAD))
