"""Calls of PyTorch's Python functions that read values, or branch on them."""

from __future__ import annotations

import linecache
import operator
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...autograd.questions import assumed, prints, reader
from ...autograd.unknown import DECIDE, FINITE, Unknown
from ...errors import DataDependenceError
from ...interrupts import changed
from .arrays import TO_NUMPY, array
from .fake import on_gpu, without_modes
from .hugging_face import ALL_TOKENS
from .processes import SAME_SEED
from .unknown import UnknownNumber
from .watch import Watch

Tensor = torch.Tensor
_linalg: Any = torch.linalg
HANDLERS: dict[Any, Callable[..., Any]] = {}
"""What runs in place of a function, with :class:`~.watch.Watch` before its arguments."""
_NO_OVERFLOW = "GradScaler: gradients were assumed to be finite: no step is skipped, and the loss scale only grows"
_REDRAWN = (
    "nn.init.trunc_normal_ draws numbers outside of its bounds again: the usual number of times was assumed. While it draws "
    "once more, up to two more tensors of that size are in use"
)
_HALF = 0.5  # of the numbers that are drawn evenly are kept, about
_VECTORS = "was counted with its vectors, which it does not make without gradients: it needs less"
_COUNTED = "torch.bincount: the numbers were assumed to be below minlength. With a larger one the result is longer"
_AS_ARRAY = f"Write tensor.numpy() in its place. {TO_NUMPY}"
_AS_ITEM = f"Write tensor.item() in place of int(tensor): it may be logged, summed and divided. {DECIDE}"
_LBFGS = "torch/optim/lbfgs.py"
_PIPELINING = "torch/distributed/pipelining/schedules.py"
_AGREED = "torch.distributed.pipelining: all processes were assumed to give input_args and output_args, or none"
_GENERATE = "transformers/generation/utils.py"
_MODELS = "transformers/modeling_utils.py"
_MASKS = "transformers/masking_utils.py"
_ONE_SEQUENCE = (
    "transformers: position ids were assumed to be those of one sequence in each row. If several are packed into a "
    "row, a mask is made too, and another attention may run"
)
_PADDED = (
    "transformers: an attention mask was assumed to hide some tokens. Without such tokens no mask is made, and another "
    "attention may run"
)
_PARAMETRIZATIONS = "torch/nn/utils/parametrizations.py"
_ORTHOGONAL = "parametrizations.orthogonal: the weight was assumed not to be orthogonal before: it is made so"
_SYNC = "torch/nn/modules/_functions.py"
_FALLING = count(0, -1)  # losses: it would end where they stay
_ALIKE = "ctc_loss: concatenated targets were assumed to have one length. One that is longer than the others needs more"
_LENGTHS = "ctc_loss: all targets and inputs were assumed to have the longest length. A real run with shorter ones needs less"


def handles(*functions: Any, given: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: run the function instead of these. With ``given``, its first argument is the function that was called."""

    def add(handler: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS.update({function: partial(handler, function) if given else handler for function in functions})
        return handler

    return add


@handles(Tensor.__float__)
def _float(watch: Watch, tensor: Tensor) -> float:
    number = _item(watch, tensor)
    if isinstance(number, Unknown) and _asking()[0].endswith(_LBFGS):
        return float(next(_FALLING))
    return float(number)


@handles(Tensor.__format__)
def _format(watch: Watch, tensor: Tensor, spec: str) -> str:
    if tensor.dim() or not spec:
        return object.__format__(tensor, spec)
    return format(_item(watch, tensor), spec)


@handles(Tensor.item)
def _item(watch: Watch, tensor: Tensor) -> Any:
    known = _known(watch, tensor)
    if known is not None:
        if _asking()[1] == "GradScaler.get_scale":
            watch.note(_NO_OVERFLOW)
        with without_modes():
            return known.item()
    path, function, _ = _asking()
    if path.endswith("torch/amp/grad_scaler.py") and "_maybe_opt_step" in function:
        return 0.0  # gradients do not overflow
    if path.endswith("torch/optim/_adafactor.py"):
        return 1.0  # it clips by norms
    if path.endswith(_PIPELINING) and function.endswith("._warmup_p2p"):
        return _all_static(watch)
    kind = "b" if tensor.dtype is torch.bool else "c" if tensor.is_complex() else "f" if tensor.is_floating_point() else "i"
    return UnknownNumber.of(kind, watch)


def _all_static(watch: Watch) -> int:
    """1 if each stage of a pipeline is assumed to know its shapes, because this one does. Source: ``pipelining/stage.py``."""
    watch.note(_AGREED)
    stage, has_backward = _locals("stage", "has_backward")
    return int(not reader().f_globals["InferenceMode"].needs_dynamic(stage._user_meta, has_backward))


def _known(watch: Watch, tensor: Tensor) -> Tensor | None:
    """The tensor with its values, if they are known: it was made before the prediction, or from numbers of the program."""
    with torch._C.DisableTorchFunction():
        return watch.numbers.value(tensor)


def _asking() -> tuple[str, str, int]:
    """The file, function and line number that read a value."""
    frame = reader()
    return frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_qualname, frame.f_lineno


def _locals(*names: str) -> list[Any]:
    """Variables of the function that reads a value. Before Python 3.13 its frame keeps what it was asked for, tensors too."""
    values = reader().f_locals
    found = [values[name] for name in names]
    if isinstance(values, dict):
        values.clear()  # a copy
    return found


def _in_order(watch: Watch) -> bool | None:
    """The answer to PyTorch's own checks of values: in a prediction, values are valid."""
    path, function, line = _asking()
    if path.endswith("torch/nn/init.py"):
        return _left(watch)
    if path.endswith(_GENERATE) and function.endswith((".generate", "._get_logits_processor")):
        return False  # it looks for tokens that are padded on the right, or negative
    if path.endswith(_GENERATE) and function.endswith("._beam_search"):
        watch.note(ALL_TOKENS)
        made, most = _locals("cur_len", "max_length")
        return made < most  # not all have ended
    if path.endswith(SAME_SEED):
        return True
    if path.endswith(_MODELS) and function.endswith(".warn_if_padding_and_no_attention_mask"):
        return False
    if path.endswith(_MASKS):
        whole = function == "find_packed_sequence_indices"
        watch.note(_ONE_SEQUENCE if whole else _PADDED)
        return whole
    if path.endswith(_LBFGS):
        return _lbfgs_answer(linecache.getline(path, line))
    return True if "/torch/distributions/" in path else False if path.endswith("torch/nn/utils/clip_grad.py") else None


def _lbfgs_answer(line: str) -> bool:
    """The answer to a comparison in a line of ``LBFGS``: it makes all iterations, keeps each step, and scales the first step by
    the gradient. Source: ``torch/optim/lbfgs.py``."""
    return "ys >" in line or "min(" in line


def _left(watch: Watch) -> bool | None:
    """True if ``nn.init.trunc_normal_``, which redraws numbers outside of its bounds, usually has to redraw some again.

    ``None``: another function asks. Source: ``torch/nn/init.py``.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_no_grad_trunc_normal_":
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.replace("\\", "/").endswith("torch/nn/init.py"):
        return None
    values = frame.f_locals
    tensor, evenly = values["tensor"], "pending" in values
    first = "result" not in values or (not evenly and values["result"] is tensor)
    watch.draws = 1 if first else watch.draws + 1
    outside = _HALF if evenly else 1 - values["p"]
    if outside:
        watch.note(_REDRAWN)
    return tensor.numel() * outside**watch.draws >= 1


@handles(Tensor.add, Tensor.add_, torch.add, Tensor.sub, Tensor.sub_, torch.sub, given=True)
def _scaled(function: Callable[..., Any], watch: Watch, *args: Any, **kwargs: Any) -> Tensor:
    """A sum with ``alpha``, whose value does not change memory."""
    if isinstance(kwargs.get("alpha"), Tensor) and _known(watch, kwargs["alpha"]) is None:
        kwargs["alpha"] = 1
    return function(*args, **kwargs)


@handles(torch.nn.functional.one_hot)
def _one_hot(watch: Watch, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """``one_hot`` as for plain tensors: PyTorch compares fake tensors with all classes.

    Source: ``aten/src/ATen/native/Onehot.cpp``.
    """
    if not on_gpu(tensor):
        tensor.min()
        tensor.max()
    if num_classes == -1:
        num_classes = int(tensor.max()) + 1
    made = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return made.scatter_(-1, tensor.unsqueeze(-1), 1)


@handles(torch.nn.functional.ctc_loss)
def _ctc_loss(watch: Watch, log_probs: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Lengths decide how large its tables are. They are tensors here: PyTorch's C++ writes lists into memory.

    For a mean PyTorch divides by those of the targets, on the GPU.
    """
    given = dict(zip(("input_lengths", "target_lengths", "blank", "reduction", "zero_infinity"), args, strict=False)) | kwargs
    for name in ("input_lengths", "target_lengths"):
        if not isinstance(given[name], Tensor):
            given[name] = torch.tensor(given[name], dtype=torch.long, device="cpu")
    if given.get("reduction", "mean") == "mean":
        given["target_lengths"] = given["target_lengths"].to(log_probs.device)
    batch = given["target_lengths"].numel()
    if targets.dim() == 1 and batch:
        targets = _in_rows(watch, log_probs, targets, batch, _known(watch, given["target_lengths"]))
    table = log_probs.shape[0] * (2 * targets.shape[-1] + 1)
    watch.bound(batch * (16 + 2 * table * log_probs.element_size()), _LENGTHS)
    return torch.nn.functional.ctc_loss(log_probs, targets, **given)


def _in_rows(watch: Watch, log_probs: Tensor, targets: Tensor, batch: int, lengths: Tensor | None) -> Tensor:
    """Concatenated targets as a row for each sequence: its tables are as wide as the longest."""
    with without_modes():
        longest = targets.numel() // batch if lengths is None else int(lengths.max())
    if lengths is None:
        more = 2 * (targets.numel() - longest)
        watch.bound(2 * batch * log_probs.shape[0] * more * log_probs.element_size(), _ALIKE)
    return targets.as_strided((batch, longest), (0, 1))


@handles(torch.nn.functional.gaussian_nll_loss, torch.corrcoef, Tensor.corrcoef, torch.istft, Tensor.istft, given=True)
def _without_alarm(function: Callable[..., Any], watch: Watch, *args: Any, **kwargs: Any) -> Any:
    """Run a function in which PyTorch itself checks values: in a prediction, they are valid."""
    with changed(watch, alarms=False):
        return function(*args, **kwargs)


@handles(torch.cov, Tensor.cov)
def _cov(watch: Watch, tensor: Tensor, **options: Any) -> Tensor:
    """``cov`` reads the values of weights. Without weights it only checks that there are enough numbers."""
    weighted = any(isinstance(value, Tensor) for value in options.values())
    return torch.cov(tensor, **options) if weighted else _without_alarm(torch.cov, watch, tensor, **options)


@handles(_linalg.svdvals, _linalg.eigvalsh, _linalg.matrix_rank, _linalg.cond, _linalg.matrix_norm, _linalg.norm, given=True)
def _without_vectors(function: Callable[..., Any], watch: Watch, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A function that asks PyTorch for singular values alone, and gets the vectors too for tensors of a prediction."""
    if watch.device.type == "cpu" and not (tensor.requires_grad and torch.is_grad_enabled()):
        sides = [2 * side * side for side in tensor.shape[-2:]]
        matrices = tensor.shape[:-2].numel()
        watch.bound(matrices * sum(sides) * tensor.element_size(), f"{function.__name__} {_VECTORS}")
    return function(tensor, *args, **kwargs)


@handles(torch.isclose, Tensor.isclose)
def _is_close(watch: Watch, *args: Any, **kwargs: Any) -> Tensor:
    """``isclose``, which joins masks in place, but not for tensors of a prediction. Source: ``TensorCompare.cpp``."""
    made = torch.isclose(*args, **kwargs)
    watch.bound(
        2 * watch.in_blocks(made.numel()),
        "torch.isclose was counted with a new mask for each step. It joins masks in place, and needs less",
    )
    return made


@handles(torch.isnan, Tensor.isnan, torch.isinf, Tensor.isinf, torch.isfinite, Tensor.isfinite, given=True)
def _is_finite(function: Callable[..., Any], watch: Watch, tensor: Tensor) -> Tensor:
    """Answer that an unknown value is finite: programs stop, or skip a step, if a loss is nan."""
    made = function(tensor)
    if isinstance(made, FakeTensor) and _known(watch, made) is None:
        watch.numbers.asked_if_finite(made, function.__name__ == "isfinite")
        _answer_if_finite(watch, made, made)
    return made


@handles(torch.any, Tensor.any, torch.all, Tensor.all, given=True)
def _any_or_all(function: Callable[..., Any], watch: Watch, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``any`` and ``all`` of what :func:`_is_finite` has made."""
    made = function(tensor, *args, **kwargs)
    _answer_if_finite(watch, tensor, made)
    return made


def _answer_if_finite(watch: Watch, mask: Tensor, made: Any) -> None:
    answer = watch.numbers.finite(mask)
    if answer is not None and made.numel() == 1 and _known(watch, made) is None:
        watch.note(FINITE)
        with without_modes():
            real = torch.full(made.shape, answer, device="cpu")
        watch.numbers.set(made, real)


@handles(Tensor.ge)
def _at_least(watch: Watch, tensor: Tensor, other: Any) -> Tensor:
    """``>=``. ``SyncBatchNorm`` leaves out processes whose batch is empty: in a prediction, none is."""
    made = tensor >= other
    if isinstance(made, FakeTensor) and _asking()[0].endswith(_SYNC):
        with without_modes():
            real = torch.ones(made.shape, dtype=torch.bool, device="cpu")
        watch.numbers.set(made, real)
    return made


@handles(torch.allclose)
def _all_close(watch: Watch, left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> bool:
    """``allclose``: ``parametrizations.orthogonal`` asks it whether a weight is orthogonal already."""
    if not _asking()[0].endswith(_PARAMETRIZATIONS) or _known(watch, left) is not None:
        return torch.allclose(left, right, *args, **kwargs)
    _is_close(watch, left, right, *args, **kwargs).all()
    watch.note(_ORTHOGONAL)
    return False


@handles(Tensor.max, given=True)
def _max(function: Callable[..., Any], watch: Watch, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``max``: beam search asks it how many tokens were made."""
    made = function(tensor, *args, **kwargs)
    if isinstance(made, FakeTensor) and _asking()[1].endswith("._beam_search"):
        most, given = _locals("max_length", "decoder_prompt_len")
        with without_modes():
            real = torch.tensor(most - given, device="cpu")
        watch.numbers.set(made, real)
    return made


@handles(torch.bincount, Tensor.bincount)
def _bincount(watch: Watch, *args: Any, **kwargs: Any) -> Tensor:
    """``bincount``: with ``minlength``, as in a confusion matrix, the numbers are usually below it."""
    watch.note(_COUNTED)
    return torch.bincount(*args, **kwargs)


def _decides(what: str, convert: Callable[[Tensor], Any], watch: Watch, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    known = _known(watch, tensor)
    if known is None:
        answer = _in_order(watch) if what == "the truth" else None
        if answer is not None:
            return answer
        if what == "the truth" and (found := assumed(reader())) is not None:
            answer, why = found
            watch.note(f"{watch.places.line()}: {why}")
            return answer
        if convert is int and prints(reader()):
            return 1
        raise DataDependenceError(
            f"the program asks for {what} of a tensor, whose values are not known in a prediction. "
            f"{_AS_ARRAY if convert is Tensor.numpy else _AS_ITEM if convert is int else 'It may log loss.item(). ' + DECIDE}"
        )
    with without_modes():
        return convert(known)


@handles(Tensor.numpy)
def _numpy(watch: Watch, tensor: Tensor, *, force: bool = False) -> Any:
    tensor = tensor.detach().cpu() if force else tensor
    known = _known(watch, tensor)
    if known is None:
        return array(watch, tensor)
    with without_modes():
        return known.numpy()


@handles(Tensor.__contains__)
def _contains(watch: Watch, tensor: Tensor, element: Any) -> bool:
    """Source: ``torch/_tensor.py``."""
    return _decides("the truth", bool, watch, torch.eq(tensor, element).any())


for _function, _what, _convert in (
    (Tensor.__bool__, "the truth", bool),
    (Tensor.__int__, "a whole number", int),
    (Tensor.__index__, "an index", operator.index),
    (Tensor.tolist, "tolist()", Tensor.tolist),
    (Tensor.__array__, "a NumPy array", Tensor.numpy),
):
    HANDLERS[_function] = partial(_decides, _what, _convert)
