"""Limits: a small GPU on any machine, errors that say who has the memory, the largest batch that fits."""

from __future__ import annotations

import gc
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given, settings

import tinygrad_mem as tm
from tests.profiles import examples
from tests.techniques import training
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.devices import device
from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.memory.sizes import bytes_text, parse_bytes
from tinygrad_mem.models.lenet import LeNet
from tinygrad_mem.nn import functional as F

MIB = 1 << 20


# --- sizes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512 MiB", 512 * MIB),
        ("512MiB", 512 * MIB),
        (" 1.5 GiB ", 3 << 29),
        ("2 gb", 2 * 10**9),
        ("0.1 KB", 100),
        ("7", 7),
        ("7 B", 7),
        (4096, 4096),
        ("1 TiB", 1 << 40),
    ],
)
def test_sizes(text: Any, count: int):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "12 parsecs", "1,5 GiB", "-1 MiB", "1e9", "12 MiB 3", "0x10", "50%", "nan"])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(ValueError, match=r"is not a size: write a number and one of B, KB, MB"):
        memory.limit(text)


def test_sizes_that_are_none():
    for size in (0, "0 MiB", -5):
        with pytest.raises(ValueError, match="a size is at least one byte"):
            memory.limit(size)
    for wrong in (1.5, None, True, [1]):
        with pytest.raises(TypeError, match="a whole number of bytes or text such as '512 MiB'"):
            memory.limit(wrong)  # type: ignore[arg-type]


def test_sizes_as_text():
    assert [bytes_text(n) for n in (0, 1023, 1024, 3 << 19, -(5 << 30))] == [
        "0 B",
        "1,023 B",
        "1.00 KiB",
        "1.50 MiB",
        "-5.00 GiB",
    ]


# --- limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_limit_holds_inside_and_nests(where: str):
    pool = device(where).pool
    gc.collect()
    base = pool.used_bytes()
    tm.empty(2 * MIB, device=where)  # cached from here on, and above the limit
    with memory.limit(base + 2 * MIB, where):
        assert pool.total_bytes() <= base + 2 * MIB
        tm.ones(1000, device=where)
        with memory.limit(base + MIB, where):
            with pytest.raises(OutOfMemoryError):
                tm.empty(MIB // 2, device=where)
            with memory.limit(base + 8 * MIB, where), pytest.raises(OutOfMemoryError):
                tm.empty(MIB // 2, device=where)  # an inner limit is never looser
        kept = tm.empty(MIB // 4, device=where)
        del kept
    assert pool.get_limit() == 0
    tm.empty(MIB, device=where)


def test_a_limit_is_left_when_the_step_fails_and_can_decorate():
    @memory.limit("64 MiB")
    def step() -> int:
        assert device("cpu").pool.get_limit() == 64 * MIB
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            step()
        assert device("cpu").pool.get_limit() == 0


def test_a_limit_below_what_is_in_use_is_refused():
    kept = tm.ones(MIB, device="meta")
    with pytest.raises(RuntimeError, match=r"limit: 1\.00 MiB on meta, but .* are in use already: free tensors first"):
        memory.limit("1 MiB", "meta").__enter__()
    assert device("meta").pool.get_limit() == 0
    del kept


def test_the_default_device_is_meant():
    with tm.device("meta"), memory.limit("100 MiB") as limit:
        assert limit.device == "meta"
        assert device("cpu").pool.get_limit() == 0


# --- out of memory --------------------------------------------------------------------------------------------------------


def train(model: Any, rule: Any, batch: int) -> None:
    x, y = tm.ones(batch, 1, 28, 28), tm.zeros(batch, dtype=tm.int64)
    F.cross_entropy(model(x), y).backward()
    rule.step()


@pytest.mark.parametrize("tracked", ["", "cpu", "meta"])
def test_the_error_says_who_has_the_memory_and_what_would_help(tracked: str):
    gc.collect()
    model = LeNet()
    rule = tm.optim.Adam(model.parameters())
    train(model, rule, 2)
    track = memory.track(tracked or None)
    if tracked:
        track.__enter__()
    pool = device("cpu").pool
    gc.collect()
    try:
        with memory.limit(pool.used_bytes() + 20 * MIB), pytest.raises(OutOfMemoryError) as caught:
            train(model, rule, 600)
    finally:
        if tracked:
            track.__exit__()
    error, text = caught.value, str(caught.value)
    assert f"asked for {error.requested:,} bytes" in text
    assert f"{error.used:,} bytes are in use and {error.reserved:,} bytes are reserved" in text
    assert f"the pool's limit is {error.limit:,} bytes" in text
    assert error.limit - error.reserved < error.requested
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith("The biggest owners:"))
    owners = [line for line in lines[start + 1 :] if line.startswith("  ")]
    assert len(owners) == 5
    assert any(("LeNet.conv1 Conv" if tracked == "cpu" else "keeps") in line for line in owners), owners
    assert "LeNet.fc1.weight" in text
    assert "What would help: " in text
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_the_error_names_owners_of_every_kind():
    model = nn.Linear(300, 300, bias=False)
    rule = tm.optim.Adam(model.parameters())
    model(tm.ones(1, 300)).sum().backward()
    rule.step()
    kept = tm.ones(300, 200, requires_grad=True)
    loss = kept.exp().sum()
    gc.collect()
    with memory.limit(device("cpu").pool.used_bytes() + MIB), pytest.raises(OutOfMemoryError) as caught:
        tm.ones(MIB)
    text = str(caught.value)
    for owner in ("weight", "an optimizer", "gradient of", "a tensor [300, 200]", "Exp, which keeps y for backward"):
        assert owner in text
    del loss


def test_fragmentation_is_reported():
    pool = device("meta").pool
    gc.collect()
    pool.free_all_blocks()
    base = pool.total_bytes()
    with tm.device("meta"), memory.limit(base + 4 * MIB):
        whole = tm.empty(MIB)
        del whole
        parts = [tm.empty(MIB // 4) for _ in range(4)]
        del parts[0], parts[1]  # the first and the third quarter
        with pytest.raises(OutOfMemoryError) as caught:
            tm.empty(MIB // 2)
    assert caught.value.free == (2 * MIB, MIB)
    assert "of which 2,097,152 bytes are free, the largest piece 1,048,576" in str(caught.value)
    assert "enough memory is free, but in separate pieces" in str(caught.value)


def test_the_error_pins_no_tensor_and_a_smaller_step_works():
    pool = device("cpu").pool
    model = LeNet()
    rule = tm.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    before = pool.used_bytes()
    weights = [p.numpy(force=True).copy() for p in model.parameters()]
    gc.disable()
    try:
        with memory.track(), memory.limit(before + 4 * MIB):
            try:
                train(model, rule, 400)
            except OutOfMemoryError as error:
                frame = error.__traceback__
                while frame is not None:  # the frames of this file are the user's own: what they hold is theirs
                    if frame.tb_frame.f_code.co_name == "train":
                        frame.tb_frame.clear()
                    frame = frame.tb_next
                kept = error
            assert pool.used_bytes() == before
            assert all((p.numpy(force=True) == w).all() for p, w in zip(model.parameters(), weights, strict=True))
            train(model, rule, 4)
        assert isinstance(kept, OutOfMemoryError)
    finally:
        gc.enable()


def test_a_report_that_fails_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch):
    def broken(device: str, requested: int) -> str:
        raise MemoryError

    monkeypatch.setattr(scope, "autopsy", broken)
    with (
        memory.limit(device("meta").pool.used_bytes() + MIB, "meta"),
        pytest.raises(OutOfMemoryError, match="Use a smaller batch"),
    ):
        tm.empty(MIB, device="meta")


def test_training_works_without_the_trackers_room():
    """Nor without what stands on it: the planner, and PyTorch's names for its numbers."""
    import subprocess

    program = """
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[1:2] in (["memory"], ["plan"], ["cuda"], ["accelerator"]):
            raise ImportError(name)
sys.meta_path.insert(0, No())
source = open(sys.argv[1]).read()
for room in ("memory", "plan", "cuda", "accelerator"):
    assert f"    {room},\\n" in source
    source = source.replace(f"    {room},\\n", "")
import importlib.util
spec = importlib.util.spec_from_file_location("tinygrad_mem", sys.argv[1], submodule_search_locations=[sys.argv[1][:-12]])
tm = importlib.util.module_from_spec(spec); sys.modules["tinygrad_mem"] = tm
exec(compile(source, sys.argv[1], "exec"), tm.__dict__)
w = tm.ones(10, requires_grad=True)
(w * 2).sum().backward()
tm.optim.SGD([w], lr=0.1).step()
tm.device("cpu").pool.set_limit(4096)
try:
    tm.empty(10_000)
except tm.errors.OutOfMemoryError as error:
    assert "Use a smaller batch" in str(error)
else:
    sys.exit("no error")
"""
    done = subprocess.run([sys.executable, "-c", program, tm.__file__], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- the largest batch ----------------------------------------------------------------------------------------------------


def whole_step(batch: int) -> None:
    """Makes all that it uses on the default device: it runs on meta too."""
    model = LeNet()
    train(model, tm.optim.Adam(model.parameters()), batch)


class Steps:
    """Counts the runs of a step that uses a network of its own, on the cpu."""

    def __init__(self) -> None:
        self.model, self.runs = LeNet(), []

    def __call__(self, batch: int) -> float:
        self.runs.append(batch)
        self.model.zero_grad()  # first: gradients that a failed try has left would pin the segments that they lie in
        x, y = tm.ones(batch, 1, 28, 28, device="cpu"), tm.zeros(batch, dtype=tm.int64, device="cpu")
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss.item()


def fits(fn: Any, batch: int, limit: int) -> bool:
    gc.collect()
    try:
        with memory.limit(limit):
            fn(batch)
    except OutOfMemoryError:
        return False
    return True


def test_the_largest_batch_is_predicted_on_meta_and_run_once():
    gc.collect()
    pool = device("cpu").pool
    pool.free_all_blocks()
    limit = pool.total_bytes() + 12 * MIB
    runs: list[str] = []

    def fn(batch: int) -> None:
        runs.append("meta" if tm.ones(1).is_meta else "cpu")
        whole_step(batch)

    found = memory.find_batch_size(fn, limit)
    assert runs.count("cpu") == 1
    assert runs.count("meta") > 3
    assert fits(whole_step, found, limit)
    if pool.free_bytes() == 0:  # pieces that other tests left would make room for a few samples more
        assert not fits(whole_step, found + 1, limit)


def test_a_step_that_does_not_run_on_meta_is_tried():
    steps = Steps()
    gc.collect()
    limit = device("cpu").pool.total_bytes() + 12 * MIB
    found = memory.find_batch_size(steps, limit)
    steps.model.zero_grad()
    assert fits(steps, found, limit)
    steps.model.zero_grad()
    assert not fits(steps, found + found // 4, limit), "it is close to what a clean pool allows"
    assert len(steps.runs) < 30


def test_batches_are_bounded():
    assert memory.find_batch_size(whole_step, "512 MiB", most=8) == 8
    assert memory.find_batch_size(whole_step, "512 MiB", start=3, most=3) == 3
    with memory.limit("512 MiB"):
        assert memory.find_batch_size(whole_step, most=5) == 5
    with pytest.raises(ValueError, match="expected 1 <= start <= most, found start=4, most=2"):
        memory.find_batch_size(whole_step, "1 GiB", start=4, most=2)
    with pytest.raises(ValueError, match=r"cpu has no limit; pass limit='2 GiB'"):
        memory.find_batch_size(whole_step)


def test_when_nothing_fits_the_error_says_why():
    gc.collect()
    with pytest.raises(OutOfMemoryError, match="The biggest owners"):
        memory.find_batch_size(whole_step, device("cpu").pool.total_bytes() + MIB, start=2000)


def test_other_errors_are_the_steps_own():
    def fn(batch: int) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        memory.find_batch_size(fn, "1 GiB")
    assert nn.Linear(2, 2)(tm.ones(1, 2)).shape == (1, 2)


# --- does a track fit? ------------------------------------------------------------------------------------------------------


def runs_within(room: int, run: Any) -> bool:
    """Whether the prediction of a run ends under a limit."""

    def limited() -> None:
        with memory.limit(room):
            run()

    try:
        memory.predict(limited)
    except OutOfMemoryError:
        return False
    return True


@settings(max_examples=examples(12), deadline=None)
@given(training.plans())
def test_a_track_says_under_which_limits_the_run_would_end(plan: training.Plan):
    def steps() -> None:
        model = plan.model()
        rule = plan.rule(model)
        for _ in range(plan.steps):
            training.loss_of(model, tm.randn(plan.batch, 7), tm.randn(plan.batch, plan.width)).backward()
            rule.step()
            rule.zero_grad()

    track = memory.predict(steps)
    peak, reserved = track.peak, track.pool("end").reserved
    assert track.fits(reserved)
    assert not track.fits(peak - 1)
    for room in range(peak, reserved, max((reserved - peak) // 6, 1)):
        assert track.fits(room) is runs_within(room, steps), room


def test_bytes_in_use_that_fit_are_not_enough_if_no_free_piece_is():
    def pieces() -> None:
        kept = [tm.empty(MIB // 4) for _ in range(8)]
        del kept[::2]
        tm.empty(MIB // 2)

    track = memory.predict(pieces)
    assert track.peak == 8 * MIB
    for room in (8 * MIB, 9 * MIB, 10 * MIB):
        assert track.fits(room) is runs_within(room, pieces)


def test_a_track_fits_from_a_moment_on_with_what_is_there_then():
    with memory.track() as track:
        old = tm.empty(2 * MIB)
        large = tm.empty(8 * MIB)
        del large
        memory.mark("training")
        new = tm.empty(MIB)
        del new
    assert track.fits("12 MiB", "training")
    assert not track.fits("11 MiB", "training")
    assert not track.fits("12 MiB")
    assert old is not None
    with pytest.raises(ValueError, match="is not a size"):
        track.fits("much")
