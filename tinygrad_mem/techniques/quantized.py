"""Frozen weights in 4 or 8 bits: linear layers whose weight is codes, and exists in full only while it is multiplied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from ..autograd.tensor import Tensor
from ..dtypes import float32
from ..errors import ArgumentError, GraphError, NotOfferedError
from ..functional.quantize import Codes, dequantize_blocks, quantize_blocks, quantized_linear
from ..nn.hooks import hooked
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.parameter import Parameter

BLOCK = 64
"""How many weights share a scale in NF4: the paper's number."""
LONGEST = 1 << 16
"""The longest row that int8 takes, which has one scale."""


class QuantizedLinear(Module):
    """A linear layer whose frozen weight is codes: (..., in_features) -> (..., out_features). See :func:`quantize_frozen`.

    Saves nothing of its own: its input is not needed in backward, and the codes are there anyway.

    Attributes:
        codes, absmax: the weight's codes, and the scale of each block.
        nested, offset: with double quantization, the scales of ``absmax`` and its mean; else ``None``.
        bias: the layer's own, frozen; or ``None``.
    """

    _no_cast = (
        "its weight is quantized. Cast the model first, and quantize it then; dequantized() returns the weight in a dtype"
    )

    def __init__(self, base: Linear, quant_type: str, double_quantization: bool) -> None:
        super().__init__()
        self.in_features, self.out_features, self.quant_type = base.in_features, base.out_features, quant_type
        self.block = max(self.in_features, 1) if quant_type == "int8" else BLOCK
        made = quantize_blocks(base.weight.detach(), quant_type, self.block, double_quantization)
        for name in ("codes", "absmax", "nested", "offset"):
            part = getattr(made, name)
            self.register_parameter(name, None if part is None else Parameter(part, requires_grad=False))
        self.register_parameter("bias", base.bias)

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input, self.bias)

    def product(self, input: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product with the weight, and ``bias`` added to it.

        Raises:
            GraphError: a scale requires a gradient.
        """
        whole = self._all_codes()
        if any(p is not None and p.requires_grad for p in (whole.absmax, whole.nested, whole.offset)):
            raise GraphError(
                f"a weight in {self.quant_type} is frozen, and its scales cannot be trained: requires_grad_(False) them, and "
                "train matrices beside it, with techniques.lora"
            )
        return quantized_linear(input, whole, bias)

    def dequantized(self, dtype: np.dtype = float32) -> Tensor:
        """A new tensor (out_features, in_features) with the weight that the layer multiplies by, in ``dtype``."""
        return dequantize_blocks(self._all_codes(), dtype)

    @property
    def weight(self) -> NoReturn:
        """Not there. Raises: NotOfferedError: always."""
        raise NotOfferedError(
            f"this layer's weight is in {self.quant_type} and cannot be read or written: dequantized() returns a copy; "
            "to change it, change the linear layer and quantize that"
        )

    def _all_codes(self) -> Codes:
        shape = self.out_features, self.in_features
        return Codes(self.codes, self.absmax, self.nested, self.offset, self.quant_type, self.block, shape)

    def extra_repr(self) -> str:
        more = f", quant_type={self.quant_type}, double_quantization={self.nested is not None}"
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}{more}"


def quantize_frozen(
    model: Module,
    quant_type: str = "nf4",
    double_quantization: bool | None = None,
    target_modules: Iterable[str] | str = "all-linear",
) -> Module:
    """Freeze ``model``, and keep the weights of its linear layers in 4 or 8 bits. In place; returns the model.

    With :func:`~tinygrad_mem.techniques.lora` after it this is QLoRA.

    Args:
        quant_type: ``"nf4"``: 4 bits; blocks of 64 weights in C order are divided by their largest absolute value, and rounded
            to the nearest of the 16 numbers of NF4. ``"int8"``: 8 bits; each row is divided by its largest absolute value, and
            rounded to one of 255 even steps. (This is how LLM.int8() stores weights. It also multiplies in int8, and separates
            outliers of the input; here products are in the input's dtype.)
        double_quantization: of NF4: keep the blocks' scales, less their mean, in 8 bits, in blocks of 256. By default it is on
            for NF4. int8 has one scale a row and does not have it.
        target_modules: the last parts of the paths of the layers; ``"all-linear"``: all layers of class Linear but the last,
            which is the model's output. Embeddings, norms, biases and the stacked matrices of experts stay as they are, as they
            do with bitsandbytes under transformers 5: of Mixtral 8x7B 45.1 of 46.7 billion weights.

    Memory:
        NF4: ``n / 2 + 4 * ceil(n / 64)`` bytes for n weights, 0.5625 each. With double quantization ``n / 2 + ceil(n / 64) +
        4 * ceil(n / 64 / 256) + 4`` bytes, 0.5159 each. int8: ``n + 4 * out_features``. Gradients and optimizer state of the
        frozen weights go, activations stay (see ``lora``). While a layer multiplies, in forward and again in backward, its
        weight exists in the input's dtype too. While this runs, one layer exists in both forms.
    Price:
        Each product dequantizes its weight: a pass over it. The weights are rounded: the model computes other numbers.
    Do not use when:
        The weights are to be trained: they cannot. Or activations take the memory.

    Raises:
        ArgumentError: an unknown ``quant_type``; no layer has such a name; a weight that two modules share; a layer with hooks;
            the model has LoRA already; a row too long for int8; the model is divided among ranks already, or has hooks on
            gradients, as DistributedDataParallel sets them: quantize first.
        NotOfferedError: a target is not a layer of class Linear; double quantization of int8.

    Source: Dettmers, Pagnoni, Holtzman and Zettlemoyer, *QLoRA*, 2023; Dettmers, Lewis, Belkada and Zettlemoyer, *LLM.int8()*,
    2022.
    """
    if quant_type not in ("nf4", "int8"):
        raise ArgumentError(f"quantize_frozen: quant_type is 'nf4' or 'int8', found {quant_type!r}")
    if quant_type == "int8" and double_quantization:
        raise NotOfferedError("quantize_frozen: int8 has one scale a row: double_quantization is for nf4")
    refuse_parallel("quantize_frozen", model)
    found = dict(linear_layers("quantize_frozen", model, target_modules, exactly=True))
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, layer in found.items():
        if "lora_A" in name.split(".") or "lora_B" in name.split("."):
            raise ArgumentError(f"quantize_frozen: {name} is LoRA's: quantize the model first, and add LoRA then")
        if uses[id(layer.weight)] > 1:
            raise ArgumentError(
                f"quantize_frozen: the weight of {name} is another module's too: leave it out of target_modules"
            )
        if hooked(layer):
            raise ArgumentError(f"quantize_frozen: {name} has hooks, which a quantized layer would not have: remove them first")
        if quant_type == "int8" and layer.in_features > LONGEST:
            raise ArgumentError(f"quantize_frozen: {name} has rows of {layer.in_features}, int8 takes up to {LONGEST}: use nf4")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name in list(found):
        layer = found.pop(name)  # so that its weight is freed before the next one is quantized
        made = QuantizedLinear(layer, quant_type, quant_type == "nf4" and double_quantization is not False)
        model.set_submodule(name, made.train(layer.training))
        del layer
    return model


def refuse_parallel(who: str, model: Module) -> None:
    """Refuse a model over several ranks, which would not know of what is put into it."""
    for name, p in model.named_parameters():
        if p._shard is not None:
            raise ArgumentError(f"{who}: {name} is divided among ranks: call {who} first, and fully_shard then")
        if p._post_accumulate:
            raise ArgumentError(
                f"{who}: {name} has a hook on its gradient, as DistributedDataParallel and optimizer_in_backward set it, and "
                f"what {who} puts into the model would have none: call {who} first"
            )


def linear_layers(who: str, model: Module, names: Iterable[str] | str, exactly: bool = False) -> Iterator[tuple[str, Any]]:
    """The linear layers to change, with their paths: quantized ones too, or ``exactly`` those of class Linear."""
    kinds = (Linear, QuantizedLinear)
    modules = model.named_modules()
    every = {name: each for name, each in modules if (type(each) is Linear if exactly else isinstance(each, kinds))}
    if names == "all-linear":
        if len(every) < 2:
            only = (
                f"one linear layer, {next(iter(every)) or 'itself'}, which is taken for its output"
                if every
                else "no linear layer"
            )
            raise ArgumentError(f"{who}: the model has {only}: nothing is left to change; name layers in target_modules")
        yield from list(every.items())[:-1]
        return
    chosen: set[str] = set()
    for end in (names,) if isinstance(names, str) else tuple(names):
        matches = [name for name, _ in model.named_modules() if name == end or name.endswith(f".{end}")]
        if not matches:
            raise ArgumentError(f"{who}: no module's path ends with {end!r}; linear layers are {', '.join(every) or 'absent'}")
        for name in matches:
            if name not in every:
                kind = type(model.get_submodule(name)).__name__
                raise NotOfferedError(f"{who}: {name} is a {kind}: only layers of class Linear are offered")
        chosen.update(matches)
    yield from ((name, layer) for name, layer in every.items() if name in chosen)
