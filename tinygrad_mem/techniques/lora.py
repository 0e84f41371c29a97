"""LoRA: the weights of linear layers are frozen, and two thin matrices beside each of them are trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..dtypes import dtype, float32
from ..errors import ArgumentError, NotOfferedError
from ..functional.linalg import linear
from ..nn import init
from ..nn.dropout import Dropout
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.parameter import Parameter


class LoraLinear(Module):
    """A frozen linear layer, and beside it ``lora_B(lora_A(dropout(x))) * scaling``. See :func:`lora`.

    Attributes:
        base_layer: the frozen layer.
        lora_A, lora_B: (r, in) and (out, r); B begins as zeros, so that the layer begins as it was.
        lora_magnitude_vector: DoRA's: the norm of each row of the weight; ``None`` without DoRA.
        merged: the thin matrices have been added to the frozen weight.
    """

    def __init__(
        self, base: Linear, r: int, lora_alpha: float, lora_dropout: float, use_rslora: bool, use_dora: bool, kind: dtype
    ) -> None:
        super().__init__()
        where = base.weight.device
        self.base_layer = base
        self.lora_A = Linear(base.in_features, r, bias=False, device=where, dtype=kind)
        self.lora_B = Linear(r, base.out_features, bias=False, device=where, dtype=kind)
        init.zeros_(self.lora_B.weight)
        self.lora_dropout = Dropout(lora_dropout) if lora_dropout else None
        self.scaling = lora_alpha / (math.sqrt(r) if use_rslora else r)
        self.lora_magnitude_vector = None
        if use_dora:
            with no_grad():
                self.lora_magnitude_vector = Parameter(_norms(base.weight).to(kind))
        self.merged = False

    def forward(self, input: Tensor) -> Tensor:
        y = self.base_layer(input)
        if self.merged:
            return y
        x = input.to(self.lora_A.weight.dtype)
        dropped = x if self.lora_dropout is None else self.lora_dropout(x)
        beside = self.lora_B(self.lora_A(dropped)) * self.scaling
        if self.lora_magnitude_vector is None:
            return (y + beside).to(y.dtype)
        share = self._share()
        base = linear(dropped, self.base_layer.weight.to(dropped.dtype)) if self._drops() else self._without_bias(y)
        return (y + (share - 1) * base + share * beside).to(y.dtype)

    def _drops(self) -> bool:
        return self.lora_dropout is not None and self.training

    def _without_bias(self, y: Tensor) -> Tensor:
        return y if self.base_layer.bias is None else y - self.base_layer.bias

    def _share(self) -> Tensor:
        """DoRA's magnitudes over the norms of the rows of the present weight, which count as constants in backward."""
        assert self.lora_magnitude_vector is not None
        with no_grad():
            norms = _norms(self.base_layer.weight.to(self.lora_A.weight.dtype) + self._change())
        return self.lora_magnitude_vector / norms

    def _change(self) -> Tensor:
        """The product of the thin matrices, scaled: (out, in)."""
        return (self.lora_B.weight @ self.lora_A.weight) * self.scaling

    @no_grad()
    def merge(self) -> None:
        """Add the thin matrices to the frozen weight, in its dtype: the layer then costs what a linear layer costs.

        Memory: a matrix of the weight's size while it runs.
        """
        if self.merged:
            return
        weight = self.base_layer.weight
        if self.lora_magnitude_vector is None:
            weight.copy_(weight + self._change().to(weight.dtype))
        else:
            self._merged_share = self._share().unsqueeze(1)
            weight.copy_((self._merged_share * (weight + self._change())).to(weight.dtype))
        self.merged = True

    @no_grad()
    def unmerge(self) -> None:
        """Undo :meth:`merge`, up to rounding in the weight's dtype."""
        if not self.merged:
            return
        weight = self.base_layer.weight
        if self.lora_magnitude_vector is None:
            weight.copy_(weight - self._change().to(weight.dtype))
        else:
            weight.copy_((weight / self._merged_share - self._change()).to(weight.dtype))
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
        ArgumentError: no layer has such a name; a rank below 1 or above a layer's sizes; a dropout that is no probability.
        NotOfferedError: a target is not a linear layer.

    Source: Hu et al., *LoRA*, 2021; Kalajdzievski, *A rank stabilization scaling factor*, 2023; Liu et al., *DoRA*, 2024; Zhang
    et al., *LoRA-FA*, 2023.
    """
    found = dict(_targets(model, target_modules))
    for name, layer in found.items():
        if isinstance(r, bool) or not isinstance(r, int) or not 0 < r <= min(layer.in_features, layer.out_features):
            raise ArgumentError(
                f"lora: expected a rank r from 1 to {min(layer.in_features, layer.out_features)} for {name}, "
                f"{layer.in_features} -> {layer.out_features}, found {r!r}"
            )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, layer in found.items():
        above, _, last = name.rpartition(".")
        made = LoraLinear(layer, r, lora_alpha, lora_dropout, use_rslora, use_dora, dtype)
        made.train(layer.training)
        made.lora_A.requires_grad_(train_a)
        setattr(model.get_submodule(above), last, made)
    return model


def _targets(model: Module, names: Iterable[str] | str) -> Iterator[tuple[str, Linear]]:
    """The layers to change, with their paths."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    if names == "all-linear":
        yield from list(layers.items())[:-1]
        return
    wanted = (names,) if isinstance(names, str) else tuple(names)
    for end in wanted:
        matches = [name for name, _ in model.named_modules() if name == end or name.endswith(f".{end}")]
        if not matches:
            raise ArgumentError(f"lora: no module's path ends with {end!r}; linear layers are {', '.join(layers) or 'absent'}")
        for name in matches:
            if name not in layers:
                kind = type(model.get_submodule(name)).__name__
                raise NotOfferedError(f"lora: {name} is a {kind}: only layers of class Linear are offered")
    yield from ((name, layers[name]) for name in layers if name in wanted or name.endswith(tuple(f".{end}" for end in wanted)))


def _norms(weight: Tensor) -> Tensor:
    """The norm of each row."""
    return weight.norm(dim=1)
