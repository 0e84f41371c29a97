"""Unknown numbers of a dry run: what each function of ``float``, ``math`` and NumPy makes of one."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.autograd.unknown import Unknown, followed
from tinygrad_mem.errors import ArgumentTypeError, DataDependenceError
from tinygrad_mem.nn import functional as F

KINDS = [True, 1, 1.0, 1 + 0j]
TEXTS = {"__repr__", "__str__", "__format__", "hex", "__reduce__", "__reduce_ex__", "__doc__", "__dir__", "__sizeof__"}
OF_OBJECTS = set(dir(object)) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}


def kept(call: Callable[[], Any]) -> bool | None:
    """True if a call gives an unknown number, is refused, or says that it gives a plain one; ``None``: it is not possible."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            made = call()
        except DataDependenceError:
            return True
        except (TypeError, ValueError, AttributeError, ArithmeticError):
            return True if said else None
    leaves = list(made.flat) if isinstance(made, np.ndarray) else list(made) if isinstance(made, (list, tuple)) else [made]
    return bool(said) or all(type(each) is Unknown or each is NotImplemented or isinstance(each, str) for each in leaves)


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: type(one).__name__)
def test_no_method_of_a_number_gives_a_plain_one_unseen(kind: Any):
    tried = 0
    for name in set(dir(type(kind))) - OF_OBJECTS - TEXTS:
        for others in ((), (2,), (2.5,), (Unknown(),)):
            found = kept(lambda: (lambda each: each(*others) if callable(each) else each)(getattr(Unknown(kind), name)))  # noqa: B023
            assert found in (True, None), (name, others)
            tried += found is True
    assert tried > 60


@pytest.mark.parametrize("before", [False, True], ids=["math.exp", "imported before"])
def test_no_function_of_math_gives_a_plain_number_unseen(before: bool):
    own = {name: function for name, function in vars(math).items() if callable(function) and name[0] != "_"}
    for name, function in own.items():
        number = Unknown(1) if name in ("factorial", "gcd", "lcm", "comb", "perm", "isqrt") else Unknown()
        with followed():
            asked = function if before else getattr(math, name)
            given = [(number,), ([number],), (number, 1), (1, number), ([number], [1.0]), ([1.0], [number]), (1.0, 1.0, number)]
            found = [kept(lambda: asked(*args)) for args in given]  # noqa: B023
        assert True in found, name
        assert False not in found, name
    assert vars(math) | own == vars(math)


def test_no_function_of_numpy_gives_a_plain_number_unseen():
    tried = 0
    known = np.logical_and, np.logical_or  # 1.0 or x is 1.0
    for function in {each for each in vars(np).values() if isinstance(each, np.ufunc)} - {*known}:
        number = Unknown()
        for args in product([number, [number, number], np.ones(2)], repeat=function.nin):
            if any(each is number or isinstance(each, list) for each in args):
                found = kept(lambda: function(*args))  # noqa: B023
                assert found in (True, None), (function, args)
                tried += found is True
    assert tried > 100
    for make in (np.float32, np.float64, np.int64, np.complex128, np.bool_, lambda x: np.array([x], np.float32)):
        assert kept(lambda: make(Unknown())), make  # noqa: B023
    losses = [Unknown(), Unknown()]
    for function in (np.max, np.argmin, np.median, np.sort, lambda x: np.zeros(2).__setitem__(0, x[0])):
        assert kept(lambda: function(losses)), function  # noqa: B023
    for function in (np.mean, np.std, np.sum, lambda x: np.round(x[0], 3), lambda x: np.exp(np.mean(x))):
        assert type(function(losses)) is Unknown


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (lambda n, x: n + 1, int),
        (lambda n, x: n / 2, float),
        (lambda n, x: 2 * n // 3 % 4, int),
        (lambda n, x: n * x, float),
        (lambda n, x: n * 0.5, float),
        (lambda n, x: round(x), int),
        (lambda n, x: round(x, 2), float),
        (lambda n, x: math.floor(x) + math.ceil(x), int),
        (lambda n, x: (n > 2) if False else n & 1, int),
        (lambda n, x: x * 1j, complex),
        (lambda n, x: abs(x * 1j), float),
        (lambda n, x: np.float32(2) * n, float),
        (lambda n, x: sum([n, n]), int),
        (lambda n, x: math.sqrt(n), float),
    ],
)
def test_its_kind_is_that_of_the_real_number(compute: Callable[[Any, Any], Any], kind: type):
    with followed():
        made = compute(Unknown(1), Unknown())
    assert type(made) is Unknown
    assert isinstance(made, kind)
    assert isinstance(compute(3, 2.5), (kind, np.floating))


def test_it_is_printed_and_copied_in_silence():
    number, whole = Unknown(), Unknown(1)
    with followed():
        texts = [f"{number:.3f}", "{:.1f} {}".format(number, whole), str(number), json.dumps({"loss": [number]})]  # noqa: UP032
        texts += [json.dumps({"loss": number, "n": (1, whole)}, indent=1), "%s" % number]  # noqa: UP031
        json.dump([number], file := io.StringIO())
        said = "%.3f %d" % (number, whole)  # noqa: UP031
        said %= ()
        assert json.dumps([1.5, {"a": None}]) == '[1.5, {"a": null}]'
    assert all("unknown" in text for text in [*texts, file.getvalue()])
    assert said == "1.000 1"
    for made in (copy.copy(number), copy.deepcopy([number])[0], pickle.loads(pickle.dumps(number))):
        assert type(made) is Unknown
    assert (number == None) is False  # noqa: E711
    assert number != "x"


def test_what_became_plain_is_said_with_its_line():
    with pytest.warns(UserWarning, match="a plain number is needed, and 1 was taken for one that is not known") as said:
        memory.predict(lambda: float(tm.rand(1)))
    assert said[0].filename == __file__


def unknown() -> Any:
    return tm.randint(1, 9, (4,)).max().item()


@pytest.mark.parametrize(
    "use",
    [
        lambda x: unknown() * x,
        lambda x: unknown() + x,
        lambda x: unknown() / x,
        lambda x: unknown() - x,
        lambda x: x > unknown(),
        lambda x: x < 0.5 * unknown(),
        lambda x: tm.tensor([unknown(), 2.0]),
        lambda x: tm.tensor(unknown()),
    ],
)
def test_tensors_that_are_computed_from_it_are_unknown_and_have_their_dtype(use: Callable[[Any], Any]):
    found: list[Any] = []

    def run() -> None:
        found.append(use(tm.ones(3)))
        with pytest.raises(DataDependenceError):
            found[0].tolist()

    memory.predict(run)
    assert (found[0].shape, found[0].dtype) == ((real := use(tm.ones(3))).shape, real.dtype)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: F.interpolate(x, scale_factor=unknown()),
        lambda x: F.interpolate(x, size=unknown()),
        lambda x: F.interpolate(x, scale_factor=tm.rand(2)),
        lambda x: x[:, : unknown()],
        lambda x: [0] * unknown(),
        lambda x: nn.Linear(unknown(), 3),
        lambda x: tm.arange(unknown()),
        lambda x: x.view(-1, unknown()),
        lambda x: {unknown(): 1},
    ],
)
def test_it_is_no_size_and_no_key(use: Callable[[Any], Any]):
    with pytest.raises((DataDependenceError, ArgumentTypeError)):
        memory.predict(lambda: use(tm.ones(1, 1, 4, 4)))


def test_the_largest_of_a_generator_holds_no_others():
    """``max`` holds the best and the next one, as Python's does: a list would hold all eight."""

    def run() -> None:
        longest = max((tm.zeros(128 * n) for n in (1, 2, 3, 4, 4, 3, 2, 1)), key=len)
        assert len(longest) == 512

    with memory.track() as track:
        run()
    assert memory.predict(run).peak == track.peak == 4 * 128 * (4 + 4)


def test_the_largest_of_numbers_that_a_generator_makes():
    def run() -> None:
        unknown = tm.rand(1).item()
        found.extend(
            [repr(max(each for each in (1, unknown, 3))), max(n for n in (2, 7, 5)), max("ab" if n else "b" for n in (1, 0))]
        )
        with pytest.raises(ValueError, match="empty"):
            max(n for n in ())

    found: list = []
    memory.predict(run)
    assert found == ["unknown", 7, "b"]


def test_a_loss_is_the_best_so_far():
    found = []

    def run() -> None:
        best, parts = float("inf"), tm.rand(3)
        for part in (parts, parts * 2):
            loss = part.sum().item()
            if loss < best:
                best = loss
                found.append(tm.ones(1000))

    with pytest.warns(UserWarning, match="a value was assumed to be the best so far"):
        predicted = memory.predict(run)
    assert len(found) == 2
    assert predicted.peak >= 2 * 4096
