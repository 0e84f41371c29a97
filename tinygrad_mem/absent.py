"""The answers for PyTorch's names that are not offered: about 100, and one sentence for all other names.

A module of the public interface ends with ``__getattr__ = absent.refuses("its.place")``; ``stand_ins.install`` gives it to a
stand-in. Code in an answer is between backticks; a test checks that each name in it exists, and computes the formulas.
"""

from __future__ import annotations

import dis
import inspect
import sys
import warnings
from collections.abc import Callable

_ALL = "*"
"""Matches every other name of a place."""
_DENSE = "tensors are dense: use a dense one, or `zeros(n).index_put((rows,), values)`"
_DEVICES = "devices are cpu, cuda and meta; `tensor.to(device)` moves between them"
_INTEGERS = "there are no quantized numbers: train the network as it is, or use `module.half()`"
_LINALG = "use `numpy.linalg` on `tensor.detach().numpy()`; products, norm and trace are offered"
_MARGIN = "write `(margin - x.gather(1, t) + x).clamp(min=0)`"
_ONE_PROCESS = "one process computes here: leave it out"
_REAL = "tensors are real: keep real and imaginary parts as two tensors"
_ROTARY = (
    "tensors are real; for rotary embeddings turn pairs of numbers by an angle: `a, b = x[..., 0::2], x[..., 1::2]`; "
    "`stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)`, where cos and sin are those of the angles"
)
_SPECIAL = "use `scipy.special` on `tensor.detach().numpy()`"
_WRITTEN = "leave it out: operations run as they are written"
_FLEX = "use `nn.functional.scaled_dot_product_attention` with a mask"

_ANSWERS: dict[str, list[tuple[str, str]]] = {
    "": [
        ("complex real imag conj angle", _REAL),
        ("view_as_complex view_as_real polar", _ROTARY),
        ("sparse nested masked sparse_coo_tensor sparse_csr_tensor", _DENSE),
        ("spmm", "use `mm`: tensors are dense, and a product with a dense matrix is the same"),
        ("quantize_per_tensor quantize_per_channel dequantize qint8 quint8", _INTEGERS),
        ("stft istft", "use `numpy.fft` on `tensor.detach().numpy()`; for gradients write products with matrices"),
        ("cholesky det inverse lstsq lu matrix_exp matrix_power matrix_rank pinverse qr slogdet svd", _LINALG),
        ("digamma lgamma polygamma i0", _SPECIAL),
        ("vmap", "write the batch as a dimension: operations broadcast"),
        ("export cond while_loop", _WRITTEN),
        ("set_num_threads get_num_threads", "set OMP_NUM_THREADS and TINYGRAD_MEM_THREADS before Python starts"),
        ("use_deterministic_algorithms are_deterministic_algorithms_enabled", "leave it out: the same seed gives the same run"),
        ("set_printoptions", "print `tensor.numpy()`; `numpy.set_printoptions` says how"),
        ("random default_generator", "use `manual_seed`, `get_rng_state`, `set_rng_state` and `Generator`"),
        ("testing", "use `numpy.testing.assert_allclose` on `tensor.numpy()`"),
        ("mps xpu mtia", _DEVICES),
        ("profiler", "`memory.track` says where memory goes, by op and by line"),
        ("layout memory_format", "leave it out: tensors are dense"),
        ("Storage UntypedStorage TypedStorage", "use `tensor.nbytes` and `tensor.data_ptr()`: a tensor's memory is its array"),
        ("GradScaler", "use `amp.GradScaler`"),
        ("ctc_loss", "use `nn.functional.ctc_loss`"),
        ("hann_window hamming_window blackman_window kaiser_window", "use `numpy.hanning` or another window of NumPy's"),
        ("aminmax", "use `amin` and `amax`"),
        ("asarray", "use `as_tensor` or `from_numpy`"),
        ("frombuffer", "use `from_numpy(numpy.frombuffer(buffer))`"),
        ("broadcast_shapes", "use `numpy.broadcast_shapes`"),
        ("can_cast result_type", "use `promote_types`"),
        ("poisson binomial", "use `numpy.random.Generator`, through `from_numpy`"),
        ("dist", "write `(a - b).norm()`"),
        ("copysign", "write `abs(a) * where(b < 0, -1.0, 1.0)`"),
        ("cov", "write `(x - x.mean(1, True)) @ (x - x.mean(1, True)).t() / (x.size(1) - 1)`"),
        ("cross", "write `a.roll(-1, d) * b.roll(-2, d) - a.roll(-2, d) * b.roll(-1, d)`"),
        ("deg2rad", "write `x * (pi / 180)`"),
        ("rad2deg", "write `x * (180 / pi)`"),
        ("gradient", "use `diff`"),
        ("histogram", "use `histc`"),
        ("hypot", "write `sqrt(a * a + b * b)`"),
        ("kthvalue", "use `sort`, and take one rank of its values and indices"),
        ("logaddexp", "write `logsumexp(stack((a, b)), 0)`"),
        ("logit", "write `log(x / (1 - x))`"),
        ("range", "use `arange`, whose end is left out"),
        ("sinc", "write `where(x == 0, 1.0, sin(pi * x) / (pi * x))`"),
        ("vander", "write `x[:, None] ** arange(n)` and flip it"),
        ("to_dlpack", "use `utils.dlpack.to_dlpack`"),
    ],
    "Tensor": [
        ("apply_ map_", "write the operation on the whole tensor"),
        ("coalesce indices values to_padded_tensor to_sparse", _DENSE),
        ("new", "use `tensor.new_empty(2)` or `tensor.new_tensor(data)`"),
        ("share_memory_ is_shared", _ONE_PROCESS),
        ("record_stream", "leave it out: all work is on one stream"),
        ("untyped_storage", "use `tensor.nbytes` and `tensor.data_ptr()`: a tensor's memory is its array"),
        ("set_", "assign `tensor.data`"),
        ("is_nonzero", "use `bool(tensor)`"),
    ],
    "nn": [
        ("AdaptiveLogSoftmaxWithLoss", "use `nn.CrossEntropyLoss`, or `nn.functional.linear_cross_entropy` for many classes"),
        ("FractionalMaxPool2d FractionalMaxPool3d", "use `nn.AdaptiveMaxPool2d`, whose windows are regular"),
        ("MultiLabelMarginLoss MultiMarginLoss", _MARGIN),
        ("MultiLabelSoftMarginLoss", "use `nn.BCEWithLogitsLoss`, which averages over the classes as well"),
        ("qat quantizable intrinsic", _INTEGERS),
    ],
    "nn.functional": [
        ("multi_margin_loss multilabel_margin_loss", _MARGIN),
        ("multilabel_soft_margin_loss", "use `nn.functional.binary_cross_entropy_with_logits`, over classes too"),
        ("upsample_nearest upsample_bilinear", "use `nn.functional.interpolate` with a mode"),
    ],
    "nn.utils": [
        ("clip_grad_norm", "use `nn.utils.clip_grad_norm_`"),
        ("skip_init", "build the layer under `device('meta')`, and call its to_empty()"),
    ],
    "optim": [
        ("ASGD swa_utils", "average the state_dict()s of several epochs yourself"),
        ("Rprop", "use `optim.RMSprop`"),
    ],
    "utils.data": [("IterDataPipe MapDataPipe datapipes", "use `utils.data.Dataset` or `utils.data.IterableDataset`")],
    "autograd": [
        ("detect_anomaly set_detect_anomaly", "`autograd.gradcheck` finds wrong gradients"),
        ("forward_ad", "use `tensor.backward()`"),
        ("functional", "call `autograd.grad` for each output"),
        ("profiler", "`memory.track` says where memory goes, by op and by line"),
    ],
    "accelerator": [(_ALL, "ask `cuda`, or `memory.track` for bytes")],
    "ao.quantization": [(_ALL, _INTEGERS)],
    "compiler": [(_ALL, _WRITTEN)],
    "cuda": [
        ("device", "name it: `zeros(2, device='cuda:1')`"),
        (_ALL, "leave it out; `cuda.is_available` and `cuda.memory_allocated` are offered, and `memory.track`"),
    ],
    "cuda.memory": [(_ALL, "use `memory.track`; its save() writes PyTorch's snapshots")],
    "distributed": [(_ALL, "use `distributed.all_reduce`, or another of the collectives there")],
    "distributed.fsdp": [(_ALL, "use `distributed.fsdp.fully_shard`")],
    "distributed.tensor.parallel": [
        ("loss_parallel", "use `distributed.tensor.parallel.vocabulary_parallel_cross_entropy`, which takes the group"),
    ],
    "distributions": [
        ("gumbel", "use `nn.functional.gumbel_softmax`, or draw `-log(-log(rand(2)))`"),
        (_ALL, "write the density"),
    ],
    "fft": [(_ALL, "tensors are real: use `numpy.fft` on `tensor.detach().numpy()`")],
    "func": [(_ALL, "call the module; `autograd.grad(outputs, inputs)` gives gradients of anything")],
    "fx": [(_ALL, _WRITTEN)],
    "hub": [(_ALL, "download the weights yourself, convert them to safetensors, and `load` them")],
    "jit": [(_ALL, _WRITTEN)],
    "library": [(_ALL, "write the function with tensor operations, or as an `autograd.Function`")],
    "linalg": [(_ALL, _LINALG)],
    "nn.attention": [(_ALL, _FLEX)],
    "nn.attention.flex_attention": [(_ALL, _FLEX)],
    "nn.parallel": [(_ALL, "one process computes here: call the module itself")],
    "nn.quantized": [(_ALL, _INTEGERS)],
    "nn.utils.parametrizations": [(_ALL, "write it as a module for `nn.utils.parametrize.register_parametrization`")],
    "nn.utils.parametrize": [(_ALL, "use `nn.utils.parametrize.register_parametrization`")],
    "onnx": [(_ALL, "nothing is exported: leave it out")],
    "ops": [(_ALL, "operations compiled for PyTorch's tensors do not run here: use the public function of that name")],
    "overrides": [(_ALL, _WRITTEN)],
    "special": [(_ALL, _SPECIAL)],
    "_C": [(_ALL, "torch._C is PyTorch's own C++: use the public function that calls it")],
    "_dynamo": [(_ALL, _WRITTEN)],
}
"""Place ("" is ``torch``) -> names of that place, and what to use instead."""
ANSWERS = {place: {name: answer for names, answer in rows for name in names.split()} for place, rows in _ANSWERS.items()}


def why_absent(name: str, place: str = "") -> str:
    """The sentence for ``torch.PLACE.NAME``, which is not offered: what to use instead."""
    full = f"{place}.{name}" if place else name
    answers = ANSWERS.get(place, {})
    answer = answers.get(name) or (answers.get(_ALL) if not name.startswith("__") else None) or _by_rule(name, place)
    if answer is not None:
        return f"{full} is not offered: {answer}"
    module = f"tinygrad_mem.{place}" if place else "tinygrad_mem"
    return (
        f"module {module!r} has no attribute {name!r}. If torch has it, it is not offered here: write it with operations that "
        "are offered, or compute it with NumPy on tensor.detach().numpy(), without gradients"
    )


def _by_rule(name: str, place: str) -> str | None:
    """An answer by the form of the name: a layer without sizes; a function that is offered in ``nn.functional``."""
    if place == "nn" and name.startswith("Lazy"):
        return f"give `nn.{name.removeprefix('Lazy')}` its sizes"
    functional = sys.modules.get(f"{__package__}.nn.functional")
    if place == "" and name in vars(functional or ()) and callable(vars(functional)[name]):
        return f"use `nn.functional.{name}`"
    return None


def refuses(place: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a module: it raises for a name of ``place`` that is not offered."""

    def __getattr__(name: str) -> object:
        sentence, asks = why_absent(name, place), sys._getframe(1)
        if asks.f_lasti >= 0 and asks.f_code.co_code[asks.f_lasti] == _IMPORT_FROM:
            # ``from MODULE import NAME`` drops an AttributeError, and its sentence with it.
            raise ImportError(sentence, name=name)
        raise AttributeError(sentence)

    return __getattr__


_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class _Absent:
    """A name that only ``torch.Tensor`` has. Its error says what to use instead."""

    __slots__ = ("sentence",)

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def __get__(self, tensor: object, kind: type | None = None) -> None:
        raise AttributeError(self.sentence)


class Explained:
    """A base of ``Tensor``: absent methods explain themselves. (A ``__getattr__`` would double the time of every read.)"""

    vars().update({name: _Absent(f"Tensor.{name} is not offered: {answer}") for name, answer in ANSWERS[""].items()})
    vars().update({name: _Absent(f"Tensor.{name} is not offered: {answer}") for name, answer in ANSWERS["Tensor"].items()})

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if type(inspect.getattr_static(self, name, None)) is not _Absent]


_said: set[str] = set()


def say_once(subject: str, message: str) -> None:
    """Warn about something that has no effect here, the first time that it is met."""
    if subject not in _said:
        _said.add(subject)
        warnings.warn(message, UserWarning, stacklevel=4)
