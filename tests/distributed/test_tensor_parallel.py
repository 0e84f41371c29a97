"""Tensor and sequence parallel: numbers of one process, bytes by formulas and as predicted, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed import regions
from tinygrad_mem.distributed.tensor import Replicate, Shard
from tinygrad_mem.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
    vocabulary_parallel_cross_entropy,
)
from tinygrad_mem.distributed.tensor.parallel.layers import gathered_linear
from tinygrad_mem.memory import Category

TOKENS, WIDTH, RANKS = 64, 32, 4


def layers(axis: int | None) -> None:
    """Two layers over all ranks; with an axis, tokens lie over ranks outside of them."""
    dist.init_process_group()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    tokens: Any = Replicate() if axis is None else Shard(axis)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False))
    plan: dict[str, ParallelStyle] = {
        "0": ColwiseParallel(input_layouts=tokens),
        "1": RowwiseParallel(output_layouts=tokens),
    }
    parallelize_module(model, mesh, plan)
    x = tm.zeros(TOKENS // (1 if axis is None else mesh.size()), WIDTH, requires_grad=True)
    memory.mark("begin")
    y = model(x)
    memory.mark("forward")
    y.sum().backward()


@pytest.mark.parametrize("axis", [None, 0])
def test_what_a_rank_keeps(axis: int | None):
    """A part of the weights; saved, the middle's own columns; gathered rows are kept by nobody."""
    said = memory.predict(layers, axis, world_size=RANKS)
    weights = 2 * 4 * WIDTH * WIDTH * 4 // RANKS
    assert said.by_category("begin")[Category.PARAMETER] == weights
    middle, rows = TOKENS * 4 * WIDTH * 4 // RANKS, TOKENS * WIDTH * 4
    own = rows if axis is None else rows // RANKS
    kept = said.by_category("forward")
    assert kept == {
        Category.PARAMETER: weights, Category.INPUT: own, Category.ACTIVATION: middle, Category.TEMPORARY: own
    }  # fmt: skip
    most = said.timeline().bytes(Category.COMMUNICATION).max()
    assert most == (0 if axis is None else rows)


def test_all_ranks_are_alike():
    for axis in (None, 0):
        (found,) = memory.predict(layers, axis, world_size=RANKS, ranks="all")
        assert found.ranks == tuple(range(RANKS))


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("fake", rank=1, world_size=RANKS)
    try:
        with tm.device("meta"):
            yield dist.init_device_mesh("meta", (RANKS,))
    finally:
        dist.destroy_process_group()


def test_a_division_that_does_not_fit_is_refused(mesh: Any):
    linear = nn.Linear(6, 8)
    with pytest.raises(ValueError, match=r"Linear\.weight: dimension 1 of \[8, 6\] cannot be divided evenly among 4 ranks"):
        parallelize_module(linear, mesh, RowwiseParallel())
    with pytest.raises(ValueError, match=r"the plan's 'up' leads to no module of Linear"):
        parallelize_module(linear, mesh, {"up": RowwiseParallel()})
    with pytest.raises(ValueError, match="give a mesh of one dimension"):
        parallelize_module(linear, None, RowwiseParallel())
    with pytest.raises(TypeError, match="expected a ParallelStyle for '', found str"):
        parallelize_module(linear, mesh, {"": "rows"})  # type: ignore[dict-item]
    with pytest.raises(NotImplementedError, match=r"ColwiseParallel: expected an nn\.Linear or nn\.Embedding, found Tanh"):
        parallelize_module(nn.Tanh(), mesh, ColwiseParallel())
    with pytest.raises(NotImplementedError, match=r"RowwiseParallel: expected an nn\.Linear or nn\.Embedding, found Tanh"):
        parallelize_module(nn.Tanh(), mesh, RowwiseParallel())
    with pytest.raises(NotImplementedError, match=r"output_layouts is Shard\(-1\) or Replicate\(\)"):
        ColwiseParallel(output_layouts=Shard(0))
    with pytest.raises(NotImplementedError, match=r"input_layouts is Shard\(-1\) or Replicate\(\), found Shard\(dim=0\)"):
        parallelize_module(nn.Linear(8, 8), mesh, RowwiseParallel(input_layouts=Shard(0)))
    for style in (ColwiseParallel, RowwiseParallel):
        with pytest.raises(NotImplementedError, match=rf"{style.__name__} of an Embedding: .*max_norm is None"):
            parallelize_module(nn.Embedding(8, 8, max_norm=1.0), mesh, style())
    with pytest.raises(ValueError, match="should have same length"):
        PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(), Replicate()))
    with pytest.raises(NotImplementedError, match="pass them by position"):
        PrepareModuleInput(input_kwarg_layouts={"x": Shard(0)})
    parallelize_module(linear, mesh, PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(1)))
    with pytest.raises(NotImplementedError, match=r"from Shard\(dim=0\) to Shard\(dim=1\): gather it first"):
        linear(tm.zeros(2, 6))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(8, 8), nn.LayerNorm(8)
        self.up, self.down, self.odd, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 6), nn.Tanh()
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.table.weight


def structure(model: nn.Module) -> list:
    """All that a division changes: classes, attributes, parameters, hooks of both."""
    return [
        (
            type(module),
            sorted(vars(module)),
            [(name, id(p), p.shape, dict(p._hooks or {})) for name, p in module.named_parameters(recurse=False)],
            dict(module._forward_hooks),
            dict(module._forward_pre_hooks),
        )
        for module in model.modules()
    ]


@pytest.mark.parametrize(
    ("last", "match"),
    [
        ({"odd": ColwiseParallel()}, "dimension 0 of .* cannot be divided evenly among 4 ranks"),
        ({"act": ColwiseParallel()}, r"ColwiseParallel: expected an nn\.Linear or nn\.Embedding, found Tanh"),
        ({"act": RowwiseParallel()}, r"RowwiseParallel: expected an nn\.Linear or nn\.Embedding, found Tanh"),
        ({"missing": ColwiseParallel()}, "leads to no module"),
        ({"act": "rows"}, "expected a ParallelStyle for 'act', found str"),
        ({"d*": ColwiseParallel()}, r"down\.weight would be divided twice"),
        ({"tied": RowwiseParallel()}, "two modules share weight .* and divide it along dimensions 0 and 1"),
        ({}, r"tied\.weight is shared with a module that was divided"),
    ],
)
def test_a_plan_that_is_refused_leaves_every_module_as_it_was(mesh: Any, last: dict, match: str):
    """Its last entry is refused: those before it were divided."""
    plan = {
        "table": RowwiseParallel(output_layouts=Shard(0)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "act": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
    }
    model = Block()
    before = structure(model)
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=match):
        parallelize_module(model, mesh, {**plan, **last})
    assert structure(model) == before
    parallelize_module(model, mesh, {**plan, "tied": ColwiseParallel()})
    assert structure(model) != before
    assert model.up.weight.shape == (2, 8)
    assert model.down.weight.shape == (8, 2)
    with pytest.raises((ValueError, NotImplementedError), match=r"expected an nn\.Linear|would be divided twice"):
        parallelize_module(model, mesh, {"table": ColwiseParallel(), "up": ColwiseParallel()})


def test_gradients_of_a_shared_norm_are_summed_once(mesh: Any):
    """Each of two norms that share a weight asked for a sum over the ranks, so the gradient was 4 times too large."""
    first, second = nn.LayerNorm(8), nn.LayerNorm(8)
    second.weight = first.weight
    parallelize_module(nn.ModuleList([first, second]), mesh, {"*": SequenceParallel()})
    assert first.weight is not None
    assert len(first.weight._hooks or {}) == 1


def test_shared_weights_are_divided_alike_or_refused(mesh: Any):
    def tied() -> nn.ModuleDict:
        model = nn.ModuleDict({"table": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
        model["head"].weight = model["table"].weight
        return model

    model = tied()
    parallelize_module(model, mesh, {"table": RowwiseParallel(), "head": ColwiseParallel()})
    assert model["table"].weight is model["head"].weight
    assert model["head"].weight.shape == (2, 4)
    assert repr(model["head"]).endswith("rank 1 of 4, Replicate() -> Shard(dim=-1))")
    with pytest.raises(ValueError, match=r"two modules share weight \[8, 4\], and divide it along dimensions 1 and 0"):
        parallelize_module(tied(), mesh, {"table": ColwiseParallel(), "head": ColwiseParallel()})
    with pytest.raises(ValueError, match=r"table\.weight is shared with a module that was divided: divide both, or neither"):
        parallelize_module(tied(), mesh, {"head": ColwiseParallel()})


def test_regions_refuse_what_they_cannot_divide_or_send(mesh: Any):
    group = mesh.get_group()
    for region in (regions.scatter_to, regions.reduce_scatter_to):
        with pytest.raises(ValueError, match=r"dimension 1 of \[4, 6\] cannot be divided evenly among 4 ranks: pad it"):
            region(tm.zeros(4, 6), group, 1)
    with pytest.raises(
        RuntimeError,
        match=r"copy_to: No backend .* type cpu: the group 'fake' serves meta\. Move the tensor",
    ):
        regions.copy_to(tm.zeros(4, device="cpu"), group)
    for region in (regions.scatter_to, regions.reduce_scatter_to, regions.gather_from, regions.own):
        with pytest.raises(IndexError, match=r"expected to be in range of \[-2, 1\], but got 3"):
            region(tm.zeros(4, 8), group, 3)
    with pytest.raises(RuntimeError, match=r"gathered_linear: No backend .* type cpu: the group 'fake' serves meta"):
        gathered_linear(tm.zeros(4, 8, device="cpu"), tm.zeros(2, 8, device="cpu"), None, group, 0)
    alone = dist.new_group([1])
    x = tm.zeros(4, 6, requires_grad=True)
    for region in (regions.scatter_to, regions.reduce_scatter_to, regions.gather_from):
        assert region(x, alone, 1) is x
    assert regions.copy_to(x, alone) is regions.reduce_from(x, alone) is x


@pytest.mark.parametrize("order", [0, -1, float("-inf")])
def test_norms_that_do_not_follow_from_those_of_the_parts_are_refused(mesh: Any, order: float):
    layer = parallelize_module(nn.Linear(8, 8), mesh, ColwiseParallel())
    for p in layer.parameters():
        p.grad = tm.ones_like(p)
    with pytest.raises(NotImplementedError, match=rf"a norm of order {order:g} of what is divided over ranks is not offered"):
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0, order)


def test_the_loss_refuses_what_it_does_not_offer(mesh: Any):
    scores, target, group = tm.zeros(3, 2), tm.zeros(3, dtype=tm.int64), mesh.get_group()
    with pytest.raises(ValueError, match=r"expected scores \(N, part of the classes, \.\.\.\) and a target \(N, \.\.\.\)"):
        vocabulary_parallel_cross_entropy(scores, target[:2], group)
    with pytest.raises(
        RuntimeError,
        match=r"vocabulary_parallel_cross_entropy: No backend .* type cpu: the group 'fake' serves",
    ):
        vocabulary_parallel_cross_entropy(tm.zeros(3, 2, device="cpu"), tm.zeros(3, dtype=tm.int64, device="cpu"), group)
    with pytest.raises(TypeError, match="class probabilities are not offered"):
        vocabulary_parallel_cross_entropy(scores, tm.zeros(3), group)
    with pytest.raises(ValueError, match="median is not a valid value for reduction"):
        vocabulary_parallel_cross_entropy(scores, target, group, reduction="median")
    with pytest.raises(ValueError, match=r"label_smoothing must be between 0\.0 and 1\.0\. Got: 2"):
        vocabulary_parallel_cross_entropy(scores, target, group, label_smoothing=2)


def test_sequence_parallel_changes_no_layer_without_parameters(mesh: Any):
    dropout = nn.Dropout(0.1)
    assert parallelize_module(dropout, mesh, SequenceParallel()) is dropout
