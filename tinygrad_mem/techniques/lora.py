"""LoRA: the weights of linear layers are frozen, and two thin matrices beside each of them are trained."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..dtypes import dtype, float32
from ..errors import ArgumentError, is_whole
from ..functional.linalg import linear
from ..nn import init
from ..nn.dropout import Dropout
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.parameter import Parameter
from .quantized import QuantizedLinear, linear_layers, refuse_parallel


class LoraLinear(Module):
    """A frozen linear layer, and beside it ``lora_B(lora_A(dropout(x))) * scaling``. See :func:`lora`.

    Attributes:
        base_layer: the frozen layer, quantized or not.
        lora_A, lora_B: (r, in) and (out, r); B begins as zeros, so that the layer begins as it was.
        lora_magnitude_vector: DoRA's: the norm of each row of the weight; ``None`` without DoRA.
        merged: the thin matrices have been added to the frozen weight.
        merged_weight: while a quantized layer is merged, its weight and the thin matrices in one; else ``None``.
    """

    def __init__(
        self,
        base: Linear | QuantizedLinear,
        r: int,
        lora_alpha: float,
        lora_dropout: float,
        use_rslora: bool,
        use_dora: bool,
        kind: dtype,
    ) -> None:
        super().__init__()
        where = next(base.parameters()).device
        self.base_layer = base
        self.lora_A = Linear(base.in_features, r, bias=False, device=where, dtype=kind)
        self.lora_B = Linear(r, base.out_features, bias=False, device=where, dtype=kind)
        init.zeros_(self.lora_B.weight)
        self.lora_dropout = Dropout(lora_dropout) if lora_dropout else None
        self.scaling = lora_alpha / (math.sqrt(r) if use_rslora else r)
        self.lora_magnitude_vector = None
        if use_dora:
            with no_grad():
                self.lora_magnitude_vector = Parameter(_weight(base, kind).norm(dim=1).to(kind))
        self.merged = False
        self.register_parameter("merged_weight", None)

    def forward(self, input: Tensor) -> Tensor:
        if self.merged_weight is not None:
            kind, bias = self.merged_weight.dtype, self.base_layer.bias
            return linear(input.to(kind), self.merged_weight, None if bias is None else bias.to(kind)).to(input.dtype)
        y = self.base_layer(input)
        if self.merged:
            return y
        x = input.to(self.lora_A.weight.dtype)
        dropped = x if self.lora_dropout is None else self.lora_dropout(x)
        beside = self.lora_B(self.lora_A(dropped)) * self.scaling
        if self.lora_magnitude_vector is None:
            return (y + beside).to(y.dtype)
        share, base = self._share(), self.base_layer
        if self.lora_dropout is None or not self.training:
            product = y if base.bias is None else y - base.bias
        elif isinstance(base, QuantizedLinear):
            product = base.product(dropped)
        else:
            product = linear(dropped, base.weight.to(dropped.dtype))
        return (y + (share - 1) * product + share * beside).to(y.dtype)

    def _share(self) -> Tensor:
        """DoRA's magnitudes over the norms of the rows of the present weight, which count as constants in backward."""
        assert self.lora_magnitude_vector is not None
        with no_grad():
            norms = (_weight(self.base_layer, self.lora_A.weight.dtype) + self._change()).norm(dim=1)
        return self.lora_magnitude_vector / norms

    def _change(self) -> Tensor:
        """The product of the thin matrices, scaled: (out, in)."""
        return (self.lora_B.weight @ self.lora_A.weight) * self.scaling

    @no_grad()
    def merge(self) -> None:
        """Add the thin matrices to the frozen weight, in its dtype: the layer then costs what a linear layer costs.

        A quantized weight stays as it is. The sum is a matrix beside it, ``merged_weight``, in the dtype of the thin
        matrices: to round it to 4 or 8 bits again would lose most of a small change.

        Memory: a matrix of the weight's size while it runs; of a quantized weight, ``merged_weight`` until :meth:`unmerge`.
        """
        if self.merged:
            return
        base = self.base_layer
        if isinstance(base, QuantizedLinear):
            self.merged_weight = Parameter(self._sum(base), requires_grad=False)
        elif self.lora_magnitude_vector is None:
            base.weight.copy_(base.weight + self._change().to(base.weight.dtype))
        else:
            self._merged_share = self._share().unsqueeze(1)
            base.weight.copy_((self._merged_share * (base.weight + self._change())).to(base.weight.dtype))
        self.merged = True

    def _sum(self, base: QuantizedLinear) -> Tensor:
        """The dequantized weight and the thin matrices, as one matrix in the dtype of these."""
        weight = base.dequantized(self.lora_A.weight.dtype).add_(self._change())
        return weight if self.lora_magnitude_vector is None else weight.mul_(self._share().unsqueeze(1))

    @no_grad()
    def unmerge(self) -> None:
        """Undo :meth:`merge`, up to rounding in the weight's dtype; of a quantized weight exactly."""
        if not self.merged:
            return
        base = self.base_layer
        if isinstance(base, QuantizedLinear):
            self.merged_weight = None
        elif self.lora_magnitude_vector is None:
            base.weight.copy_(base.weight - self._change().to(base.weight.dtype))
        else:
            base.weight.copy_((base.weight / self._merged_share - self._change()).to(base.weight.dtype))
            del self._merged_share
        self.merged = False


def lora(
    model: Module,
    r: int = 8,
    lora_alpha: float = 8,
    target_modules: Iterable[str] | str = "all-linear",
    lora_dropout: float = 0.0,
    use_rslora: bool = False,
    use_dora: bool = False,
    train_a: bool = True,
    dtype: dtype = float32,
) -> Module:
    """Freeze ``model``, and put two thin trained matrices beside its linear layers. In place; returns the model.

    Linear layers may be quantized: :func:`~tinygrad_mem.techniques.quantize_frozen` before it makes this QLoRA.

    ``y = base(x) + lora_B(lora_A(x)) * lora_alpha / r``. The arguments have the names that they have in Hugging Face's peft.

    Args:
        r: the rank: A is (r, in), B is (out, r).
        lora_alpha: divided by ``r``, the factor of what is added; with ``use_rslora`` divided by its root.
        target_modules: the last parts of the paths of the layers, such as ``("q_proj", "v_proj")``; ``"all-linear"``: all
            linear layers but the last one, which is the model's output.
        lora_dropout: the dropout of the input of A.
        use_dora: also train the norm of each row of the weight.
        train_a: False keeps A as it begins (LoRA-FA).
        dtype: of the trained matrices. Of a frozen weight in half precision the input is cast to it.

    Memory:
        Gradients and optimizer state of the frozen weights: with Adam 12 of 16 bytes per parameter. The weights stay. Most
        activations stay: a frozen layer does not keep its input, but A keeps it, for its own gradient (cast to ``dtype``, and
        with dropout the dropped copy). With ``train_a=False`` r numbers for each token are kept in its place. DoRA also keeps
        the layer's output, and takes two matrices of the weight's size in each forward.
    Price:
        Two thin products in forward, and four in backward, for each layer.
    Do not use when:
        The activations take the memory, as with long sequences: use recompute as well.

    Raises:
        ArgumentError: no layer has such a name; a rank below 1 or above a layer's sizes; a dropout that is no probability; the
            model is over several ranks already (see ``quantize_frozen``): add LoRA first.
        NotOfferedError: a target is not a linear layer.

    Source: Hu et al., *LoRA*, 2021; Kalajdzievski, *A rank stabilization scaling factor*, 2023; Liu et al., *DoRA*, 2024; Zhang
    et al., *LoRA-FA*, 2023.
    """
    refuse_parallel("lora", model)
    found = dict(linear_layers("lora", model, target_modules))
    for name, layer in found.items():
        if not is_whole(r) or r > min(layer.in_features, layer.out_features):
            raise ArgumentError(
                f"lora: expected a rank r from 1 to {min(layer.in_features, layer.out_features)} for {name}, "
                f"{layer.in_features} -> {layer.out_features}, found {r!r}"
            )
    options = r, lora_alpha, lora_dropout, use_rslora, use_dora, dtype
    made = {name: LoraLinear(layer, *options).train(layer.training) for name, layer in found.items()}  # or nothing is changed
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, each in made.items():
        each.lora_A.requires_grad_(train_a)
        model.set_submodule(name, each)
    return model


def _weight(layer: Linear | QuantizedLinear, kind: dtype) -> Tensor:
    """The weight of a layer in ``kind``."""
    return layer.dequantized(kind) if isinstance(layer, QuantizedLinear) else layer.weight.to(kind)
