"""``estimate`` of PyTorch programs: what a prediction says, the cards, and errors with the user's line."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.profiles import some
from tinygrad_mem import pytorch
from tinygrad_mem.cli import estimate_torch
from tinygrad_mem.cli.estimate_options import EstimateOptions
from tinygrad_mem.cli.torch_programs import TorchProgram
from tinygrad_mem.cli.users import is_torch
from tinygrad_mem.memory.sizes import bytes_text
from tinygrad_mem.pytorch.cards import CARDS, COMMON, CONTEXT, USUAL, card_of

from . import inside

FILE = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn
from neighbour import Head

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

@dataclass
class Config:
    width: int = 16

class Net(nn.Module):
    def __init__(self, config=Config()):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, config.width, 3), Head(config.width)
    def forward(self, x):
        return self.head(self.first(x).relu().mean((2, 3)))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
    def forward(self, x):
        return {"loss": None, "logits": self.head(self.embed(x))}

def run():
    print("training")
    model = Net().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(8, 3, 16, 16, device=DEVICE)
        output = model(x)
        loss = nn.functional.cross_entropy(output, torch.randint(0, 10, (8,), device=DEVICE))
        loss.backward()
        optimizer.step()

def divided():
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group()
    layer = nn.Linear(64, 60 + dist.get_rank(), bias=False).cuda()
    fully_shard(layer, mesh=dist.init_device_mesh("cuda", (dist.get_world_size(),)))

def ones(count, bytes):
    return [torch.empty(bytes, dtype=torch.uint8, device=DEVICE) for _ in range(count)]

def pieces():
    return ones(1, 15 << 30) + ones(400, (20 << 20) + 512)

def wrong():
    return Net().to(DEVICE)(torch.randn(8, 7, 16, 16, device=DEVICE))

def decides():
    if torch.randn(3, device=DEVICE).sum() > 0:
        pass

def leaves():
    raise SystemExit

def nothing():
    pass

number = 3
"""
OTHERS = """
from torch import nn

class Means(nn.Linear):
    def __init__(self):
        super().__init__(8, 4)
    def forward(self, x):
        return super().forward(x).mean(1)

class Classes(Means):
    def forward(self, x):
        return nn.Linear.forward(self, x).argmax(1)

class Frozen(Means):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

def makes():
    return Means()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "train.py").write_text(FILE)
    (folder / "others.py").write_text(OTHERS)
    (folder / "neighbour.py").write_text("from torch import nn\n\ndef Head(width):\n    return nn.Linear(width, 10)\n")
    return folder


@cache
def told(files: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The answer as JSON; several tests ask for the same one."""
    done = inside.run("estimate", *arguments, "--json", cwd=files)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def asked(network: str, **options: Any) -> EstimateOptions:
    unused: dict[str, Any] = dict.fromkeys(field.name for field in fields(EstimateOptions))
    usual = {"network": network, "optimizer": "momentum", "precision": "float32", "accumulate": 1}
    return EstimateOptions(**(unused | usual | options))


def test_a_rank_of_a_function(files: Path):
    """The whole matrix lies there while it is divided; its part is as large as the first rank's."""
    answer = told(files, "train.py:divided", "--ranks", "8", "--rank", "3")
    assert answer["place"] == [3, 8]
    assert answer["peak_allocated"] == 64 * 63 * 4 + 256 + 64 * 8 * 4
    done = inside.run("estimate", "train.py:divided", "--ranks", "8", cwd=files)
    assert done.stdout.startswith("train.py:divided, rank 0 of 8, predicted for A100")


def test_a_function_is_reported_as_predict_reports_it(files: Path, monkeypatch: pytest.MonkeyPatch):
    """And so is the class, of which the same training step is made."""
    answer = told(files, "train.py:run")
    monkeypatch.chdir(files)
    track = pytorch.predict(TorchProgram(asked("train.py:run")))
    assert (answer["peak_allocated"], answer["peak_reserved"]) == (track.peak, track.peak_reserved)
    assert sum(answer["by_category"].values()) == track.peak
    assert answer["driver"] == [track.peak_reserved + size for size in CONTEXT]
    assert [block["bytes"] for block in answer["biggest"]] == [block.rounded for block in track.live("peak")[:5]]
    assert any(block["line"].startswith("train.py:") for block in answer["biggest"])
    assert answer["peak"]["phase"] == track.at_peak().phase
    made = told(files, "train.py:Net", "--input", "3x16x16", "--batch-size", "8")
    assert made["peak_allocated"] == answer["peak_allocated"]
    assert (made["loss"], made["parameters"]) == ("cross-entropy", 16 * 27 + 16 + 170)


def test_tokens_and_precisions(files: Path):
    options = ("train.py:Words", "--tokens", "50x64", "--optimizer", "adam")
    plain = told(files, *options)
    assert plain["loss"] == "cross-entropy"
    assert plain["by_category"]["optimizer state"] > 2 * 4 * plain["parameters"]
    halves = [told(files, *options, "--precision", name)["by_category"] for name in ("bfloat16", "float16")]
    assert all("casts of weights" in found for found in halves)
    assert "casts of weights" not in plain["by_category"]


def test_a_network_with_a_number_for_each_sample_is_trained_on_their_mean(files: Path):
    done = inside.run("estimate", "others.py:Means", "--input", "8", "--budget", "1 GiB", cwd=files)
    assert "Two training steps; 36 parameters; the loss is the mean of the output." in done.stdout
    assert "A budget of 1,073,741,824 bytes for PyTorch: fits." in done.stdout


def test_the_processor(files: Path):
    answer = told(files, "train.py:run", "--device", "cpu", "--budget", "1 KiB", status=1)
    assert (answer["driver"], answer["cards"], answer["fits"]) == (None, [], False)
    assert told(files, "train.py:run", "--device", "cpu", "--budget", "1 GiB")["fits"] is True


@pytest.mark.parametrize("columns", some([60, 80, 120], [60, 120]))
def test_the_screen(files: Path, columns: int):
    done = inside.run("estimate", "train.py:run", cwd=files, columns=columns)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert len(done.stdout.splitlines()) <= 50
    for word in ("allocated", "reserved", "nvidia-smi", "optimizer state", "train.py:", *COMMON):
        assert word in done.stdout
    assert "training" not in done.stdout  # what the program prints
    assert "training" in done.stderr


def test_pieces_fit_with_expandable_segments(files: Path):
    """400 requests of 20 MiB and a bit have segments of 22 MiB each."""
    answer = told(files, "train.py:pieces")
    said = {row["card"]: row["fits"] for row in answer["cards"]}
    assert answer["peak_allocated"] < card_of("RTX 4090").bytes < answer["peak_reserved"]
    assert said["T4"] == "does not fit"
    assert said["RTX 4090"] == f"fits with {estimate_torch.EXPANDABLE}"
    assert said["A100 40GB"] == "fits"
    (only,) = told(files, "train.py:pieces", "--gpu", "tesla t4", status=1)["cards"]
    assert only["lacking"] == answer["peak_allocated"] - (only["capacity"] - CONTEXT[1])
    told(files, "train.py:pieces", "--gpu", "GeForce RTX 4090")
    assert told(files, "train.py:pieces", "--budget", "23 GiB", status=1)["fits"] is False


def test_what_is_not_known_without_the_gpu_is_said_and_decides_what_fits(files: Path):
    """It was left out: the screen said 174 MB and "fits" where a run took 208 MB, within the prediction's own bound."""
    answer = told(files, "train.py:run")
    ((why, size),) = answer["unknown"].items()
    assert "workspace of a convolution" in why
    assert all(row["unknown"] for row in answer["cards"])
    done = inside.run("estimate", "train.py:run", cwd=files, columns=300)
    assert f"* up to {bytes_text(size)} more or less: {why}" in done.stdout
    reserved = answer["peak_reserved"]
    sure = told(files, "train.py:run", "--budget", str(reserved + size))
    assert (sure["fits"], sure["budget_answer"]) == (True, "fits")
    told(files, "train.py:run", "--budget", str(reserved - size), status=1)
    tight = told(files, "train.py:run", "--budget", str(answer["peak_allocated"]), status=1)
    assert (tight["fits"], tight["budget_answer"]) == (False, "may fit")


@pytest.mark.parametrize(("more", "said"), [(0, "fits"), (-1, "may fit"), (-1000, "may fit"), (-1001, "does not fit")])
def test_on_the_cpu_too(more: int, said: str, monkeypatch: pytest.MonkeyPatch):
    track = pytorch.predict(lambda: torch.randn(1000), device="cpu")
    track.unknown["values decide it"] = 500
    program: Any = None
    made = estimate_torch._Predictions(program, print)
    monkeypatch.setattr(made, "of", lambda card: track)
    monkeypatch.setattr(made, "_predict", lambda *asked: pytest.fail("there is no allocator to ask again"))
    answer = made.answer(USUAL, track.peak + 500 + more)
    assert (answer.fits, answer.unknown) == (said, 500)


def test_each_card_has_its_own_kernels(files: Path, monkeypatch: pytest.MonkeyPatch):
    answer = told(files, "train.py:run")
    assert answer["gpu"] == "A100 80GB"
    monkeypatch.chdir(files)
    program = TorchProgram(asked("train.py:run"))
    found = {row["card"]: (row["peak_allocated"], row["peak_reserved"]) for row in answer["cards"]}
    for name, peaks in found.items():
        track = pytorch.predict(program, gpu=name)
        assert peaks == (track.peak, track.peak_reserved)
    assert found["A100 40GB"] != found["H100"] == found["H200"]
    only = told(files, "train.py:run", "--gpu", "H100")
    assert (only["gpu"], only["peak_allocated"]) == ("H100", found["H100"][0])


def test_advice_for_a_card_is_within_its_memory(files: Path):
    rows = told(files, "train.py:run", "--advise", "--gpu", "T4")["advice"]
    assert all(row["fits"] for row in rows if not row["refused"])


def test_what_would_help_is_reported_too(files: Path):
    answer = told(files, "train.py:run", "--advise")
    assert {"foreach=False", "autocast bfloat16"} <= {row["names"][0] for row in answer["advice"] if len(row["names"]) == 1}
    assert all(row["peak"] == answer["peak_allocated"] - row["saved"] for row in answer["advice"])


def test_the_table_of_cards():
    assert len({card.name for card in CARDS}) == len(CARDS)
    assert [card_of(name).sold_as for name in COMMON] == [16, 24, 40, 48, 80, 141]
    for card in CARDS:
        assert round(card.bytes / (1 << 30), 2) == card.capacity / 100
        assert round((card.bytes - 1) / (1 << 30), 2) < card.capacity / 100
        assert card.bytes < card.sold_as << 30
        assert card_of(f"NVIDIA {card.name.lower()}") is card
    with pytest.raises(ValueError, match=r"'A100' is several: name one of A100 40GB, A100 80GB"):
        card_of("A100")
    with pytest.raises(ValueError, match=r"'RTX 1' is not in the table: name one of RTX 3080"):
        card_of("RTX 1")


def test_no_flag_says_whose_it_is(files: Path, monkeypatch: pytest.MonkeyPatch):
    """The neighbour of a file may be the one that imports PyTorch; a file may import both libraries."""
    monkeypatch.chdir(files)
    (files / "far.py").write_text("from neighbour import Head\nfrom train import Net\n")
    (files / "ours.py").write_text("import tinygrad_mem as torch\nfrom tinygrad_mem import nn\nNet = nn.ReLU\n")
    (files / "both.py").write_text("import torch\nimport tinygrad_mem as tm\nOurs, Theirs = tm.nn.ReLU, torch.nn.ReLU\n")
    found = {name: is_torch(name) for name in ("far.py:Net", "ours.py:Net", "both.py:Ours", "both.py:Theirs", "vgg16")}
    assert found == {"far.py:Net": True, "ours.py:Net": False, "both.py:Ours": False, "both.py:Theirs": True, "vgg16": False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py:wrong"], "train.py:wrong fails at train.py:19 forward: RuntimeError: Given groups=1"),
        (["train.py:decides"], "at train.py:57 decides: the program asks for the truth of a tensor"),
        (["train.py:leaves"], "train.py:leaves ended the program"),
        (["train.py:nothing"], "asked for no memory on cuda"),
        (["train.py:number"], "train.py:number is an object of class int: name a class or a function"),
        (["train.py:Net"], "train.py:Net is a class: it needs --input"),
        (["train.py:missing"], "train.py has no 'missing'; it defines Config, Net, Words, run, divided"),
        (["none.py:Net"], "there is no file none.py"),
        (["others.py:makes"], "others.py:makes makes a model and trains nothing"),
        (["others.py:Frozen", "--input", "8"], "others.py:Frozen has no parameters that are trained"),
        (["others.py:Classes", "--input", "8"], "returns no floats that depend on its parameters: there is no loss"),
        (["hf:config.json"], "hf:config.json needs --tokens, the length of a sample"),
        (["train.py:run", "--optimizer", "adam"], "--optimizer adam cannot change it"),
        (["train.py:run", "--batch-size", "8"], "train.py:run runs as it is written: --batch-size 8 cannot change it"),
        (["train.py:run", "--lora", "4"], "--lora 4 cannot change it"),
        (["train.py:nothing", "--input", "3"], "train.py:nothing makes a NoneType"),
        (["train.py:Net", "--input", "3x8x8", "--checkpoint"], "are for hf:config.json"),
        (["train.py:Net", "--input", "3x8x8", "--optimizer", "adam8bit"], "adam8bit is not for programs of PyTorch"),
        (["train.py:Net", "--input", "3x8x8", "--precision", "half"], "for PyTorch there are float32, bfloat16"),
        (["train.py:Net", "--input", "3x8x8", "--recompute", "sqrt"], "--recompute is for networks of tinygrad_mem"),
        (["train.py:Net", "--input", "3x8x8", "--accumulate", "3"], "--accumulate 3 does not divide"),
        (["train.py:Words", "--tokens", "50"], "write how many there are and the length of a sample"),
        (["train.py:run", "--gpu", "T4", "--device", "cpu"], "--gpu and --device cpu exclude each other"),
        (["train.py:run", "--device", "meta"], "a PyTorch program is predicted for cuda or cpu"),
        (["lenet", "--gpu", "T4"], "work for PyTorch programs, not for lenet"),
    ],
)
def test_refusals(files: Path, arguments: list[str], message: str):
    done = inside.run("estimate", *arguments, cwd=files)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["plan", "tips"])
@pytest.mark.parametrize("network", ["train.py:run", "hf:config.json"])
def test_other_commands_say_what_to_do(files: Path, command: str, network: str):
    option = ["--network"] if command == "tips" else []
    done = inside.run(command, *option, network, "--input", "3x16x16", cwd=files)
    assert done.returncode == 2
    assert f"python -m tinygrad_mem estimate {network}" in done.stderr


@pytest.mark.parametrize("command", [["plan"], ["tips", "--tip", "no_grad", "--network"]])
def test_what_is_converted_is_reported_with_where_pytorchs_own_bytes_are(files: Path, command: list[str]):
    done = inside.run(*command, "train.py:Words", "--tokens", "50x8", "--batch-size", "2", cwd=files)
    assert done.returncode == 0, done.stderr
    assert "PyTorch's own: python -m tinygrad_mem estimate train.py:Words" in " ".join(done.stdout.split())
    known = inside.run(*command, "lenet", "--batch-size", "2", cwd=files)
    assert "PyTorch's own" not in known.stdout


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls names that transformers renames
def test_configurations_of_hugging_face(files: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    (files / "config.json").write_text(json.dumps({"model_type": "llama", "num_key_value_heads": 2, **small}))
    options = ("hf:config.json", "--tokens", "64", "--batch-size", "2", "--gpu", USUAL.name)
    plain = told(files, *options)
    assert plain["parameters"] == plain["trained"] > 2 * 3 * 32 * 64
    assert told(files, *options, "--precision", "bfloat16")["by_category"]["parameters"] < plain["by_category"]["parameters"]
    assert told(files, *options, "--checkpoint")["peak_allocated"] < plain["peak_allocated"]
    pytest.importorskip("peft")
    lora = told(files, *options, "--lora", "4")
    assert lora["trained"] == lora["parameters"] - plain["parameters"] == 2 * 2 * 4 * (32 + 32)
    assert any("q_proj, v_proj" in note for note in lora["notes"])
    monkeypatch.chdir(files)
    both = asked("hf:config.json", tokens="64", batch_size=2, lora=4, checkpoint=True)
    found = pytorch.predict(TorchProgram(both))
    monkeypatch.setattr("transformers.PreTrainedModel.enable_input_require_grads", lambda model: None)
    without = pytorch.predict(TorchProgram(both))
    assert len(found.log) > len(without.log)  # the first block passes a gradient on to the embedding
    assert found.peak < lora["peak_allocated"]
    for name, message in (("nowhere.json", "there is no file nowhere.json"), ("train.py", "is no configuration")):
        done = inside.run("estimate", f"hf:{name}", "--tokens", "4", cwd=files)
        assert message in done.stderr


@pytest.mark.parametrize(
    ("library", "arguments"),
    [
        ("torch", ["train.py:run"]),
        ("torch", ["train.py:Net", "--input", "3x8x8"]),
        ("transformers", ["hf:config.json", "--tokens", "8"]),
    ],
)
def test_what_is_not_installed_is_named_with_its_cure(
    files: Path, monkeypatch: pytest.MonkeyPatch, library: str, arguments: list[str]
):
    monkeypatch.setitem(sys.modules, library, None)
    done = inside.run("estimate", *arguments, cwd=files)
    assert done.returncode == 2
    assert f"needs {library}, which is not installed: pip install {library}" in done.stderr
