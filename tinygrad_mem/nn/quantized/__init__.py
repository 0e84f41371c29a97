"""``torch.nn.quantized`` without quantization, so that networks that use it can be trained in floating numbers."""

from __future__ import annotations

from typing import Any

from ... import absent as _absent
from ...autograd.tensor import Tensor
from ...functional import activation, elementwise, join, linalg
from ..linear import Identity
from ..module import Module


class FloatFunctional(Module):
    """Operations as methods. PyTorch observes their results for quantization; here only the operations run.

    Each method saves what its operation saves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.activation_post_process = Identity()

    def forward(self, x: Any) -> Any:
        """Not to be called. Raises: RuntimeError: always, as in PyTorch."""
        raise RuntimeError("FloatFunctional is not intended to use the 'forward'. Please use the underlying operation")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """``x + y``."""
        return self.activation_post_process(elementwise.add(x, y))

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x + y``, where y is a number."""
        return elementwise.add(x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """``x * y``."""
        return self.activation_post_process(elementwise.mul(x, y))

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """``x * y``, where y is a number."""
        return elementwise.mul(x, y)

    def cat(self, x: Any, dim: int = 0) -> Tensor:
        """Concatenate tensors along ``dim``."""
        return self.activation_post_process(join.cat(x, dim))

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """``relu(x + y)``."""
        return self.activation_post_process(activation.relu(elementwise.add(x, y)))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """``x @ y``."""
        return self.activation_post_process(linalg.matmul(x, y))


__getattr__ = _absent.refuses("nn.quantized")
