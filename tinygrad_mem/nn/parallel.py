"""``torch.nn.parallel`` for one process and one device. ``distributed/data_parallel.py`` adds ``DistributedDataParallel``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import absent as _absent
from ..devices import device as Device
from ..errors import NotOfferedError
from .module import Module

if TYPE_CHECKING:
    from ..distributed.data_parallel import DistributedDataParallel as DistributedDataParallel

__all__ = ("DataParallel",)


class DataParallel(Module):
    """Calls ``module`` on one device, as PyTorch's does with one GPU or none.

    Args:
        device_ids: one device at most; a batch is never split.

    Raises:
        NotOfferedError: several devices are named.
    """

    def __init__(self, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.device_ids = [] if device_ids is None else list(device_ids)
        if len(self.device_ids) > 1:
            raise NotOfferedError(f"nn.DataParallel: one device computes here, found device_ids={self.device_ids}: name one")
        self.module, self.dim, self.output_device = module, dim, output_device
        if self.device_ids:
            module.to(Device("cuda", self.device_ids[0]) if isinstance(self.device_ids[0], int) else self.device_ids[0])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's output."""
        return self.module(*inputs, **kwargs)


__getattr__ = _absent.refuses("nn.parallel")
