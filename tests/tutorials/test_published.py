"""Published figures: each script runs as it stands, and its figures are the published ones, or differ as it says."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tinygrad_mem import memory

FOLDER = Path(__file__).parents[2] / "tutorials" / "published"


@cache
def script(name: str) -> ModuleType:
    """A script's functions. What it prints and what is held to the published figures are made once."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update({name: cache(made) for name, made in vars(module).items() if name in ("figures", "bytes_a_parameter")})
    return module


SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_runs_and_is_listed(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    path = FOLDER / f"{name}.py"
    main = ast.parse(path.read_text()).body[-1]
    assert isinstance(main, ast.If)
    assert ast.unparse(main.test) == "__name__ == '__main__'"
    monkeypatch.setattr(sys, "argv", [str(path)])
    exec(compile(ast.Module(main.body, []), path, "exec"), vars(script(name)))
    assert len(capsys.readouterr().out.splitlines()) > 2
    assert f"[`{path.name}`]({path.name})" in (FOLDER / "README.md").read_text()


def test_one_is_run_as_a_reader_runs_it():
    command = [sys.executable, str(FOLDER / "zero_stages.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert len(ran.stdout.splitlines()) > 2


def test_torchinfo_144():
    it = script("torchinfo_144")
    found = it.figures()
    assert found["after the forward"] == found["by formula"] == it.MEASURED_BY_PYTORCH
    # the weight's gradient, and those of two outputs at once, less the activation that is freed
    assert found["at the peak"] <= it.MEASURED_BY_PYTORCH + 2 * 10240 * 1024 * 4
    assert found["at the peak"] > it.MEASURED_BY_PYTORCH


def test_adam_costs_four_times():
    it = script("adam_four_times")
    for rule, words in (("SGD", 2), ("SGD with momentum", 3), ("Adam", 4)):
        assert 4 * words <= it.bytes_a_parameter(rule) < 4 * words + 0.01


def test_sixteen_bytes():
    it = script("sixteen_bytes")
    found = {mode: it.figures("resnet50", 8, mode) for mode in ("masters, float32 gradients", "masters")}
    for mode, each in (("masters, float32 gradients", 18), ("masters", 16)):
        assert each <= sum(found[mode][c.value] for c in it.OURS) / sum(it.parameters("resnet50")) < each + 0.01


def test_vgg16_is_the_textbooks_table():
    it = script("vgg16_table")
    rows = it.figures()
    assert [(name, numbers, weights) for name, numbers, weights, _, _ in rows] == it.TABLE
    assert sum(weights + biases for _, _, weights, biases, _ in rows) == 138_357_544
    assert rows[0][4] == 224 * 224 * 64 * 4  # kept: the output, once


def test_a_wide_vocabulary():
    found = script("wide_vocabulary").figures()
    assert found["logits"] == found["by formula"] == 4000 << 20
    assert 2 * found["logits"] <= found["peak of the step"] < 2.1 * found["logits"]


def test_a_batch_of_images():
    it = script("batch_of_images")
    track, (images, first) = it.figures()
    inputs = {block.requested for block in track.live("forward ends") if block.category.value == "inputs"}
    assert it.PUBLISHED in inputs
    at_end, at_peak = track.by_category("forward ends"), track.by_category()
    bytes_of = {category.value: size for category, size in at_end.items()}
    assert 138_357_544 * 4 <= bytes_of["parameters"] < 138_357_544 * 4 + 32 * 512
    kept = sum(
        256 * 4 * c * n * n * convs for c, n, convs in ((64, 100, 2), (128, 50, 2), (256, 25, 3), (512, 12, 3), (512, 6, 3))
    )
    by_op = track.by_op("forward ends")
    assert kept <= by_op["Conv"] < kept + 13 * 512  # the output of each, shared by its ReLU and the next layer
    assert 1.1 < track.peak / sum(at_end.values()) < 1.2
    assert "gradients" in {category.value for category in at_peak}
    assert images.startswith("It is 30,720,000 bytes of inputs")
    assert "Conv in Sequential.0 keeps it as 'x'" in images
    assert "655,360,000 bytes of activations, made by Conv" in first
    assert "ReLU" in first


def test_stepping_in_backward():
    it = script("update_in_backward")
    plain, early = it.figures().values()
    parameters = 4 * it.PARAMETERS
    assert 4 * parameters < plain.peak < 4.02 * parameters
    assert 3 * parameters < early.peak < 3 * parameters + 0.4e9  # the activations of one image
    assert abs(early.peak - it.PUBLISHED["in backward"]) < 0.1e9
    assert it.PUBLISHED["plain"] - plain.peak < 1.1 * parameters  # what PyTorch's step takes for a moment
    assert early.at_peak().by_category[memory.Category.ACTIVATION] > 0.2e9  # the peak has moved to where activations are


def test_zero():
    it = script("zero_stages")
    p, n = it.PARAMETERS, it.RANKS
    formula = {"none": 16 * p, "optimizer state": 4 * p + 12 * p // n, "and gradients": 2 * p + 14 * p // n}
    formula["and parameters"] = 16 * p // n
    for name, published in it.PUBLISHED.items():
        found = it.figures(name)
        assert found["counted"] == formula[name]  # to the byte: each array is a multiple of 512 bytes
        assert abs(found["counted"] / 1e9 - published) < 0.05
    layer = 2 * p // it.LAYERS
    # two gathered layers, and the gradient of a third one that is sent; the one that is computed is a temporary yet
    assert found["communication buffers"] == 3 * layer
    assert layer <= found["temporaries"] < 1.02 * layer


def test_a_thousand_layers():
    it = script("thousand_layers")
    found = it.figures("bottlenecks, batch 32")
    assert 25e9 < found["plain"] < it.PUBLISHED["plain"]
    assert 4e9 < found["recomputed"] < it.PUBLISHED["recomputed"]
    assert found["plain"] / found["recomputed"] > 5
    assert found["again"] <= 1


def test_resnet1202_under_the_published_budget():
    it = script("resnet1202")
    found = it.figures()
    assert 5e9 < found["plain"] < it.PUBLISHED["plain"]
    assert 0.9 * it.PUBLISHED["budget"] < found["planned"] <= it.PUBLISHED["budget"]
    assert found["more time"] < 0.2 < it.PUBLISHED["more time"]
