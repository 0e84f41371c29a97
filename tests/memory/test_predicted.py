"""A prediction is the run, event by event: every public function, layer, optimizer and technique that takes memory."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import flat
from tests.memory.predicted_rows import CALLS_BESIDE, EQUAL, PROGRAMS, REFUSED, SILENT
from tests.nn.rows import ROWS, Row
from tests.optim.light import LIGHT
from tests.optim.test_optim import GRID
from tests.predicted import difference
from tests.profiles import every, examples, pairs, share_of_each, some
from tests.sturdy import calls
from tests.sturdy.calls import Call, Of
from tinygrad_mem import memory, nn, optim
from tinygrad_mem.devices import chunks
from tinygrad_mem.errors import DataDependenceError, TinygradMemError
from tinygrad_mem.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = {name: rows for name, rows in vars(calls).items() if name.isupper() and name != "CALLS" and isinstance(rows, list)}
FAMILIES["BESIDE"] = CALLS_BESIDE
LAYOUTS = ["plain", "turned", "sliced", "expanded", "offset", "fortran"]
SIZES: list[dict[int, int]] = [{}, {3: 0}, {4: 0}, {3: 1}, {4: 1}, {3: 60, 4: 70}]
DTYPES = ["float32", "float64", "float16", "bfloat16"]
PLAIN = LAYOUTS[0], SIZES[0], DTYPES[0]
VARIANTS = [*itertools.product(LAYOUTS, SIZES, DTYPES)]
TRIED = examples(2) // every(2)  # of these, drawn for each call


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a few events, as these runs have: thousands of logs of four MB would take half of the time."""
    monkeypatch.setattr("tinygrad_mem.memory.log._CHUNK", 1 << 8)


def laid_out(t: tm.Tensor, layout: str) -> tm.Tensor:
    """The same values in memory of another shape."""
    if layout == "turned" and t.ndim > 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and t.ndim:
        return tm.stack([t, t], -1)[..., 1]
    if layout == "expanded" and t.ndim and t.shape[0]:
        return t.narrow(0, 0, 1).expand(t.shape)
    if layout == "offset":
        line = t.reshape(-1)
        return tm.cat([line[:1], line])[-t.numel() :].view(t.shape) if t.numel() else t
    return t


def made(value: Any, rng: np.random.Generator, layout: str, sizes: dict[int, int], dtype: str, grad: bool) -> Any:
    """The argument with tensors in it."""
    if isinstance(value, Of):
        array = replace(value, shape=tuple(sizes.get(n, n) for n in value.shape)).array(rng)
        t = tm.from_numpy(np.asfortranarray(array)) if layout == "fortran" else laid_out(tm.tensor(array), layout)
        if value.kind == "f":
            t = t.to(getattr(tm, dtype)).detach().requires_grad_(grad)
        return t
    if isinstance(value, (tuple, list)):
        return type(value)([made(part, rng, layout, sizes, dtype, grad) for part in value])
    return getattr(tm, value) if isinstance(value, str) and value in ("float64", "int64") else value


def function(name: str) -> Callable[..., Any]:
    place, _, last = name.rpartition(".")
    root: Any = {"T": tm.Tensor, "F": F}.get(place, tm)
    for part in place.split(".") if root is tm and place else ():
        root = getattr(root, part)
    return getattr(root, last)


def backward(results: Any, layout: str = "plain") -> None:
    """Backward of all results, with gradients of ones in the layout of the arguments."""
    wanted = [t for t in flat(results) if t.requires_grad and not t.is_leaf]
    if wanted:
        tm.autograd.backward(wanted, [laid_out(tm.ones_like(t), layout) for t in wanted])


def called(call: Call, layout: str, sizes: dict[int, int], dtype: str, grad: bool) -> None:
    """Forward and, where there is a gradient, backward."""
    tm.manual_seed(0)
    rng = np.random.default_rng(0)
    args = [made(value, rng, layout, sizes, dtype, grad) for value in call.args]
    kwargs = {key: made(value, rng, layout, sizes, dtype, grad) for key, value in call.kwargs.items()}
    in_place = call.name.rstrip("_") != call.name or call.name.startswith("T.__i")
    if grad and in_place and "init." not in call.name and args[0].is_floating_point():
        args[0] = args[0] * 1.0  # a leaf is not written
    found = function(call.name)(*args, **kwargs)
    backward(list(found) if isinstance(found, Iterator) else found, layout)


def parted(what: Any, run: Callable[[], Any], found: list[str], compare: Callable[[Any], str] = difference) -> int:
    """1 where the run went to its end and was predicted, 0 where it, or its prediction, was refused in words."""
    try:
        said = compare(run)
    except TinygradMemError:
        return 0
    if said:
        found.append(f"{what}: {said}")
    return 1


@pytest.mark.parametrize("family", FAMILIES)
def test_functions(family: str, reliability: Callable[[str, int], None]):
    found: list[str] = []
    count = plain = 0
    for number, call in enumerate(FAMILIES[family]):
        rng = np.random.default_rng([number, zlib.crc32(call.name.encode())])
        tried = [PLAIN, *[VARIANTS[at] for at in rng.choice(len(VARIANTS), TRIED, replace=False)]]
        if "init." in call.name:  # weights of no elements have no variance, and no middle
            tried = [variant for variant in tried if 0 not in variant[1].values()]
        usual = [(PLAIN, False), (tried[-number % len(tried)], True)]
        for variant, grad in some([*itertools.product(tried, (False, True))], usual):
            ran = parted((str(call), *variant, grad), lambda: called(call, *variant, grad), found)  # noqa: B023
            count += ran
            plain += ran and variant is tried[0] and not grad
    assert found == []
    assert plain >= 0.8 * len(FAMILIES[family])
    reliability("calls of public functions predicted event by event", count)


def test_functions_like_a_gpu(reliability: Callable[[str, int], None]):
    """Without one: nothing is raised that a prediction for the cpu does not raise."""
    pytest.importorskip("cupy")
    count = 0
    rows = [*itertools.chain(*FAMILIES.values())][:: every(3)]
    for call, grad in itertools.product(rows, some((False, True), (True,))):
        try:
            memory.predict(called, call, *PLAIN, grad)
        except TinygradMemError:
            continue
        try:
            memory.predict(called, call, *PLAIN, grad, like="cuda")
        except DataDependenceError:  # floats are known as on the cpu only
            assert call.name in ("allclose", "equal"), call
            continue
        count += 1
    reliability("calls predicted as on a GPU", count)


def nowhere(size: int) -> Any:
    """What a prediction's pool takes for large segments, whatever their size: addresses without memory."""
    return np.asarray(chunks._Addresses(size)).view(chunks._Nowhere)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_no_value_is_read(tmp_path: Path, reliability: Callable[[str, int], None]):
    """A large array of a prediction has no memory: an op that reads it ends the process. Here small ones have none either."""
    tried: list[tuple[str, Callable[[], Any]]] = []
    for call, layout in itertools.product(itertools.chain(*FAMILIES.values()), some(("plain", "turned"), ("turned",))):
        tried.append((f"{call}, {layout}", partial(called, call, layout, {}, "float32", True)))
    tried += [(str(row), partial(layer, row, train)) for row, train in trained_rows(4, 4)]
    tried += PROGRAMS.items()
    last = os.open(tmp_path / "last", os.O_CREAT | os.O_RDWR)
    if not (child := os.fork()):
        try:
            chunks.pretend = nowhere
            for name, run in tried:
                os.pwrite(last, name.ljust(200).encode(), 0)
                with contextlib.suppress(TinygradMemError):
                    memory.predict(run)
        finally:
            os._exit(name != tried[-1][0])
    assert os.waitpid(child, 0)[1] == 0, os.pread(last, 200, 0)
    os.close(last)
    reliability("predictions without any memory", len(tried))


def layer(row: Row, train: bool) -> None:
    tm.manual_seed(0)
    module: nn.Module = row.make(nn, tm.tensor).train(train)
    inputs = [np.asarray(a) for a in row.inputs(np.random.default_rng(5))]
    x = [tm.tensor(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in inputs]
    for t in x:
        t.requires_grad_(t.is_floating_point())
    rule = optim.SGD(module.parameters(), lr=0.1, momentum=0.9) if [*module.parameters()] else None
    for _ in range(2):
        backward(module(*x))
        if rule is not None:
            rule.step()
            rule.zero_grad()


def trained_rows(training: int, evaluation: int) -> list[tuple[Row, bool]]:
    """Rows of layers; in a usual run, of those of each layer one in so many in training, and one in so many in evaluation."""
    numbers = ((True, training), (False, evaluation))
    return [(row, train) for train, number in numbers for row in share_of_each(ROWS, number, lambda row: row.name)]


def test_layers(reliability: Callable[[str, int], None]):
    found: list[str] = []
    count = 0
    rows = trained_rows(1, 2)
    for row, train in rows:
        count += parted((str(row), train), lambda: layer(row, train), found)  # noqa: B023
    assert found == []
    assert count >= len(rows) - 4
    reliability("layers trained and predicted event by event", count)


RULES = [*GRID, *LIGHT, ("Adam8bit", {}), ("AdamW8bit", {"weight_decay": 0.1}), ("SGD8bit", {"momentum": 0.9})]
RULES += [(name, {"state_dtype": "float16"}) for name in ("Adam", "AdamW")]


def trained(name: str, options: dict[str, Any], masters: bool, dtype: str) -> None:
    """Three steps, in the second of which one parameter has no gradient; then a second optimizer takes the state over."""
    chosen = {k: getattr(tm, v) if k == "state_dtype" else v for k, v in options.items()}
    if masters:
        chosen["master_weights"] = True
    ps = [tm.ones(shape, dtype=dtype).requires_grad_() for shape in [(7, 50), (3,), (), (2, 3, 4), (0, 2)]]
    rule = getattr(optim, name)(ps, **chosen)
    for step, (at, p) in itertools.product(range(3), enumerate(ps)):
        p.grad = None if (step, at) == (1, 1) else tm.ones_like(p) * 0.5
        if p is ps[-1]:
            rule.step()
    rule.zero_grad(set_to_none=False)
    other = getattr(optim, name)([p.detach().clone().requires_grad_() for p in ps], **chosen)
    other.load_state_dict(rule.state_dict())


def test_optimizers(reliability: Callable[[str, int], None]):
    found: list[str] = []
    count = 0
    rows = share_of_each(pairs(RULES, ("float32", "float16", "bfloat16"), (False, True)), 2, lambda row: row[0][0])
    for (name, options), dtype, masters in rows:
        what = name, options, masters, dtype
        count += parted(what, lambda: trained(name, options, masters, dtype), found)  # noqa: B023
    assert found == []
    assert count == len(rows)
    reliability("optimizers with each option, predicted event by event", count)


@pytest.mark.parametrize("names", PROGRAMS)
def test_programs(names: str, reliability: Callable[[str, int], None]):
    def run() -> None:
        tm.manual_seed(0)
        PROGRAMS[names]()

    assert difference(run) == ""
    reliability("programs of several parts predicted event by event", 1)


# --- values that decide


@pytest.mark.parametrize("what", EQUAL)
def test_values_that_decide_nothing(what: str, reliability: Callable[[str, int], None]):
    """Negative indices, a nan, a norm that is too large: the run takes another path in the kernels, and the same memory."""

    def run() -> None:
        tm.manual_seed(0)
        EQUAL[what]()

    assert difference(run) == ""
    reliability("branches on values, predicted event by event or refused", 1)


@pytest.mark.parametrize("what", REFUSED)
def test_values_that_decide_are_refused(what: str, reliability: Callable[[str, int], None]):
    with pytest.raises(DataDependenceError, match="predict: at"):
        memory.predict(REFUSED[what])
    reliability("branches on values, predicted event by event or refused", 1)


def test_a_prediction_takes_each_step_of_a_scaler():
    """Whether gradients overflow is not known: what a step that is taken needs is said, the larger of both."""

    def run(loss: float) -> None:
        model = nn.Linear(30, 30)
        rule, scaler = optim.Adam(model.parameters()), tm.amp.GradScaler("cpu")
        for _ in range(2):
            rule.zero_grad()
            scaler.scale(model(tm.ones(2, 30)).sum() * loss).backward()
            scaler.step(rule)
            scaler.update()

    assert difference(lambda: run(1.0)) == ""
    predicted = [memory.predict(run, loss).peak for loss in (1.0, float("inf"))]
    assert predicted[0] == predicted[1]


# --- nothing is left out


PLACES = ["nn", "nn.init", "nn.utils", "nn.utils.rnn", "optim", "linalg", "amp", "data", "techniques", "recompute"]
PLACES += ["autograd", "autograd.graph", "distributions"]


def public() -> dict[str, Any]:
    """Name -> function or class, of all that this package offers where PyTorch has it."""
    found: dict[str, Any] = {}
    roots = {"": tm, "F.": F, **{f"{place}.": function(place) for place in PLACES}}
    for place, root in roots.items():
        for name, value in vars(root).items():
            ours = getattr(value, "__module__", "").startswith("tinygrad_mem") and not name.startswith("_")
            ours = ours and not any(base.__name__ in ("_Refused", "NeverMade") for base in getattr(value, "__mro__", ()))
            if ours and (inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, BaseException))):
                found[place + name] = value
    for name in dir(tm.Tensor):
        value = inspect.getattr_static(tm.Tensor, name)
        own = name.startswith("__") and not hasattr(object, name)
        if inspect.isfunction(value) and (own or not name.startswith("_")):
            found[f"T.{name}"] = value
    return found


def rows() -> set[str]:
    """The names of what has a row."""
    found = {call.name for call in itertools.chain(*FAMILIES.values())}
    found |= {f"nn.{row.name}" for row in ROWS} | {f"optim.{name}" for name, _ in RULES}
    for names in PROGRAMS:
        first, *others = names.split()
        place = "".join(first.rpartition(".")[:2])
        found |= {first, *(other if "." in other else place + other for other in others)}
    return found


def test_everything_public_has_a_row():
    offered = public()
    covered = {id(inspect.unwrap(offered[name])) for name in rows() & set(offered)}
    missing = {name for name, value in offered.items() if id(inspect.unwrap(value)) not in covered}
    silent = {name for names in SILENT.values() for name in names.split()}
    known = {id(offered[name]) for name in silent & set(offered)}  # under whatever other names modules have them
    wanted = {name for name in missing - silent if id(offered[name]) not in known}
    assert sorted(wanted) == [], "give them a row in tests/memory/predicted_rows.py"
    assert sorted(silent - missing) == [], "they have a row, or are not there: take them off the list"


def test_the_test_sees_another_order_and_another_size():
    def run(order: bool, size: int) -> None:
        held = [tm.ones(500), tm.ones(size)]
        held.pop(0 if order else 1)
        del held

    for change in ((False, 900), (True, 901 + 128)):
        choice = itertools.cycle([(True, 900), change])
        assert "event" in difference(lambda: run(*next(choice)))  # noqa: B023
    assert difference(lambda: run(True, 900)) == ""
