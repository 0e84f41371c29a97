"""Plans over a mesh of ranks: exact on real ranks, the fastest of what was sketched, and refused in words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tinygrad_mem as tm
from tests.distributed.ranks import passes
from tests.profiles import every
from tinygrad_mem import memory
from tinygrad_mem.cli.app import app
from tinygrad_mem.errors import ArgumentError, BudgetError
from tinygrad_mem.models.mesh_plan import NEAR, MeshPlan, plan_mesh, settings
from tinygrad_mem.models.parallel import SIZES, Mesh, MeshTraining, TransformerSize, reason_against

SMALL = TransformerSize(4, 64, 4, 4, 256, 128, 32)


def planned(budget: int | None = None, samples: int = 2, ranks: int = 2) -> MeshPlan:
    return plan_mesh(replace(SMALL, layers=3), samples, ranks, budget, dtype=tm.float32)


def test_real_ranks_have_the_peaks_of_the_plan(tmp_path: Path):
    size = TransformerSize(2, 32, 4, 4, 64, 64, 16)
    found = plan_mesh(size, 2, 2, dtype=tm.float32)
    least = min(each.peak for each in found.sketches)
    plans = [found, *(found.within(int(times * least)) for times in (1.2, 1.5))]
    said = {
        each.setting: {rank: (alike.peak, alike.reserved) for alike in each.point.by_rank for rank in alike.ranks}
        for each in plans
    }
    (tmp_path / "plans").write_bytes(pickle.dumps((size, said)))
    done = passes(2, "planned_mesh", str(tmp_path / "plans"))
    assert sorted(done.splitlines()) == ["rank 0: done", "rank 1: done"]


@pytest.fixture(scope="module")
def fastest() -> MeshPlan:
    return planned()


def test_sketches_are_as_near_as_the_search_allows(fastest: MeshPlan):
    for each in fastest.sketches[:: every(5)]:

        def run(mesh: Mesh = each.setting.mesh, recompute: str = each.setting.recompute) -> None:
            training = MeshTraining(replace(SMALL, layers=3, recompute=recompute), mesh, dtype=tm.float32)
            for _ in range(2):
                training.step()

        exact = max(each.peak for each in memory.predict(run, world_size=2, ranks="all"))
        # one that is too low costs a run in full, which finds the peak; one that is too high would leave a setting out
        assert 0.994 * exact <= each.peak <= NEAR * exact, each.setting


def test_the_plan_is_the_fastest_that_fits(fastest: MeshPlan):
    assert fastest.setting == fastest.sketches[0].setting
    assert [each.time for each in fastest.sketches] == sorted(each.time for each in fastest.sketches)
    least = min(each.peak for each in fastest.sketches)
    found = fastest.within(int(1.3 * least))
    assert found.point.peak <= 1.3 * least < fastest.point.peak
    faster = [each for each in found.sketches if each.time < 0.999 * found.point.time]
    assert all(each.peak > found.budget or each.setting in found.full for each in faster)  # type: ignore[operator]
    assert found.full[-1] == found.setting
    with pytest.raises(BudgetError, match=r"Of \d+ settings the smallest \(.*\) needs .* Use more ranks, a smaller batch"):
        fastest.within(int(0.7 * least))


def test_what_a_plan_says_and_the_lines_that_it_writes():
    found = plan_mesh(replace(SMALL, layers=2), 2, 2)
    first, *ranks, tried = str(found).splitlines()
    assert first.startswith(f"{found.setting}: peak ")
    assert first.endswith("1.00 of the fastest setting's time")
    assert len(ranks) == len(found.point.by_rank)
    assert all(f"peak {each.peak:,} bytes" in line for each, line in zip(found.point.by_rank, ranks, strict=True))
    assert tried == f"tried: {len(found.sketches)} settings on {len(meshes(2, 2))} meshes, 1 of them in full"

    def run() -> None:
        names: dict[str, Any] = {"tokens": None, "targets": None}
        exec(found.lines(), names)
        names["training"].step()

    peaks = {each.ranks: each.track.peak for each in memory.predict(run, world_size=2, ranks="all")}
    assert peaks == {each.ranks: each.peak for each in found.point.by_rank}
    assert found.lines().splitlines()[-1] == "# start it: python -m tinygrad_mem launch -n 2 train.py"


def meshes(ranks: int, samples: int = 4) -> set[tuple[int, ...]]:
    found = (each.mesh for each in settings(SMALL, samples, ranks))
    return {(mesh.data, mesh.pipeline, mesh.context, mesh.tensor) for mesh in found}


def test_the_meshes_of_eight_ranks():
    """Of the 20 ways to write 8 as a product of four, three need more than 4 samples, layers or heads."""
    found = meshes(8)
    assert all(a * b * c * d == 8 for a, b, c, d in found)
    assert len(found) == 17
    assert (1, 1, 8, 1) in found
    assert {each.mesh.zero for each in settings(SMALL, 4, 8) if each.mesh.data * each.mesh.context == 1} == {0}
    assert {each.mesh.zero for each in settings(SMALL, 4, 8)} == {0, 1, 2, 3}


def test_what_cannot_be_divided_is_refused():
    two = replace(SMALL, key_heads=2)
    assert reason_against(two, Mesh(tensor=4)) == "tensor=4 does not divide key heads (2): use a divisor"
    assert reason_against(SMALL, Mesh(context=3)).startswith("32 tokens cannot be divided evenly over 3 ranks")
    assert reason_against(SMALL, Mesh(pipeline=8)) == "4 layers cannot be divided into 8 stages: use fewer"
    assert reason_against(SMALL, Mesh(2, 2, 2, 2)) == ""
    with pytest.raises(ArgumentError, match=r"MeshTraining: tensor=4 does not divide key heads \(2\): use a divisor"):
        memory.predict(lambda: MeshTraining(two, Mesh(tensor=4)), world_size=4)
    with pytest.raises(ArgumentError, match=r"no mesh of 7 ranks divides this network and 2 samples. data: 2 samples cannot"):
        planned(ranks=7)
    for bad in (0, True, 2.5):
        with pytest.raises(ArgumentError, match="ranks is a whole number from 1 on"):
            planned(ranks=bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="samples is a whole number from 1 on, found 0"):
        planned(samples=0)


# --- the command line


def plan(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", "tiny", "--ranks", "2", "--batch-size", "2", *arguments])


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", replace(SMALL, layers=2))
        yield


@pytest.fixture(scope="module")
def as_json(tiny: None) -> dict[str, Any]:
    return json.loads(plan("--capacity", "1GiB", "--optimizer", "adamw", "--json").stdout)


def test_the_command(as_json: dict[str, Any]):
    one = "--batch-size", "1"  # over which fewer meshes go
    ran = plan("--capacity", "1GiB", "--optimizer", "adamw", "--tokens", "64", *one)
    assert ran.exit_code == 0, ran.output
    assert "tiny in bfloat16 with float32 masters, 1 samples of 64 tokens on 2 ranks" in ran.stdout
    assert "training = MeshTraining(size, Mesh(" in ran.stdout
    assert as_json["fits"]
    assert as_json["peak_used"] == max(each["peak"] for each in as_json["by_rank"]) <= as_json["peak_reserved"]
    small = plan("--capacity", "1KiB", "--json", *one)
    assert small.exit_code == 1
    assert "nothing fits into 1.00 KiB" in json.loads(small.stdout)["message"]
    refused = plan("--allow", "close", "--largest-batch")
    assert refused.exit_code == 2
    assert "--largest-batch, --allow: not offered for tiny over a mesh of ranks" in refused.output


def test_estimate_says_the_peak_of_the_plan(as_json: dict[str, Any]):
    mesh = as_json["mesh"]
    options = {"--ranks": 2, "--zero": mesh["zero"], "--precision": "bfloat16", "--optimizer": "adamw"}
    options |= {f"--{name}": mesh[name] for name in ("tensor", "pipeline", "context")}
    options |= {"--batch-size": mesh["micro"] * mesh["count"], "--accumulate": mesh["count"]}
    options |= {"--recompute": "every-block"} if as_json["recompute"] else {}
    arguments = [str(part) for pair in options.items() for part in pair]
    said = json.loads(CliRunner().invoke(app, ["estimate", "tiny", *arguments, "--json"]).stdout)
    assert max(each["peak_with_the_making"] for each in said["different"]) == as_json["peak_used"]
