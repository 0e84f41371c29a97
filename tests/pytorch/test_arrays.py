"""NumPy's arrays of values that a prediction does not have, as metrics use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.pytorch_memory import pytorch_peak
from tinygrad_mem.autograd.unknown import Unknown
from tinygrad_mem.errors import DataDependenceError
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.program.arrays import UnknownArray

Use = Callable[[Any, Any], Any]


def evaluation(use: Use) -> Callable[[], Any]:
    """``use`` gets probabilities and labels as arrays."""

    def run() -> Any:
        model, x = nn.Linear(8, 3).to("cuda"), torch.randn(16, 8, device="cuda")
        labels = torch.randint(0, 3, (16,), device="cuda")
        with torch.no_grad():
            return use(model(x).softmax(1).cpu().numpy(), labels.cpu().numpy())

    return run


def found(use: Use) -> Any:
    """What ``use`` returns in a prediction."""
    results: list[Any] = []
    predict(evaluation(lambda scores, labels: results.append(use(scores, labels))))
    return results[0]


def real(use: Use) -> Any:
    """What it returns for values."""
    scores = np.random.default_rng(0).random((16, 3), np.float32)
    return use(scores, np.arange(16) % 3)


SCALARS: list[Use] = [
    lambda s, y: (s.argmax(1) == y).mean(),
    lambda s, y: np.mean(s.argmax(axis=1) == y),
    lambda s, y: s.argmax(),
    lambda s, y: s.std() + np.median(s) + np.percentile(s, 90),
    lambda s, y: s[0, 1],
    lambda s, y: y[3],
    lambda s, y: s.mean().item(),
    lambda s, y: s.item(4),
    lambda s, y: np.trace(s) + s.trace(),
    lambda s, y: s[:, 0].dot(s[:, 1]),
    lambda s, y: np.linalg.norm(s),
    lambda s, y: sum(list(y)),
    lambda s, y: s.tolist()[0][0],
    lambda s, y: np.any(s > 1) | (y == 0).all(),
    lambda s, y: -np.log(s[np.arange(16), y]).mean(),
]


@pytest.mark.parametrize("use", SCALARS)
def test_a_number_of_an_array_is_not_known(use: Use):
    number = found(use)
    assert repr(number) == "unknown"
    assert type(number.stated) is type(np.asarray(real(use)).item())


ARRAYS: list[Use] = [
    lambda s, y: s.sum(0) / s.sum(),
    lambda s, y: np.concatenate([s, s]).argsort(1),
    lambda s, y: np.stack([s, s])[1, 2:, None],
    lambda s, y: np.where(s > 0.5, 1, 0).astype(np.float64),
    lambda s, y: np.clip(s, 0, 1).round(2).T @ s,
    lambda s, y: s[y],
    lambda s, y: s.cumsum(0).reshape(4, 12).copy(),
    lambda s, y: np.histogram(s, bins=7)[0],
    lambda s, y: np.corrcoef(s[:, 0], s[:, 1]),
]


@pytest.mark.parametrize("use", ARRAYS)
def test_an_array_of_it_has_the_shape_and_the_dtype(use: Use):
    made, expected = found(use), real(use)
    assert type(made) is UnknownArray
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
    assert str(made).startswith("array(unknown")


def added_to(scores: Any, labels: Any) -> Any:
    total = np.zeros(3)
    total += scores.sum(0)
    return total


def test_what_is_added_to_an_array_makes_it_unknown():
    assert type(found(added_to)) is UnknownArray


def test_written_elements_stay_unknown():
    def use(scores: Any, labels: Any) -> Any:
        scores[0] = 7.0
        return scores[0, 0]

    assert isinstance(found(use), Unknown)


def test_a_tensor_of_an_array_has_no_known_values():
    """A mask of them would choose as many as the ones say."""

    def use(scores: Any, labels: Any) -> Any:
        return [torch.from_numpy(labels), torch.tensor(labels), torch.as_tensor(labels)]

    def run(scores: Any, labels: Any) -> None:
        for each in use(scores, labels):
            with pytest.raises(DataDependenceError, match="the truth"):
                bool((each == 1).all())

    predict(evaluation(run))


def test_numbers_of_an_array_are_finite():
    def use(scores: Any, labels: Any) -> Any:
        return bool(np.isfinite(scores).all()), bool(np.isnan(scores).any())

    assert found(use) == (True, False)


REFUSED: list[Use] = [
    lambda s, y: np.unique(y),
    lambda s, y: s[y == 1],
    lambda s, y: np.where(y == 1)[0],
    lambda s, y: (y == 1).nonzero(),
    lambda s, y: np.bincount(y),
    lambda s, y: np.repeat(s, y),
    lambda s, y: s.repeat(y, 0),
    lambda s, y: 1 in y,
    lambda s, y: 1 if (s > 0).all() else 0,
    lambda s, y: sorted([s.mean(), 0]),
    lambda s, y: range(y.max()),
    lambda s, y: torch.zeros(y[0]),
    lambda s, y: [1, 2][y[:1]],
    lambda s, y: bool(s[:1, :1] > 0),
    lambda s, y: int(y[:1]),
]


@pytest.mark.parametrize("use", REFUSED)
def test_no_size_and_no_decision_come_from_it(use: Use):
    with pytest.raises(DataDependenceError, match=r"predict: at tests/pytorch/test_arrays\.py:\d+ <lambda>: "):
        predict(evaluation(use))


def test_other_libraries_read_ones_which_is_said():
    library: dict[str, Any] = {"np": np}
    code = "def accuracy(labels, scores): return float((labels == 1).all()) if len(np.unique(labels)) == 1 else scores[0]"
    exec(compile(code, "/lib/python3/site-packages/metrics.py", "exec"), library)
    assert found(lambda scores, labels: library["accuracy"](labels, scores)) == 1.0
    (note,) = predict(evaluation(lambda scores, labels: None)).notes[:1]
    assert note.startswith("tests/pytorch/test_arrays.py:")
    assert "other libraries read the ones, and so does a plain array" in note


def kept_as_arrays() -> Any:
    """An array is a view of its tensor's memory, and so is its row; a copy is not."""
    rows = [torch.rand(64, 64).softmax(1)[:, 1].numpy() for _ in range(3)]
    again = [torch.from_numpy(torch.rand(64, 64).numpy()[1]) for _ in range(3)]
    copies = [torch.rand(64, 64).numpy().copy() for _ in range(3)]
    return rows, again, copies, torch.rand(1000)


def test_an_array_keeps_the_memory_of_its_tensor():
    assert predict(kept_as_arrays, device="cpu").peak == pytorch_peak(kept_as_arrays)


@pytest.mark.parametrize(
    ("convert", "kind", "words"),
    [
        (lambda x: x.numpy(), TypeError, "can't convert cuda:0 device type tensor to numpy"),
        (lambda x: x.cpu().requires_grad_().numpy(), RuntimeError, "requires grad. Use tensor.detach"),
        (lambda x: x.bfloat16().cpu().numpy(), TypeError, "BFloat16"),
        (lambda x: x.cpu().__array__(), DataDependenceError, r"Write tensor\.numpy\(\) in its place"),
        (lambda x: x.cpu().expand(1 << 25, 4).numpy(), DataDependenceError, "numpy.. of 134,217,728 elements"),
    ],
)
def test_what_pytorch_refuses_is_refused(convert: Callable[[Any], Any], kind: type[Exception], words: str):
    with pytest.raises(kind, match=words):
        predict(lambda: convert(torch.rand(4, device="cuda")))


def test_whatever_has_a_gradient_may_be_forced():
    made: list[Any] = []
    predict(lambda: made.append(torch.rand(4, device="cuda", requires_grad=True).numpy(force=True)))
    assert type(made[0]) is UnknownArray
