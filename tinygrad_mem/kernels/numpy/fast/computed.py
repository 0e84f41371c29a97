"""Kernels from formulas: ``@computed`` turns a formula of arrays into ufuncs that run tile by tile in scratch.

The formula is called once with symbols, which record its steps. Each step becomes one line of a function that computes one
tile: a ufunc whose ``out`` is a free scratch tile or the result. So nothing is allocated, and each number is read from memory
once. ``np.where`` becomes bit masks.

The function is generated for the kinds of its arguments: arrays, numbers, and the values 0, 1, ``None``, bools and text, on
which the formula may branch (``if weight_decay:``).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from . import curves, tiles

P = ParamSpec("P")

ARRAY, NUMBER, ZERO, ONE = "an array", "a number", "the number 0", "the number 1"
_OPERATORS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.power: "**"}
_COMPARISONS = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}
_TESTS = {np.isnan, np.isfinite, np.isinf, np.logical_and, np.logical_or, np.logical_not}
_OF_BITS = {np.bitwise_and, np.bitwise_or, np.invert}


class Symbol(NDArrayOperatorsMixin):
    """An array or a number in a formula: an argument, or the result of a step."""

    def __init__(self, steps: list[Symbol], kind: str, function: Any = None, operands: tuple = (), name: str = "") -> None:
        self.steps, self.kind, self.function, self.operands, self.name = steps, kind, function, operands, name
        self.uses, self.buffer = 0, ""  # the number of later steps that read it; the result that it is, if any
        self.flag = function in _COMPARISONS | _TESTS or (function in _OF_BITS and operands[0].flag)

    def __bool__(self) -> bool:
        if self.kind == ARRAY:
            raise TypeError("a formula cannot branch on values of an array: use np.where")
        return True  # the number 0 is not a symbol

    def step(self, function: Any, operands: tuple) -> Any:
        """Record a step, and return its result; trivial steps such as 1 * x are left out."""
        if function is np.multiply and any(type(x) in (int, float) and x == 1 for x in operands):
            return next(x for x in operands if isinstance(x, Symbol))
        if function is np.where and isinstance(operands[0], (bool, np.bool_)):
            return operands[1] if operands[0] else operands[2]
        if function is np.equal and self.kind == NUMBER and any(type(x) in (int, float) and x == 0 for x in operands):
            return False
        if function is np.power and type(operands[1]) is int and operands[1] == 2:
            function, operands = np.square, operands[:1]
        kind = ARRAY if any(isinstance(x, Symbol) and x.kind == ARRAY for x in operands) else NUMBER
        new = Symbol(self.steps, kind, function, operands)
        self.steps.append(new)
        return new

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Symbol:
        return self.step(ufunc, operands)

    def __array_function__(self, function: Any, types: Any, operands: tuple, options: dict) -> Symbol:
        return self.step(function, operands)


def _of_symbols(plain: Any) -> Any:
    """Makes a function of one array usable in formulas: called with a symbol, it records a step."""

    @wraps(plain)
    def function(x: Any) -> Any:
        return x.step(function, (x,)) if isinstance(x, Symbol) else plain(x)

    return function


@_of_symbols
def expm1(x: Any) -> Any:
    """e**x - 1 of numbers that are not above 0, by :func:`curves.expm1`."""
    return np.expm1(x)


@_of_symbols
def log1p(x: Any) -> Any:
    """ln(1 + x) of numbers from 0 to 1, by :func:`curves.log1p`."""
    return np.log1p(x)


def of_each(plain: Callable[[float], float]) -> Any:
    """Makes a function of one number usable in formulas. A GPU has one of the same name; that of an array is slow."""
    return _of_symbols(wraps(plain)(np.vectorize(plain, otypes=[float])))


_NAMES = {"np": np, "tiles": tiles, "curves": curves, "inf": np.inf, "nan": np.nan}


class _Writer:
    """Generates the function of one tile. A register is a scratch tile, or a result that no later step reads."""

    def __init__(self, given: list[Symbol], results: dict[str, Any], apart: bool) -> None:
        self.lines: list[str] = []
        self.free: list[str] = ["out"] if apart else []
        self.held: set[str] = set()  # registers that are still to be read
        self.viewed: set[str] = set()  # registers with a view for flags
        self.temps = 0
        self.given, self.results, self.apart = given, results, apart
        self.may_use_out = not apart and "out" in results  # when no argument is read any more

    def write(self, steps: list[Symbol]) -> None:
        for buffer, result in self.results.items():
            if isinstance(result, Symbol):
                result.uses += 1
                result.buffer = buffer if result.function is not None else ""
        needed = []
        for step in reversed(steps):
            if step.uses and step.kind == ARRAY:
                needed.append(step)
            if step.uses:
                for x in step.operands:
                    if isinstance(x, Symbol):
                        x.uses += 1
        for step in reversed(needed):
            self._step(step)
        for buffer, result in self.results.items():
            if self._text(result) != buffer:
                self.lines.append(f"np.copyto({buffer}, {self._text(result)})")

    def _text(self, x: Any) -> str:
        """The source text of an operand."""
        if not isinstance(x, Symbol):
            return repr(x.item() if isinstance(x, np.generic) else x)
        if x.kind == ARRAY or x.function is None:
            return f"flags_{x.name}" if x.flag else x.name
        texts = [self._text(y) for y in x.operands]
        if x.function in _OPERATORS:
            return f"({texts[0]} {_OPERATORS[x.function]} {texts[1]})"
        return f"float(np.{x.function.__name__}({', '.join(texts)}))"

    def _step(self, step: Symbol) -> None:
        arrays = [x for x in step.operands if isinstance(x, Symbol) and x.kind == ARRAY]
        texts = [self._text(x) for x in step.operands]
        for x in arrays:
            x.uses -= 1
            if x.uses == 0 and (x.name in self.results if x.function is None else x.name != x.buffer):
                self.held.discard(x.name)
                self.free.append(x.name)
        if self.may_use_out and all(x.uses == 0 for x in self.given if x.kind == ARRAY):
            self.free.append("out")
            self.may_use_out = False
        own = {np.where: self._where, np.sign: self._sign, expm1: self._expm1, log1p: self._log1p}
        own.get(step.function, self._ufunc)(step, arrays, texts)

    def _take(self, avoid: tuple[str, ...] = ()) -> str:
        """A free register: the one freed last, which is the operand's."""
        for name in reversed(self.free):
            if name not in avoid:
                self.free.remove(name)
                return name
        self.temps += 1
        return f"t{self.temps}"

    def _target(self, step: Symbol, avoid: tuple[str, ...] = ()) -> str:
        """The register of a step's result: its buffer, if no later step reads the buffer's old content."""
        read = [
            x for x in self.given if x.uses and x.kind == ARRAY and step.buffer in (x.name, "out")
        ]  # out may be any of the arguments
        if step.buffer and not read and step.buffer not in (*avoid, *self.held):
            step.name = step.buffer
            if step.buffer in self.free:
                self.free.remove(step.buffer)
        else:
            step.name = self._take(avoid)
        self.held.add(step.name)
        return step.name

    def _ufunc(self, step: Symbol, arrays: list[Symbol], texts: list[str]) -> None:
        # flags over the numbers that they are computed from would make NumPy copy them
        target = self._target(step, avoid=("out", *[x.name for x in arrays if not x.flag]) if step.flag else ())
        if step.flag and target not in self.viewed:
            self.viewed.add(target)
            self.lines.append(f"flags_{target} = tiles.flags({target})")
        self.lines.append(f"np.{step.function.__name__}({', '.join(texts)}, out={self._text(step)})")

    def _with_work(self, line: str, avoid: tuple[str, ...]) -> None:
        """A line that needs a scratch tile, named ``work`` in it."""
        work = self._take(avoid)
        self.lines.append(line.replace("work", work))
        self.free.append(work)

    def _sign(self, step: Symbol, arrays: list[Symbol], texts: list[str]) -> None:
        target = self._target(step)
        self._with_work(f"tiles.sign({texts[0]}, work, {target})", (target, texts[0]))

    def _expm1(self, step: Symbol, arrays: list[Symbol], texts: list[str]) -> None:
        target = self._target(step)
        if target != texts[0]:
            self.lines.append(f"np.copyto({target}, {texts[0]})")
        self._with_work(f"curves.expm1({target}, work)", (target,))

    def _log1p(self, step: Symbol, arrays: list[Symbol], texts: list[str]) -> None:
        target = self._target(step, avoid=(texts[0],))
        self._with_work(f"curves.log1p({texts[0]}, work, {target})", (target, texts[0]))

    def _where(self, step: Symbol, arrays: list[Symbol], texts: list[str]) -> None:
        flag, x, y = step.operands
        chosen = [isinstance(a, Symbol) and a.kind == ARRAY for a in (x, y)]
        masked = all(chosen) or (any(chosen) and any(type(a) in (int, float) and a == 0 for a in (x, y)))
        if masked and (flag.uses or not flag.flag):
            raise TypeError("np.where overwrites the result of its comparison: write the comparison again for each np.where")
        if all(chosen):
            if step.buffer == "out" and (y.name == "out" or (y.function is None and not self.apart)):
                x, y = self._turned(flag, x, y)
                if y.function is None and not self.apart:
                    raise TypeError("np.where has two inputs of the formula as its choices: one must be computed")
            target = self._target(step, avoid=(y.name, flag.name))
            line = f"tiles.select({x.name}, {y.name}, {self._text(flag)}, work, {target})"
            self._with_work(line, (target, x.name, y.name, flag.name))
        elif masked:
            target = self._target(step, avoid=(flag.name,))
            how, array = ("keep", x) if chosen[0] else ("drop", y)
            line = f"tiles.{how}({array.name}, {self._text(flag)}, work, {target})"
            self._with_work(line, (target, array.name, flag.name))
        else:
            if chosen[0]:
                x, y = self._turned(flag, x, y)
            target = self._target(step, avoid=(flag.name,))
            if self._text(y) != target:
                self.lines.append(f"np.copyto({target}, {self._text(y)})")
            self.lines.append(f"np.copyto({target}, {self._text(x)}, where={self._text(flag)})")

    def _turned(self, flag: Symbol, x: Any, y: Any) -> tuple[Any, Any]:
        if flag.uses:
            raise TypeError("np.where would negate a comparison that is used again: swap its choices")
        self.lines.append(f"np.logical_not({self._text(flag)}, out={self._text(flag)})")
        return y, x


def kind_of(x: Any) -> Any:
    """The kind of an argument that is no array: a number, or a value on which the formula may branch."""
    if x is None or isinstance(x, bool):
        return x
    if isinstance(x, float | int):  # 1 and 1.0 are one kind, whose code works for integers too; True is another kind
        if x == 1:
            return ONE
        return ZERO if x == 0 and math.copysign(1, x) > 0 else NUMBER
    if not isinstance(x, str):
        raise TypeError(f"a kernel takes arrays, numbers and names, found {type(x).__name__}")
    return x


def traced(plain: Any, kinds: dict[str, Any]) -> tuple[list[Symbol], list[Symbol], Any]:
    """The arguments that are symbols, the steps, and the results of a formula for arguments of these kinds."""
    steps: list[Symbol] = []
    known = {ZERO: 0, ONE: 1}
    given = {
        name: Symbol(steps, kind, name=name) if kind in (ARRAY, NUMBER) else known.get(kind, kind)
        for name, kind in kinds.items()
    }
    results = plain(**given, **dict.fromkeys(inspect.signature(plain).parameters.keys() - given.keys()))
    arguments = [x for x in given.values() if isinstance(x, Symbol)]
    for x in (*arguments, *steps):
        x.steps = []  # else each refers to all, and only the garbage collector would free them
    return arguments, steps, results


def compiled(plain: Any, kinds: dict[str, Any], apart: bool) -> tuple[Any, int]:
    """``run([out,] *arguments, *scratch)`` for one tile, and the number of scratch tiles that it needs.

    A formula that returns a dict writes the arguments with these names; then ``run`` has no ``out``. ``apart``: ``out`` is not
    one of the arguments.
    """
    given, steps, results = traced(plain, kinds)
    several = isinstance(results, dict)
    if several:
        results = {name: x for name, x in results.items() if kinds[name] is not None}
    writer = _Writer(given, results if several else {"out": results}, apart and not several)
    writer.write(steps)
    names = [*([] if several else ["out"]), *kinds, *[f"t{k + 1}" for k in range(writer.temps)]]
    source = "\n    ".join([f"def run({', '.join(names)}):", *writer.lines])
    return _made(source, "run", dict(_NAMES)), writer.temps


def _made(source: str, name: str, space: dict[str, Any]) -> Any:
    """The function that the source text defines. Its errors are this library's: their file is here."""
    exec(compile(source, f"{__file__}:{name}", "exec"), space)
    return space[name]


class Written:
    """The functions generated for a formula so far, by the kinds of its arguments.

    Attributes:
        names: the formula's arguments, without ``but``.
        apart: whether ``out`` is not one of them.
        kinds: returns the kinds of arguments as a tuple. It is generated too, because each call runs it.
    """

    def __init__(self, plain: Any, but: tuple[str, ...] = (), apart: bool = False) -> None:
        self.plain, self.apart, self.known = plain, apart, {}
        self.names = [name for name in inspect.signature(plain).parameters if name not in but]
        each = "".join([re.sub(r"\bx\b", name, _KIND) + ", " for name in self.names])
        self.kinds = _made(f"def kinds({', '.join(self.names)}): return ({each})", "kinds", dict(_KINDS))

    def write(self, kinds: tuple) -> tuple[Any, int]:
        """Generate ``run``. Returns it with the number of scratch tiles that it needs."""
        found = self.known[kinds] = compiled(self.plain, dict(zip(self.names, kinds, strict=True)), self.apart)
        return found

    def __call__(self, *arguments: Any) -> tuple[Any, int]:
        """``run(*arguments, *scratch)`` for arguments of these kinds, and the number of scratch tiles that it needs."""
        kinds = self.kinds(*arguments)
        return self.known.get(kinds) or self.write(kinds)


_KIND = "ARRAY if type(x) is ndarray else NUMBER if type(x) is float and x != 0 and x != 1 else kind_of(x)"
_KINDS = {"ARRAY": ARRAY, "NUMBER": NUMBER, "ndarray": np.ndarray, "kind_of": kind_of}


def computed(plain: Callable[P, object]) -> Callable[P, None]:
    """Make a kernel from a formula. Its last argument is ``out``, which gets the formula's result.

    Arrays are broadcast to ``out``, which may be one of them. Halves are computed in float32, and rounded once.
    """
    name = plain.__name__ if plain.__name__.isidentifier() else "kernel"  # a lambda has none
    written = Written(plain, ("out",))
    names = ", ".join(written.names)
    lines = [
        f"def {name}({names}, out):",  # arguments by name; a call costs half a microsecond
        f"    run, temps = written({names})",
        f"    tiled(run, out, {names}, temps=temps)",
    ]
    kernel = wraps(plain)(_made("\n".join(lines), name, {"written": written, "tiled": tiles.tiled_wide}))
    kernel.formula, kernel.traced = plain, "elements"  # pyright: ignore[reportAttributeAccessIssue]
    return kernel
