"""Logs of networks with many equal layers, made from those with few, are those of the whole network, event for event."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests import profiles
from tests.predicted import facts
from tinygrad_mem import memory, nn
from tinygrad_mem.cli import estimate_run
from tinygrad_mem.cli.estimate_options import EstimateOptions
from tinygrad_mem.cli.estimate_run import EstimateRun
from tinygrad_mem.cli.networks import OPTIMIZERS
from tinygrad_mem.memory.unroll import repeated, unrolled
from tinygrad_mem.models.configuration import configuration
from tinygrad_mem.models.names import NETWORKS, of_configuration
from tinygrad_mem.models.published import PUBLISHED

TINY = {"model_type": "llama", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8}
TINY |= {"num_key_value_heads": 4, "max_position_embeddings": 64}
HOW = {"recompute": None, "lora": None, "quantize": None, "optimizer": "adamw", "precision": "float32", "accumulate": 1}


def run(named: Any, **changes: Any) -> EstimateRun:
    how: Any = HOW | changes
    if how["recompute"] is not None:
        named = named.recomputed(how["recompute"])
    unused = dict.fromkeys(field.name for field in dataclasses.fields(EstimateOptions))
    return EstimateRun(EstimateOptions(**(unused | how | {"batch_size": 2})), named)  # type: ignore[arg-type]


def tiny(layers: int, **fields: Any) -> Any:
    return of_configuration(configuration(TINY | {"num_hidden_layers": layers} | fields), 16)


def compare(named: Any, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    """The whole network's log, and what is told of it, both ways."""
    tracks: list[memory.Track] = []

    def noted(track: memory.Track, *rest: Any) -> Any:
        tracks.append(track)
        return account(track, *rest)

    account = estimate_run.account
    monkeypatch.setattr(estimate_run, "account", noted)
    quick = dataclasses.asdict(run(named, **how).estimate())
    monkeypatch.setattr(EstimateRun, "_from_few", lambda self: None)
    slow = dataclasses.asdict(run(named, **how).estimate())
    times = tracks[0].log.column("time")
    assert (times == np.arange(len(times))).all(), "it was not made from few"
    assert len(tracks[0].log) == len(tracks[1].log)
    for number, (one, other) in enumerate(zip(*map(facts, tracks), strict=True)):
        assert one == other, f"event {number}"
    assert quick == slow


CASES: list[dict[str, Any]] = [
    {},
    {"recompute": "every-block", "lora": 4, "precision": "bfloat16", "optimizer": "adamw8bit"},
    {"lora": 4, "quantize": "nf4"},
    {"precision": "half", "accumulate": 2},
    {"precision": "autocast", "optimizer": "adafactor"},
    {"optimizer": "lomo", "precision": "bfloat16"},
    {"optimizer": "galore"},
    {"optimizer": "muon", "recompute": "every-block"},
]


def is_long(name: str) -> bool:
    layers, period = NETWORKS[name].depth
    return layers >= 18 * period + 4 * (layers % period)


ROWS = [("a small one", how) for how in CASES] + [(name, CASES[1]) for name in PUBLISHED if is_long(name)]
ROWS += [("a small one", {"optimizer": name}) for name in OPTIMIZERS]


@pytest.mark.parametrize(("name", "how"), profiles.some(ROWS, ROWS[1:3]))
def test_every_event_is_that_of_the_whole_network(name: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    compare(NETWORKS.get(name) or tiny(18), monkeypatch, **how)


TURNS: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"model_type": "mixtral", "num_local_experts": 4}, (18, 1)),
    ({"model_type": "gemma2", "head_dim": 16, "sliding_window": 5}, (41, 2)),
    ({"model_type": "qwen3_moe", "decoder_sparse_step": 2, "num_experts": 4, "num_experts_per_tok": 2}, (36, 2)),
]


@pytest.mark.parametrize(("fields", "depth"), profiles.some(TURNS, TURNS[:1]))
def test_where_kinds_of_layers_take_turns(fields: dict, depth: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    named = tiny(depth[0], **fields)
    assert named.depth == depth
    compare(named, monkeypatch)


def made(layers: int, network: Callable[[int], nn.Module]) -> memory.Track:
    def step() -> None:
        model = network(layers)  # it outlives the graph: Python lets go of long chains of objects in an order of its own
        model(tm.zeros(4, 8)).sum().backward()

    return memory.predict(step)


def alike(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(layers)))


def wider(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(8 + 512 * i, 8 + 512 * (i + 1)) for i in range(layers)), nn.Linear(8 + 512 * layers, 8))


def odd(layers: int) -> nn.Module:
    """Its sixth layer, which no smaller one has, is of another kind."""
    return nn.Sequential(*(nn.Identity() if i == 5 else nn.Linear(8, 8) for i in range(layers)))


def test_layers_that_are_not_equal_are_not_unrolled():
    found = repeated(lambda layers: made(layers, alike), 20)
    assert found is not None
    assert facts(found) == facts(made(20, alike))
    assert repeated(lambda layers: made(layers, wider), 20) is None
    assert repeated(lambda layers: made(layers, odd), 20) is None


def test_in_tiles(monkeypatch: pytest.MonkeyPatch):
    compare(tiny(18).with_own_loss(8), monkeypatch)


def test_a_few_layers_run_as_they_are():
    assert repeated(lambda layers: pytest.fail("it ran"), 17) is None


def test_what_depends_on_the_number_of_layers_is_not_unrolled():
    assert tiny(30).recomputed("sqrt").few is None
    assert tiny(30).recomputed("4").few is None
    assert NETWORKS["resnet1001"].few is None


def test_the_last_log_is_a_check():
    """One event that is not as it should be, of whatever field, is noticed."""
    logs = [made(n, alike).log for n in (3, 4, 5, 6)]
    assert unrolled(logs, 10) is not None
    for name in ("kind", "address", "requested", "rounded", "op", "module"):
        changed = memory.Log("meta")
        records = np.concatenate(list(logs[3].chunks()))
        at = int(np.flatnonzero(records["kind"] == memory.Kind.MALLOC)[7])
        records[name][at] += 1
        changed.extend(records, np.array(changed.codes(logs[3].texts)))
        assert unrolled([*logs[:3], changed], 10) is None, name
