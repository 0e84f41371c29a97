"""Random programs: at each of their statements the bytes in use, and the most since the last one, are PyTorch's."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.profiles import every, examples
from tests.pytorch.op_samples import real_peak
from tests.pytorch.random_programs import MARK, RandomProgram
from tinygrad_mem.errors import DataDependenceError, NotOfferedError
from tinygrad_mem.memory.log import Kind
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.predict import Prediction
from tinygrad_mem.pytorch.program.alone import allocator_events

Bytes = list[tuple[int, int]]
"""After each statement: the most bytes in use since the last one, and those in use now."""


def between_marks(events: Iterable[int]) -> Bytes:
    """The sums of events between those of the tensors that mark the ends of statements."""
    found, now, peak, last = [], 0, 0, 0
    for event in events:
        now += event
        peak = max(peak, now)
        if event == -MARK and last == MARK:
            found.append((peak, now))
            peak = now
        last = event
    return found


def real_bytes(program: RandomProgram) -> tuple[Bytes, Any]:
    """What PyTorch's allocator says, and what the program was refused."""
    events: list[int] = []
    with allocator_events(events):
        state = program()
    return between_marks(events), state.refused


def predicted_bytes(program: RandomProgram) -> tuple[Bytes, Any, Prediction]:
    refused = []
    track = predict(lambda: refused.append((state := program()).refused) or state, device="cpu")
    signs = {int(Kind.MALLOC): 1, int(Kind.FREE): -1}
    changes = zip(track.log.column("kind").tolist(), track.log.column("rounded").tolist(), strict=True)
    return between_marks(signs[kind] * size for kind, size in changes if kind in signs), refused[0], track


def compared(found: Bytes, refused: Collection[int]) -> Bytes:
    """What can be compared. An op that PyTorch refuses may take something before it finds out."""
    return [(0 if number in refused else peak, now) for number, (peak, now) in enumerate(found)]


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """One thread, and no collection at moments that differ."""
    collects = gc.isenabled()
    gc.disable()
    yield
    if collects:
        gc.enable()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(examples(40) // every(4)))
def test_at_each_statement_the_bytes_are_pytorchs(seed: int):
    program = RandomProgram(seed)
    gc.collect()
    real, refused = real_bytes(program)
    for _ in range(2):  # what ops take is learned, then known
        try:
            predicted, refused_too, track = predicted_bytes(program)
        except NotOfferedError as error:
            assert "evaluation under autocast" in str(error)  # noqa: PT017
            return
        assert refused_too == refused
        if not track.unknown and compared(predicted, refused) != compared(real, refused):  # else it names a bound
            again, _ = real_bytes(program)  # the first may have freed what an earlier program left: an event does not say whose
            assert compared(predicted, refused) == compared(again, refused), program


# --- the smallest programs of what was found so --------------------------------------------------------------------------


def layer_of_gaps(bias: bool = True, device: str = "cpu") -> torch.Tensor:
    """Its input is not contiguous: PyTorch multiplies, and adds the bias in place."""
    layer = nn.Linear(64, 512, bias, device=device)
    x = torch.randn(8, 64, 32, device=device).transpose(1, 2)
    with torch.no_grad():
        layer(x)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    return layer(x)


def recurrent_in_evaluation():
    layer = nn.GRU(8, 16, bidirectional=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            layer(torch.randn(40, 5, 8).transpose(0, 1))
    return layer, nn.GRUCell(8, 16)(torch.randn(8, 5).t())


def pooled_without_indices():
    x = torch.randn(2, 100, 3)
    with torch.no_grad():
        F.max_pool1d(x, 3, 2, 1)
        F.max_pool1d(x[0], 2, ceil_mode=True)
        return x, F.max_pool1d(x.transpose(1, 2), 2)


def copied_after_backward():
    """Parameters are copied without their gradients, other tensors with them, and views share the copy of what they see."""
    model = nn.Sequential(nn.Linear(100, 50), nn.BatchNorm1d(50))
    model(torch.ones(2, 100)).sum().backward()
    x = torch.ones(100, requires_grad=True)
    x.sum().backward()
    base = torch.zeros(100, 10)
    return model, x, base, copy.deepcopy(model), copy.deepcopy([x, base[0], base[1], base]), copy.deepcopy(model.state_dict())


def caught():
    """While the error is handled, nothing holds the arguments of what failed."""
    found = []
    for refused in (
        lambda x: x * torch.ones(1000, 100)[:, 3:],
        lambda x: torch.cat([torch.ones(1000, 100), x]),
        lambda x: (x * torch.ones(1000, 10)).view(7, 7),
    ):
        try:
            refused(torch.ones(10))
        except RuntimeError:
            found.append(torch.zeros(100_000))
            found.clear()


def numbers_of_two_levels():
    """``torch.func.grad`` within a graph of the program: both keep a number."""
    x = torch.ones(10, requires_grad=True)
    inner = torch.func.grad(lambda w: (torch.sin(x * 0.5) * torch.cos(w * 0.25)).sum())(torch.ones(10))
    return x, inner, inner * 2


def autocast_without_gradients():
    """In inference mode an op that is made of others arrives whole, and autocast is for the others."""
    layer, x = nn.LSTM(8, 8, bidirectional=True), torch.randn(4, 8, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), torch.autocast("cpu", torch.bfloat16):
            for made in (layer(x)[0], torch.einsum("bij,bjk->bik", x, x), torch.tensordot(x, x[0], 1)):
                assert made.dtype is torch.bfloat16
    return layer, x


def of_itself(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
    """One op gives two gradients for one tensor: PyTorch adds the second to the first."""

    def run():
        x = torch.ones(40, 40, requires_grad=True)
        op(x, x).sum().backward()
        return x

    return run


def picked_in_halves():
    """Autograd writes these gradients into zeros in place, by kernels that copy halves to float32."""
    x = torch.ones(40, 40, dtype=torch.bfloat16, requires_grad=True)
    places = torch.zeros(1, 1, dtype=torch.long)
    (
        x.take_along_dim(places, 1) + x.kthvalue(1, keepdim=True)[0] + x.topk(1)[0] + x.median(1, keepdim=True)[0]
    ).sum().backward()
    return x


def put_by_masks():
    """The places that a mask chooses are as many as the values."""
    x, mask = torch.zeros(500, 8), torch.zeros(500, dtype=torch.bool)
    mask[:300] = True
    values, weight = torch.randn(300, 8), torch.randn(300, 8, requires_grad=True)
    x[mask] = values
    x[mask] = torch.randn(300, 1)
    x[mask, 2:5] = values[:, :3]
    x[mask, torch.zeros(300, dtype=torch.long)] = values[:, 0]
    x.t()[:, mask] = values.t()
    x.view(50, 10, 8)[mask.view(50, 10)] = values
    x[mask] = 2 * weight
    return x, x.index_put((mask,), weight)


def quantized():
    x = torch.randn(30, 40, requires_grad=True)
    scales = torch.ones(30), torch.zeros(30, dtype=torch.int32)
    (
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
        + torch.fake_quantize_per_tensor_affine(x, torch.ones(1), torch.zeros(1, dtype=torch.int32), -128, 127)
        + torch.fake_quantize_per_channel_affine(x.t(), *scales, 1, -128, 127).t()
    ).sum().backward()
    return x


def counted_and_drawn():
    alpha = torch.rand(20, 5, requires_grad=True)
    torch.distributions.Beta(alpha, alpha).rsample().sum().backward()
    torch.distributions.Gamma(alpha, alpha).rsample().sum().backward()
    drawn = torch.distributions.Binomial(10, torch.rand(20)).sample()
    ids = torch.randint(0, 9, (100,))
    return (
        drawn,
        ids.bincount(minlength=9),
        [ids.bincount(torch.ones(100, dtype=dtype), 16) for dtype in (torch.half, torch.float)],
    )


def iterated():
    """L-BFGS keeps gradients and steps of its last iterations."""
    model, x = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2)), torch.ones(4, 20)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4, history_size=3, tolerance_change=0, tolerance_grad=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum() * 10
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[arg-type]
    return model, optimizer


def of_lengths():
    x, lengths = torch.randn(30, 8, requires_grad=True), torch.tensor([10, 5, 15])
    torch.repeat_interleave(x[:3], lengths, dim=0, output_size=30).sum().backward()
    repeated = torch.repeat_interleave(lengths, output_size=30)
    summed = torch.segment_reduce(x, "sum", lengths=lengths)
    summed.sum().backward()
    return x, repeated, summed


FOUND = [
    of_lengths,
    iterated,
    put_by_masks,
    quantized,
    counted_and_drawn,
    layer_of_gaps,
    recurrent_in_evaluation,
    pooled_without_indices,
    copied_after_backward,
    caught,
    numbers_of_two_levels,
    autocast_without_gradients,
    picked_in_halves,
]
TWICE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mul": torch.mul,
    "mm": torch.mm,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "square and mean": lambda x, y: (x * y).mean(-1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", FOUND, ids=lambda program: program.__name__)
def test_the_smallest_program_has_pytorchs_peak(program: Callable[[], Any]):
    program()  # what PyTorch keeps from its first use is not the program's
    found = [predict(program, device="cpu") for _ in range(2)]  # what ops take is learned, then known
    assert [each.peak for each in found] == [real_peak(program)] * 2
    assert not any("is not known" in note for note in found[1].notes)


@pytest.mark.parametrize("op", TWICE.values(), ids=TWICE)
def test_the_second_gradient_of_an_op_is_added_to_its_first(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
    program = of_itself(op)
    program()
    assert predict(program, device="cpu").peak == real_peak(program)


def masked_scattered() -> torch.Tensor:
    x = torch.randn(50, 8, requires_grad=True)
    x.masked_scatter(x > 0, x.flip(0)).sum().backward()  # the gradient that arrives is one number, expanded
    return x


def test_what_the_gradient_of_masked_scatter_takes_has_a_bound():
    masked_scattered()
    track = predict(masked_scattered, device="cpu")
    assert track.peak < real_peak(masked_scattered) <= track.peak + sum(track.unknown.values())


def put_one_row() -> torch.Tensor:
    x, mask = torch.randn(50, 8), torch.empty(50, dtype=torch.bool).bernoulli_(1.0)
    x[mask] = torch.ones(8)  # how many places?
    return x


def test_how_many_places_a_mask_chooses_has_a_bound():
    put_one_row()
    track = predict(put_one_row, device="cpu")
    assert track.unknown == {"what index_put_ takes beside its results depends on values": 50 * 8}
    assert track.peak + 50 * 8 == real_peak(put_one_row)


def test_counts_are_of_numbers_below_their_least_length():
    track = predict(lambda: torch.bincount(torch.randint(0, 9, (100,)), minlength=9).bincount(minlength=30), device="cpu")
    assert ["below minlength" in note for note in track.notes] == [True]
    with pytest.raises(DataDependenceError, match=r"bincount.* depends on values"):
        predict(lambda: torch.bincount(torch.randint(0, 9, (100,))))


def searched(steps: int = 9, **options: Any) -> torch.Tensor:
    """Its gradient grows, and then stays: the last step is not kept."""
    x, often = torch.rand(1000, requires_grad=True), []

    def closure() -> torch.Tensor:
        x.grad = None
        loss = x.square().sum() if len(often) < steps else (x * torch.ones(1000)).sum()
        often.append(len(often))
        loss.backward()
        return loss

    search = torch.optim.LBFGS([x], lr=0.1, max_iter=4, history_size=2, tolerance_change=0, **options)
    for _ in range(2):
        search.step(closure)  # type: ignore[arg-type]
    return x


def test_iterations_are_all_made_and_a_line_search_is_refused():
    searched()
    track = predict(searched, device="cpu")
    assert track.peak == real_peak(searched)
    assert ["each step was assumed to make all its iterations" in note for note in track.notes] == [True]
    with pytest.raises(NotOfferedError, match=r"how often it calls the closure depends on values.* without a line search"):
        predict(searched, line_search_fn="strong_wolfe")


def test_a_step_that_is_not_kept_is_within_the_bound():
    track = predict(searched, 6, device="cpu")
    assert list(track.unknown.values()) == [2 * 4000]
    assert track.peak < real_peak(lambda: searched(6)) <= track.peak + 2 * 4000


def test_on_a_gpu_too_a_bias_is_added_in_place():
    peaks = [predict(layer_of_gaps, bias, "cuda").peak for bias in (True, False)]
    assert peaks[0] - peaks[1] == 2 * 512 * 4, "the bias and its gradient"


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_graph_whose_weights_have_been_stepped_is_refused_as_by_pytorch(device: str, foreach: bool):
    def run():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device)
        loss = model(torch.ones(2, 4, device=device)).sum()
        loss.backward(retain_graph=True)
        torch.optim.SGD(model.parameters(), 0.1, foreach=foreach).step()
        loss.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        predict(run, device=device)


def test_a_whole_layer_under_autocast_on_the_cpu_is_refused_in_words():
    """PyTorch's autocast is for the ops within the layer's own; without that way they are seen."""

    def run() -> torch.Tensor:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return layer(torch.zeros(4, 5, 8))

    def without():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return run()
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    with pytest.raises(NotOfferedError, match=r"evaluation under autocast on the CPU.*set_fastpath_enabled\(False\)"):
        predict(run, device="cpu")
    assert predict(without, device="cpu").peak == real_peak(without)
