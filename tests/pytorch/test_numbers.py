"""Values that a prediction knows: small tensors on the host that do not depend on data, their views, and writes to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tinygrad_mem import pytorch
from tinygrad_mem.autograd.unknown import Unknown
from tinygrad_mem.errors import DataDependenceError
from tinygrad_mem.memory import Kind

LISTS: Any = torch  # its functions of lists are private


def written_through_views() -> list[Any]:
    found = torch.arange(4) * 16 + 24
    said: list[Any] = [found.tolist()]
    found[1] = 7
    tail = found[2:]
    tail += 1
    said.append(found.tolist())
    found.view(2, 2).t()[0, 1] = 5
    return [*said, found.tolist(), found.view(2, 2).t().contiguous().tolist(), found.t().sum().item()]


def in_pieces() -> list[Any]:
    found = torch.ones(6)
    first, last = found.split(3)
    first.zero_()
    last.mul_(torch.tensor([2.0, 3.0, 4.0]))
    return [found.tolist(), [x.item() for x in found], found.reshape(2, 3).flip(0).tolist()]


def in_lists() -> list[Any]:
    found = [torch.zeros(()), torch.zeros(())]
    LISTS._foreach_add_(found, 1)
    return [each.item() for each in found]


def on_other_strides() -> list[Any]:
    found, one = torch.tensor([[1, 2], [3, 4]]), torch.ones(1).expand(2, 2)
    turned = found.t()
    added = turned + 1
    added[0] = 9
    return [
        (one + one).tolist(),
        turned.tolist(),
        turned.clone().tolist(),
        added.tolist(),
        torch.zeros(3, pin_memory=torch.cuda.is_available()).tolist(),
    ]


def widths_of_stages() -> list[Any]:
    """As RegNet plans its stages."""
    wide = torch.arange(16) * 27.89 + 48
    steps = torch.round(torch.log(wide / 48) / math.log(2.09))
    widths = (torch.round(torch.divide(48 * torch.pow(2.09, steps), 8)) * 8).int().tolist()
    changed = [a != b for a, b in zip([0, *widths], [*widths, 0], strict=True)]
    depths = torch.diff(torch.tensor([place for place, new in enumerate(changed) if new])).int().tolist()
    return [len(set(widths)), widths, depths]


def sorted_with_their_places() -> list[Any]:
    """Lengths of sequences are sorted before they are packed."""
    lengths = torch.tensor([3, 9, 1, 7])
    found = [*lengths.sort(descending=True), *lengths.topk(2), *lengths.view(2, 2).max(1), *torch.aminmax(lengths)]
    return [each.tolist() for each in [*found, *lengths.unbind(), *torch.meshgrid(lengths, lengths, indexing="ij")]]


KNOWN: list[Callable[[], list[Any]]] = [
    *[written_through_views, in_pieces, in_lists, on_other_strides, widths_of_stages, sorted_with_their_places]
]


@pytest.mark.parametrize("values", KNOWN)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_values_are_those_of_a_real_run(values: Callable[[], list[Any]], device: str):
    found: list[Any] = []

    def run() -> None:
        found.extend(values())
        torch.zeros(8, device=device)

    pytorch.predict(run, device=device)
    assert found == values()


def rates() -> list[float]:
    """As models that drop whole blocks make them."""
    return [x.item() for x in torch.linspace(0, 0.1, 4)]


def test_a_schedule_decides():
    """0, 0.033, 0.067, 0.1: two of them are above 0.05."""

    def run() -> None:
        for rate in rates():
            if rate > 0.05:
                torch.empty(128, device="cuda")

    assert [event.kind for event in pytorch.predict(run).log].count(Kind.MALLOC) == 2


def drawn(x: torch.Tensor) -> None:
    x.normal_()


def drawn_in_part(x: torch.Tensor) -> None:
    x[1:].uniform_()


def copied(x: torch.Tensor) -> None:
    x.copy_(torch.rand(4))


def out(x: torch.Tensor) -> None:
    torch.rand(4, out=x)


def sorted_into(x: torch.Tensor) -> None:
    torch.sort(torch.rand(4), out=(x, torch.zeros(4, dtype=torch.long)))


def at_places(x: torch.Tensor) -> None:
    x[torch.randint(0, 4, (2,))] = 3.0


def one_of_it(x: torch.Tensor) -> None:
    x[0] = torch.rand(2)[0]


def scaled(x: torch.Tensor) -> None:
    LISTS._foreach_mul_([x], [torch.rand(4)])


def other_dtype(x: torch.Tensor) -> None:
    x.view(torch.int32).add_(torch.randint(0, 4, (4,), dtype=torch.int32))


def grown(x: torch.Tensor) -> None:
    x.resize_(8)


def times_an_unknown_number(x: torch.Tensor) -> None:
    x.mul_(torch.rand(2).sum().item())


def one_is_an_unknown_number(x: torch.Tensor) -> None:
    x[0] = torch.rand(2).sum().item()


def made_of_unknown_numbers(x: torch.Tensor) -> None:
    x.copy_(torch.tensor([torch.rand(2).sum().item()] * 4) + torch.full((4,), torch.rand(2).sum().item()))


def below_an_unknown_number(x: torch.Tensor) -> None:
    x.copy_(torch.arange(4) < torch.randint(1, 9, (4,), device="cuda").max().item())


NUMBERS = [times_an_unknown_number, one_is_an_unknown_number, made_of_unknown_numbers, below_an_unknown_number]
UNKNOWN = [*NUMBERS, drawn, drawn_in_part, copied, out, sorted_into, at_places, one_of_it, scaled, other_dtype, grown]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_is_written_to_lists_of_known_numbers_is_known(device: str):
    def run() -> None:
        x, y = torch.ones(4, device=device), torch.arange(4.0, device=device)
        LISTS._foreach_mul_([x, y], 2.0)
        LISTS._foreach_add_([x, y], [y, torch.full((4,), 0.5, device=device)])
        found.extend(x.tolist() + y.tolist())

    found: list[Any] = []
    pytorch.predict(run, device=device)
    assert found == [2.0, 4.0, 6.0, 8.0, 0.5, 2.5, 4.5, 6.5]


@pytest.mark.parametrize("write", UNKNOWN)
def test_what_is_written_from_elsewhere_is_unknown(write: Callable[[torch.Tensor], None]):
    found: list[Any] = []

    def run() -> None:
        x = torch.ones(4)
        write(x)
        found.extend(x.tolist())
        torch.zeros(8, device="cuda")

    pytorch.predict(run)
    assert any(isinstance(each, Unknown) for each in found), found


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(("way", "rate"), [("fused", 0.1), ("fused", [0.1]), ("foreach", 0.1)])
@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "Adam", "AdamW"])
def test_what_an_optimizer_has_stepped_is_not_the_old_number(kind: str, way: str, rate: Any, device: str):
    """``rate``: in brackets, it is a tensor."""
    if (kind, way, device) == ("Adagrad", "fused", "cuda") and torch.__version__ < "2.12":
        pytest.skip("PyTorch 2.11 has no fused Adagrad for CUDA")
    found: list[Any] = []

    def run() -> None:
        one = nn.Parameter(torch.ones(1, device=device))
        lr = torch.tensor(rate[0]) if isinstance(rate, list) else rate
        optimizer = getattr(torch.optim, kind)([one], lr=lr, **{way: True})
        (one * 2).sum().backward()
        optimizer.step()
        found.append(one.item())

    pytorch.predict(run, device=device)
    assert isinstance(found[0], Unknown) or 0.7 < found[0] < 0.95


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_losses_are_finite_where_a_program_asks(device: str):
    said: list[Any] = []

    def run() -> torch.Tensor:
        model = nn.Linear(3, 3).to(device)
        for _ in range(2):
            loss = model(torch.ones(2, 3, device=device)).sum()
            if torch.isnan(loss) or loss.isinf() or not torch.isfinite(loss).all():
                raise ValueError("diverged")
            loss.backward()
            said.append(loss.isnan().any().item())
        return loss

    assert ["whether a number is finite" in note for note in pytorch.predict(run, device=device).notes] == [True]
    assert said == [False] * 2
    with pytest.raises(DataDependenceError, match="the truth of a tensor"):
        pytorch.predict(lambda: bool((torch.randn(9) > 3).any()))


def test_numpys_numbers_are_read_when_the_program_asks():
    """As those of the schedules of diffusers, by which a sampler decides. They were unknown, and its samples refused."""
    numbers, found = np.arange(4), []

    def run() -> None:
        shared = torch.from_numpy(numbers)
        copied = shared + 0
        numbers[:] = 7
        found.extend([copied.tolist(), shared.tolist(), (torch.from_numpy(np.linspace(0, 1, 3)) == 0.5).nonzero().shape])
        shared += 1
        found.append(shared.tolist())
        torch.zeros(8, device="cuda")

    pytorch.predict(run)
    assert found[:3] == [[0, 1, 2, 3], [7] * 4, (1, 1)]
    assert numbers.tolist() == [7] * 4, "a prediction writes to no array"
    assert all(isinstance(each, Unknown) for each in found[3])


def test_numpys_numbers_without_an_order_are_unknown():
    """They may be random."""
    found: list[Any] = []

    def run() -> None:
        for numbers in (np.array([3, 1, 2]), np.array([True, True]), np.array([1j, 1j])):
            found.extend(torch.from_numpy(numbers).tolist())
        torch.zeros(8, device="cuda")

    pytorch.predict(run)
    assert all(isinstance(each, Unknown) for each in found)


def test_large_tensors_are_not_followed():
    found: list[Any] = []

    def run() -> None:
        found.extend(torch.arange(100_000.0)[:2].tolist() + torch.arange(100_000)[:2].tolist())
        torch.zeros(8, device="cuda")

    pytorch.predict(run)
    assert all(isinstance(each, Unknown) for each in found)


def test_masks_are_known_on_a_gpu_too():
    """And ``ones_like`` asks a tensor for its shape alone. Fractions are, too: some networks make masks of them."""
    found: list[Any] = []
    fractions: list[Any] = []

    def run() -> None:
        ids = torch.randint(0, 9, (4, 512), device="cuda")
        mask = torch.ones_like(ids)
        found.append(bool(mask.to(torch.bool).all()))
        mask[0, :3] = 0
        found.append((mask == 0).sum().item())
        mask.bernoulli_()
        found.append(mask.sum().item())
        longer = torch.cat([torch.ones(4, 511, device="cuda"), torch.zeros(4, 1, device="cuda")], dim=1)
        ends = longer[:, torch.tensor([0, 511], device="cuda")]
        fractions.extend([longer.sum().item(), ends.sum().item(), 0 in longer, 2 in longer])

    pytorch.predict(run)
    assert fractions == [4 * 511, 4, True, False]
    assert found[:2] == [True, 3]
    assert isinstance(found[2], Unknown)


def test_large_results_of_known_numbers_are_not_computed():
    """They would take terabytes."""
    found: list[Any] = []

    def run() -> None:
        one = torch.ones(1)
        wide = one.expand(1 << 40)
        found.extend([wide[0].item(), wide[3:5].tolist()])
        torch.zeros((), device="cuda").new_zeros(1 << 40)
        assert one.repeat(1 << 40).numel() == (wide + 1).numel()

    assert pytorch.predict(run).peak > 1 << 42
    assert found == [1.0, [1.0, 1.0]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_known_mask_chooses_of_unknown_numbers_is_unknown(device: str):
    """Zeros stand for the numbers where the mask alone decides how many there are."""

    def run() -> None:
        numbers, mask = torch.randn(4), torch.tensor([True, False, True, False])
        for chosen in (torch.masked_select(numbers, mask), numbers[mask]):
            said.append((len(chosen), isinstance(chosen.sum().item(), Unknown)))

    said: list[tuple[int, bool]] = []
    pytorch.predict(run, device=device)
    assert said == [(2, True)] * 2
