"""Memory that depends on values, which a prediction does not have: contents with which ops run alone, bounds of nodes, and
products, whose gradients go a short way where no number is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from .dispatcher import operators
from .fake import without_modes

aten = torch.ops.aten
_below_autograd: Any = torch._C._AutoDispatchBelowAutograd  # type: ignore[attr-defined]
_MATRICES = ("linalg_", "_linalg_", "cholesky", "lu_", "triangular_solve", "ormqr", "geqrf")
_LARGE = 1e3
_BAGS = {"_embedding_bag_dense_backward": 3, "_embedding_bag_backward": 4}  # and the place of the bags' sizes
_LOSSES = {"_ctc_loss": 0, "_ctc_loss_backward": 1}  # and the place of its first argument


def fill(func: Any, tensors: list[torch.Tensor], most: bool) -> None:
    """Write contents that the op accepts to its arguments, in place of zeros.

    Args:
        most: fill with values for which the op takes the most memory; else with those for the least.
    """
    name = func._schema.name.removeprefix("aten::")
    if func in _PUTS:
        return  # see :func:`choose`
    if name.startswith(_MATRICES):
        for tensor in tensors:
            _regular(tensor, _LARGE if most else 1, name.endswith(("_solve", "lu_unpack")))
    elif name == "multinomial":
        tensors[0].fill_(1)
    elif name in _BAGS:
        tensors[_BAGS[name]].fill_(int(most))  # no bag is empty
    elif name == "_fused_moving_avg_obs_fq_helper":
        tensors[1].fill_(1)  # the observer is on,
        tensors[2].fill_(1)  # and so is the fake quantization
    elif name in _LOSSES:
        log_probs, targets, inputs, lengths = tensors[_LOSSES[name] :][:4]
        inputs.fill_(log_probs.shape[0])
        lengths.fill_(targets.shape[-1])
    elif most:
        for tensor in tensors:  # distinct numbers, and masks that choose everything
            if tensor.dtype is torch.bool:
                tensor.fill_(True)
            else:
                apart = tensor[tuple(slice(None) if step else slice(1) for step in tensor.stride())]  # an expanded one repeats
                apart.copy_(torch.arange(apart.numel()).reshape(apart.shape))


def _regular(tensor: torch.Tensor, diagonal: float, pivots: bool) -> None:
    """Write a regular matrix, with numbers on its diagonal; write 1 as pivots."""
    if pivots and tensor.dtype is torch.int32:
        tensor.fill_(1)
    elif tensor.dim() > 1 and tensor.is_floating_point():
        tensor.diagonal(dim1=-2, dim2=-1).fill_(diagonal)


def made_by_forward(func: Any, args: list[Any]) -> None:
    """Replace arguments that only another op can make, such as packed weights, by what that op makes from the others.

    Source: ``derivatives.yaml``, ``mkldnn_rnn_layer``: only oneDNN's backward can read the contents of its workspace, and
    made-up contents end the process.
    """
    if func is aten.mkldnn_rnn_layer_backward.default:
        x, w1, w2, w3, w4, hx, cx = args[:7]
        reverse, mode, hidden, layers, biases, train, bidirectional, sizes, batch_first = args[13:22]
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():  # without grad mode, there is no workspace
            made = aten.mkldnn_rnn_layer.default(
                x, w1, w2, w3, w4, hx, cx, reverse, sizes, mode, hidden, layers, biases, bidirectional, batch_first, train
            )
        args[7], args[8], args[9], args[22] = made


ALL_CHOSEN = "how many elements a mask chooses, or how many differ, is not known: all were counted. With fewer, less is needed"
_MOST = 1 << 27  # bytes of a real result
_DIFFERENT = {*operators("_unique _unique2 unique_dim unique_consecutive")}
_CHOSEN = {*operators("nonzero masked_select")}


def longest(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """A real call with the longest result that values can make: all elements are chosen, or all differ.

    ``None``: only values say how long it is, or this machine should not make it.
    """
    if func not in _CHOSEN and func not in _DIFFERENT:
        return None
    given, *others = args
    shape = torch.broadcast_shapes(given.shape, others[0].shape) if func is aten.masked_select.default else given.shape
    narrow = func is aten.unique_dim.default and given.dtype.itemsize == 1  # their rows are many, their numbers few
    if narrow or shape.numel() * max(8 * given.dim(), given.element_size()) > _MOST:
        return None
    with without_modes():
        if func in _DIFFERENT:
            return [_different(shape.numel(), given.dtype).reshape(shape), *others], kwargs
        all_of_them = torch.ones((), dtype=torch.bool)
        if func is aten.masked_select.default:
            return [torch.zeros((), dtype=given.dtype).expand(given.shape), all_of_them.expand(others[0].shape)], kwargs
        return [all_of_them.expand(shape)], kwargs


def _different(count: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.full((count,), torch.nan, dtype=dtype)  # which differs from itself
    return (torch.arange(count) % (2 if dtype is torch.bool else count + 1)).to(dtype)


_DEPENDENT = {
    *operators("isin.Tensor_Tensor linalg_matrix_exp masked_scatter_backward nonzero_static"),
    *operators("_embedding_bag_backward _embedding_bag_dense_backward"),
}
_PUTS = {*operators("index_put index_put_ _index_put_impl_ _unsafe_index_put")}


def depends(func: Any, args: tuple) -> bool:
    """True if the op's temporaries on the CPU depend on values: it runs alone twice."""
    return func in _DEPENDENT or (func in _PUTS and any(map(is_mask, args[1])))


def is_mask(index: Any) -> bool:
    """True for an index that chooses places by True and False."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def fit(func: Any, args: list[Any], named: dict[str, Any]) -> None:
    """Choose lengths that add up to the size that they divide or make."""
    if func is aten.repeat_interleave.Tensor and named.get("output_size") and args[0].numel():
        args[0][0] = named["output_size"]
    elif func is aten.segment_reduce.default and named.get("lengths") is not None:
        lengths = named["lengths"]
        lengths[..., :1] = args[0].shape[lengths.dim() - 1]


def choose(func: Any, args: list[Any], most: bool) -> None:
    """Set as many elements of a mask to True as there are values to put there; all or none, if any number fits."""
    if func not in _PUTS or not any(map(is_mask, args[1])):
        return
    target, indices, values = args[:3]
    given = [place for place, index in enumerate(indices) if index is not None]
    taken = [index.dim() if is_mask(index) else 1 for index in indices]  # axes of the target
    beside = given[-1] - given[0] + 1 == len(given)
    inner = target.dim() - sum(taken[: given[-1] + 1] if beside else [taken[place] for place in given])
    shapes = [values.shape[: max(0, values.dim() - inner)]]
    shapes += [indices[place].shape for place in given if not is_mask(indices[place])]
    fixed = [shape[-1] for shape in shapes if shape and shape[-1] != 1]
    for mask in [index for index in indices if is_mask(index)]:
        chosen = torch.arange(mask.numel()) < (fixed[0] if fixed else most * mask.numel())
        mask.copy_(chosen.view(mask.shape))


# --- nodes of the graph ---------------------------------------------------------------------------------------------------


def _of_self(times: int) -> Callable[[Any], int]:
    return lambda node: times * _bytes(node._saved_self)


def zeros_bytes(tensor: torch.Tensor) -> int:
    """The bytes that zeros add to the gradient of a product: copies of the input, and indices that masks select."""
    return 8 * _bytes(tensor) + (8 * tensor.dim() + 8) * tensor.numel() + (1 << 16)


def _bytes(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // 512) * 512  # of a block


def _of_mask(node: Any) -> int:
    return 24 * node._saved_mask.numel() + _blocks(node._saved_mask, 8) if _second_needed(node) else 0


def _of_targets(node: Any) -> int:
    if not _second_needed(node) or node._saved_pos_weight is None:
        return 0
    return 2 * _bytes(node._saved_self) + _blocks(node._saved_self, 4)


def _blocks(tensor: torch.Tensor, count: int) -> int:
    """The most that a GPU's allocator adds to ``count`` blocks, which are multiples of 512 bytes."""
    return 512 * count if tensor.device.type == "cuda" else 0


def _second_needed(node: Any) -> bool:
    return len(node.next_functions) > 1 and node.next_functions[1][0] is not None


_ZEROS = "was counted for numbers with zeros among them. Without zeros it needs less"
NO_ZEROS = "was counted for numbers without zeros. With zeros it needs more"
_PLAIN = "runs other code for tensors of a prediction than for real ones"
_PRODUCTS = ("ProdBackward0", "ProdBackward1")  # on a GPU those of ``torch.func``: see :func:`products`
NODES: dict[str, tuple[Callable[[Any], int], str]] = {
    **dict.fromkeys(_PRODUCTS, (lambda node: zeros_bytes(node._saved_self), _ZEROS)),
    "CumprodBackward0": (lambda node: zeros_bytes(node._saved_self), NO_ZEROS),
    "MaskedFillBackward1": (_of_mask, "finds the indices of the mask, whose number depends on values"),
    "RenormBackward0": (lambda node: 8 * _bytes(node._saved_self) + 4096, _PLAIN),  # in float64
    "BinaryCrossEntropyWithLogitsBackward0": (_of_targets, _PLAIN),
    **dict.fromkeys(("LinalgHouseholderProductBackward0", "OrmqrBackward0"), (lambda node: 4 * _largest(node), _PLAIN)),
}
"""Name of a node -> the bytes that its backward may take more, or less, and why. Source: ``FunctionsManual.cpp``."""
ON_THE_CPU = {
    **NODES,
    **dict.fromkeys((*_PRODUCTS, "CumprodBackward0"), (_of_self(8), _ZEROS)),
    **dict.fromkeys(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"), (_of_self(1), _PLAIN)),
}


def _largest(node: Any) -> int:
    saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
    return max(_bytes(each) for each in saved if isinstance(each, torch.Tensor))


# --- products; source: ``torch/csrc/autograd/FunctionsManual.cpp``, ``prod_backward`` ------------------------------------


def products(bound: Callable[[int, str], None], count: Callable[..., None]) -> dict[str, Callable[..., Any]]:
    """The ops by name. With tensors of a prediction, PyTorch's run the code for zeros; these run the other, and give a bound.

    Args:
        bound: called with the bytes by which a gradient may take more.
        count: counts what an op without a shape asks for: the op, its arguments, and its results.
    """

    return {
        "prod": partial(_product, bound, aten.prod.default, partial(_of_all, count)),
        "prod.dim_int": partial(_product, bound, aten.prod.dim_int, _of_an_axis),
    }


def _product(
    bound: Callable[[int, str], None], op: Any, backward: Any, input: torch.Tensor, *args: Any, dtype: torch.dtype | None = None
) -> Any:
    if type(input) is torch.Tensor or forward_ad._current_level >= 0:
        return NotImplemented  # of ``torch.func``
    run = partial(op, dtype=dtype) if dtype is not None else op
    if not (input.requires_grad and torch.is_grad_enabled()):
        with _below_autograd():
            return run(input, *args)
    bound(zeros_bytes(input), f"the gradient of prod {NO_ZEROS}")
    return _Product.apply(run, backward, input, *args)


class _Product(torch.autograd.Function):
    """Saved: the input and the result."""

    @staticmethod
    def forward(ctx: Any, run: Any, backward: Any, input: torch.Tensor, *args: Any) -> torch.Tensor:
        with _below_autograd():
            result = run(input, *args)
        ctx.formula, ctx.args = backward, args
        ctx.save_for_backward(input, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:  # type: ignore[override]
        input, result = ctx.saved_tensors
        return None, None, ctx.formula(grad, input, result, *ctx.args), *[None] * len(ctx.args)


def _of_all(count: Callable[..., None], grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if input.dim() == 0:
        return grad.clone()
    zeros = input.to(grad.dtype) == 0
    count(aten.nonzero.default, (zeros,), {}, zeros.new_empty((0, input.dim()), dtype=torch.int64))
    del zeros
    return grad * (result / input)


def _of_an_axis(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    if input.dim() == 0:
        return grad.clone()
    if not keepdim and input.dim() != 1:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    zeros = input == 0
    counts = zeros.sum(dim, True)
    counts.sum()
    made = grad * (result / input)
    del counts, zeros
    return made
