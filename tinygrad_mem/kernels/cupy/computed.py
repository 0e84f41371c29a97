"""Kernels of a GPU that are generated from the formulas of ``kernels/numpy``, under the same names.

A formula is traced as for the CPU (``kernels/numpy/fast/computed.py``), and becomes an expression in CUDA C. Its type W is
float64 if the result is float64, float32 if that is narrower, int64 if it is an integer; a result is rounded once. Numbers are
float64 until they meet an array. Each combination of dtypes, and of values on which the formula branches, has its own kernel.
"""

from __future__ import annotations

import inspect
import math
from functools import cache, wraps
from typing import Any

import cupy
import numpy as np

from .. import numpy
from ..numpy.fast.computed import ARRAY, NUMBER, ONE, Symbol, kind_of, traced
from .apart import ufunc
from .fused import Reduction

_FORMS = {np.negative: "(-{})", np.invert: "(!{})", np.logical_not: "(!{})", np.where: "({} ? {} : {})"}
_FORMS |= {np.add: "({} + {})", np.subtract: "({} - {})", np.multiply: "({} * {})", np.divide: "({} / {})"}
_SIGNS = {np.less: "<", np.less_equal: "<=", np.equal: "==", np.not_equal: "!=", np.greater: ">", np.greater_equal: ">="}
_FORMS |= {function: f"(flushed({{}}) {sign} flushed({{}}))" for function, sign in _SIGNS.items()}
_FORMS |= {np.isnan: "({0} != {0})", np.power: "pow({}, {})"}
_FORMS |= {np.logical_and: "({} && {})", np.bitwise_and: "({} && {})", np.logical_or: "({} || {})"}
_FORMS |= {np.bitwise_or: "({} || {})", np.absolute: "abs({})", np.maximum: "most({}, {})", np.minimum: "least({}, {})"}
_FORMS |= {np.clip: "least(most({}, {}), {})"}
WIDE = {"d": "double", "f": "float", "e": "float"}
"""W, by the character of the result's dtype, of floats."""
HELPERS = """
template <typename T> __device__ inline T square(T x) { return x * x; }
template <typename T> __device__ inline T sign(T x) { return T(x > 0) - T(x < 0); }
// A sum makes subnormal floats 0 on a GPU. Of two comparisons of them that the assembler joins, it takes one with them as 0.
template <typename T> __device__ inline T flushed(T x) { return x + T(0); }
// nan if either is nan; the second of two zeros
template <typename T> __device__ inline T most(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ inline T least(T a, T b) { return a < b || a != a ? a : b; }
"""


def _applied(function: Any, texts: list[str]) -> str:
    form = _FORMS.get(function)
    return form.format(*texts) if form else f"{function.__name__}({', '.join(texts)})"


def _number(x: Any) -> str:
    """A number in CUDA C, as float64."""
    if isinstance(x, Symbol):
        return x.name if x.function is None else _applied(x.function, [_number(y) for y in x.operands])
    if isinstance(x, (bool, np.bool_)):
        return str(bool(x)).lower()
    return repr(float(x)) if math.isfinite(x) else f"({math.copysign(0 if x != x else 1, x)} / 0.0)"


def _text(x: Any, roots: set[str]) -> str:
    """An operand in CUDA C, in W. The arrays ``roots`` hold square roots."""
    if not isinstance(x, Symbol) or x.kind != ARRAY:
        number = _number(x)
        return number if number in ("true", "false") else f"W({number})"
    if x.function is None:
        return f"square(W({x.name}))" if x.name in roots else f"W({x.name})"
    return _applied(x.function, [_text(y, roots) for y in x.operands])


def expressions(plain: Any, kinds: dict[str, Any], roots: set[str]) -> dict[str, str]:
    """A formula's results in CUDA C, by the names of what they are written to. The arrays ``roots`` hold square roots."""
    arrays = {name: ARRAY for name, kind in kinds.items() if isinstance(kind, np.dtype)}
    _, _, results = traced(plain, kinds | arrays)
    results = results if isinstance(results, dict) else {"out": results}
    return {name: _text(x, roots) for name, x in results.items() if x is not None}


def device_kind(x: Any) -> Any:
    """The dtype of an array, or the kind of another argument."""
    kind = x.dtype if isinstance(x, cupy.ndarray) else kind_of(x)
    return NUMBER if kind is ONE else kind


class _Generated:
    """A kernel that is generated for each combination of kinds of its arguments. The base: out = the formula.

    Attributes:
        names: the arguments that the formula reads.
        roots: arrays that hold square roots where they are float16.
    """

    but: tuple[str, ...] = ("out",)

    def __init__(self, name: str, kernel: Any) -> None:
        wraps(kernel)(self)
        self.__name__ = name
        self.plain = getattr(kernel, "plain", kernel.formula)
        self.roots = getattr(kernel, "roots", ())
        self.names = [name for name in inspect.signature(self.plain).parameters if name not in self.but]
        self.made = cache(self._made)

    def __call__(self, *given: Any, out: Any = None) -> None:
        *read, out = given if out is None else (*given, out)
        kinds = [device_kind(x) for x in read]
        self.made(out.dtype, *kinds)(*_passed(read, kinds), out)

    def _made(self, out: np.dtype, *kinds: Any) -> Any:
        inputs, wide, texts = self.source(out, kinds)
        return self.elementwise(inputs, [f"{out.name} out"], f"out = {texts['out']};", wide)

    def source(self, out: np.dtype, kinds: tuple) -> tuple[list[str], str, dict[str, str]]:
        """The inputs as CuPy declares them, W, and the expressions by the names of what they are written to."""
        named = dict(zip(self.names, kinds, strict=True))
        roots = {name for name in self.roots if named[name] == np.float16}
        texts = expressions(self.plain, named, roots)
        texts |= {name: f"sqrt({texts[name]})" for name in roots}
        dtypes = {name: "float64" if kind is NUMBER else kind.name for name, kind in named.items() if is_given(kind)}
        return [f"{dtype} {name}" for name, dtype in dtypes.items()], WIDE.get(out.char, "long long"), texts

    def elementwise(self, inputs: list[str], outputs: list[str], body: str, wide: str) -> Any:
        """CuPy's kernel."""
        options = {"preamble": f"typedef {wide} W;\n{HELPERS}"}
        name = f"tinygrad_mem_{self.__name__}"
        return cupy.ElementwiseKernel(", ".join(inputs), ", ".join(outputs), body, name, **options)  # pyright: ignore


def is_given(kind: Any) -> bool:
    """True for an argument that the kernel takes too: an array or a number."""
    return kind is NUMBER or isinstance(kind, np.dtype)


def _passed(given: Any, kinds: list) -> list:
    """The arrays and the numbers among the arguments."""
    return [float(x) if kind is NUMBER else x for x, kind in zip(given, kinds, strict=True) if is_given(kind)]


class _Update(_Generated):
    """A rule of an optimizer: it writes the arguments that its formula returns, of which the first is p."""

    but = ()

    def __call__(self, *given: Any, before: tuple = ()) -> None:
        kinds = [device_kind(x) for x in given]
        kernel, written = self.made(given[0].dtype, *kinds)
        read = [i for i in range(len(given)) if i not in written]
        kernel(*before, *_passed([given[i] for i in read], [kinds[i] for i in read]), *[given[i] for i in written])

    def _made(self, out: np.dtype, *kinds: Any) -> Any:
        declared, wide, texts = self.source(out, kinds)
        outputs = [each for each in declared if each.split()[1] in texts]
        new = " ".join(f"const W new_{name} = {text};" for name, text in texts.items())  # all are read before one is written
        body = new + " ".join(f" {name} = new_{name};" for name in texts)
        kernel = self.elementwise([each for each in declared if each not in outputs], outputs, body, wide)
        return kernel, [self.names.index(each.split()[1]) for each in outputs]


class _RowUpdate(_Update):
    """A rule for rows of a table: of each ``first[i]`` that is not -1, with g[i]. One outside of the table changes nothing."""

    but = ("first",)

    def __call__(self, p: Any, first: Any, g: Any, *rest: Any) -> None:
        super().__call__(p, g, *rest, before=(first, g.shape[1], len(p)))

    def elementwise(self, inputs: list[str], outputs: list[str], body: str, wide: str) -> Any:
        """CuPy's kernel: what is written is found at the place of g's element in the table."""
        place = "const long long row = first[i / width]; if (row < 0 || row >= rows) continue;"
        for name in (each.split()[1] for each in outputs):
            place += f" auto& {name} = table_{name}[row * width + i % width];"
        given = ["raw int64 first", "int64 width", "int64 rows", *inputs]
        tables = [f"raw {each.replace(' ', ' table_')}" for each in outputs]
        return super().elementwise(given, tables, f"{place}\n{body}", wide)


class Loss(_Generated):
    """A loss: out = the formula of each element, or the sum of all times ``scale``, added in float64."""

    but = ("scale", "out")

    def __call__(self, *given: Any, out: Any) -> None:
        *read, scale = given
        kinds = [device_kind(x) for x in read]
        if scale is None:
            self.made(out.dtype, *kinds)(*_passed(read, kinds), out)
        elif read[0].size:
            self.made(out.dtype, *kinds, total=True)(*_passed(read, kinds), float(scale), out=out)
        else:
            out.fill(0 * scale)

    def _made(self, out: np.dtype, *kinds: Any, total: bool = False) -> Any:
        if not total:
            return super()._made(out, *kinds)
        inputs, wide, texts = self.source(out, kinds)
        post = "out = (float)a" if out.char == "e" else "out = a"
        options = {"reduce_type": "double", "preamble": f"typedef {wide} W;\n{HELPERS}"}
        name = f"tinygrad_mem_{self.__name__}_total"
        inputs, formula = ", ".join([*inputs, "float64 scale"]), f"{texts['out']} * scale"
        return Reduction(inputs, f"{out.name} out", formula, "a + b", post, "0", name, **options)


class _Gradient(_Generated):
    """The gradient of a loss: out = gy * scale * the formula; gy is 0-d, or of out's shape (and may be out)."""

    but = ("gy", "scale", "out")

    def __call__(self, gy: Any, *given: Any, out: Any) -> None:
        *read, scale = given
        kinds = [device_kind(x) for x in read]
        self.made(out.dtype, *kinds, gy=gy.dtype)(gy, *_passed(read, kinds), float(scale), out)

    def _made(self, out: np.dtype, *kinds: Any, gy: Any) -> Any:
        inputs, wide, texts = self.source(out, kinds)
        inputs = [f"{gy.name} gy", *inputs, "float64 scale"]
        return self.elementwise(inputs, [f"{out.name} out"], f"out = W(gy) * W(scale) * {texts['out']};", wide)


def _by_ufunc(name: str, kernel: Any) -> Any:
    return wraps(kernel)(ufunc(getattr(cupy, kernel.ufunc.__name__), wide=kernel.traced == "arithmetic"))


_BUILT = {"elements": _Generated, "update": _Update, "rows": _RowUpdate, "loss": Loss, "gradient": _Gradient}
_BUILT |= {"ufunc": _by_ufunc, "arithmetic": _by_ufunc}
GENERATED = {name: _BUILT[each.traced](name, each) for name, each in vars(numpy).items() if hasattr(each, "traced")}
"""Kernels by their names. A ``def`` of the same name in this folder takes the place of one."""
