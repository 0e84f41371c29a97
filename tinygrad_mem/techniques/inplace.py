"""In-place activated batch norm: the pair of batch norm and leaky ReLU keeps its output, and not its input."""

from __future__ import annotations

from typing import Any

from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError
from ..functional.norm import statistics_of, with_statistics
from ..nn.norm import _BatchNorm
from ..ops.inplace_norm import InPlaceABN as Op


def inplace_abn(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    negative_slope: float = 0.01,
) -> Tensor:
    """``leaky_relu(batch_norm(input, ...), negative_slope)``, written over ``input``, which it returns.

    Args:
        input: (N, C, ...), floating. The op that made it must not have saved it for backward: a convolution, a linear layer or
            a sum does not.
        weight: if its absolute value is below ``eps``, ``eps`` with its sign is used, because the inverse divides by it.
        negative_slope: above 0, so that the function can be inverted.

    Saves: the result, 1 number a channel, the weight and the bias: instead of the input and the result.

    Raises:
        ArgumentError: ``negative_slope`` is not above 0; one value a channel in training.
        GraphError: the input is a leaf that requires grad; in backward: an op had saved the values that were overwritten.
    """
    if not negative_slope > 0:
        raise ArgumentError(
            f"inplace_abn: negative_slope must be above 0, so that its input can be found again, found {negative_slope}; for a "
            "ReLU use batch_norm and relu"
        )
    numbers: dict[str, Any] = {"training": training, "momentum": momentum, "eps": eps, "slope": float(negative_slope)}
    mean, var = statistics_of("inplace_abn", input, running_mean, running_var, training, momentum, eps)
    return with_statistics(apply_, Op, (input, weight, bias), mean, var, numbers)


class InPlaceABN(_BatchNorm):
    """A layer of :func:`inplace_abn`: batch norm of (N, C, ...) and leaky ReLU, in place.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype: as ``nn.BatchNorm2d``'s, and its state dict.
        negative_slope: of the activation.

    Memory:
        One array of the input's size instead of two: only the result is saved, which the next layer saves too. A residual block
        with three such pairs keeps 3 arrays instead of 6.
    Price:
        A division for each element in backward. Gradients differ from the pair's in the last digits, by about ``ulp(y) /
        abs(weight)``: small weights make the inverse less accurate.
    Do not use when:
        The activation must be a ReLU, or weights are near 0.

    Source: Rota Bulo et al., *In-place activated batch norm for memory-optimized training of DNNs*, CVPR 2018.
    """

    dimensions = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        negative_slope: float = 0.01,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.negative_slope = negative_slope

    def normalise(self, input: Tensor, mean: Tensor | None, var: Tensor | None, training: bool, momentum: float) -> Tensor:
        """The pair, in place."""
        return inplace_abn(input, mean, var, self.weight, self.bias, training, momentum, self.eps, self.negative_slope)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, negative_slope={self.negative_slope}"
