"""Numbers that a PyTorch program reads from tensors: what people do with them, and whether memory could depend on it unseen."""

from __future__ import annotations

import importlib
import io
import json
import math
from collections import deque
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.profiles import some
from tests.pytorch.op_samples import OPS
from tinygrad_mem.autograd.unknown import Unknown
from tinygrad_mem.errors import DataDependenceError, NotOfferedError
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.program import unknown

GPU = "cuda"


def training(use: Callable[[Any, Any, Any, Any], Any]) -> Callable[[], None]:
    """Three steps; ``use`` gets what people have in them: the model, the optimizer, the loss, and what was counted so far."""

    def run() -> None:
        model = nn.Linear(8, 4).to(GPU)
        optimizer = torch.optim.Adam(model.parameters())
        history: list[Any] = []
        for _ in range(3):
            x, y = torch.randn(16, 8, device=GPU), torch.randint(0, 4, (16,), device=GPU)
            made = model(x)
            loss = F.cross_entropy(made, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(((made.argmax(1) == y).sum().item(), loss.item()))
            use(model, optimizer, loss, history)

    return run


class Meter:
    """As the training scripts of torchvision and timm have it."""

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=20)
        self.total, self.count = 0.0, 0

    def update(self, value: Any, n: int = 1) -> None:
        if isinstance(value, torch.Tensor):
            value = value.item()
        assert isinstance(value, (float, int))
        self.values.append(value)
        self.count += n
        self.total += value * n

    def __str__(self) -> str:
        return "{:.4f} ({:.4f})".format(self.values[-1], self.total / self.count)  # noqa: UP032


def averages(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    correct = sum(c for c, _ in history)
    meter = Meter()
    meter.update(loss, n=16)
    meter.update(history[-1][1])
    print(f"loss {loss.item():.3f} accuracy {100 * correct / 48:.1f}% {correct}/48 {meter}")
    print("%d/%d (%.0f%%) %.4f" % (correct, 48, 100.0 * correct / 48, loss))  # noqa: UP031
    print(np.mean([v for _, v in history]), round(loss.item(), 4), np.round(loss.item(), 3))


def perplexity(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    print(f"perplexity {math.exp(loss.item()):.2f} bits {loss.item() / math.log(2):.2f} {np.exp(np.mean([loss.item()])):.2f}")


def logs(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    json.dumps({"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]})
    json.dump(history, io.StringIO(), indent=2)
    torch.save({"model": model.state_dict(), "history": history}, io.BytesIO())


def progress(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=1, file=io.StringIO()) as bar:
        bar.set_postfix(loss=loss.item(), accuracy=history[-1][0] / 16)
        bar.update()


def on_a_plateau(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    schedule.step(loss.item())
    schedule.step(loss.detach())


def rate_from_the_loss(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * loss.item()


def weighted(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    (loss.item() * model.weight.sum() + model.bias.sum() / history[-1][1]).backward()


def best_of_all(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    print(min(value for _, value in history) if len(history) > 1 else "")
    best = max([value for _, value in history]) + max(loss.item(), 1) + max(0.5, history[-1][0])
    assert str(best) == "unknown"
    assert isinstance(best, float)
    loss = loss / max(1, history[-1][0])
    assert (max(2, 3), min([2, 3]), max("ab"), max({1: 2}), max([], default=4)) == (3, 2, "b", 1, 4)


SILENT = [averages, perplexity, logs, progress, on_a_plateau, rate_from_the_loss, weighted, best_of_all]


@pytest.mark.parametrize("use", SILENT)
def test_what_people_do_with_a_loss_is_followed_in_silence(use: Callable[..., Any]):
    notes = predict(training(use)).notes
    assert not [note for note in notes if "torch.save" not in note]


def nan_stops(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if math.isnan(loss.item()) or not math.isfinite(loss.item()) or np.isnan(loss.item()):
        raise ValueError("diverged")


def plain(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    print(float(loss.item()))


def plain_tensor(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    print(float(loss))


def imported_before(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    print(exp(loss.item()))


def in_an_array(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    losses = np.zeros(3)
    losses[0] = loss.item()


def nan_is_not_itself(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if loss.item() != loss.item():
        raise ValueError("diverged")


def too_large(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if history and not 0 <= loss.item() < 1e4:
        message = f"diverged: {loss.item()}"
        raise RuntimeError(message)


def labels_in_range(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if (model.weight > 9).any() or (model.weight < -9).any():
        raise ValueError(f"weights of {model.weight.min()}")


def checked_by_pytorch(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    torch._check(loss.item() > 0 if history is None else (loss > 0).item())


def finite_weights(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if torch.isnan(model.weight).any() or not torch.isfinite(model.weight).all():
        model.weight.grad.zero_()


_PLAIN = "a plain number is needed, and 1 was taken"
SAID = {
    nan_stops: "whether a number is finite",
    plain: _PLAIN,
    plain_tensor: _PLAIN,
    imported_before: _PLAIN,
    in_an_array: _PLAIN,
    **dict.fromkeys(
        (nan_is_not_itself, too_large, labels_in_range, checked_by_pytorch), "check that raises an error was assumed"
    ),
}


@pytest.mark.parametrize("use", SAID)
def test_a_plain_number_is_said_with_its_line(use: Callable[..., Any]):
    (note,) = predict(training(use)).notes
    place, _, said = note.partition(": ")
    assert place.startswith("tests/pytorch/test_unknown.py:")
    assert place.endswith(use.__name__)
    assert SAID[use] in said


def best(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if loss.item() < 0.5:
        raise StopIteration


def clipped(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    scale = 1.0 / (nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() + 1e-6)
    if scale < 1:
        model.weight.grad.mul_(scale)


def leaves_the_loop(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    while loss.item() > 1:
        raise StopIteration("of an Error")


def either_way(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    raise ValueError("low") if loss.item() < 1 else RuntimeError("high")


def all_right(model: Any, optimizer: Any, loss: Any, history: Any) -> None:
    if history[-1][0] == 16 or not (model.weight > 0).all().item():
        raise StopIteration


@pytest.mark.parametrize("use", [best, clipped, leaves_the_loop, either_way, all_right])
def test_no_program_decides_by_it(use: Callable[..., Any]):
    with pytest.raises(DataDependenceError, match=rf"test_unknown.py:\d+ {use.__name__}.* the program would branch on it"):
        predict(training(use))


def test_a_whole_number_of_a_tensor_is_refused_with_what_to_write():
    with pytest.raises(DataDependenceError, match=r"Write tensor\.item\(\) in place of int\(tensor\)"):
        predict(lambda: int(torch.rand(3, device=GPU).sum()))


def test_a_librarys_line_stands_behind_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "asking_library.py").write_text("def asks(x):\n    return 1 if x.sum() > 0 else 2\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    asks = importlib.import_module("asking_library").asks
    with pytest.raises(DataDependenceError, match=r"test_unknown\.py:\d+ <lambda>, in asking_library\.py:2 asks: the program"):
        predict(lambda: asks(images()))


def test_that_values_are_finite_is_assumed_of_what_was_asked_alone():
    (note,) = predict(training(finite_weights)).notes
    assert "whether a number is finite" in note

    def written() -> None:
        mask = torch.isnan(torch.rand(9, 9, device=GPU))
        mask[0] = True
        if mask.any():
            raise StopIteration

    with pytest.raises(DataDependenceError):
        predict(written)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_one_known_number_has_the_shape_of_its_tensor(device: str):
    def run() -> None:
        one, more = torch.tensor([2], device=device), torch.tensor([[2]], device=device) * 3
        assert (one.tolist(), more.tolist(), torch.tensor(2, device=device).tolist()) == ([2], [[6]], 2)
        assert (one.cpu().numpy().shape, one.expand(1, 1).cpu().numpy().shape) == ((1,), (1, 1))

    predict(run)


DRAWN: list[Callable[[], Any]] = [
    lambda: torch.rand(1) < 0.5,
    lambda: torch.rand([]).item() < 0.5,
    lambda: range(9)[torch.randint(0, 4, (1,)).item() :],  # type: ignore[misc]
    lambda: 0.8 < torch.empty(1).uniform_(0.8, 1.2).item() < 1.3,
    lambda: [1, 2][torch.multinomial(torch.tensor([0.3, 0.7]), 1).item()],  # type: ignore[index]
    lambda: bool(torch.bernoulli(torch.tensor(0.5))),
    lambda: torch.randn(()).item() > 0,
]


@pytest.mark.parametrize("draw", DRAWN)
def test_a_random_number_of_the_host_is_drawn(draw: Callable[[], Any]):
    """As Python's own are: programs leave out layers, flip pictures and cut them with it."""

    def run() -> None:
        if draw():
            torch.rand(1, 3, device=GPU)

    state = torch.get_rng_state()
    (note,) = [each for each in predict(run).notes if "no memory" not in each]
    assert note.startswith("random numbers of the host were drawn once more")
    assert torch.equal(torch.get_rng_state(), state)


def scaled(device: str, found: list[Any]) -> None:
    """People ask whether the scale fell to see whether the step was skipped."""
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
    for _ in range(5):
        old = scaler.get_scale()
        scaler.scale(model(torch.rand(4, 8, device=device)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), scaler.get_scale() < old))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_loss_scale_is_that_of_finite_gradients(device: str):
    predicted: list[Any] = []
    real: list[Any] = []
    (note,) = predict(scaled, device, predicted, device=device).notes
    scaled("cpu", real)
    assert predicted == real
    assert [scale for scale, _ in real] == [4.0, 8.0, 8.0, 16.0, 16.0]
    assert note == "GradScaler: gradients were assumed to be finite: no step is skipped, and the loss scale only grows"


def whole() -> Any:
    return torch.randint(1, 9, (4,), device=GPU).max().item()


def part() -> Any:
    return torch.rand(4, device=GPU).max().item()


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape or (1, 3, 8, 8), device=GPU)


LABELS: Any = lambda: torch.zeros(3, dtype=torch.long, device=GPU)  # noqa: E731
SIZES: list[Callable[[], Any]] = [
    lambda: torch.zeros(whole()),
    lambda: torch.zeros(whole(), 3, device=GPU),
    lambda: torch.zeros(3, whole()),
    lambda: torch.zeros((2, whole())),
    lambda: torch.zeros(int(whole())),
    lambda: torch.full((whole(),), 1.0),
    lambda: torch.arange(whole()),
    lambda: torch.range(0, whole()),
    lambda: torch.range(start=part(), end=9),
    lambda: torch.arange(0, 9, part()),
    lambda: torch.linspace(0, 1, whole()),
    lambda: torch.randperm(whole()),
    lambda: torch.eye(3, whole()),
    lambda: torch.randint(0, 3, (whole(),)),
    lambda: torch.hann_window(whole()),
    lambda: images().new_zeros(whole(), 3),
    lambda: images().new_full((3, whole()), 1.0),
    lambda: images()[:, : whole()],
    lambda: images()[..., whole()],
    lambda: images().view(-1, whole()),
    lambda: images().reshape(whole(), -1),
    lambda: images().narrow(0, 0, whole()),
    lambda: images().repeat(1, 1, 1, whole()),
    lambda: images().repeat_interleave(whole(), dim=0),
    lambda: images(3, 1).expand(3, whole()),
    lambda: images().split(whole()),
    lambda: images().chunk(whole()),
    lambda: images().topk(whole()),
    lambda: images().unfold(3, whole(), 1),
    lambda: images().as_strided((2, whole()), (1, 1)),
    lambda: images().resize_(whole()),
    lambda: images().sum(whole()),
    lambda: torch.ops.aten.slice.Tensor(images(), 0, 0, whole()),
    lambda: F.one_hot(LABELS(), whole()),
    lambda: F.pad(images(), (0, whole())),
    lambda: F.unfold(images(), whole()),
    lambda: F.max_pool2d(images(), whole()),
    lambda: F.adaptive_avg_pool2d(images(), (1, whole())),
    lambda: F.conv2d(images(), images(4, 3, 3, 3), padding=whole()),
    lambda: F.interpolate(images(), size=(4, whole())),
    lambda: F.interpolate(images(), scale_factor=part()),
    lambda: F.interpolate(images(), scale_factor=(1, part()), mode="nearest-exact"),
    lambda: F.interpolate(images(), scale_factor=part(), mode="bicubic", antialias=True),
    lambda: F.interpolate(images(), scale_factor=part(), recompute_scale_factor=True),
    lambda: nn.Upsample(scale_factor=part())(images()),
    lambda: nn.Upsample(scale_factor=(1.0, part()))(images()),
    lambda: F.fractional_max_pool2d(images(), 2, output_ratio=part()),
    lambda: torch.bincount(LABELS(), minlength=whole()),
    lambda: nn.Linear(whole(), 3),
    lambda: nn.LSTM(3, whole()),
    lambda: torch.Generator().manual_seed(whole()),
    lambda: torch.manual_seed(whole()),
    lambda: torch.Size((whole(),)),
    lambda: [0] * whole(),
    lambda: range(whole()),
    lambda: np.zeros(whole()),
    lambda: torch.from_numpy(np.array([part()])),
    lambda: {whole(): 1},
]


@pytest.mark.parametrize("make", SIZES)
def test_no_size_comes_from_it(make: Callable[[], Any]):
    with pytest.raises(DataDependenceError, match=r"test_unknown\.py"):
        predict(make)


VALUES: list[Callable[[], Any]] = [
    lambda: whole() * torch.arange(3),
    lambda: torch.arange(3, device=GPU) * whole(),
    lambda: torch.arange(3) * part(),
    lambda: part() / images(3).half(),
    lambda: part() ** images(3) + images(3) ** part(),
    lambda: torch.arange(3) + (images(3) > 2).any().item(),
    lambda: torch.ones(3, dtype=torch.bool) * whole(),
    lambda: images(3) > part(),
    lambda: torch.tensor([whole(), 2]),
    lambda: torch.tensor([part(), 2], device=GPU),
    lambda: torch.as_tensor(whole()),
    lambda: torch.tensor(np.mean([part(), part()])).float(),
    lambda: torch.full((2,), whole()),
    lambda: torch.linspace(0, part(), 3),
    lambda: images(3).new_tensor(part()),
    lambda: images(3).clamp(part(), 9.0),
    lambda: images(3).masked_fill_(images(3) > 0, part()),
    lambda: torch.where(images(3) > 0, images(3), part()),
    lambda: torch.lerp(images(3), images(3), part()),
    lambda: F.leaky_relu(images(3), part()),
    lambda: torch._foreach_mul([images(3)], [part()])[0],
    lambda: torch.distributions.Normal(0.0, part()).sample((3,)),
    lambda: images(3).index_fill_(0, LABELS(), part()),
]


@pytest.mark.parametrize("compute", VALUES)
def test_as_a_value_it_makes_what_the_real_number_makes(compute: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    """In shape and dtype; the values are unknown."""
    found: list[Any] = []

    def run() -> None:
        made = compute()
        found.append((tuple(made.shape), made.dtype))
        if made.numel() <= 3:
            found.extend(each.item() for each in made.flatten())

    assert not predict(run).notes
    monkeypatch.setitem(globals(), "GPU", "cpu")
    real = compute()
    assert found[0] == (tuple(real.shape), real.dtype)
    assert all(isinstance(each, Unknown) for each in found[1:])


def _metas(made: Any) -> list[Any]:
    return [(tuple(each.shape), each.dtype) for each in tree_leaves(made) if isinstance(each, torch.Tensor)]


STAND_FOR_OTHERS = ["full", "slice", "topk", "nn.functional.interpolate bilinear", "arange", "add", "unfold", "addmm"]


@pytest.mark.filterwarnings("ignore")  # of PyTorch's samples
@pytest.mark.parametrize("name", some(list(OPS), STAND_FOR_OTHERS))
def test_a_number_that_an_op_accepts_decides_no_shape(name: str, reliability: Callable[[str, int], None]):
    """Each number of PyTorch's samples in turn is read from a tensor: it is refused, or other numbers give the same shapes."""
    op, tried = OPS[name], 0
    dtype = torch.float32 if torch.float32 in op.dtypes or not op.dtypes else min(op.dtypes, key=str)
    samples = list(op.sample_inputs_func(op, "cpu", dtype, False))
    for sample in samples[:: max(1, len(samples) // 6)]:
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))

        def result(place: int, number: Any) -> Any:
            given = [each.clone() if isinstance(each, torch.Tensor) else each for each in leaves]  # noqa: B023
            given[place] = number
            first, args, kwargs = tree_unflatten(given, spec)  # noqa: B023
            return _metas(op.op(first, *args, **kwargs))

        for place, number in enumerate(leaves):
            if type(number) in (int, float):
                tried += 1
                _one_number(lambda given: result(place, given), number)  # noqa: B023
    if tried:
        reliability("numbers in samples of PyTorch's ops that were read from a tensor", tried)


def _one_number(result: Callable[[Any], Any], number: Any) -> None:
    try:
        real = result(number)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return
    found: list[Any] = []
    try:
        made = predict(
            lambda: found.append(result((torch.rand(2).sum() * 9).to(torch.tensor(number).dtype).item())), device="cpu"
        )
    except (DataDependenceError, NotOfferedError):
        return
    if any(_PLAIN in note for note in made.notes):
        return
    assert found[0] == real
    for other in (number + 1, number + 2, 2 * number + 3):
        try:
            assert result(other) == real
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue


def test_an_argument_is_tried_once_for_each_kind_of_call(monkeypatch: pytest.MonkeyPatch):
    """Another shape is the same kind; what PyTorch refuses is tried again."""

    class Tried(set):
        def add(self, kind: Any) -> None:
            assert kind not in self
            super().add(kind)

    monkeypatch.setattr(unknown, "_tried", tried := Tried())

    def run() -> None:
        x, y = images(3, 5), images(7)
        for _ in range(3):
            x.mul(part())
            y.mul(part())
            x.add(y.sum(), alpha=part())
        for _ in range(2):
            with pytest.raises(DataDependenceError):
                x.narrow(0, 0, whole())

    predict(run)
    assert sorted(function.__name__ for function, *_ in tried) == ["add", "mul"]


def test_a_value_here_may_be_a_size_there():
    def program(*sizes: object) -> None:
        number = torch.empty(3).sum().item()
        torch.full((2, 3), number)
        torch.full((2, *sizes, number), 1.0)

    with pytest.raises(DataDependenceError, match="full: a size or an index"):
        predict(program)
