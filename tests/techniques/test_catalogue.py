"""The catalogue of techniques: its rows are true, its bad pairs fail, and the planner and two pages are derived from it."""

from __future__ import annotations

import ast
import pydoc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
from tests import catalogue as tables
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer
from tinygrad_mem.errors import ArgumentError, GraphError, NotOfferedError
from tinygrad_mem.plan.techniques import KINDS
from tinygrad_mem.techniques import TABLE, Technique, accumulate, compressed, optimizer_in_backward, save_on_cpu
from tinygrad_mem.techniques.catalogue import LEVELS, of_tip, reason_against
from tinygrad_mem.tips import TIPS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHARED = {"catalogue", "combinations", "myths", "against_pytorch"}
WANTED = {
    "equal": ("identical", "equal", "bit_for_bit"),
    "bytes": ("bytes", "peak"),
    "the big networks": ("big_networks",),
    "pytorch": ("pytorch",),
}
ROWS = pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
HERE_TESTED = [name for name, row in TABLE.items() if not row.tests]


def named_in(name: str) -> list[str]:
    tree = ast.parse((HERE / f"test_{name}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def found(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part)
    return root


def test_every_technique_has_its_tests_and_every_test_its_technique():
    files = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")} - SHARED
    assert files == set(HERE_TESTED)
    for row in TABLE.values():
        assert not row.tests or (ROOT / "tests" / row.tests).exists(), row.tests


@pytest.mark.parametrize("name", HERE_TESTED)
@pytest.mark.parametrize("what", WANTED)
def test_they_show_what_each_technique_must_show(name: str, what: str):
    tests = named_in(name)
    assert any(word in test for test in tests for word in WANTED[what]), f"no test of {what} among {tests}"


@ROWS
def test_it_is_where_the_row_says_and_its_docstring_says_memory_price_and_when_not(row: Technique):
    for path in row.use:
        doc = found(tm, path).__doc__ or ""
        for word in ("Memory:", "Price:", "Do not use when:"):
            assert word in doc, f"{path} does not say: {word}"


@ROWS
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch.distributed.optim, when it is imported
def test_everything_that_a_row_names_is_there(row: Technique):
    assert row.numbers in LEVELS
    assert set(row.tips) <= set(TIPS)
    assert all((ROOT / "tutorials" / f"{lesson}.py").exists() for lesson in row.lessons)
    if row.pytorch:
        assert pydoc.locate(f"torch.{row.pytorch}") is not None


def test_a_tip_measures_one_technique_at_most():
    tips = [tip for row in TABLE.values() for tip in row.tips]
    assert len(set(tips)) == len(tips)
    assert {of_tip(tip) for tip in tips} == set(TABLE.values())
    assert of_tip("gc_collect") is None
    same_name = [tip for tip in TIPS if tip in TABLE]
    assert all(of_tip(tip) is TABLE[tip] for tip in same_name)


def test_the_planner_has_no_list_of_its_own():
    for kind in KINDS:
        assert kind.name == kind.rows[0]
        assert kind.numbers == max((TABLE[row].numbers for row in kind.rows), key=LEVELS.index)


@pytest.mark.parametrize("page", tables.COLUMNS)
def test_the_pages_have_the_table_of_the_catalogue(page: str):
    text = (ROOT / page).read_text()
    assert tables.replaced(text, tables.table(page)) == text, "run: python -m tests.catalogue --write"
    with pytest.raises(ValueError, match="no table"):
        tables.replaced("no such page", [])


# --- pairs


def in_backward_and_accumulation() -> None:
    model = nn.Linear(2, 2)
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    optimizer_in_backward(optimizer)
    with pytest.raises(GraphError, match="this optimizer updates each parameter in backward"):
        accumulate(model, optimizer, 2)


def in_backward_and_loss_scaling() -> None:
    model = nn.Linear(2, 2)
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    with optimizer_in_backward(optimizer), pytest.raises(GraphError, match="give the scaler to optimizer_in_backward"):
        tm.amp.GradScaler("cpu").scale(model(tm.ones(1, 2)).sum())


def offload_and_compression() -> None:
    """Nothing raises: the inner block alone has an effect."""

    def kept(*blocks: Callable[[], Any]) -> int:
        def run(x: Any) -> Any:
            with blocks[0](), blocks[-1]():
                return x.exp().exp()

        return memory.saved(run, tm.ones(64, 64, requires_grad=True)).total

    assert kept(compressed, save_on_cpu) == kept(save_on_cpu, save_on_cpu) != kept(compressed, compressed)
    assert kept(save_on_cpu, compressed) == kept(compressed, compressed)


def on_two_ranks(run: Callable[[nn.Module], Any]) -> None:
    """Call ``run`` with a linear layer, as one of two ranks."""

    def program() -> None:
        tm.distributed.init_process_group()
        run(nn.Linear(2, 2))

    memory.predict(program, world_size=2)


def data_parallel_and_in_backward() -> None:
    def run(model: nn.Module) -> None:
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
        with (
            optimizer_in_backward(optimizer),
            pytest.raises(GraphError, match="before its gradient is averaged over the ranks"),
        ):
            wrapped(tm.ones(1, 2)).sum().backward()

    on_two_ranks(run)


def zero_1_and_in_backward() -> None:
    def run(model: nn.Module) -> None:
        with optimizer_in_backward(zero_1(model)), pytest.raises(NotOfferedError, match="no rank updates all parameters"):
            model(tm.ones(1, 2)).sum().backward()

    on_two_ranks(run)


def zero_1(model: nn.Module) -> Any:
    return ZeroRedundancyOptimizer(model.parameters(), tm.optim.SGD, lr=0.1)


def sharded_and_data_parallel() -> None:
    def run(model: nn.Module) -> None:
        fully_shard(model)
        with pytest.raises(ArgumentError, match="each of these ranks has another part of the parameters"):
            nn.parallel.DistributedDataParallel(model)

    on_two_ranks(run)


def sharded_and_zero_1() -> None:
    def run(model: nn.Module) -> None:
        fully_shard(model)
        with pytest.raises(ArgumentError, match="parameters are divided over these ranks already"):
            zero_1(model)

    on_two_ranks(run)


def sharded_twice() -> None:
    def run(model: nn.Module) -> None:
        fully_shard(model, reshard_after_forward=False)
        with pytest.raises(ArgumentError, match="it has been applied to this module already"):
            fully_shard(model)

    on_two_ranks(run)


PAIRS = {
    ("in_backward", "accumulation"): in_backward_and_accumulation,
    ("in_backward", "loss_scaling"): in_backward_and_loss_scaling,
    ("offload", "compression"): offload_and_compression,
    ("data_parallel", "in_backward"): data_parallel_and_in_backward,
    ("zero_1", "in_backward"): zero_1_and_in_backward,
    ("zero_2", "data_parallel"): sharded_and_data_parallel,
    ("zero_2", "zero_1"): sharded_and_zero_1,
    ("zero_3", "data_parallel"): sharded_and_data_parallel,
    ("zero_3", "zero_1"): sharded_and_zero_1,
    ("zero_3", "zero_2"): sharded_twice,
}


def test_every_pair_of_the_catalogue_is_shown_to_fail():
    assert {(row.name, other) for row in TABLE.values() for other in row.not_with} == set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_pair_that_does_not_go_together(pair: tuple[str, str]):
    a, b = pair
    assert reason_against(a, b) == reason_against(b, a) == TABLE[a].not_with[b]
    PAIRS[pair]()
