"""``estimate --ranks``: data parallel and ZeRO, every different rank, to the byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.cli import inside
from tests.profiles import some
from tinygrad_mem import memory
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.distributed.optim import ZeroRedundancyOptimizer
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.models.parallel import SIZES, Mesh, MeshTraining
from tinygrad_mem.nn import functional as F


def found(*arguments: str) -> dict[str, Any]:
    done = inside.run("estimate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def total(answer: dict[str, Any], category: str) -> int:
    """The bytes of a category on all ranks together."""
    return sum(len(each["ranks"]) * each["by_category"].get(category, 0) for each in answer["different"])


@pytest.mark.parametrize("zero", [0, 1])
def test_it_is_the_prediction_of_the_program_that_one_would_write(zero: int):
    def train():
        dist.init_process_group()
        model = NETWORKS["lenet"].make()
        wrapped = tm.nn.parallel.DistributedDataParallel(model)
        if zero:
            update = ZeroRedundancyOptimizer(model.parameters(), tm.optim.Adam)
        else:
            update = tm.optim.Adam(model.parameters())
        for _ in range(2):
            update.zero_grad()
            with wrapped.no_sync():
                (F.cross_entropy(wrapped(tm.randn(4, 1, 28, 28)), tm.randint(0, 10, (4,))) / 2).backward()
            (F.cross_entropy(wrapped(tm.randn(4, 1, 28, 28)), tm.randint(0, 10, (4,))) / 2).backward()
            update.step()

    wanted = memory.predict(train, world_size=4, ranks="all")
    answer = found("lenet", "--batch-size=8", "--accumulate=2", "--optimizer=adam", "--ranks=4", f"--zero={zero}")
    assert (answer["ranks"], answer["zero"], answer["loss"]) == (4, zero, "cross-entropy")
    assert len(wanted) == (4 if zero else 1)
    assert answer["different"] == [
        {
            "ranks": list(each.ranks),
            "by_category": {category.value: size for category, size in each.track.by_category().items()},
            "peak_used": each.track.peak,
            "peak_reserved": each.track.pool("end").reserved,
            "peak_with_the_making": each.track.peak,
        }
        for each in wanted
    ]


def test_zero_2_and_3_are_fully_shard_on_each_layer_of_a_sequential():
    def train(keeps: bool):
        dist.init_process_group()
        model = NETWORKS["vgg11"].make()
        for layer in (*model.features, *model.classifier):
            if isinstance(layer, (tm.nn.Conv2d, tm.nn.Linear)):
                fully_shard(layer, reshard_after_forward=not keeps)
        fully_shard(model, reshard_after_forward=False if keeps else None)
        memory.empty_cache()
        update = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        memory.mark("all is there")
        for _ in range(2):
            update.zero_grad()
            F.cross_entropy(model(tm.randn(1, 3, 64, 64)), tm.randint(0, 1000, (1,))).backward()
            update.step()

    for zero in (2, 3):
        (wanted,) = memory.predict(train, zero == 2, world_size=8, ranks="all")
        (each,) = found("vgg11", "--input=3x64x64", "--batch-size=1", "--ranks=8", f"--zero={zero}")["different"]
        moment = wanted.track.at_peak("all is there")
        assert each["peak_used"] == moment.used
        assert each["by_category"] == moment.by_category
        assert each["peak_reserved"] == wanted.track.pool("end").reserved
        assert each["peak_with_the_making"] == wanted.peak


def test_the_making_of_the_whole_network_is_reported_where_it_takes_more_than_a_step(tmp_path: Path):
    (tmp_path / "deep.py").write_text(
        "from tinygrad_mem import nn\n\n\ndef net():\n    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(32)])\n"
    )
    options = (f"{tmp_path / 'deep.py'}:net", "--input=256", "--batch-size=1", "--ranks=64", "--zero=3")
    (each,) = found(*options)["different"]
    whole = 4 * 32 * (256 * 256 + 256)
    assert whole <= each["peak_with_the_making"] < whole * 1.05
    assert each["peak_used"] < whole / 4
    assert each["peak_reserved"] < whole / 2
    said = " ".join(inside.run("estimate", *options).stdout.split())
    assert (
        f"Before it is divided, each rank makes the whole network, with a peak of {each['peak_with_the_making']:,} bytes."
        in said
    )


def test_each_stage_divides_more():
    peaks = []
    for zero in range(4):
        answer = found("gpt2", "--tokens=64", "--batch-size=1", "--optimizer=adam", "--ranks=8", f"--zero={zero}")
        parameters, state = (total(answer, name) for name in ("parameters", "optimizer state"))
        copies = answer["parameters"] * 4
        assert copies * (8 if zero < 2 else 1) <= parameters < copies * (8.02 if zero < 2 else 1.01)
        assert 2 * copies * (8 if zero < 1 else 1) <= state < 2 * copies * (8.02 if zero < 1 else 1.01)
        peaks.append(max(each["peak_used"] for each in answer["different"]))
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_zero_1_divides_the_state_and_nothing_else():
    options = ("lenet", "--batch-size=8", "--optimizer=adam")
    one, plain, divided = found(*options, "--ranks=1"), found(*options, "--ranks=8"), found(*options, "--ranks=8", "--zero=1")
    state = one["different"][0]["by_category"]["optimizer state"]
    assert one["different"][0]["by_category"] == plain["different"][0]["by_category"]
    assert total(plain, "optimizer state") == 8 * state
    assert total(divided, "optimizer state") == state
    for category in ("parameters", "communication buffers"):
        assert total(divided, category) == total(plain, category) > 0
    assert plain["different"][0]["by_category"]["communication buffers"] == -(-4 * plain["parameters"] // 512) * 512
    assert max(each["peak_used"] for each in divided["different"]) < plain["different"][0]["peak_used"]


def test_one_screen_says_what_differs(tmp_path: Path):
    options = ("lenet", "--batch-size", "8", "--optimizer", "adam", "--ranks", "4", "--zero", "1")
    answer = found(*options)
    largest = max(answer["different"], key=lambda each: each["peak_used"])
    picture = tmp_path / "ranks.svg"
    room = largest["peak_reserved"]
    done = inside.run("estimate", *options, "--budget", str(room), "--picture", str(picture), columns=120)
    assert done.returncode == 0, done.stderr
    assert "lenet on 4 ranks, batch 8 on each, cpu; ZeRO 1: optimizer state is divided" in done.stdout
    (header,) = [line for line in done.stdout.splitlines() if "reserved" in line]
    assert header.split() == ["peak", "used", "reserved", "optimizer", "state"]
    for each in answer["different"]:
        assert f"{each['peak_used']:,}" in done.stdout
    assert f"the largest peak, rank {largest['ranks'][0]}, in " in done.stdout
    assert f"A budget of {room:,} bytes: every rank fits, {room - largest['peak_used']:,} bytes are left." in done.stdout
    assert "lenet on 4 ranks, batch 8 on each, cpu; ZeRO 1" in picture.read_text()
    done = inside.run("estimate", *options, "--budget", str(largest["peak_used"] - 1), columns=120)
    assert done.returncode == 1
    assert "does not fit: 1 bytes too many" in done.stdout
    done = inside.run("estimate", *options, "--budget", str(largest["peak_used"]), columns=160)
    assert done.returncode == 1
    assert "does not fit: 0 bytes are left at the peak, but the free pieces are too small for a request" in done.stdout


def test_of_many_different_ranks_those_with_the_largest_peaks_are_shown():
    options = ("resnet20", "--batch-size", "2", "--optimizer", "adam", "--ranks", "40", "--zero", "1")
    answer = found(*options)
    peaks = sorted((each["peak_used"] for each in answer["different"]), reverse=True)
    assert len(peaks) > 12
    done = inside.run("estimate", *options, columns=120)
    shown = [line for line in done.stdout.splitlines() if line.strip().startswith("rank") and "MiB" in line]
    assert len(shown) == 12
    assert "other ranks have peaks from " in done.stdout


def test_what_does_not_go_together_is_refused(tmp_path: Path):
    (tmp_path / "net.py").write_text("import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n")
    for arguments, words in (
        (
            ("lenet", "--zero", "1"),
            "--zero, --tensor, --pipeline, --context and --picture are for several ranks: give --ranks too",
        ),
        (("lenet", "--picture", "a.png"), "--context and --picture are for several ranks: give --ranks too"),
        (
            ("lenet", "--ranks", "2", "--rank", "1"),
            "--advise and --rank work for PyTorch programs, not for lenet",
        ),
        ((f"{tmp_path / 'net.py'}:Net", "--ranks", "2", "--input", "3"), "--ranks is for a function that calls init_process_"),
        ((f"{tmp_path / 'net.py'}:Net", "--rank", "2"), "--rank 2: with --ranks 1 the ranks are 0 to 0"),
        ((f"{tmp_path / 'net.py'}:Net", "--ranks", "2", "--rank", "2"), "--rank 2: with --ranks 2 the ranks are 0 to 1"),
        (
            (f"{tmp_path / 'net.py'}:Net", "--ranks", "2", "--zero", "1"),
            "--zero is for networks of tinygrad_mem; write it in a",
        ),
        ((f"{tmp_path / 'net.py'}:Net", "--ranks", "2", "--advise"), "--advise works for one process: leave --ranks"),
    ):
        done = inside.run("estimate", *arguments)
        assert done.returncode == 2
        assert words in done.stderr


# --- over a mesh


def test_a_mesh_is_the_prediction_of_its_training_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SIZES, "llama-3-8b", replace(SIZES["llama-3-8b"], layers=4))  # more take longer, and show no more
    size = replace(SIZES["llama-3-8b"], tokens=32)

    def train(zero: int):
        training = MeshTraining(size, Mesh(data=2, pipeline=2, tensor=2, micro=2, count=4, zero=zero), rule=tm.optim.Adam)
        memory.mark("training")
        for _ in range(2):
            training.step()

    options = ("--ranks=8", "--tensor=2", "--pipeline=2", "--tokens=32", "--batch-size=8", "--accumulate=4")
    for zero in some([0, 3], [3]):
        wanted = memory.predict(train, zero, world_size=8, ranks="all").since("training")
        answer = found("llama-3-8b", *options, "--precision=bfloat16", "--optimizer=adam", f"--zero={zero}")
        assert [tuple(each["ranks"]) for each in answer["different"]] == [(0, 1, 2, 3), (4, 5, 6, 7)]
        assert [each["peak_used"] for each in answer["different"]] == [each.peak for each in wanted]
        assert answer["mesh"] == {"data": 2, "pipeline": 2, "context": 1, "tensor": 2}
    shown = inside.run("estimate", "llama-3-8b", *options, "--precision=bfloat16", "--optimizer=adam").stdout
    assert "llama-3-8b on 8 ranks: data 2 x pipeline 2 x tensor 2; micro-batches: 4 of 2" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert "ranks 0-3" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt2", "--ranks=4", "--tensor=2"], "work for gpt3-175b, llama-3-8b, llama-3-70b, llama-3.1-405b, not for gpt2"),
        (
            ["llama-3-8b", "--ranks=6", "--tensor=4"],
            "--ranks 6 is not a multiple of --tensor 4 x --pipeline 1 x --context 1 = 4",
        ),
        (["llama-3-8b", "--tensor=4"], "are for several ranks: give --ranks too"),
        (["gpt3-175b", "--ranks=8", "--precision=half"], "over a mesh use float32, or bfloat16 with float32 masters"),
        (["gpt3-175b", "--ranks=8", "--recompute=sqrt"], "over a mesh use every-block, or selective"),
        (["gpt3-175b", "--ranks=8", "--tokens=10x20"], "gpt3-175b has 51,200 tokens, and --tokens sets the length of a sample"),
    ],
)
def test_meshes_that_do_not_fit(arguments: list[str], said: str):
    done = inside.run("estimate", *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
