"""Every public function, called wrongly in every way that one change to a right call makes, against PyTorch.

Where PyTorch raises, so do we, a class that the same ``except`` catches; where it answers, we answer the same. Differences
that are meant stand in ``KNOWN``, each with its reason; those that nobody meant are listed in ``differences.txt``, which may
only shrink. Whatever happens, an error is one of our own, it says what was found,
and nothing is lost: arguments, memory in use and random numbers are as before.
"""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import on_devices, share
from tests.sturdy.calls import CALLS, Call, Of
from tests.sturdy.misuse import HUGE, Misuse, Outcome, agree, arguments, attempt, misuses, plain, raised_on_purpose, same_class
from tinygrad_mem import memory
from tinygrad_mem.devices import device

RANDOM = {"rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "normal", "bernoulli"}
RANDOM |= {"multinomial", *(f"T.{name}_" for name in ("normal", "uniform", "exponential", "random", "bernoulli"))}
RANDOM |= {f"F.{name}" for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")}
FOR_EVER = {"diff", "F.max_pool1d", "F.max_pool2d", "F.max_pool3d", "F.interpolate"}
"""PyTorch itself counts to 2**62 there."""

KNOWN: list[tuple[str, str, str]] = [
    # (kind, pattern of "CALL WHAT | PyTorch's error | ours", reason)
    (
        "answers",
        r"not implemented for '(Bool|Long|Half)'|not support.* bool|[Bb]ool input|Integral inputs",
        "more dtypes are taken",
    ),
    (
        "answers",
        r"^(T\.)?lerp_? .*dtype|^meshgrid .*dtype|^(F\.)?(linear|bilinear|prelu) argument [13]: dtype|"
        r"^F\.(linear argument 2|\w+_norm argument [234]): dtype",
        "operands and weights of other dtypes are promoted, as by arithmetic",
    ),
    (
        "answers",
        r"^F\.\w+_loss argument \d: dtype|^F\.binary_cross_entropy\w* argument \d: dtype",
        "so are the two sides of a loss",
    ),
    ("answers", r"^T\.square_ .*dtype b", "bools stay bools"),
    ("answers", r"^(arange|eye|T\.squeeze_) argument 1: None", "None says that it is left out"),
    ("answers", r"too big to convert|[Oo]verflow", "Python's integers have no end"),
    ("answers", r"must be bool|keepdim|train|: descending|argsort", "any truth value is taken for a bool"),
    ("answers", r"\(1\.0,\)|\[1\.0, 2\.0\]", "a sequence of numbers is taken for an array where it broadcasts, as by NumPy"),
    (
        "answers",
        r"Dimension specified as|repeated dim|multiple times|broadcast shape|no last|no first",
        "less strict on purpose of none",
    ),
    ("class", r"to str|must be str|: (3|None) ", "a wrong type is a TypeError, whatever PyTorch's Python code makes of it"),
    ("class", r"Unrecognised padding mode|Input Error: Only 3D", "an unknown mode is an ArgumentError"),
    ("class", r"^T\.squeeze_ nine", "dimensions are given as a tuple"),
    ("class", r"int too big|too large", "Python's integers have no end"),
    (
        "refuses",
        r"on meta .*(DeviceError|DataDependenceError)",
        "devices do not mix; PyTorch reads or writes memory that is not there",
    ),
    ("refuses", r"T\.__matmul__", "an operator given nonsense raises here what it returns NotImplemented for there"),
    ("refuses", r"values -?99", "PyTorch reads outside of the tensor"),
    ("refuses", r"^F\.ctc_loss argument 1: dtype f", "labels are whole numbers: PyTorch reads the bytes of floats as such"),
    ("refuses", r"4611686018427387904", "strides and sizes end where NumPy's do"),
    ("refuses", r"one argument less", "atleast_1d of nothing"),
    ("refuses", r"scaled_dot_product_attention argument 2: no first", "PyTorch makes a result of values that are not there"),
    ("refuses", r"scaled_dot_product_attention argument 4: (-1.0|nan)", "no probability"),
    ("answers", r"scaled_dot_product_attention argument 3: rank - 1", "a mask of one axis is one of keys"),
    ("refuses", r"multi_head_attention_forward argument 10: (-1.0|nan)", "no probability"),
    ("refuses", r"multi_head_attention_forward argument 12: (0-d|rank - 1)", "a bias is a vector"),
    ("answers", r"multi_head_attention_forward argument (6|12): dtype", "biases of other dtypes are promoted"),
    ("refuses", r"label_smoothing", "only PyTorch's Python layer looks at it"),
    ("refuses", r"argument \d: dtype [ib].*DTypeError", "floating tensors only"),
    ("differs", r"nan", "the last of linspace is its end, whatever the start"),
    ("differs", r"^(searchsorted|bucketize) ", "lines that are not sorted have no order to look in"),
    ("differs", r"square .*dtype b", "bools stay bools"),
]

ROOM = 16 << 20
"""Bytes that a misuse may take: what is padded by 2**62 is refused at once, and fills no memory."""

ELSEWHERE: list[tuple[str, str, str]] = [
    # (device, pattern of "CALL WHAT | on the cpu ... | on DEVICE ...", reason why it does otherwise than the cpu)
    ("cuda", r"^F\.(embedding|\w*cross_entropy|\w+_loss).*cpu raises DimensionError", "to look at indices the host would wait"),
    ("cuda", r"^F\.binary_cross_entropy .*should be between 0 and 1", "nor to look at values"),
    ("cuda", r"^(searchsorted|bucketize) ", "lines that are not sorted have no order to look in"),
    ("cuda", r"^F\.(avg_pool|unfold).*: (1\d{21}|4\d{18}) ", "strides end where a kernel's integers do"),
    ("cuda", r"^F\.cross_entropy ignore_index: 1\d{21} ", "and so do classes"),
    ("cuda", r"^histc .*not implemented for int", "there integers are counted, as in PyTorch"),
    ("meta", r"^histc .*not implemented for int", "as on a GPU"),
    ("meta", r"DataDependenceError|cpu raises DimensionError: ([Ii]ndex|Target|ctc_loss: target)", "no values"),
    ("meta", r"^F\.binary_cross_entropy .*should be between 0 and 1|^F\.one_hot .*Class values", "no values either"),
    ("meta", r"^(F\.)?conv.*: \(?(1\d{21}|4\d{18})", "no strides of memory"),
    ("meta", r" on meta \|", "what is elsewhere for the one is here for the other"),
]


@contextmanager
def limit(seconds: int) -> Iterator[None]:
    """A call that takes longer is an error, not a hang."""

    def late(*_: Any) -> None:
        raise TimeoutError("it takes for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def difference(misuse: Misuse, theirs: Outcome, ours: Outcome) -> tuple[str, str] | None:
    """What differs, and in which words; ``None`` where the two agree."""
    words = f"{misuse} | {type(theirs.error).__name__}: {theirs.error} | {type(ours.error).__name__}: {ours.error}"
    words = words.replace("\n", " ")
    if isinstance(ours.error, NotImplementedError):
        return None
    if theirs.error is not None:
        if ours.error is None:
            return "answers", words
        return None if same_class(ours.error, theirs.error) else ("class", words)
    if ours.error is not None:
        return "refuses", words
    same = agree(plain(ours.result), plain(theirs.result), values=misuse.call.name not in RANDOM)
    return None if same else ("differs", words)


OPEN = set((Path(__file__).parent / "differences.txt").read_text().splitlines())


def known(found: tuple[str, str]) -> bool:
    return any(kind == found[0] and re.search(pattern, found[1]) for kind, pattern, _ in KNOWN)


def named(misuse: Misuse) -> str:
    """The misuse, by the call that it changes: its name in ``differences.txt``."""
    changed = misuse.call
    given = [*map(_short, changed.args), *(f"{key}={_short(value)}" for key, value in changed.kwargs.items())]
    return f"{misuse} [{', '.join(given)}]"


def _short(value: Any) -> str:
    return f"{value.kind}" + "x".join(map(str, value.shape)) if isinstance(value, Of) else str(value)


def cases(call: Call) -> list[Misuse]:
    endless = (str(HUGE), str(1 << 70)) if call.name in FOR_EVER else ()
    return [m for m in misuses(call) if not any(number in m.what for number in endless)]


@pytest.mark.parametrize("call", CALLS, ids=[f"{n}-{c.name}" for n, c in enumerate(CALLS)])
def test_as_pytorch(call: Call):
    found, names = {}, set()
    for misuse in share(cases(call), 4, call.name):
        theirs = attempt(misuse, torch, *arguments(misuse, torch))
        with limit(60):
            ours = attempt(misuse, tm, *arguments(misuse, tm))
        answer = difference(misuse, theirs, ours)
        number = named(misuse)
        names.add(number)
        if answer is not None and not known(answer):
            found[number] = f"{answer[0]}: {answer[1]:.400}"
    new = found.keys() - OPEN
    assert not new, "\n".join(found[number] for number in sorted(new))
    mended = (OPEN & names) - found.keys()
    assert not mended, f"these agree now, take them out of differences.txt: {sorted(mended)}"


NUMBERED = [*enumerate(CALLS)]
PLACES = [(each, "cpu") for each in NUMBERED]
PLACES += [(each, where) for each in NUMBERED for where in share(("meta", "cuda"), 2, each[0])]


@pytest.mark.parametrize(
    ("numbered", "where"), on_devices(PLACES), ids=lambda each: each if isinstance(each, str) else f"{each[0]}-{each[1].name}"
)
def test_nothing_is_lost(numbered: tuple[int, Call], where: str):
    """Each call on every device, in a usual run on the cpu and one more.

    As where PyTorch is asked, that run tries a share of the misuses, others on each device.
    """
    call = numbered[1]
    gc.collect()  # a request that fails lets the collector run, and what other tests left would count here
    tried = share(cases(call), 3 if where == "cpu" else 10, (call.name, where))
    with memory.limit(device(where).pool.used_bytes() + ROOM, where):
        found = _lost(tried, where)
    assert not found, "\n".join(found)


def _lost(tried: list[Misuse], where: str) -> list[str]:
    """What the misuses of a call lost, and where the device does otherwise than the cpu, in words."""
    place, found = device(where), []
    for misuse in tried:
        args, kwargs = arguments(misuse, tm, where)
        before = place.pool.used_bytes(), place.generator.state
        outcome = attempt(misuse, tm, args, kwargs)
        if where != "cpu":
            found += otherwise(misuse, where, outcome, attempt(misuse, tm, *arguments(misuse, tm)))
        error = outcome.error
        del outcome
        if error is None:
            del args, kwargs
            continue
        if not raised_on_purpose(error) or len(str(error)) < 8:
            found.append(f"{misuse}: an error that nobody meant: {type(error).__name__}: {error}")
        if place.generator.state != before[1]:
            found.append(f"{misuse}: random numbers were drawn")
        if place.pool.used_bytes() != before[0]:
            found.append(f"{misuse}: {place.pool.used_bytes() - before[0]} bytes are kept while the error is held")
        if not _same([args, list(kwargs.values())], [*map(_values, arguments(misuse, tm, where))]):
            found.append(f"{misuse}: an argument was changed")
        del error, args, kwargs
    return found


def otherwise(misuse: Misuse, where: str, there: Outcome, here: Outcome) -> list[str]:
    """How what came of a call on a device differs from what came of it on the cpu, in words, but for :data:`ELSEWHERE`."""
    if _alike(misuse, where, there, here):
        return []
    words = f"{misuse} | on the cpu {_told(here)} | on {where} {_told(there)}".replace("\n", " ")
    meant = any(re.search(device, where) and re.search(pattern, words) for device, pattern, _ in ELSEWHERE)
    return [] if meant else [words]


def _alike(misuse: Misuse, where: str, there: Outcome, here: Outcome) -> bool:
    """Whether the same came of it on both."""
    if there.error is not None and here.error is not None:
        by_accident = any(
            words in f"{there.error} {here.error}"
            for words in ("not possible with these", "end below 2**63", "no memory for an array")
        )
        return by_accident or type(there.error) is type(here.error)
    if there.error is not None or here.error is not None:
        return False
    if where == "meta":
        return _form(there.result) == _form(here.result)
    return agree(plain(there.result), plain(here.result), values=misuse.call.name not in RANDOM)


def _told(outcome: Outcome) -> str:
    error = outcome.error
    return f"answers {outcome.result!s:.200}" if error is None else f"raises {type(error).__name__}: {error!s:.200}"


def _form(result: Any) -> Any:
    """A result without its values."""
    if isinstance(result, (tuple, list)):
        return [_form(each) for each in result]
    return (tuple(result.shape), result.dtype) if isinstance(result, tm.Tensor) else type(result)


def _values(arguments: Any) -> list:
    return list(arguments.values()) if isinstance(arguments, dict) else arguments


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tm.Tensor):
        if a.is_meta or a.dtype != b.dtype or a.shape != b.shape:
            return a.is_meta and a.shape == b.shape
        return np.array_equal(a.detach().cpu().numpy(), b.detach().cpu().numpy(), equal_nan=a.is_floating_point())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or a == b or a != a


def test_the_test_sees_an_error_that_nobody_meant_and_one_that_is_missing():
    call = next(c for c in CALLS if c.name == "sum")
    misuse = Misuse(call, "as it is")
    assert difference(misuse, Outcome(None, IndexError("out of range")), Outcome(1, None)) is not None
    assert difference(misuse, Outcome(None, IndexError("out of range")), Outcome(None, ValueError("x"))) is not None
    assert difference(misuse, Outcome(1, None), Outcome(None, ValueError("x"))) is not None
    with pytest.raises(ValueError, match="broadcast") as caught:
        np.add(np.zeros(3), np.zeros(2))
    assert not raised_on_purpose(caught.value)
