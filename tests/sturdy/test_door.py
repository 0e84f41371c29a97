"""What the door of public functions leaves alone, and what it puts into words."""

from __future__ import annotations

import pytest

import tinygrad_mem as tm
from tinygrad_mem import errors, memory, pytorch


def test_an_error_of_the_callers_own_code_comes_through_as_it_is():
    def pack(x: tm.Tensor) -> tm.Tensor:
        raise TypeError("mine")

    x = tm.ones(2, 3, requires_grad=True)
    with tm.autograd.graph.saved_tensors_hooks(pack, tm.clone), pytest.raises(TypeError, match=r"^mine$") as caught:
        tm.exp(x)
    assert not isinstance(caught.value, errors.TinygradMemError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: tm.sum(x, dim="a"), r"sum\(\): argument 'dim' \(position 2\) must be|sum\(\): argument 'dim' must be"),
        (lambda x: tm.exp("a"), r"exp\(\): argument 'input' \(position 1\) must be Tensor, not str"),
        (lambda x: tm.exp(x, 1, 2), r"exp\(\) takes 1 positional argument"),
        (lambda x: tm.exp(y=x), r"exp\(\) got an unexpected keyword argument 'y'"),
        (lambda x: tm.add(x, tm.ones(4)), "do not broadcast"),
        (lambda x: x.to(tm.uint8) + 300, r"add\(\): Python integer 300 out of bounds for uint8; convert the tensor"),
        (lambda x: x.to(tm.int8).mul_(200), r"mul_\(\): Python integer 200 out of bounds for int8; convert the tensor"),
        (lambda x: tm.cat([x, 3]), r"cat\(\): argument 'tensors' \(position 1\) must be tuple of Tensors"),
    ],
)
def test_accidents_are_put_into_words_that_one_class_catches(call, message: str):
    with pytest.raises(errors.TinygradMemError, match=message):
        call(tm.ones(2, 3))


def test_the_name_of_a_kernel_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch):
    """Whoever writes an op would look for wrong shapes else."""
    monkeypatch.delattr(tm.device("cpu").kernels, "exp")
    with pytest.raises(AttributeError, match="has no attribute 'exp'") as caught:
        tm.exp(tm.ones(2))
    assert not isinstance(caught.value, errors.TinygradMemError)


def test_a_storage_that_is_called_says_what_there_is():
    with pytest.raises(errors.NotOfferedError, match=r"Tensor\.storage\(\) is not offered: use `tensor\.nbytes`"):
        tm.ones(2).storage()


@pytest.mark.parametrize("predict", [memory.predict, pytorch.predict])
def test_a_prediction_of_no_function_says_what_it_takes(predict):
    with pytest.raises(errors.ArgumentTypeError, match="expected a function that makes a network and trains it, found 3"):
        predict(3)


def test_what_is_no_accident_of_arguments_is_not_described():
    def pack(x: tm.Tensor) -> tm.Tensor:
        raise KeyboardInterrupt

    x = tm.ones(2, 3, requires_grad=True)
    with tm.autograd.graph.saved_tensors_hooks(pack, tm.clone), pytest.raises(KeyboardInterrupt):
        tm.exp(x)
