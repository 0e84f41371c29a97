"""What tensors do as Python objects, where published scripts lean on it, run with both libraries."""

from __future__ import annotations

import copy
import pickle
from types import ModuleType

import numpy as np
import pytest
import torch

import tinygrad_mem as tm

LIBRARIES = [torch, tm]


@pytest.fixture(params=LIBRARIES, ids=["torch", "ours"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    """PyTorch first: what it does is what is expected of ours."""
    return request.param


def test_a_number_that_requires_grad_prints_like_any_number(library):
    loss = (library.tensor([1.5, 2.0], requires_grad=True) * 2).sum()
    assert f"loss {loss:.4f}" == "loss 7.0000"
    assert f"{loss}" == "7.0"
    assert f"{library.ones(2):}" == "tensor([1., 1.])"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{library.ones(2):.3f}"


def test_none_is_no_tensor(library):
    x = library.ones(3)
    assert (x != None) is True  # noqa: E711
    assert (x == None) is False  # noqa: E711


@pytest.mark.filterwarnings("ignore:__array_wrap__")
def test_numpys_functions_of_a_tensor_give_tensors(library):
    x = library.tensor([0.0, 1.0, 4.0])
    root = np.sqrt(x)  # pyright: ignore
    assert isinstance(root, library.Tensor)
    assert root.tolist() == [0.0, 1.0, 2.0]
    assert np.sum(x.numpy()) == 5.0


def test_a_tensor_is_a_variable(library):
    x = library.autograd.Variable(library.ones(2), requires_grad=True)
    assert x.requires_grad
    assert isinstance(x, library.autograd.Variable)
    assert not isinstance(1.0, library.autograd.Variable)


def test_sizes_stay_sizes(library):
    size = library.ones(2, 3).shape
    for other in (size[1:], size + (4,), size * 2, 2 * size):  # noqa: RUF005
        assert isinstance(other, library.Size)
    assert size * 2 == (2, 3, 2, 3)
    assert (size[:1] + size).numel() == 12


def test_a_copy_of_a_parameter_has_no_gradient_and_of_a_tensor_has(library):
    parameter = library.nn.Parameter(library.ones(2))
    leaf = library.ones(2, requires_grad=True)
    (parameter * leaf).sum().backward()
    assert copy.deepcopy(parameter).grad is None
    assert copy.deepcopy(leaf).grad.tolist() == [1.0, 1.0]
    assert copy.deepcopy(leaf).grad is not leaf.grad
    assert pickle.loads(pickle.dumps(parameter)).grad is None


def test_next_functions_end_in_the_leaves(library):
    x = library.ones(2, requires_grad=True)
    y = (x * 2.0).relu()
    times = y.grad_fn.next_functions[0][0]
    end, index = times.next_functions[0]
    assert (times.name(), index) == ("MulBackward0", 0)
    assert end.name().endswith("AccumulateGrad")
    assert end.variable is x
    assert end.next_functions == ()
    assert times.next_functions[1:] in ((), ((None, 0),))
    assert not hasattr(times, "variable")


def test_what_is_made_in_inference_mode_takes_no_part(library):
    with library.inference_mode():
        assert library.is_inference_mode_enabled()
        made = [library.ones(2), library.tensor([1.0, 2.0]), library.zeros(2), library.randn(2), library.arange(2.0)]
    assert not library.is_inference_mode_enabled()
    assert all(t.is_inference() for t in made)
    assert not library.ones(2).is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        made[0] * library.ones(2, requires_grad=True)


def test_a_view_is_of_inference_mode_if_its_base_is(library):
    """One made outside of a base made inside was saved and written; one made inside of a base made outside was refused."""
    y = library.ones(2)
    with library.inference_mode():
        x, other = library.ones(2), y.view(2)
    view = x[:1]
    assert (view.is_inference(), other.is_inference()) == (True, False)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        view * library.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode is not allowed"):
        view.add_(1.0)
    assert (other * library.ones(2, requires_grad=True)).requires_grad


def test_nothing_is_recorded_in_inference_mode_also_where_grad_mode_is_turned_on(library):
    layer = library.nn.Linear(2, 2)
    with library.inference_mode():
        frozen = library.nn.Linear(2, 2)
        for mode in (library.enable_grad(), library.set_grad_enabled(True)):
            with mode:
                for each in (layer, frozen):
                    y = each(library.ones(1, 2))
                    assert (y.requires_grad, y.is_inference()) == (False, True)
    assert layer(library.ones(1, 2)).requires_grad


def test_grad_makes_zeros_where_nothing_was_used(library):
    x, y = library.ones(2, requires_grad=True), library.ones(3, requires_grad=True)
    first, second = library.autograd.grad((x * 3.0).sum(), [x, y], materialize_grads=True)
    assert (first.tolist(), second.tolist()) == ([3.0, 3.0], [0.0, 0.0, 0.0])
    assert second.dtype == y.dtype
    with pytest.raises(ValueError, match="allow_unused"):
        library.autograd.grad((x * 3.0).sum(), [x, y], allow_unused=False, materialize_grads=True)
    with pytest.raises(RuntimeError, match="allow_unused=True"):
        library.autograd.grad((x * 3.0).sum(), [x, y])


def test_batches_of_gradients_are_not_offered():
    x = tm.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="one at a time"):
        tm.autograd.grad((x * x).sum(), x, is_grads_batched=True)


def test_what_pytorchs_autograd_has_and_ours_has_not_says_so():
    for name, instead in (("detect_anomaly", "gradcheck"), ("functional", "autograd.grad"), ("profiler", "memory.track")):
        assert hasattr(torch.autograd, name)
        with pytest.raises(AttributeError, match=instead):
            getattr(tm.autograd, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tm.autograd.nonsense  # noqa: B018


def test_names_that_scripts_take_for_granted(library):
    assert library.pi == np.pi
    assert library.inf > 1e300
    assert library.nan != library.nan
    assert round(library.e, 5) == 2.71828
    for name in ("max", "min", "eps", "tiny", "smallest_normal", "resolution", "bits"):
        for dtype in ("float16", "float32", "float64"):
            assert getattr(tm.finfo(getattr(tm, dtype)), name) == getattr(torch.finfo(getattr(torch, dtype)), name), name
        for dtype in ("uint8", "int8", "int32", "int64"):
            if name in ("max", "min", "bits"):
                assert getattr(tm.iinfo(getattr(tm, dtype)), name) == getattr(torch.iinfo(getattr(torch, dtype)), name), name
    assert library.finfo(library.float32).max * 10 < library.inf
    assert library.finfo().bits == 32
    assert repr(tm.finfo(tm.float32)) == repr(torch.finfo(torch.float32))
    assert repr(library.iinfo(library.uint8)) == "iinfo(min=0, max=255, dtype=uint8)"
    assert library.ones(3)[library.newaxis].shape == (1, 3)
    masked = library.ones(2).masked_fill(library.tensor([True, False]), library.finfo(library.float32).min)
    assert masked.dtype == library.float32
    kept = library.zeros_like(library.ones(2, 3).t(), memory_format=library.preserve_format)
    assert kept.shape == (3, 2)
    assert library.ones(2).contiguous(memory_format=library.contiguous_format).shape == (2,)


def test_limits_of_the_other_kind_are_refused(library):
    with pytest.raises(TypeError, match=r"finfo.*floating.*iinfo"):
        library.finfo(library.int64)
    for dtype in (library.float32, library.bool):
        with pytest.raises(TypeError, match="iinfo"):
            library.iinfo(dtype)


def test_a_copy_forgets_where_it_was_made():
    with tm.no_grad():
        view = tm.ones(4)[:2]
    with tm.inference_mode():
        made = tm.ones(2)
    for tensor in (view, made):
        for twin in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
            twin.mul_(tm.ones(2, requires_grad=True))
            assert twin.requires_grad


def test_a_gradient_has_its_tensors_dtype(library):
    x = library.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"data of a different type|gradient with dtype"):
        x.grad = library.ones(2, dtype=library.float64)
    x.grad = library.ones(2)
    model = library.nn.Linear(2, 2)
    model(library.ones(1, 2)).sum().backward()
    assert model.double().weight.grad.dtype == library.float64


@pytest.mark.parametrize("wrong", ["a", None, [1.0], np.ones(2)], ids=repr)
def test_only_tensors_and_numbers_can_be_in_a_tensor(library, wrong):
    x = library.ones(2)
    assert 1 in x
    assert 2.0 not in x
    assert np.float32(1) in x
    assert x in x
    with pytest.raises(RuntimeError, match=r"__contains__ only supports Tensor or scalar, but you passed in a <class "):
        assert wrong not in x


def test_numpy_under_no_grad():
    for lib in (torch, tm):
        x = lib.ones(2, requires_grad=True)
        with lib.no_grad():
            assert x.numpy().tolist() == np.asarray(x).tolist() == [1.0, 1.0]
        with pytest.raises(RuntimeError, match="Can't call numpy"):
            x.numpy()


@pytest.mark.parametrize("deep", [False, True])
def test_a_view_of_what_became_a_leaf_that_requires_grad_is_not_written(deep: bool):
    for lib in (torch, tm):
        x = lib.ones(2, 3)
        view = x[:].view(-1) if deep else x[:]
        x.requires_grad = True
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            view.add_(1)
        with lib.no_grad():
            view.add_(1)
        assert x.detach().sum().item() == 12


def test_a_view_that_is_a_leaf_itself_is_not_written():
    for lib in (torch, tm):
        view = lib.ones(2, 3)[0].requires_grad_()
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            view.add_(1)
        (view * 2).sum().backward()
        assert view.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_post_accumulate_hook_returns_nothing():
    for lib in (torch, tm):
        x = lib.ones(2, requires_grad=True)
        x.register_post_accumulate_grad_hook(lambda p: p.grad)
        with pytest.raises(RuntimeError, match="post accumulate grad hooks should return None"):
            x.sum().backward()
