"""Kernels of a GPU that are generated from the formulas of ``kernels/numpy``, under the same names.

A formula is traced as for the CPU (``kernels/numpy/fast/computed.py``), and becomes an expression in CUDA C. Its type W is
float64 if the result is float64, float32 if that is narrower, int64 if it is an integer; a result is rounded once. Numbers are
float64 until they meet an array. Each combination of dtypes, and of values on which the formula branches, has its own kernel.
"""

from __future__ import annotations

import inspect as _inspect
import math as _math
from functools import cache as _cache
from functools import wraps as _wraps
from typing import Any as _Any

import cupy as _cupy
import numpy as _np

from .. import numpy as _numpy
from ..numpy.fast.computed import ARRAY as _ARRAY
from ..numpy.fast.computed import NUMBER as _NUMBER
from ..numpy.fast.computed import ONE as _ONE
from ..numpy.fast.computed import Symbol as _Symbol
from ..numpy.fast.computed import kind_of as _kind_of
from ..numpy.fast.computed import traced as _traced
from .apart import ufunc as _ufunc
from .fused import Reduction as _Reduction

_FORMS = {_np.negative: "(-{})", _np.invert: "(!{})", _np.logical_not: "(!{})", _np.where: "({} ? {} : {})"}
_FORMS |= {_np.add: "({} + {})", _np.subtract: "({} - {})", _np.multiply: "({} * {})", _np.divide: "({} / {})"}
_FORMS |= {_np.less: "({} < {})", _np.less_equal: "({} <= {})", _np.equal: "({} == {})", _np.not_equal: "({} != {})"}
_FORMS |= {_np.greater: "({} > {})", _np.greater_equal: "({} >= {})", _np.isnan: "({0} != {0})", _np.power: "pow({}, {})"}
_FORMS |= {_np.logical_and: "({} && {})", _np.bitwise_and: "({} && {})", _np.logical_or: "({} || {})"}
_FORMS |= {_np.bitwise_or: "({} || {})", _np.absolute: "abs({})", _np.maximum: "most({}, {})", _np.minimum: "least({}, {})"}
_FORMS |= {_np.clip: "least(most({}, {}), {})"}
_HELPERS = """
template <typename T> __device__ inline T square(T x) { return x * x; }
template <typename T> __device__ inline T sign(T x) { return T(x > 0) - T(x < 0); }
// nan if either is nan; the second of two zeros
template <typename T> __device__ inline T most(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ inline T least(T a, T b) { return a < b || a != a ? a : b; }
"""


def _applied(function: _Any, texts: list[str]) -> str:
    form = _FORMS.get(function)
    return form.format(*texts) if form else f"{function.__name__}({', '.join(texts)})"


def _number(x: _Any) -> str:
    """A number in CUDA C, as float64."""
    if isinstance(x, _Symbol):
        return x.name if x.function is None else _applied(x.function, [_number(y) for y in x.operands])
    if isinstance(x, (bool, _np.bool_)):
        return str(bool(x)).lower()
    return repr(float(x)) if _math.isfinite(x) else f"({_math.copysign(0 if x != x else 1, x)} / 0.0)"


def _text(x: _Any, roots: set[str]) -> str:
    """An operand in CUDA C, in W. The arrays ``roots`` hold square roots."""
    if not isinstance(x, _Symbol) or x.kind != _ARRAY:
        number = _number(x)
        return number if number in ("true", "false") else f"W({number})"
    if x.function is None:
        return f"square(W({x.name}))" if x.name in roots else f"W({x.name})"
    return _applied(x.function, [_text(y, roots) for y in x.operands])


def _kind(x: _Any) -> _Any:
    """The dtype of an array, or the kind of another argument."""
    kind = x.dtype if isinstance(x, _cupy.ndarray) else _kind_of(x)
    return _NUMBER if kind is _ONE else kind


class _Generated:
    """A kernel that is generated for each combination of kinds of its arguments. The base: out = the formula.

    Attributes:
        names: the arguments that the formula reads.
        roots: arrays that hold square roots where they are float16.
    """

    but: tuple[str, ...] = ("out",)

    def __init__(self, name: str, kernel: _Any) -> None:
        _wraps(kernel)(self)
        self.__name__ = name
        self.plain = getattr(kernel, "plain", kernel.formula)
        self.roots = getattr(kernel, "roots", ())
        self.names = [name for name in _inspect.signature(self.plain).parameters if name not in self.but]
        self.made = _cache(self._made)

    def __call__(self, *given: _Any, out: _Any = None) -> None:
        *read, out = given if out is None else (*given, out)
        kinds = [_kind(x) for x in read]
        self.made(out.dtype, *kinds)(*_passed(read, kinds), out)

    def _made(self, out: _np.dtype, *kinds: _Any) -> _Any:
        inputs, wide, texts = self.source(out, kinds)
        return self.elementwise(inputs, [f"{out.name} out"], f"out = {texts['out']};", wide)

    def source(self, out: _np.dtype, kinds: tuple) -> tuple[list[str], str, dict[str, str]]:
        """The inputs as CuPy declares them, W, and the expressions by the names of what they are written to."""
        named = dict(zip(self.names, kinds, strict=True))
        arrays = {name for name, kind in named.items() if isinstance(kind, _np.dtype)}
        roots = {name for name in self.roots if named[name] == _np.float16}
        _, _, results = _traced(self.plain, {name: _ARRAY if name in arrays else kind for name, kind in named.items()})
        results = results if isinstance(results, dict) else {"out": results}
        texts = {name: _text(x, roots) for name, x in results.items() if x is not None}
        texts |= {name: f"sqrt({texts[name]})" for name in roots}
        dtypes = {name: "float64" if kind is _NUMBER else kind.name for name, kind in named.items() if _is_given(kind)}
        inputs = [f"{dtype} {name}" for name, dtype in dtypes.items()]
        return inputs, {"d": "double", "f": "float", "e": "float"}.get(out.char, "long long"), texts

    def elementwise(self, inputs: list[str], outputs: list[str], body: str, wide: str) -> _Any:
        """CuPy's kernel."""
        options = {"preamble": f"typedef {wide} W;\n{_HELPERS}"}
        name = f"tinygrad_mem_{self.__name__}"
        return _cupy.ElementwiseKernel(", ".join(inputs), ", ".join(outputs), body, name, **options)  # pyright: ignore


def _is_given(kind: _Any) -> bool:
    return kind is _NUMBER or isinstance(kind, _np.dtype)


def _passed(given: _Any, kinds: list) -> list:
    """The arrays and the numbers among the arguments."""
    return [float(x) if kind is _NUMBER else x for x, kind in zip(given, kinds, strict=True) if _is_given(kind)]


class _Update(_Generated):
    """A rule of an optimizer: it writes the arguments that its formula returns, of which the first is p."""

    but = ()

    def __call__(self, *given: _Any) -> None:
        kinds = [_kind(x) for x in given]
        kernel, written = self.made(given[0].dtype, *kinds)
        read = [i for i in range(len(given)) if i not in written]
        kernel(*_passed([given[i] for i in read], [kinds[i] for i in read]), *[given[i] for i in written])

    def _made(self, out: _np.dtype, *kinds: _Any) -> _Any:
        declared, wide, texts = self.source(out, kinds)
        outputs = [each for each in declared if each.split()[1] in texts]
        new = " ".join(f"const W new_{name} = {text};" for name, text in texts.items())  # all are read before one is written
        body = new + " ".join(f" {name} = new_{name};" for name in texts)
        kernel = self.elementwise([each for each in declared if each not in outputs], outputs, body, wide)
        return kernel, [self.names.index(each.split()[1]) for each in outputs]


class _Loss(_Generated):
    """A loss: out = the formula of each element, or the sum of all times ``scale``, added in float64."""

    but = ("scale", "out")

    def __call__(self, *given: _Any, out: _Any) -> None:
        *read, scale = given
        kinds = [_kind(x) for x in read]
        if scale is None:
            self.made(out.dtype, *kinds)(*_passed(read, kinds), out)
        elif read[0].size:
            self.made(out.dtype, *kinds, total=True)(*_passed(read, kinds), float(scale), out=out)
        else:
            out.fill(0 * scale)

    def _made(self, out: _np.dtype, *kinds: _Any, total: bool = False) -> _Any:
        if not total:
            return super()._made(out, *kinds)
        inputs, wide, texts = self.source(out, kinds)
        post = "out = (float)a" if out.char == "e" else "out = a"
        options = {"reduce_type": "double", "preamble": f"typedef {wide} W;\n{_HELPERS}"}
        name = f"tinygrad_mem_{self.__name__}_total"
        inputs, formula = ", ".join([*inputs, "float64 scale"]), f"{texts['out']} * scale"
        return _Reduction(inputs, f"{out.name} out", formula, "a + b", post, "0", name, **options)


class _Gradient(_Generated):
    """The gradient of a loss: out = gy * scale * the formula; gy is 0-d, or of out's shape (and may be out)."""

    but = ("gy", "scale", "out")

    def __call__(self, gy: _Any, *given: _Any, out: _Any) -> None:
        *read, scale = given
        kinds = [_kind(x) for x in read]
        self.made(out.dtype, *kinds, gy=gy.dtype)(gy, *_passed(read, kinds), float(scale), out)

    def _made(self, out: _np.dtype, *kinds: _Any, gy: _Any) -> _Any:
        inputs, wide, texts = self.source(out, kinds)
        inputs = [f"{gy.name} gy", *inputs, "float64 scale"]
        return self.elementwise(inputs, [f"{out.name} out"], f"out = W(gy) * W(scale) * {texts['out']};", wide)


def _by_ufunc(name: str, kernel: _Any) -> _Any:
    return _wraps(kernel)(_ufunc(getattr(_cupy, kernel.ufunc.__name__), wide=kernel.traced == "arithmetic"))


_BUILT = {"elements": _Generated, "update": _Update, "loss": _Loss, "gradient": _Gradient}
_BUILT |= {"ufunc": _by_ufunc, "arithmetic": _by_ufunc}
globals().update({name: _BUILT[each.traced](name, each) for name, each in vars(_numpy).items() if hasattr(each, "traced")})
