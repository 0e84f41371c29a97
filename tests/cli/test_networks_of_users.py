"""Networks of the user's own in ``estimate``, ``plan`` and ``tips``: of tokens, of many outputs, transformers, PyTorch's."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.cli.app import app
from tinygrad_mem.cli.networks import network_of
from tinygrad_mem.cli.users import forgotten
from tinygrad_mem.devices import Pool
from tinygrad_mem.nn import functional as F

OURS = """
import tinygrad_mem as torch
from tinygrad_mem import nn
from tinygrad_mem.nn import functional as F
"""
THEIRS = """
import torch
from torch import nn
from torch.nn import functional as F
"""
NETWORKS = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)))

class WithStates(Words):
    def forward(self, x):
        states = self.encoder(self.embed(x))
        return {"loss": None, "logits": self.head(states), "states": [states]}

class Labels(Words):
    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))

class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3, stride=2)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return x, (self.second(torch.tanh(x)), None)
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.py").write_text(OURS + NETWORKS)
    (tmp_path / "theirs.py").write_text(THEIRS + NETWORKS)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:  # a file of another test may have its name
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def run(*arguments: str, status: int = 0) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def measured(name: str, loss: Any, *options: str | None, size: int = 4) -> memory.Track:
    """Two steps of the network, run on the cpu from an empty pool."""
    named = network_of(name, *options)
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.track("cpu") as track:
            model = named.make()
            update = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                update.zero_grad()
                loss(model(named.batch(size))).backward()
                update.step()
    finally:
        cpu.pool = before
    return track


def mean_of(output: tm.Tensor) -> tm.Tensor:
    return output.mean()


def next_token(output: Any) -> tm.Tensor:
    scores = (output if isinstance(output, tm.Tensor) else output["logits"]).flatten(0, 1)
    return F.cross_entropy(scores, tm.randint(0, 50, (len(scores),)).flatten())


@pytest.mark.parametrize(
    ("name", "loss", "loss_name", "options"),
    [
        ("Words", next_token, "cross-entropy", (None, "50x8")),
        ("WithStates", next_token, "cross-entropy", (None, "50x8")),
        ("Labels", lambda output: output.mean(), "the mean of the output", (None, "50x8")),
        ("Pyramid", lambda output: output[0].mean() + output[1][0].mean(), "the sum of the means of 2 outputs", ("3x9x9",)),
    ],
)
def test_an_estimate_is_what_a_run_measures(files: Path, name: str, loss: Any, loss_name: str, options: tuple):
    file = "ours.py"
    option = ("--input", options[0]) if options[0] else ("--tokens", options[1])
    answer = run("estimate", f"{file}:{name}", *option, "--batch-size", "4")
    track = measured(f"{file}:{name}", loss, *options)
    assert answer["loss"] == loss_name
    assert answer["peak_used"] == track.peak
    assert answer["by_category"] == {category.value: size for category, size in track.by_category("peak").items()}
    assert answer["peak_reserved"] == track.pool("end").reserved


def test_a_transformer_is_recomputed_in_segments(files: Path):
    """The blocks of a ModuleList are called with masks too, and a segment hands them on."""
    plain, small = (
        run("estimate", "ours.py:Words", "--tokens", "50x64", "--batch-size", "16", *how)
        for how in ((), ("--recompute", "every-block"))
    )
    assert small["parameters"] == plain["parameters"]
    assert 0.3 * plain["peak_used"] < small["peak_used"] < 0.7 * plain["peak_used"]


@pytest.mark.parametrize("file", ["ours.py", "theirs.py"])
@pytest.mark.parametrize("tip", ["checkpoint", "no_grad", "item"])
def test_tips(files: Path, file: str, tip: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tm.device("cpu"), "pool", Pool("cpu"))  # what other tests keep is in no run
    (row,) = run("tips", "--tip", tip, "--network", f"{file}:WithStates", "--tokens", "50x64", "--batch-size", "4")
    for case in row["cases"]:
        assert "failed" not in case, case
        assert case["predicted_exactly"]
        assert case["result"].startswith(("bit-identical", "within"))


@pytest.mark.parametrize("file", ["ours.py", "theirs.py"])
def test_a_plan(files: Path, file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinygrad_mem.plan.times.SECONDS", 0.0)
    options = (f"{file}:WithStates", "--tokens", "50x8", "--batch-size", "4", "--allow", "recompute")
    found = run("plan", *options)
    assert found["fits"] is None
    assert found["plain"]["peak_used"] == measured(f"{file}:WithStates", next_token, None, "50x8").peak
    smallest = min(found["front"], key=lambda point: point["peak_used"])
    assert smallest["peak_used"] < found["plain"]["peak_used"]
    assert run("plan", *options, "--budget", f"{smallest['peak_reserved']} B")["fits"] is True
    refused = run("plan", *options, "--budget", "1 KiB", status=1)
    assert refused["fits"] is False
    assert "fits" in refused["message"]


@pytest.mark.parametrize(("budget", "fits"), [("1 KB", False), ("100 KiB", False), ("2 MB", False), ("1 GB", True)])
def test_a_budget_is_answered_as_json(budget: str, fits: bool):
    answer = run("estimate", "lenet", "--budget", budget, status=int(not fits))
    assert answer["fits"] is fits
    assert (answer["peak_used"] <= answer["budget"]) is fits
    assert run("estimate", "lenet")["fits"] is None


def test_a_budget_that_the_peak_fits_may_have_no_piece_that_is_large_enough():
    """The same step under a limit of 52 MiB is out of memory."""
    answer = run("estimate", "resnet20", "--budget", "52 MiB", status=1)
    assert answer["fits"] is False
    assert answer["peak_used"] < answer["budget"] < answer["peak_reserved"]
    assert run("estimate", "resnet20", "--budget", "56 MiB")["fits"] is True


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def forward(self, x): return torch.fft.fft(self.first(x)).abs()", "fft"),
        ("def forward(self, x): return stft(self.first(x).flatten(), 4)", "torch.stft"),
        ("def forward(self, x): return fft.rfft(self.first(x))", "fft.rfft"),
        ("def forward(self, x): return Twice()(self.first(x))", "Twice, a Future of PyTorch's"),
    ],
)
def test_what_cannot_be_converted_is_named(files: Path, code: str, message: str):
    head = "import torch.fft as fft\nfrom torch import stft\n"
    twice = "class Twice(torch.futures.Future):\n    pass\n"
    init = "    def __init__(self):\n        super().__init__()\n        self.first = nn.Conv2d(3, 2, 1)\n"
    own = f"class Own(nn.Module):\n{init}    {code}\n"
    (files / "own.py").write_text(THEIRS + head + twice + own)
    done = CliRunner().invoke(app, ["plan", "own.py:Own", "--input", "3x4x4"])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["checkpoint", "cp.checkpoint", "torch.utils.checkpoint.checkpoint"])
def test_a_checkpoint_of_pytorchs_is_ours_however_it_was_imported(files: Path, how: str):
    head = "import torch.utils.checkpoint\nimport torch.utils.checkpoint as cp\nfrom torch.utils.checkpoint import checkpoint\n"
    own = """
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))

    def run(self, block, x):
        return block(x)

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return x

class Own(Plain):
    def run(self, block, x):
        return {how}(block, x, use_reentrant=False)
"""
    (files / "own.py").write_text(THEIRS + head + own.replace("{how}", how))
    plain, mine = (measured(f"own.py:{name}", mean_of, "64", size=512).peak for name in ("Plain", "Own"))
    assert 0.4 * plain < mine < 0.8 * plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ours.py:Words"], "needs --input, the shape of one sample such as 3x32x32, or --tokens"),
        (["ours.py:Words", "--tokens", "50"], "--tokens '50': write how many tokens there are and the length of a sample"),
        (["ours.py:Words", "--tokens", "50x-8"], "--tokens '50x-8' is not a shape"),
        (["ours.py:Words", "--tokens", "50x8", "--input", "8"], "give one of them"),
        (["gpt2", "--tokens", "50x8"], "gpt2 has 50,257 tokens, and --tokens sets the length of a sample"),
        (["lenet", "--tokens", "50x8"], "lenet is fed images, whose shape --input sets"),
        (["ours.py:nn", "--input", "3"], "ours.py:nn is an object of class module: name a class or a function"),
        (["ours.py:OURS", "--input", "3"], "ours.py has no 'OURS'"),
        (
            ["own.py:number", "--input", "3"],
            "own.py:number makes 'int': it must make a Module of tinygrad_mem.nn or of torch.nn",
        ),
    ],
)
def test_refusals(files: Path, arguments: list[str], message: str):
    (files / "own.py").write_text("number = int\n")
    done = CliRunner().invoke(app, ["estimate", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_only_modules_of_the_users_own_folder_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder whose name begins with the same letters is another one."""
    for folder, name in (("net", "mine_of_net"), ("network", "yours_of_network")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    with forgotten(str(tmp_path / "net" / "mine_of_net.py")):
        yours = importlib.import_module("yours_of_network")
        importlib.import_module("mine_of_net")
    assert "mine_of_net" not in sys.modules
    assert sys.modules.pop("yours_of_network") is yours
