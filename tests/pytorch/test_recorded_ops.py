"""Small programs of one op, beside what PyTorch 2.11 asked for when it ran them on an H100 (``h100``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tests.pytorch.op_samples import real_peak  # noqa: E402
from tinygrad_mem.errors import DataDependenceError, NotOfferedError  # noqa: E402
from tinygrad_mem.memory.log import Kind  # noqa: E402
from tinygrad_mem.pytorch import predict  # noqa: E402


def requests(program: Callable[[], Any]) -> list[int]:
    """Bytes of each request of a program on an H100, in order."""
    return [event.requested for event in predict(program, gpu="H100", version="2.11").log if event.kind is Kind.MALLOC]


def trained(*shape: int) -> Any:
    return torch.zeros(shape, device="cuda", requires_grad=True)


def index_by_a_list() -> Any:
    """C++ makes the index, and autograd keeps it."""
    x = trained(5, 5, 5)
    y = x[[1, 2]]
    y.backward(torch.ones_like(y))
    return x, y


def numbers_within_a_function() -> Any:
    return torch.unravel_index(torch.zeros(2, 3, dtype=torch.int16, device="cuda"), (4, 5))


def gaps_on_the_way_to_the_gpu() -> Any:
    x = torch.zeros(5, 5, 10)[:, :, ::2].to("cuda")
    return x, x.ravel()


def batch_norm_of_nothing() -> Any:
    x = trained(0)
    y = F.batch_norm(x, torch.zeros(0, device="cuda"), torch.ones(0, device="cuda"), training=True)
    y.backward(torch.ones_like(y))
    return x, y


def covariance() -> Any:
    x = trained(2)
    return x, torch.cov(x)


def with_gradient(op: Callable[..., Any], *shape: int) -> Callable[[], Any]:
    """An op of one tensor, and its gradient."""

    def program() -> Any:
        x = trained(*shape)
        y = op(x)
        y.backward(torch.ones_like(y))
        return x, y

    return program


def segments(x: Any) -> Any:
    return torch.segment_reduce(x, "max", lengths=torch.zeros(4, dtype=torch.long, device="cuda"), initial=1)


def chunks() -> Any:
    return torch._chunk_cat([torch.zeros(1, 2, 3, device="cuda") for _ in range(2)], -1, 5)


def repeated() -> Any:
    repeats = torch.tensor([1, 2, 1, 2], device="cuda")
    return torch.repeat_interleave(torch.zeros(4, 1, device="cuda"), repeats, 0, output_size=6)


def unpooled() -> Any:
    x = torch.zeros(1, 2, 1, 3, device="cuda").contiguous(memory_format=torch.channels_last)
    places = torch.zeros(1, 2, 1, 3, dtype=torch.long, device="cuda").contiguous(memory_format=torch.channels_last)
    return F.max_unpool2d(x, places, (3, 3), (2, 2), output_size=(1, 2, 3, 6))


def ctc() -> Any:
    """The longest target of the recording has 29 letters, so its tables are those of 29."""
    logits, lengths = trained(50, 16, 20), torch.zeros(16, dtype=torch.long, device="cuda")
    loss = F.ctc_loss(logits, torch.zeros(16, 29, dtype=torch.long, device="cuda"), lengths, lengths.clone(), reduction="none")
    loss.backward(torch.ones_like(loss))
    return logits, loss


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (with_gradient(lambda x: x.roll((1, 2, -1), (0, 1, 2)), 5, 5, 5), [500] * 8),
        (with_gradient(lambda x: x.unfold(1, 3, 2), 5, 5, 5, 5), [2500, 3000, 2500, 40]),
        (with_gradient(lambda x: x.unfold(0, 1, 2), 10, 10), [400, 200, 400]),
        (with_gradient(lambda x: F.unfold(x, 2, stride=2), 2, 3, 5, 5), [600, 600, 384, 384, 600]),
        (with_gradient(lambda x: F.unfold(x, 2, 2, (1, 2), 1), 2, 3, 5, 5), [600, 600, 3360, 3360, 3360]),
        (with_gradient(segments, 5), [20, 32, 8, 8, 1, 1, 16, 8, 40, 1279, 1, 16, 20, 8, 40, 1279]),
        (chunks, [24, 24, 80, 128]),
        (repeated, [32, 16, 32, 1279, 48, 24]),
        (unpooled, [24, 24, 48, 48, 24, 48, 144]),
        (ctc, [64000, 128, 3712, 128, *[128] * 3, 188800, 64, 64, *[128] * 3, 188800, 64000]),
        (index_by_a_list, [500, 16, 200, 200, 500, 16, 16, 16, 16, 16, 1]),
        (numbers_within_a_function, [12, 16, 96, 16, 96]),
        (gaps_on_the_way_to_the_gpu, [500]),
        (batch_norm_of_nothing, []),
        (covariance, [8, 8, 4, 4, 8, 1, 1, 1, 1, 8, 4, 32 << 20, 4]),
    ],
)
def test_requests_are_those_of_a_real_gpu(program: Callable[[], Any], sizes: list[int]) -> None:
    assert requests(program) == sizes


def into_empty_tensors(device: str) -> Any:
    """``out`` gets its memory from the op that writes it. A tensor elsewhere takes none of the device's."""
    x = torch.zeros(30, 300, device=device)
    outs = [torch.empty(0, dtype=dtype, device=device) for dtype in (torch.float32, torch.float32, torch.long)]
    torch.arange(1000, out=torch.empty(0, dtype=torch.long, device=device))
    torch.matmul(x, x.T, out=outs[0])
    torch.sort(x, out=tuple(outs[1:]))
    return x, outs


def test_out_of_no_size_gets_memory_from_the_op() -> None:
    def on_gpu() -> Any:
        return torch.empty(0).resize_(5000), into_empty_tensors("cuda")

    assert requests(on_gpu) == [36000, 8000, 3600, 32 << 20, 36000, 72000, 2400]
    found = predict(into_empty_tensors, "cpu", device="cpu")
    assert (found.peak, found.unknown) == (real_peak(lambda: into_empty_tensors("cpu")), {})


def jitted() -> Any:
    double = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return 2 * x; }")
    return double(torch.zeros(3, device="cuda"))


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        (jitted, NotOfferedError, "jiterator: its kernels are not predicted"),
        (lambda: torch.cov(torch.zeros(2, 3), aweights=torch.rand(3)), DataDependenceError, "depends on values"),
    ],
)
def test_programs_are_refused_in_words(program: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        requests(program)


def test_lengths_may_be_the_hosts():
    """For a mean PyTorch moves them to the GPU. This failed."""

    def run(lengths: Any) -> Any:
        logits = trained(50, 2, 20)
        return F.ctc_loss(logits.log_softmax(2), torch.ones(2, 10, dtype=torch.long, device="cuda"), [50, 50], lengths)

    given = [10, 10], torch.tensor([10, 10]), torch.tensor([10, 10], device="cpu")
    peaks = {predict(run, lengths).peak for lengths in given}
    assert len(peaks) == 1
    assert 2 * 8000 < peaks.pop() < 6 * 8000


def test_targets_may_stand_one_behind_the_other():
    """As transformers gives them. Lengths that are not known are taken to be alike, with a bound for one that is longer."""

    def run(*shape: int, unknown: bool = False) -> Any:
        targets, lengths = torch.ones(shape, dtype=torch.long, device="cuda"), torch.full((2,), 10, device="cuda")
        lengths = torch.randint(10, 11, (2,), device="cuda") if unknown else lengths
        return F.ctc_loss(trained(50, 2, 20).log_softmax(2), targets, torch.full((2,), 50, device="cuda"), lengths)

    rows, known, alike = predict(run, 2, 10), predict(run, 20), predict(run, 20, unknown=True)
    assert rows.peak == known.peak == alike.peak
    (more,) = [size for why, size in alike.unknown.items() if "one length" in why]
    assert more == 2 * 2 * 50 * 2 * 10 * 4
