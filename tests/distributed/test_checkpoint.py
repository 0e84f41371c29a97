"""Checkpoints: saved by all ranks, loaded by another number of them and by one process; all or nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.blocks import classes
from tests.distributed.ranks import passes, run
from tests.profiles import some
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed import checkpoint
from tinygrad_mem.distributed.checkpoint.boxes import make_up
from tinygrad_mem.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from tinygrad_mem.nn import functional as F

_, Network = classes(tm)  # that of ``programs/fsdp.py``, in one process without a group


def made() -> tuple[nn.Module, tm.optim.Optimizer]:
    tm.manual_seed(0)
    model = Network().double()
    return model, tm.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    for step in steps:
        rng = np.random.default_rng(step)
        x, y = (tm.tensor(rng.standard_normal((16, n))) for n in (6, 3))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def loaded(folder: Path) -> tuple[nn.Module, tm.optim.Optimizer, int]:
    """One process reads what several ranks saved."""
    model, optimizer = made()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    state["step"] = 0  # pyright: ignore
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return model, optimizer, state["step"]  # pyright: ignore


def near(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-10, atol=1e-12)


MESHES = ["tensor and pipeline", "tensor and data", "pipeline and data"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess]:
    """What four ranks saved, from where two went on, one of which was killed in the end; and how these two ended."""
    folder = tmp_path_factory.mktemp("saved")
    for name in ("data", "mesh"):
        (folder / name).mkdir()
    loaded = ":".join([str(folder / "mesh"), *some(MESHES, MESHES[:1])])
    passes(4, "several", f"checkpoint:begin,go_on,fails:{folder / 'data'}", f"checkpoint_mesh:begin:{loaded}")
    return folder, run(2, "several", f"checkpoint_mesh:go on:{loaded}", f"checkpoint:go_on,killed:{folder / 'data'}")


def test_another_number_of_ranks_and_one_process_go_on(saved: tuple[Path, CompletedProcess]):
    tmp_path, died = saved[0] / "data", saved[1]
    alone = made()
    train(*alone, range(3))
    model, optimizer, step = loaded(tmp_path / "a")
    assert step == 3
    near(model, alone[0])
    train(*alone, range(3, 5))
    train(model, optimizer, range(3, 5))
    near(model, alone[0])
    for ranks in (4, 2):
        near(loaded(tmp_path / f"b{ranks}")[0], alone[0])
        assert len(list((tmp_path / f"b{ranks}").iterdir())) == ranks + 1
    assert died.returncode != 0
    assert died.stdout.count(": done") == 2  # those of the meshes
    assert loaded(tmp_path / "a")[2] == 3  # whole, beside what the killed rank left
    checkpoint.save({"step": 3}, checkpoint_id=tmp_path / "a", no_dist=True)
    assert len(list((tmp_path / "a").iterdir())) == 2  # what was left is gone


def test_what_killed_ranks_left_goes_with_the_next_save(tmp_path: Path):
    """A file that was complete, one that was being written, and what is nobody's of ours, which stays."""
    name = "0123456789abcdef-00001.safetensors"
    for left in (name, f"{name}.{'ab' * 8}.tmp", "notes.txt"):
        (tmp_path / left).write_bytes(b"1")
    checkpoint.save({"step": 3}, checkpoint_id=tmp_path, no_dist=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert names[1:] == ["index.safetensors", "notes.txt"]
    assert names[0] != name


def test_tensor_parallel_ranks_and_stages_save_and_others_load(saved: tuple[Path, CompletedProcess]):
    """Each rank compares its parts with what one process reads of the checkpoint, bit for bit."""
    assert sorted(path.name for path in (saved[0] / "mesh").iterdir()) == sorted(MESHES)
    for rank in range(2):
        assert f"checkpoint_mesh ended on rank {rank}" in saved[1].stdout, saved[1].stderr


def test_boxes_make_up_a_tensor():
    quarters = [((i, j), (2, 3)) for i in (0, 2) for j in (0, 3)]
    assert make_up((4, 6), quarters)
    assert not make_up((4, 6), quarters[1:])
    assert not make_up((4, 6), [*quarters, ((0, 0), (1, 1))])
    assert not make_up((4, 6), [*quarters[1:], ((0, 0), (2, 2))])
    assert make_up((5,), [((3,), (2,)), ((0,), (3,))])
    assert not make_up((5,), [((2,), (3,)), ((0,), (3,))])
    assert make_up((), [((), ())])
    assert not make_up((), [])
    assert make_up((0, 3), [])


def test_a_flattened_state_is_that_of_the_parameters_that_are_here(tmp_path: Path):
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = made()
    train(model, optimizer, range(2))
    found = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=flat), strict=True))
    assert found["optimizer"]["param_groups.blocks.2.up.weight.lr"] == 0.01
    assert found["optimizer"]["state.blocks.2.up.weight.step"] == 2
    checkpoint.save(found, checkpoint_id=tmp_path)
    again, rule = made()
    state = dict(zip(("model", "optimizer"), get_state_dict(again, rule, options=flat), strict=True))
    checkpoint.load(state, checkpoint_id=tmp_path)
    state["optimizer"]["state.elsewhere.step"] = 5
    given = {"model_state_dict": state["model"], "options": flat}
    set_state_dict(again, rule, optim_state_dict=state["optimizer"], **given)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        np.testing.assert_array_equal(q.detach().numpy(), p.detach().numpy())
        for name in ("exp_avg", "exp_avg_sq"):
            np.testing.assert_array_equal(rule.state[q][name].numpy(), optimizer.state[p][name].numpy())
        assert rule.state[q]["step"] == 2
    assert rule.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    other = state["optimizer"] | {"param_groups.last.bias.lr": 0.5}
    with pytest.raises(RuntimeError, match=r"expected the same options of all of first\.weight, .*, last\.bias, found"):
        set_state_dict(again, rule, optim_state_dict=other, **given)
    with pytest.raises(NotImplementedError, match="only flatten_optimizer_state_dict is offered"):
        StateDictOptions(full_state_dict=True)


def test_one_process_saves_and_loads(tmp_path: Path):
    model, optimizer = made()
    train(model, optimizer, range(2))
    saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.save({**saved, "text": "a", "pair": (1, 2.5), "none": None, "list": [tm.ones(2), 3]}, checkpoint_id=tmp_path)
    found = {"model": made()[0].state_dict(), "text": "", "pair": None, "list": [tm.zeros(2), 0]}
    checkpoint.load(found, checkpoint_id=tmp_path)
    assert (found["text"], found["pair"], found["list"][1]) == ("a", (1, 2.5), 3)
    np.testing.assert_array_equal(found["list"][0].numpy(), np.ones(2))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(found["model"][name].numpy(), value.numpy())
    with pytest.raises(
        RuntimeError, match=r"model\.weight is not in the checkpoint; model\.first\.weight is in the checkpoint"
    ):
        checkpoint.load({"model": {"weight": tm.ones(2)}}, checkpoint_id=tmp_path)
    with pytest.raises(RuntimeError, match=r"list\.0 has shape \[3\], in the checkpoint \[2\]"):
        checkpoint.load({"list": [tm.ones(3), 0]}, checkpoint_id=tmp_path)


def test_damaged_files_are_refused_and_nothing_is_changed(tmp_path: Path):
    checkpoint.save({"x": tm.arange(4.0), "y": tm.ones(3)}, checkpoint_id=tmp_path)
    (data,) = [path for path in tmp_path.iterdir() if path.name != "index.safetensors"]
    whole = data.read_bytes()
    mine = {"x": tm.zeros(4), "y": tm.zeros(3)}
    for damaged in (whole[:-4], whole.replace(b"starts", b"startz"), b""):
        data.write_bytes(damaged)
        with pytest.raises(ValueError, match=data.name):
            checkpoint.load(mine, checkpoint_id=tmp_path)
    data.write_bytes(whole)
    index = tmp_path / "index.safetensors"
    saved = index.read_bytes()
    tm.save({"files": [data.name], "shapes": {"x": [2, 2], "y": [3]}, "values": {"x": None, "y": None}}, index)
    with pytest.raises(ValueError, match=r"x has \[4\], in the index \[2, 2\]"):
        checkpoint.load({"x": tm.zeros(2, 2)}, checkpoint_id=tmp_path)
    index.write_bytes(saved)
    tm.save({"a": tm.ones(1)}, tmp_path / data.name)
    with pytest.raises(ValueError, match="does not say which parts of tensors it holds"):
        checkpoint.load(mine, checkpoint_id=tmp_path)
    tm.save({"files": ["../x"], "shapes": {}, "values": {}}, tmp_path / "index.safetensors")
    with pytest.raises(ValueError, match="this is not the index of a checkpoint"):
        checkpoint.load(mine, checkpoint_id=tmp_path)
    assert not any(each.any().item() for each in mine.values())


def test_parts_that_overlap_and_bytes_that_are_no_bools_are_refused(tmp_path: Path):
    """What no part covers would be whatever was in memory, and a third kind of bool is neither true nor false."""
    checkpoint.save({"x": tm.arange(4.0)}, checkpoint_id=tmp_path)
    (data,) = [path for path in tmp_path.iterdir() if path.name != "index.safetensors"]
    half = data.read_bytes().replace(b'"shape":[4],"data_offsets":[0,16]', b'"shape":[2],"data_offsets":[0,8] ')[:-8]
    other = data.with_name("0123456789abcdef-00001.safetensors")
    for path in (data, other):
        path.write_bytes(half)
    names = [data.name, other.name]
    tm.save({"files": names, "shapes": {"x": [4]}, "values": {"x": None}}, tmp_path / "index.safetensors")
    with pytest.raises(ValueError, match=r"the parts of x in the files do not make up its shape \[4\]"):
        checkpoint.load({"x": tm.zeros(4)}, checkpoint_id=tmp_path)
    checkpoint.save({"mask": tm.zeros(8, dtype=tm.bool)}, checkpoint_id=tmp_path)
    (data,) = [path for path in tmp_path.iterdir() if path.name != "index.safetensors"]
    data.write_bytes(data.read_bytes()[:-1] + b"\2")
    with pytest.raises(ValueError, match="tensor 'mask' is BOOL and holds bytes that are neither 0 nor 1"):
        checkpoint.load({"mask": tm.zeros(8, dtype=tm.bool)}, checkpoint_id=tmp_path)


@pytest.mark.parametrize("mine", [[0], [0, 1, 2], 3.5])
def test_lists_of_another_length_are_refused_and_nothing_is_changed(mine: Any, tmp_path: Path):
    checkpoint.save({"step": 5, "x": tm.ones(2), "list": [{"x": tm.ones(2)}, mine]}, checkpoint_id=tmp_path)
    state = {"step": 0, "x": tm.zeros(2), "list": [{"x": tm.zeros(2)}, 1, 2]}
    with pytest.raises(RuntimeError, match=r"checkpoint\.load: list has 3 items, in the checkpoint 2"):
        checkpoint.load(state, checkpoint_id=tmp_path)
    assert state["step"] == 0
    assert not state["x"].any()
    assert not state["list"][0]["x"].any()


def test_two_tensors_of_one_path_are_refused(tmp_path: Path):
    state = {"a": {"b": tm.ones(1)}, "a.b": tm.zeros(1)}
    with pytest.raises(RuntimeError, match=r"two tensors have the path a\.b: rename one of the keys"):
        checkpoint.save(state, checkpoint_id=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_all_values_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint.save({"x": tm.ones(2), "y": tm.ones(2), "step": 5}, checkpoint_id=tmp_path)
    cpu = type(tm.device("cpu"))
    upload = cpu.upload

    def interrupted(*arguments: Any) -> None:
        upload(*arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cpu, "upload", interrupted)
    state = {"x": tm.zeros(2), "y": tm.zeros(2), "step": 0}
    with pytest.raises(KeyboardInterrupt):
        checkpoint.load(state, checkpoint_id=tmp_path)
    assert (state["x"].tolist(), state["y"].tolist(), state["step"]) == ([1.0, 1.0], [1.0, 1.0], 5)


def test_what_is_refused(tmp_path: Path):
    model, optimizer = made()
    part, whole = nn.Linear(2, 2), nn.Linear(3, 2)
    mixed = tm.optim.Adam([*part.parameters(), *whole.parameters()])
    with pytest.raises(KeyError, match=r"a parameter of shape \[2, 3\] is the optimizer's and not the model's: give the model"):
        get_state_dict(part, mixed)
    assert not mixed.state
    with pytest.raises(NotImplementedError, match="2 optimizers are not offered"):
        get_state_dict(model, [optimizer, optimizer])

    def predicted():
        dist.init_process_group()
        checkpoint.save({"x": tm.ones(2)}, checkpoint_id=tmp_path)

    with pytest.raises(tm.errors.DataDependenceError, match=r"checkpoint\.save: tensors on meta have no values"):
        memory.predict(predicted, world_size=2)
