"""``estimate``: a step's bytes layer by layer, by formula and equal to what a run measures; clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.cli import inside
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.memory.accounting import formula
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.models.precision import Step
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import optimizer_in_backward


def estimate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return inside.run("estimate", *arguments, cwd=cwd)


def found(*arguments: str, cwd: Path | None = None) -> dict[str, Any]:
    done = estimate(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_vgg16_as_textbooks_print_it():
    answer = found("vgg16", "--batch-size", "1")
    assert answer["parameters"] == 138_357_544
    layers = {layer["name"]: layer for layer in answer["layers"]}
    assert layers["features.0"]["formula"] == "64 x 3 x 3 x 3 + 64"
    assert layers["features.0"]["parameters"] == 1_792
    assert layers["features.28"]["output"] == [1, 512, 14, 14]
    assert layers["classifier.0"]["formula"] == "4096 x 25088 + 4096"
    assert layers["classifier.0"]["parameters"] == 102_764_544
    # a ReLU in place keeps its output, which is what the next layer keeps as its input: once each
    sides = {"features.0": (64, 224), "features.7": (128, 112), "features.14": (256, 56), "features.21": (512, 28)}
    for name, (channels, side) in sides.items():
        assert layers[name]["kept"] == 4 * channels * side * side
    assert layers["features.4"]["kept"] == 5 * 64 * 112 * 112  # its output, and one byte a window
    # by category it is what the run of the same step measures; all but the loss is some layer's
    assert sum(layer["kept"] for layer in answer["layers"]) <= answer["by_category"]["activations"] * 1.2
    assert answer["by_category"]["parameters"] == answer["by_category"]["optimizer state"] == 553_431_040
    assert answer["peak_used"] == sum(answer["by_category"].values())


@pytest.mark.parametrize(("optimizer", "precision"), [("sgd", "float32"), ("momentum", "float64"), ("adam", "float32")])
def test_it_is_what_a_run_measures(optimizer: str, precision: str):
    rules = {"sgd": (tm.optim.SGD, {"lr": 0.1}), "momentum": (tm.optim.SGD, {"lr": 0.1, "momentum": 0.9})}
    rule, options = rules.get(optimizer, (tm.optim.Adam, {}))
    dtype = getattr(tm, precision)
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.track("cpu") as track:
            model = Step(precision, "cpu").make(NETWORKS["lenet"].make)
            update = rule(model.parameters(), **options)
            for _ in range(2):
                update.zero_grad()
                for _ in range(2):
                    (F.cross_entropy(model(tm.randn(4, 1, 28, 28, dtype=dtype)), tm.randint(0, 10, (4,))) / 2).backward()
                update.step()
    finally:
        cpu.pool = before
    answer = found("lenet", "--batch-size=8", "--accumulate=2", f"--optimizer={optimizer}", f"--precision={precision}")
    measured = {category.value: size for category, size in track.by_category("peak").items()}
    assert answer["peak_used"] == track.peak
    assert answer["by_category"] == measured
    assert answer["peak_reserved"] == track.pool("end").reserved


@pytest.mark.parametrize(("optimizer", "rule"), [("lomo", tm.optim.Lomo), ("adalomo", tm.optim.AdaLomo)])
def test_lomo_steps_in_backward(optimizer: str, rule: Any):
    """One gradient exists at a time: at the peak that of the layer whose backward runs."""
    named, step = NETWORKS["vgg16"], Step("float32", "cuda")

    def run() -> None:
        model = step.make(named.make)
        update = rule(model.parameters())
        with optimizer_in_backward(update):
            for _ in range(2):
                named.loss(model(named.batch(1, step.dtype))).backward()

    answer = found("vgg16", "--batch-size", "1", "--optimizer", optimizer)
    assert answer["peak_used"] == memory.predict(run).peak
    assert found("vgg16", "--batch-size", "1", "--optimizer", "sgd")["peak_used"] - answer["peak_used"] > 10**8


@pytest.mark.parametrize("options", [("--accumulate", "2"), ("--precision", "half"), ("--ranks", "2")])
def test_lomo_refuses_what_needs_gradients_after_backward(options: tuple[str, str]):
    done = estimate("lenet", "--batch-size", "4", "--optimizer", "lomo", *options)
    assert done.returncode == 2
    assert "--optimizer lomo updates each parameter in backward" in done.stderr


def test_on_cuda_it_is_the_prediction_like_cuda():
    pytest.importorskip("cupy")

    def steps() -> None:
        model = NETWORKS["lenet"].make()
        update = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            update.zero_grad()
            F.cross_entropy(model(tm.randn(8, 1, 28, 28)), tm.randint(0, 10, (8,))).backward()
            update.step()

    answer, here = found("lenet", "--batch-size=8", "--device=cuda"), found("lenet", "--batch-size=8")
    track = memory.predict(steps, like="cuda")
    assert answer["device"] == "cuda"
    assert answer["peak_used"] == track.peak
    assert answer["by_category"] == {category.value: size for category, size in track.by_category("peak").items()}
    kept = [[layer["kept"] for layer in each["layers"]] for each in (answer, here)]
    assert kept[0] == kept[1]  # what is kept for backward is the op's choice; workspace is the kernels'
    refused = estimate("lenet", "--device=tpu")
    assert refused.returncode == 2
    assert "'cpu' or 'cuda', found 'tpu'" in refused.stderr


def test_half_with_master_weights():
    answer = found("lenet", "--optimizer=adam", "--precision=float16", "--master-weights")
    bytes_of, n = answer["by_category"], answer["parameters"]
    slack = 512 * 10  # LeNet has ten parameters, and blocks are multiples of 512 bytes
    for category, each in (("parameters", 2), ("master weights", 4), ("optimizer state", 8)):
        assert each * n <= bytes_of[category] <= each * n + 2 * slack
    light = found("lenet", "--optimizer=adam8bit")["by_category"]["optimizer state"]
    heavy = found("lenet", "--optimizer=adam")["by_category"]["optimizer state"]
    assert 0.25 * heavy < light < 0.4 * heavy  # biases and the first layers stay in float32


@pytest.mark.parametrize("precision", ["autocast", "half", "float16", "bfloat16", "float32"])
def test_a_mixed_precision_is_what_a_run_measures(precision: str):
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.track("cpu") as track:
            step = Step(precision, "cpu")
            model = step.make(NETWORKS["lenet"].make)
            update = tm.optim.Adam(model.parameters(), **step.options)
            for _ in range(2):
                update.zero_grad()
                with step.region():
                    scores = step.forward(model, tm.randn(8, 1, 28, 28, dtype=step.dtype))
                    loss = F.cross_entropy(scores, tm.randint(0, 10, (8,)))
                    del scores
                step.backward(loss)
                del loss
                step.update(update)
    finally:
        cpu.pool = before
    answer = found("lenet", "--batch-size=8", "--optimizer=adam", f"--precision={precision}")
    assert answer["peak_used"] == track.peak
    assert answer["by_category"] == {category.value: size for category, size in track.by_category("peak").items()}
    parameters = sum(p.numel() for p in model.parameters())
    held = {b.category.value: 0 for b in track.live("end")}
    for block in track.live("end"):
        held[block.category.value] += block.requested
    narrow = precision in ("half", "float16", "bfloat16")
    assert held["parameters"] == (2 if narrow else 4) * parameters
    assert held["optimizer state"] == (4 if precision in ("float16", "bfloat16") else 8) * parameters
    assert held.get("master weights", 0) == (4 * parameters if precision == "half" else 0)
    assert held["gradients"] == (2 if precision in ("float16", "bfloat16") else 4) * parameters
    assert "casts of weights" not in held


def test_every_name_makes_a_network():
    for name, named in NETWORKS.items():
        with tm.device("meta"):
            model = named.make()
        assert isinstance(model, nn.Module), name
        assert len(named.sample) in (1, 3)


def test_the_table_fits_80_columns_and_says_what_the_json_says():
    done = estimate("lenet", "--budget", "1 GiB")
    assert done.returncode == 0
    answer = found("lenet")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"{answer['peak_used']:,}" in done.stdout
    assert f"{answer['peak_used'] / 1e6:,.2f}" in done.stdout
    assert f"{answer['peak_used'] / 2**20:,.2f}" in done.stdout
    kept = answer["by_category"]["optimizer state"] / answer["parameters"]
    assert f"The optimizer keeps {kept:.3f} bytes per trained parameter." in done.stdout
    assert f"fits, {2**30 - answer['peak_used']:,} bytes are left" in done.stdout
    tight = estimate("lenet", "--budget", "1 MB")
    assert tight.returncode == 1
    assert f"does not fit: {answer['peak_used'] - 10**6:,} bytes too many" in tight.stdout


OWN = """
import tinygrad_mem as tm
from tinygrad_mem import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
    def forward(self, x):
        return self.layer(x.flatten(1))

class Broken(Net):
    def __init__(self):
        raise ValueError("not today")

class Pair(Net):
    def forward(self, x):
        return x.long(), None

class Frozen(Net):
    def forward(self, x):
        return x * 1.0

number = 3
made = Net()
"""


def test_a_class_of_the_users(tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    for name in ("own:Net", "own.py:Net"):
        answer = found(name, "--input", "2x3", "--batch-size", "4", cwd=tmp_path)
        assert answer["parameters"] == 35
        assert [layer["formula"] for layer in answer["layers"]] == ["", "5 x 6 + 5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lenett"], "no network 'lenett': did you mean lenet or unet? There are lenet, vgg11"),
        (["own.py"], "own.py is a file: name the class or the function in it, as in own.py:Net"),
        (["x"], "no network 'x': there are lenet, vgg11"),
        (["lenet", "--input", "1x0x3"], "--input '1x0x3' is not a shape"),
        (["lenet", "--input", "3x28x28"], "estimate: conv2d"),
        (["lenet", "--budget", "1 XB"], "'1 XB' is not a size"),
        (["lenet", "--batch-size", "5", "--accumulate", "2"], "--accumulate 2 does not divide --batch-size 5"),
        (["own:Net"], "own:Net needs --input"),
        (["own:Nothing", "--input", "6"], "own has no 'Nothing'"),
        (["nowhere:Net", "--input", "6"], "No module named 'nowhere'"),
        (["nowhere.py:Net", "--input", "6"], "there is no file nowhere.py"),
        (["own:Broken", "--input", "6"], "ValueError: not today"),
        (
            ["own:Pair", "--input", "6"],
            "the network returns a tuple of a tensor of int64, but a loss needs a floating tensor",
        ),
        (["own:Frozen", "--input", "6"], "does not require grad"),
        (["own:number", "--input", "6"], "own:number is an object of class int: name a class or a function"),
        (["own.py:made", "--input", "6"], "own.py:made is an object of class Net: name a class or a function"),
        (["nowhere.json"], "estimate: nowhere.json: No such file or directory\n"),
        (["lenet", "--device", "gpu"], "estimate: memory is predicted for 'cpu' or 'cuda', found 'gpu'\n"),
    ],
)
def test_refusals_have_one_sentence_and_status_2(tmp_path: Path, arguments: list, message: str):
    (tmp_path / "own.py").write_text(OWN)
    done = estimate(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_traceback_for_those_who_ask(tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    command = [sys.executable, "-m", "tinygrad_mem", "estimate", "own:Broken", "--input", "6", "--traceback"]
    assert "Traceback" in subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120).stderr


def test_formulas():
    assert formula([(64, 3, 3, 3), (64,)]) == "64 x 3 x 3 x 3 + 64"
    assert formula([(64,), (64,)]) == "2 x 64"
    assert formula([()]) == "1"
    assert formula([]) == ""


def test_a_configuration_of_a_language_model(tmp_path):
    fields = {"model_type": "llama", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_attention_heads": 4, "max_position_embeddings": 64}))
    options = ("--batch-size", "2", "--json", "--optimizer", "adamw8bit", "--precision", "bfloat16")
    found = json.loads(inside.run("estimate", "config.json", "--tokens", "32", *options, cwd=tmp_path).stdout)
    matrices = 2 * 128 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96)
    assert found["parameters"] == matrices + 5 * 64
    assert found["by_category"]["parameters"] == 2 * matrices + 5 * 512  # a norm's 128 bytes fill a block of 512
    refused = inside.run("estimate", "config.json", "--tokens", "65", *options, cwd=tmp_path)
    assert (refused.returncode, "65 tokens: this model has positions for 64" in refused.stderr) == (2, True)
    (tmp_path / "config.json").write_text("{}")
    refused = inside.run("estimate", "config.json", *options, cwd=tmp_path)
    assert (refused.returncode, "the model_type None is not offered" in refused.stderr) == (2, True)


def test_long_contexts(tmp_path):
    """Logits and the inside of MLPs in tiles, the inputs of recomputed blocks on the host."""
    fields = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_attention_heads": 4, "max_position_embeddings": 256}))
    command = ("estimate", "config.json", "--tokens", "256", "--batch-size", "1")
    whole, tiles, host = (
        json.loads(inside.run(*command, "--json", "--recompute", "every-block", *how, cwd=tmp_path).stdout)
        for how in ((), ("--tile", "64"), ("--tile", "64", "--offload"))
    )
    logits = 4 * 256 * 512
    assert whole["peak_used"] - tiles["peak_used"] > logits
    assert tiles["loss"] == host["loss"] == whole["loss"] == "cross-entropy"
    assert (whole["offloaded"], tiles["offloaded"]) == (0, 0)
    assert host["offloaded"] == 3 * 4 * 256 * 64 + 2 * 4 * 256 * 8  # inputs of blocks; cosines and sines
    shown = " ".join(inside.run(*command, "--tile", "64", "--offload", "--recompute", "sqrt", cwd=tmp_path).stdout.split())
    assert "bytes of inputs of recomputed parts until their backward." in shown
    for arguments, message in (
        (["gpt2", "--input", "3x32x32"], "--input 3x32x32: gpt2 has 50,257 tokens, and --tokens sets the length of a sample"),
        (["lenet", "--tile", "64"], "--tile works for language models (llama-3.1-8b, a config.json), not for lenet"),
        (["lenet", "--offload"], "--offload keeps the inputs of recomputed parts on the host: give --recompute or --tile too"),
        (["lenet", "--tile", "64", "--ranks", "2"], "--tile is for one rank: leave --ranks out"),
    ):
        assert message in " ".join(inside.run("estimate", *arguments).stderr.split())


def test_a_network_that_returns_its_loss(tmp_path):
    (tmp_path / "own.py").write_text(
        "import tinygrad_mem as tm\n\n"
        "class Net(tm.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.table = tm.nn.Embedding(9, 4)\n"
        "    def forward(self, x):\n        return self.table(x).square().mean()\n"
    )
    found = inside.run("estimate", "own.py:Net", "--tokens", "9x5", "--json", cwd=tmp_path)
    assert json.loads(found.stdout)["loss"] == "the mean of the output", found.stderr


def test_lora_of_a_network_of_ours():
    whole, thin = (
        json.loads(inside.run("estimate", "lenet", "--optimizer", "adam", "--json", *how).stdout)
        for how in ((), ("--lora", "4"))
    )
    layers = [(400, 120), (120, 84)]  # not the output layer
    assert whole["trained"] == whole["parameters"]
    assert thin["trained"] == sum(4 * (a + b) for a, b in layers) == thin["parameters"] - whole["parameters"]
    assert thin["by_category"]["optimizer state"] == 2 * sum(-(-16 * n // 512) * 512 for each in layers for n in each)
    refused = inside.run("estimate", "lenet", "--lora", "200")
    assert "expected a rank r from 1 to 120 for " in refused.stderr
    assert "--lora is for one rank" in inside.run("estimate", "lenet", "--lora", "4", "--ranks", "2").stderr


def test_frozen_weights_in_4_or_8_bits():
    """Parameters are counted as they are in full; their bytes are those of codes and scales."""
    plain, nf4, int8 = (
        json.loads(inside.run("estimate", "lenet", "--lora", "4", "--json", *how).stdout)
        for how in ((), ("--quantize", "nf4"), ("--quantize", "int8"))
    )
    assert plain["parameters"] == nf4["parameters"] == int8["parameters"]
    assert plain["trained"] == nf4["trained"] == int8["trained"]
    assert [layer["parameters"] for layer in plain["layers"]] == [layer["parameters"] for layer in nf4["layers"]]
    up = lambda *sizes: sum(-(-n // 512) * 512 for n in sizes)  # noqa: E731
    full = up(4 * 400 * 120, 4 * 120 * 84)
    for found, codes in (
        (nf4, up(24_000, 750, 12, 4) + up(5_040, 158, 4, 4)),
        (int8, up(48_000, 480) + up(10_080, 336)),
    ):
        assert found["by_category"]["parameters"] - plain["by_category"]["parameters"] == codes - full
    command = ("estimate", "llama-3-8b", "--tokens", "64", "--batch-size", "1", "--precision", "bfloat16")
    found = json.loads(inside.run(*command, "--lora", "16", "--quantize", "nf4", "--json").stdout)
    assert 5.7e9 < found["by_category"]["parameters"] < found["peak_used"] < 7e9, "never all of them in full"
    refused = inside.run("estimate", "lenet", "--quantize", "nf4")
    assert "--quantize freezes the weights, so that nothing would be trained: give --lora too" in refused.stderr


def test_weights_of_experts_that_are_not_quantized_are_reported(tmp_path: Path):
    fields = {"model_type": "mixtral", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    fields |= {"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 4, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    command = ("estimate", "config.json", "--lora", "4", "--quantize", "nf4", "--batch-size", "1")
    said = inside.run(*command, cwd=tmp_path).stdout
    assert f"{2 * 4 * 3 * 64 * 96:,} weights of experts are not quantized" in " ".join(said.split())
    assert found(*command[1:], cwd=tmp_path)["stacked"] == 2 * 4 * 3 * 64 * 96


def test_paged_state_is_on_the_host():
    command = ("estimate", "lenet", "--optimizer", "adam")
    plain, paged = (json.loads(inside.run(*command, "--json", *how).stdout) for how in ((), ("--paged",)))
    assert (plain["host"], paged["host"]) == (0, plain["by_category"]["optimizer state"])
    assert plain["peak_used"] > paged["peak_used"]
    shown = " ".join(inside.run(*command, "--paged").stdout.split())
    assert f"The host holds these {paged['host']:,} bytes; the device has those of one parameter at a time, in a step." in shown
    assert f"The optimizer keeps {paged['host'] / paged['trained']:.3f} bytes per trained parameter." in shown
    assert "--paged is for one rank" in inside.run("estimate", "lenet", "--paged", "--ranks", "2").stderr


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_blocks_that_are_alike_share_a_row_and_no_number_is_cut(columns: int):
    command = ("estimate", "gpt2", "--batch-size", "1", "--tokens", "64")
    layers = json.loads(inside.run(*command, "--json").stdout)["layers"]
    shown = inside.run(*command, "--layers", columns=columns).stdout
    assert "…" not in shown
    assert all(len(line) <= columns for line in shown.splitlines())
    for what in ("kept", "temporary"):
        assert all(f"{layer[what]:,}" in shown for layer in layers)
    (table, _) = shown.split("all layers")
    assert table.count("12 x ") == 9  # of each block: itself, attention, two norms, four linear layers, GELU
    assert "0-11" in table


def test_without_layers_those_that_keep_the_most_are_shown():
    """Five rows, the largest ones, in the network's order; the total is of all layers."""
    answer = found("gpt2", "--batch-size", "1", "--tokens", "64")
    kept = [layer["kept"] for layer in answer["layers"]]
    done = estimate("gpt2", "--batch-size", "1", "--tokens", "64")
    (table, rest) = done.stdout.split("all layers")
    assert f"{sum(kept):,}" in rest
    assert f"{answer['parameters']:,}" in rest
    assert "9 more rows: --layers" in rest
    names = [f"h.0-11{end}" for end in (" Block", ".attn.c_attn", ".mlp.c_fc", ".mlp.gelu")]
    places = [table.index(name) for name in (*names, "lm_head")]
    assert places == sorted(places)
    assert table.count("12 x ") == 4
    assert ".ln_1" not in table
    assert max(map(len, done.stdout.splitlines())) <= 80
    every = estimate("gpt2", "--batch-size", "1", "--tokens", "64", "--layers").stdout
    assert ".ln_1" in every
    assert "more rows" not in every
    assert "--layers is for one rank" in estimate("lenet", "--ranks", "2", "--layers").stderr


def test_the_version():
    done = inside.run("--version")
    assert (done.returncode, done.stdout) == (0, f"{tm.__version__}\n")
