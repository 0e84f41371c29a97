"""A stand-in for ``torch.distributed.tensor``, so that published files import: a shard here is an ordinary tensor."""

from __future__ import annotations

from typing import Any

from .. import absent as _absent
from ..errors import NotOfferedError


class DTensor:
    """A tensor in parts on several devices. It is never made, so no tensor is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(
            "distributed.DTensor: a rank's shard is an ordinary tensor here: use distributed.fsdp.fully_shard"
        )


__getattr__ = _absent.refuses("distributed")
