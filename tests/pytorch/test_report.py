"""What is told of a snapshot: planted faults are named by line and bytes, and every number adds up."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.evidence import Evidence
from tinygrad_mem.pytorch.iterations import iterations
from tinygrad_mem.pytorch.recording import Action
from tinygrad_mem.pytorch.report import report
from tinygrad_mem.pytorch.snapshot import Snapshot, read
from tinygrad_mem.pytorch.unpickle import Stacks
from tinygrad_mem.pytorch.unused import unused

from ..cli.inside import run
from ..profiles import pairs
from . import faults
from .built import MIB, Program, Training
from .recorded import NAMES, recording

STEPS = 17


def printed(path: Path, *options: str) -> str:
    """What the command prints, on a wide terminal."""
    found = run("snapshot", str(path), *options, columns=250)
    assert found.returncode == 0, found.stderr
    return found.stdout


def told_as_data(path: Path, *options: str) -> dict[str, Any]:
    """What it prints as JSON."""
    return json.loads(printed(path, *options, "--json"))["report"]


def told(path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Both."""
    return printed(path, *options), told_as_data(path, *options)


@pytest.fixture(params=[True, False], ids=["all stacks", "Python's stacks"])
def native(request) -> bool:
    return request.param


def snapshot_of(fault: Training, tmp_path: Path, steps: int = STEPS) -> Path:
    return fault.run(steps).write(tmp_path / "snapshot.pickle")


def one(found: list[dict[str, Any]], **known: Any) -> dict[str, Any]:
    """The only one that has these values."""
    (only,) = [each for each in found if known.items() <= each.items()]
    return only


LEAKS = [
    (faults.LossesKept, "train.py:22 main", 512, 4, "4 bytes, which take 512, each time: train.py:22 main"),
    (faults.GrowingList, "train.py:30 main", 2 * MIB, 2 * MIB, "2,097,152 bytes each time: train.py:30 main"),
    (faults.RetainedGraph, "model.py:31 forward", 12 * MIB, 12 * MIB, "12,582,912 bytes each time: model.py:31 forward"),
    (faults.GrowingCache, "cache.py:8 extend", 2 * MIB, 2 * MIB, "2,097,152 bytes each time: cache.py:8 extend"),
]


@pytest.mark.parametrize(("leak", "native"), pairs(LEAKS, [True, False]))
def test_what_grows_each_iteration(leak, native, tmp_path):
    """A leak: the line, and the bytes of a step."""
    fault, line, each, asked, said = leak
    shown, data = told(snapshot_of(fault(native=native), tmp_path))
    grown = one(data["growth"]["grown"], line=line)
    assert (grown["asked"], grown["iterations"], grown["of"]) == (asked, STEPS - 1, STEPS - 1)
    assert grown["each"] in (each, None), "a block may be longer by what is left of a free one"
    assert grown["bytes"] >= (STEPS - 1) * each
    assert said in shown
    assert f"{STEPS} iterations, found by the optimizer's steps, train.py:24 main" in shown


def test_a_retained_graph_names_each_line_of_forward(native, tmp_path):
    data = told_as_data(snapshot_of(faults.RetainedGraph(native=native), tmp_path))
    lines = {grown["line"]: grown["asked"] for grown in data["growth"]["grown"]}
    assert lines == {"model.py:31 forward": 12 * MIB, "model.py:40 forward": 6 * MIB, "train.py:22 main": 6 * MIB + 4}


def test_what_grows_now_and_then(native, tmp_path):
    shown, data = told(snapshot_of(faults.NowAndThen(native=native), tmp_path))
    grown = one(data["growth"]["grown"], line="logs.py:77 picture")
    assert (grown["each"], grown["iterations"], grown["of"], grown["blocks"]) == (5 * MIB, 4, 16, 4)
    assert "5,242,880 bytes in 4 of 16: logs.py:77 picture" in shown


def test_cycles_of_references_rise_and_fall(tmp_path):
    shown, data = told(snapshot_of(faults.Cycles(), tmp_path))
    grown = one(data["growth"]["grown"], line="graph.py:14 __init__")
    assert (grown["bytes"], grown["each"], grown["falls"]) == (7 * 3 * MIB, 3 * MIB, 2)
    assert "they fall 2 times, as if reference cycles were collected" in shown


def test_optimizer_state_comes_in_the_first_step(native, tmp_path):
    shown, data = told(snapshot_of(Training(native=native), tmp_path))
    (came,) = data["growth"]["came"]
    assert (came["line"], came["category"], came["bytes"], came["iteration"]) == (
        "train.py:24 main",
        "optimizer state",
        32 * MIB,
        1,
    )
    assert "33,554,432 bytes in iteration 1, alive to the end: train.py:24 main (optimizer state)" in shown
    assert (data["growth"]["grown"], data["growth"]["kept"], data["growth"]["varied"]) == ([], [], [])
    assert "grows  nothing" in shown
    assert "Out of memory: never" in shown


def test_a_copy_that_comes_later_and_stays(tmp_path):
    shown, data = told(snapshot_of(faults.SecondCopy(), tmp_path))
    came = one(data["growth"]["came"], line="ema.py:5 copy")
    assert (came["bytes"], came["blocks"], came["iteration"]) == (16 * MIB, 4, 4)  # it is there when iteration 4 ends
    assert "16,777,216 bytes in iteration 4, alive to the end: ema.py:5 copy" in shown


def test_an_activation_that_a_hook_keeps(native, tmp_path):
    shown, data = told(snapshot_of(faults.HookKeeps(native=native), tmp_path))
    (kept,) = data["growth"]["kept"]
    assert (kept["line"], kept["bytes"], kept["blocks"], kept["until"]) == (
        "model.py:31 forward",
        3 * MIB,
        1,
        "hooks.py:12 keep",
    )
    assert "3,145,728 bytes into the next one: model.py:31 forward" in shown
    assert "until hooks.py:12 keep" in shown


def test_gradients_that_live_through_forward(tmp_path):
    data = told_as_data(snapshot_of(faults.LateZeroGrad(), tmp_path))
    (kept,) = data["growth"]["kept"]
    assert (kept["bytes"], kept["category"], kept["until"]) == (16 * MIB, "gradients", "train.py:25 main")
    peak = one(data["peak"]["owners"], category="gradients")
    assert peak["without"] < data["peak"]["bytes"]


def test_the_spike_of_the_logits(native, tmp_path):
    """A line that the peak is lower without, by as much."""
    shown, data = told(snapshot_of(faults.LogitsSpike(native=native), tmp_path))
    spike = one(data["peak"]["owners"], line="loss.py:9 loss")
    assert spike["bytes"] == 3 * 24 * MIB
    assert spike["category"].startswith("temporaries"), "a copy that a loss makes is no input"
    assert data["peak"]["owners"][0] == spike
    plain = pytorch.replay(read(snapshot_of(quiet(), tmp_path)).of()).timeline[:, 1].max()
    assert spike["without"] == plain
    assert f"75,497,472  39.9%   {plain:,}" in shown


def quiet() -> Training:
    training = Training()
    training.logits = 24 * MIB
    return training


def test_fragmentation_by_growing_shapes(tmp_path):
    """What grows, what is stuck and behind which line, what was refused, and which setting helps."""
    shown, data = told(snapshot_of(faults.GrowingShapes(capacity=170 * MIB), tmp_path, 100))
    varied = one(data["growth"]["varied"], line="model.py:31 forward")
    assert varied["rises"]
    assert varied["least"] == 3 * MIB
    assert "larger each time: model.py:31 forward" in shown
    refusal = data["refusals"][0]
    assert (data["refused"], refusal["line"]) == (1, "model.py:31 forward")
    assert refusal["lacking"] == refusal["state"]["allocated"] + refusal["asked"] - refusal["capacity"] < 0
    held = refusal["state"]["held"][0]
    assert held["line"] == "model.py:31 forward"
    assert held["largest"] < refusal["asked"] < held["stuck"]
    assert "bytes more than requested were free, but in pieces" in shown
    assert any(text.startswith("expandable_segments:True") for text in refusal["helps"])
    assert "helps   expandable_segments:True: a replay within 178,257,920 bytes serves the request" in shown


def test_out_of_memory_by_a_leak(tmp_path):
    shown, data = told(snapshot_of(faults.TooLarge(capacity=160 * MIB), tmp_path, 100))
    refusal = data["refusals"][0]
    assert refusal["capacity"] == 160 * MIB
    assert any(text.startswith("to free the blocks of train.py:30 main") for text in refusal["helps"])
    assert "Out of memory, once: the first request was" in shown


def test_out_of_memory_where_nothing_of_the_allocator_helps(tmp_path):
    class Huge(faults.TooLarge):
        def end(self) -> None:
            if self.step == 4:
                with self.inside("/home/me/eval.py:50 scores", "/home/me/train.py:35 main"):
                    self.alloc(130 * MIB, "at::_ops::mm::call")

    shown, data = told(snapshot_of(Huge(capacity=160 * MIB), tmp_path))
    refusal = data["refusals"][0]
    assert refusal["line"] == "eval.py:50 scores"
    assert refusal["lacking"] == refusal["state"]["allocated"] + 130 * MIB - 160 * MIB == 18 * MIB
    assert refusal["helps"] == ["fewer than the 33,554,432 bytes (optimizer state) of train.py:24 main"]
    assert "18,874,368 bytes, even if the free ones were in one piece" in shown


def test_a_limit_of_the_process_is_no_lack(tmp_path):
    """The driver had 4 GiB left, and a request of 30 MiB was refused: the recording does not say how much there was."""
    program = Training().run(2)
    with program.inside("/home/me/train.py:40 main"):
        program.free(program.alloc(MIB))
    program.events.append({**program.events[-1], "action": "oom", "device_free": 4 << 30, "size": 30 * MIB})
    shown, data = told(program.write(tmp_path / "x.pickle"))
    (refusal,) = data["refusals"]
    assert (refusal["limited"], refusal["capacity"], refusal["lacking"], refusal["helps"]) == (True, None, None, [])
    assert "nothing: the driver had enough; a limit of this process (set_per_process_memory_fraction)" in shown


# --- every number ---------------------------------------------------------------------------------------------------------

EVERY = [
    *(
        (getattr(faults, name), "")
        for name in ("LossesKept", "GrowingCache", "RetainedGraph", "HookKeeps", "LogitsSpike", "LateZeroGrad")
    ),
    (Training, "expandable_segments:True"),
    (faults.GrowingShapes, "expandable_segments:True"),
    (faults.GrowingShapes, "max_split_size_mb:32"),
]


@pytest.mark.parametrize(("program", "settings"), EVERY)
def test_moments_are_those_of_the_model(program, settings, tmp_path):
    """The recorded addresses alone say what the model of the allocator says: allocated, had again, stuck, reserved."""
    evidence = Evidence(read(program(settings=settings).run(8).write(tmp_path / "x.pickle")))
    agree(evidence)
    found = report(evidence)
    assert found.as_recorded == found.requests
    assert (
        sum(owner.bytes for owner in found.peak.owners) == found.peak.bytes == pytorch.replay(evidence.recording).peak_allocated
    )
    assert max(found.growth.peaks) <= found.peak.bytes


@pytest.mark.parametrize("name", NAMES)
def test_moments_of_a_gpu(name):
    evidence = Evidence(Snapshot({0: recording(name)}, Stacks()))
    agree(evidence)
    found = report(evidence)
    for moment in found.moments.values():
        parts = moment.allocated + moment.waiting + moment.again + moment.stuck + moment.private
        assert parts == moment.reserved
        assert sum(held.stuck for held in moment.held) == moment.stuck


SIZES = [1, 513, MIB, MIB + 1, 3 * MIB, 9 * MIB + 7, 11 * MIB, 21 * MIB, 45 * MIB]


WIDE = "expandable_segments:True,large_segment_size_mb:32,max_non_split_rounding_mb:32"


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", WIDE, "max_split_size_mb:32"])
@pytest.mark.parametrize("seed", range(6))
def test_moments_of_random_programs(settings, seed, tmp_path):
    """Several streams, a private pool, blocks that wait for a stream; recorded from the beginning, or from anywhere."""
    rng, program, alive = random.Random(seed), Program(settings), []
    for number in range(400):
        with program.inside(f"/home/me/random.py:{rng.randrange(9)} f"):
            if alive and rng.random() < 0.5:
                program.free(alive.pop(rng.randrange(len(alive))))
            else:
                stream, pool = rng.choice([0, 0, 3]), rng.choice([(0, 0), (0, 0), (0, 1)])
                alive.append(program.alloc(rng.choice(SIZES), stream=stream, pool=pool))
        if rng.random() < 0.01:
            program.empty_cache()
        if number == 150 and seed % 2:
            program.record()
    evidence = Evidence(read(program.write(tmp_path / "x.pickle")))
    ran = pytorch.replay(evidence.recording)
    if ran.as_recorded == ran.allocations and not ran.assumed:
        agree(evidence)
    moment, stats = unused(evidence, len(evidence) - 1), program.allocator.stats
    assert moment.reserved == stats.current("reserved_bytes")
    assert moment.allocated == stats.current("allocated_bytes")
    assert moment.again == program.allocator.releasable
    assert sum(held.stuck for held in moment.held) == moment.stuck
    parts = moment.allocated + moment.waiting + moment.again + moment.stuck + moment.private
    assert parts == moment.reserved


def agree(evidence: Evidence) -> None:
    ran = pytorch.replay(evidence.recording)
    settled = np.flatnonzero(evidence.recording.events["action"][ran.timeline[:, 0]] <= Action.FREE_REQUESTED)
    for row in settled[np.linspace(0, len(settled) - 1, 25).astype(int)]:
        event, allocated, reserved = ran.timeline[row].tolist()
        moment = unused(evidence, event)
        said = moment.allocated, moment.reserved, moment.again, moment.stuck + moment.private
        assert said == (allocated, reserved, *ran.fragmentation[row, 1:3].tolist())
        assert evidence.used[event + 1] == allocated


def test_a_block_that_waits_for_a_stream(tmp_path):
    program = Training()
    with program.inside("/home/me/side.py:3 copy"):
        program.free(program.alloc(5))
        waits, stays = program.alloc(30 * MIB), program.alloc(22 * MIB)
        program.free(waits, late=True)
    evidence = Evidence(read(program.write(tmp_path / "x.pickle")))
    moment = unused(evidence, len(evidence) - 1)
    assert (moment.waiting, moment.again, moment.stuck, moment.allocated) == (30 * MIB, 2 * MIB, 0, 22 * MIB)
    program.allocator.synchronize()
    program.events.append({**program.events[-1], "action": "free_completed", "addr": waits, "size": 30 * MIB})
    program.free(stays)
    evidence = Evidence(read(program.write(tmp_path / "x.pickle")))
    moment = unused(evidence, len(evidence) - 1)
    assert (moment.waiting, moment.again) == (0, 54 * MIB)


def test_pages_of_small_blocks_are_small_however_many_there_are(tmp_path):
    """Ten pages of 2 MiB, in a row: as long as one page of large blocks."""
    program = Program("expandable_segments:True")
    blocks = [program.alloc(MIB) for _ in range(20)]
    program.free(*blocks[4:6])
    program.record()
    program.free(*blocks[10:13])
    evidence = Evidence(read(program.write(tmp_path / "x.pickle")))
    assert unused(evidence, -1).again == 2 * MIB
    moment = unused(evidence, len(evidence) - 1)
    assert (moment.again, moment.stuck) == (program.allocator.releasable, MIB) == (4 * MIB, MIB)


def test_of_very_many_iterations_the_last_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("tinygrad_mem.pytorch.growth._MOST", 6)
    data = told_as_data(snapshot_of(faults.SecondCopy(), tmp_path, 7))
    assert one(data["growth"]["came"], line="ema.py:5 copy")["iteration"] == 4
    assert [came["line"] for came in data["growth"]["came"]] == ["ema.py:5 copy"], "when the state came is not looked at"
    assert (data["growth"]["iterations"], len(data["growth"]["peaks"])) == (7, 7)


def test_a_private_pool_keeps_what_is_free(tmp_path):
    program = Training()
    with program.inside("/home/me/graphs.py:3 capture"):
        program.free(program.alloc(30 * MIB, pool=(0, 1)))
    evidence = Evidence(read(program.write(tmp_path / "x.pickle")))
    moment = unused(evidence, len(evidence) - 1)
    assert (moment.private, moment.again, moment.reserved) == (30 * MIB, 0, 30 * MIB)


# --- how iterations are told ----------------------------------------------------------------------------------------------


def test_without_stacks_iterations_are_found_by_repetition(tmp_path):
    shown, data = told(snapshot_of(faults.GrowingList(stacks=False), tmp_path))
    assert data["growth"]["how"] == "by repetition: 24 requests repeat in the same order"
    grown = one(data["growth"]["grown"], each=2 * MIB)
    assert grown["line"] == "(no stack)"
    assert "2,097,152 bytes each time: (no stack)" in shown


@pytest.mark.parametrize(("name", "count"), [("cnn-small", 9), ("lm-medium-128-train", 0)])
def test_iterations_of_a_gpu(name, count):
    """The program of the first is not known: 193 requests come ten times. The second is a single step."""
    found = iterations(Evidence(Snapshot({0: recording(name)}, Stacks())))
    assert len(found.ends) == count


def test_two_optimizers_are_one_iteration(tmp_path):
    class Two(Training):
        def update(self) -> None:
            super().update()
            with self.inside("/usr/lib/python3.11/site-packages/torch/optim/sgd.py:90 step", "/home/me/train.py:29 main"):
                self.free(self.alloc(MIB, "at::_ops::mul::call"))

    data = told_as_data(snapshot_of(Two(), tmp_path))
    assert (data["growth"]["iterations"], data["growth"]["how"]) == (STEPS, "by the optimizer's steps, train.py:29 main")


def test_a_recording_that_begins_in_the_middle(tmp_path):
    training = faults.GrowingList()
    training.run(5)
    training.record()
    for _ in range(6):
        training.one_step()
    shown, data = told(training.write(tmp_path / "x.pickle"))
    grown = one(data["growth"]["grown"], line="train.py:30 main")
    assert (grown["each"], grown["of"]) == (2 * MIB, 5)
    assert sum(owner["bytes"] for owner in data["peak"]["owners"]) == data["peak"]["bytes"]
    assert "train.py:10 main" in shown, "a block that is alive says its stack"


def test_a_snapshot_without_events(tmp_path):
    training = Training().run(2)
    training.record()
    shown, data = told(training.write(tmp_path / "x.pickle"))
    assert data["peak"]["bytes"] == data["moments"]["end"]["allocated"] == 48 * MIB
    assert data["moments"]["end"]["reserved"] == training.allocator.stats.current("reserved_bytes")
    assert "Iterations were not found" in shown
