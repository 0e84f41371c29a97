"""What one process has learned of ops, later ones read; what a file cannot tell is learned again."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.networks import WORKLOADS, run_under
from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.program import alone as module
from tinygrad_mem.pytorch.program.described import AloneCall, Made, Within, described
from tinygrad_mem.pytorch.program.remembered import Remembered

aten = torch.ops.aten
FOUND = Within(99, 48, (Made((3, 4), (4, 1), torch.bfloat16, 24), None, Made((), (), torch.int64, 8)))
LENET = run_under(torch, next(each for each in WORKLOADS if each.name == "LeNet"))


def call(*args: Any, op: Any = aten.mul.Tensor) -> AloneCall:
    found = described(op, args or (torch.zeros(3, 4), 0.3), {})
    assert found is not None
    return found


def other_process(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Forget what this process has learned. Returns the list of what is run alone from now on."""
    ran: list[Any] = []
    own = module.run_alone
    monkeypatch.setattr(module, "_learned", {})
    monkeypatch.setattr(module, "_before_results", {})
    monkeypatch.setattr(module, "_remembered", cache(Remembered))
    monkeypatch.setattr(module, "run_alone", lambda *args: ran.append(args[0].func) or own(*args))
    return ran


def test_another_process_runs_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TINYGRAD_MEM_CACHE", str(tmp_path))
    first = other_process(monkeypatch)
    before = pytorch.predict(LENET, device="cpu")
    assert aten.convolution_backward.default in first
    second = other_process(monkeypatch)
    again = pytorch.predict(LENET, device="cpu")
    assert second == []
    for column in ("kind", "address", "requested", "role", "op", "phase"):
        assert again.log.column(column).tolist() == before.log.column(column).tolist()


def test_without_a_folder_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch):
    for _ in range(2):
        ran = other_process(monkeypatch)
        pytorch.predict(LENET, device="cpu")
        assert aten.convolution.default in ran


def test_all_of_it_comes_back(tmp_path: Path):
    one = Remembered(tmp_path)
    one.add(call(), FOUND)
    one.save()
    found = Remembered(tmp_path).get(call())
    assert found == FOUND
    assert found is not None
    assert isinstance(found.made[0], Made)
    assert Remembered(tmp_path).get(call(torch.zeros(4, 3), 0.3)) is None
    assert Remembered(tmp_path).get(call(torch.zeros(3, 4).double(), 0.3)) is None


def test_what_another_process_has_written_meanwhile_stays(tmp_path: Path):
    one, two = Remembered(tmp_path), Remembered(tmp_path)
    one.add(call(), FOUND)
    two.add(call(op=aten.add.Tensor), FOUND)
    one.save()
    two.save()
    assert Remembered(tmp_path).get(call()) == Remembered(tmp_path).get(call(op=aten.add.Tensor)) == FOUND


def test_another_setting_of_a_library_is_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    one = Remembered(tmp_path)
    one.add(call(), FOUND)
    one.save()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert Remembered(tmp_path).get(call()) is None


@pytest.mark.parametrize("setting", [torch.get_default_dtype, torch.get_num_threads])
def test_settings_of_pytorch_are_part_of_a_call(setting: Any):
    assert setting() in call().settings


def test_an_unknown_processor_is_not_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    one = Remembered(tmp_path)
    one.add(call(), FOUND)
    one.save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (call(torch.zeros(3), object()), "an object, whose text says only where it is"),
        (call(op=torch.ops.prims.mul.default), "another library's op, whose code may change"),
    ],
)
def test_what_its_text_does_not_tell_is_not_written(tmp_path: Path, written: AloneCall, why: str):
    one = Remembered(tmp_path)
    one.add(written, FOUND)
    one.add(call(), FOUND._replace(unknown="alone it fails"))
    one.save()
    assert list(tmp_path.iterdir()) == [], why


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"KEY": 7}', '{"KEY": [1, 2, [[3]]]}', '{"KEY": [1, 2, [[[3], [1], "no", 4]]]}']
)
def test_a_damaged_file_is_learned_again(tmp_path: Path, damage: str):
    one = Remembered(tmp_path)
    one.add(call(), FOUND)
    one.save()
    (file,) = tmp_path.iterdir()
    (key,) = json.loads(file.read_text())
    file.write_text(damage.replace("KEY", key))
    other = Remembered(tmp_path)
    assert other.get(call()) is None
    other.add(call(), FOUND)
    other.save()
    assert Remembered(tmp_path).get(call()) == FOUND


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("")
    one = Remembered(tmp_path / "file")
    one.add(call(), FOUND)
    one.save()
    assert (tmp_path / "file").read_text() == ""
