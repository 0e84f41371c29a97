"""What an op takes inside is learned by running it alone; with it, predictions for the CPU equal PyTorch's own peaks."""

from __future__ import annotations

import pytest
import torch

from tests.networks import MORE, WORKLOADS
from tests.profiles import pairs, some
from tests.pytorch.cpu_steps import WAYS
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.program.alone import Alone, allocator_events, as_made
from tinygrad_mem.pytorch.program.described import Made, Within, described

aten = torch.ops.aten
NETWORKS = {workload.name: workload for workload in [*WORKLOADS, *MORE]}
QUICK = ["MLP", "LeNet"]
MORE_ROWS = [
    *(("LSTM of characters, 64 steps", way) for way in ("Adam", "autocast")),
    ("transformer of 2 layers, 128 tokens", "autocast"),
    ("ResNet-20", "SGD"),
]
ROWS = some(
    [(name, way) for name in NETWORKS for way in WAYS],
    [*pairs(QUICK, list(WAYS)), *MORE_ROWS],
)
REFUSED_WITHOUT_BFLOAT16 = {("LSTM of characters, 64 steps", "autocast")}
"""PyTorch cannot run these where oneDNN has no bfloat16, such as on processors without AVX-512. The prediction says so."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), ROWS, ids=str)
def test_the_peak_is_that_of_pytorchs_allocator(name, way):
    run = lambda: WAYS[way](NETWORKS[name])  # noqa: E731
    predicted = pytorch.predict(run, device="cpu")
    if (name, way) in REFUSED_WITHOUT_BFLOAT16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with pytest.raises(RuntimeError, match="could not create a primitive descriptor"):
            run()
        assert any("mkldnn_rnn_layer takes beside its results is not known" in note for note in predicted.notes)
        return
    assert predicted.notes == []
    assert predicted.peak == pytorch_peak(run)


def convolution(x, w):
    return (x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def inside(func, *args, alone=None, **kwargs):
    alone = alone or Alone()
    call = described(func, args, kwargs)
    return alone.within(call, args, kwargs, func(*args, **kwargs))


def test_an_ops_peak_is_that_of_its_own_events():
    args = convolution(torch.zeros(4, 3, 32, 32), torch.zeros(8, 3, 3, 3))
    events = []
    with allocator_events(events):
        kept = aten.convolution.default(*args)
    found = inside(aten.convolution.default, *args)
    sums = [sum(events[: n + 1]) for n in range(len(events))]
    assert (found.peak, found.kept) == (max(sums), kept.nbytes)
    assert found.peak > found.kept, "oneDNN packs its inputs"
    assert found.made == (Made((4, 8, 32, 32), kept.stride(), torch.float32, kept.nbytes),)


def test_events_come_in_order():
    events = []
    with allocator_events(events):
        a = torch.zeros(100)
        del a
        torch.zeros(7)
    assert events == [400, -400, 28, -28]


def test_views_take_nothing():
    assert described(aten.t.default, (torch.zeros(2, 3),), {}) is None


def test_a_call_is_run_once(monkeypatch):
    from tinygrad_mem.pytorch.program import alone as module

    runs = []
    own = module.run_alone
    monkeypatch.setattr(module, "_learned", {})
    monkeypatch.setattr(module, "run_alone", lambda *args: runs.append(args[0]) or own(*args))
    x = torch.zeros(33, 3)
    for value in (torch.zeros(33, 3), torch.ones(33, 3), x, x):
        inside(aten.mul.Tensor, x, value)
    assert len(runs) == 2, "x * x is another call than x * y"
    inside(aten.add.Tensor, x, x, alpha=0.3)
    inside(aten.add.Tensor, x, x, alpha=0.7)  # a learning rate that changes
    assert len(runs) == 3
    inside(aten.add.Tensor, x.t(), x.t())
    assert len(runs) == 4
    for bound in (0.1, 0.2):
        inside(aten.uniform_.default, torch.zeros(33, 3), -bound, bound)  # as layers begin
    assert len(runs) == 5


def test_a_process_does_not_keep_calls_without_end(monkeypatch):
    """Each length of a batch is another call: 200 lengths of one network left some thousand of them."""
    from tinygrad_mem.pytorch.program import alone as module

    for name, value in (("_learned", {}), ("_before_results", {}), ("_KEPT", 20)):
        monkeypatch.setattr(module, name, value)
    sizes = []
    for length in range(1, 61):
        inside(aten.mul.Tensor, torch.zeros(length, 7), torch.zeros(length, 7), alone=Alone())
        sizes.append(len(module._learned))
    assert max(sizes) == 21
    assert inside(aten.mul.Tensor, torch.zeros(3, 7), torch.zeros(3, 7)).kept == 3 * 7 * 4


def test_the_random_state_is_left_alone():
    x = torch.zeros(999)
    before = torch.get_rng_state()
    found = inside(aten.rand_like.default, x)
    after = torch.get_rng_state()
    with torch.random.fork_rng():
        torch.set_rng_state(before)
        aten.rand_like.default(x)  # the caller's own
        assert torch.equal(torch.get_rng_state(), after)
    assert found.kept == 4 * 999


def test_an_op_that_needs_too_much_is_not_run():
    x = torch.zeros(123)
    found = inside(aten.relu.default, x, alone=Alone(share=0.0))
    assert found.peak == found.kept == 4 * 123
    assert "it needs 1.44 KiB and the machine has" in found.unknown


@pytest.mark.filterwarnings("ignore")
def test_a_profiler_of_the_program_is_left_alone():
    x = torch.zeros(124)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        found = inside(aten.relu.default, x)
    assert "a profiler runs" in found.unknown
    assert len(list(profile.function_events)) > 0


def test_what_cannot_be_learned_is_said():
    def run():
        return torch.linalg.lu_factor(torch.eye(5)), torch.linalg.cholesky(torch.eye(5)), torch.linalg.inv(torch.eye(5))

    notes = pytorch.predict(run, device="cpu").notes
    assert all("takes beside its results is not known: alone it fails: linalg" in note for note in notes)


def test_results_are_made_as_they_really_are():
    right = torch.zeros(3, 4)
    wrong = torch.zeros(0, dtype=torch.uint8)
    found = Within(99, 99, (Made((3, 4), (4, 1), torch.float32, 48), Made((5,), (1,), torch.uint8, 64), None))
    made = as_made((right, wrong, 7), found, ())
    assert made[0] is right
    assert made[2] == 7
    assert (tuple(made[1].shape), made[1].dtype, made[1].untyped_storage().nbytes()) == ((5,), torch.uint8, 64)


def test_an_lstms_backward_runs_behind_its_forward():
    x = torch.zeros(5, 4, 8)

    def run():
        lstm = torch.nn.LSTM(8, 16)
        lstm(x.clone())[0].sum().backward()
        return lstm

    assert pytorch.predict(run, device="cpu").peak == pytorch_peak(run)


@pytest.mark.filterwarnings("ignore")
def test_tensors_made_of_numbers_count():
    def run():
        return torch.tensor([1.0, 2.0, 3.0]), torch.tensor(7), torch.get_rng_state()

    assert pytorch.predict(run, device="cpu").peak == pytorch_peak(run) == 12 + 8 + 5056
