"""``autocast`` as a context and a decorator, its state, and what PyTorch says of arguments that it does not take."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import amp, memory, nn, scope
from tinygrad_mem.devices import device
from tinygrad_mem.errors import DeviceError, DTypeError, GraphError, NotOfferedError
from tinygrad_mem.nn import functional as F


def state(kind: str = "cpu") -> tuple:
    return tm.is_autocast_enabled(kind), tm.get_autocast_dtype(kind), tm.is_autocast_cache_enabled()


OFF, OFF_CUDA = (False, tm.bfloat16, True), (False, tm.float16, True)


# --- regions --------------------------------------------------------------------------------------------------------------


def test_a_region_and_what_holds_after_it():
    assert state() == OFF
    with tm.autocast("cpu", dtype=tm.float16) as region:
        assert isinstance(region, tm.amp.autocast)
        assert state() == (True, tm.float16, True)
        assert state("cuda") == OFF_CUDA
    assert state() == OFF


def test_regions_nest_and_disabled_ones_cast_nothing():
    x, w = tm.randn(2, 3), tm.randn(3, 4)
    with tm.autocast("cpu", dtype=tm.float16, cache_enabled=False):
        half = x @ w
        with tm.autocast("cpu", dtype=tm.float16, enabled=False):
            assert state() == (False, tm.float16, False)
            assert (x @ w).dtype == tm.float32
            with pytest.raises(DTypeError, match="same dtype"):
                half @ w.T
            with tm.autocast("cpu", dtype=tm.float16, cache_enabled=True):
                assert state() == (True, tm.float16, True)
                assert (half @ w.T).dtype == tm.float16
            assert state() == (False, tm.float16, False)
        assert (half @ w.T).dtype == tm.float16
        with tm.autocast("cuda", enabled=False):
            assert state() == (True, tm.float16, False), "a region within, for another device, leaves this one's casts on"
            assert (x @ w).dtype == tm.float16
    assert (x @ w).dtype == tm.float32


def test_an_error_leaves_the_region():
    with (
        pytest.raises(ZeroDivisionError),
        tm.autocast("cpu", dtype=tm.float16),
        tm.autocast("cpu", dtype=tm.float16, enabled=False),
    ):
        raise ZeroDivisionError
    assert state() == OFF


def test_decorator():
    @tm.autocast("cpu", dtype=tm.float16)
    def product(x: tm.Tensor, *, depth: int) -> tm.Tensor:
        """What it does."""
        assert tm.is_autocast_enabled("cpu")
        return product(x, depth=depth - 1) if depth else x @ x

    assert product.__name__ == "product"
    assert product.__doc__ == "What it does."
    assert product(tm.ones(2, 2), depth=3).dtype == tm.float16  # one region object, entered four times over
    assert state() == OFF

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2)))

        @tm.autocast(device_type="cpu", dtype=tm.float16)
        def forward(self, x: tm.Tensor) -> tm.Tensor:
            return self.inner(x)

    net = Net()
    y = net(tm.ones(1, 3))
    assert y.dtype == tm.float16
    y.float().sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {np.dtype("float32")}


def test_the_state_is_the_threads_own():
    found = []

    @tm.autocast("cpu", dtype=tm.float16)
    def there() -> None:
        begun.set()
        assert go.wait(60)
        found.append(state())

    begun, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=there)
    with tm.autocast("cpu", dtype=tm.float16):
        other = threading.Thread(target=lambda: found.append(state()))
        other.start()
        other.join()
        thread.start()
        assert begun.wait(60)
    assert state() == OFF
    go.set()
    thread.join()
    assert sorted(found) == [OFF, (True, tm.float16, True)]


def test_a_region_on_the_cpu_leaves_other_devices_alone():
    with tm.autocast("cpu", dtype=tm.float16):
        assert not tm.is_autocast_enabled("cuda")
        assert not tm.is_autocast_enabled()
        assert tm.is_autocast_enabled("meta"), "meta stands for the device that is named"
        x = tm.ones(2, 2, device="meta")
        assert (x @ x).dtype == tm.float16


def test_signatures_are_pytorchs():
    for ours, theirs in (
        (amp.autocast, torch.amp.autocast),
        (amp.custom_fwd, torch.amp.custom_fwd),
        (amp.custom_bwd, torch.amp.custom_bwd),
        (amp.is_autocast_available, torch.amp.is_autocast_available),
    ):
        mine, other = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
        assert [(p.name, p.default, p.kind) for p in mine.values()] == [(p.name, p.default, p.kind) for p in other.values()]
    assert repr(tm.autocast("cpu", dtype=tm.float16)).startswith("<tinygrad_mem.amp.autocast_mode.autocast object at 0x")
    assert repr(torch.autocast("cpu")).startswith("<torch.amp.autocast_mode.autocast object at 0x")


# --- what it does not take ------------------------------------------------------------------------------------------------


def test_arguments_that_are_refused():
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`, got: `<class 'int'>`"):
        tm.autocast(3)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="unsupported autocast device_type 'xpu': expected one of cpu, cuda, meta"):
        tm.autocast("xpu")
    with pytest.raises(DeviceError, match="unsupported autocast device_type 'xpu'"):
        tm.get_autocast_dtype("xpu")
    with pytest.raises(TypeError, match="expected device_type of type str"):
        amp.is_autocast_available(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"autocast\(\)\(func\) requires a callable, but got Tensor. Did you mean"):
        tm.autocast("cpu", dtype=tm.float16)(tm.ones(2))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="left more often than entered"):
        tm.autocast("cpu", dtype=tm.float16).__exit__()
    assert [amp.is_autocast_available(kind) for kind in ("cpu", "cuda", "cuda:1", "mps")] == [True, True, True, False]


def test_the_default_on_the_cpu_is_pytorchs():
    for library in (tm, torch):
        assert library.get_autocast_dtype("cpu") == library.bfloat16
        assert library.get_autocast_dtype("cuda") == library.float16
        with library.autocast("cpu"):
            assert (library.ones(2, 2) @ library.ones(2, 2)).dtype == library.bfloat16
        with library.autocast("cpu", dtype=library.float16), library.autocast("cpu"):
            assert (library.ones(2, 2) @ library.ones(2, 2)).dtype == library.float16


def test_bfloat16_on_a_gpu_is_predicted_and_refused(monkeypatch: pytest.MonkeyPatch):
    found = []

    def run() -> None:
        with tm.autocast("cuda", dtype="bfloat16"):
            found.append((tm.ones(2, 2, device="cuda") @ tm.ones(2, 2, device="cuda")).dtype)

    memory.predict(run)
    assert found == [tm.bfloat16]
    monkeypatch.setattr(tm.device("cpu"), "lacking", tm.bfloat16, raising=False)
    with pytest.raises(NotOfferedError, match=r"bfloat16 on the cpu needs the package ml_dtypes: pip install"):
        tm.autocast("cpu")
    tm.autocast("cpu", enabled=False)
    tm.autocast("cpu", dtype=tm.float16)


def test_a_dtype_that_is_not_half_warns_as_pytorch_and_casts_nothing():
    with pytest.warns(UserWarning, match="In CPU autocast, but the target dtype is not supported. Disabling autocast."):
        region = tm.autocast("cpu", dtype=tm.float32)
    with pytest.warns(UserWarning, match="In CPU autocast, but the target dtype is not supported. Disabling autocast."):
        torch.autocast("cpu", dtype=torch.float32)
    with region:
        assert not tm.is_autocast_enabled("cpu")
        assert (tm.ones(2, 2) @ tm.ones(2, 2)).dtype == tm.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tm.autocast("cpu", dtype=tm.float32, enabled=False)


@pytest.mark.skipif(tm.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_warns_as_pytorch_and_casts_nothing():
    with pytest.warns(UserWarning, match="CUDA is not available. Disabling autocast"), tm.autocast("cuda"):
        assert not tm.is_autocast_enabled()


def test_in_a_prediction_there_is_a_gpu():
    dtypes = []

    def run() -> None:
        x = tm.ones(4, 4, device="cuda")
        for kind in ("cuda", "cpu", x.device.type):
            with tm.autocast(kind, dtype=tm.float16):
                dtypes.append(((x @ x).dtype, x.half().exp().dtype))
        with pytest.raises(DTypeError, match="expected a floating dtype, found int64"):
            tm.autocast("cuda", dtype=tm.int64)
        with tm.autocast("cuda", dtype=tm.float32):
            dtypes.append(((x.half() @ x).dtype,))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.predict(run)
    half, single = tm.float16, tm.float32
    assert dtypes == [(half, single), (half, half), (half, half), (single,)]  # CUDA's lists, then the CPU's twice


# --- gradients ------------------------------------------------------------------------------------------------------------


def network() -> nn.Module:
    tm.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def test_gradients_come_back_in_the_parameters_dtype_and_near_float32s():
    x, target = tm.randn(8, 3, 6, 6), tm.arange(8) % 5
    grads = []
    for enabled in (False, True):
        net = network()
        with tm.autocast("cpu", dtype=tm.float16, enabled=enabled):
            y = net(x)
            assert y.dtype == (tm.float16 if enabled else tm.float32)
            loss = F.cross_entropy(y, target)
        assert loss.dtype == tm.float32
        loss.backward()
        grads.append([values(p.grad) for p in net.parameters()])
        assert all(g.dtype == np.float32 for g in grads[-1])
        assert net[1].running_mean.dtype == tm.float32
    for single, half in zip(*grads, strict=True):
        np.testing.assert_allclose(half, single, rtol=2e-2, atol=4e-3)
        assert (half != single).any()


def against_float64(run, arrays, seed_grad) -> dict:
    """Errors of the result and gradients under autocast, ours and PyTorch's, against float64."""
    exact = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in arrays]
    reference = run(torch, torch.nn.functional, *exact)
    reference.backward(torch.tensor(seed_grad.astype(np.float64)))
    errors = {}
    for name, framework, where in (("ours", tm, tm.nn.functional), ("theirs", torch, torch.nn.functional)):
        leaves = [framework.tensor(a).requires_grad_() for a in arrays]
        with framework.autocast("cpu", dtype=framework.float16):
            y = run(framework, where, *leaves)
        y.backward(framework.tensor(seed_grad.astype(str(y.dtype).removeprefix("torch."))))
        found = [y, *[t.grad for t in leaves]]
        expected = [reference, *[t.grad for t in exact]]
        errors[name] = [
            float(np.abs(f.detach().numpy().astype(np.float64) - e.detach().numpy()).max() / np.abs(e.detach().numpy()).max())
            for f, e in zip(found, expected, strict=True)
        ]
    return errors


PRODUCTS = {
    "linear": (lambda fw, f, x, w, b: f.linear(x, w, b), [(33, 700), (20, 700), (20,)]),
    "matmul": (lambda fw, f, x, w: x @ w, [(40, 300), (300, 30)]),
    "bmm": (lambda fw, f, x, w: fw.bmm(x, w), [(3, 40, 200), (3, 200, 10)]),
    "conv2d": (lambda fw, f, x, w, b: f.conv2d(x, w, b, padding=1), [(4, 24, 9, 9), (16, 24, 3, 3), (16,)]),
    "conv1d": (lambda fw, f, x, w: f.conv1d(x, w), [(4, 64, 40), (8, 64, 5)]),
    "mlp": (lambda fw, f, x, w, v: f.linear(f.linear(x, w).tanh(), v), [(30, 100), (50, 100), (7, 50)]),
    "loss": (lambda fw, f, x, w: f.mse_loss(f.linear(x, w), fw.zeros(30, 20), reduction="none"), [(30, 100), (20, 100)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_half_precision_is_as_near_to_float64_as_pytorchs(name: str):
    run, shapes = PRODUCTS[name]
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    probe = run(torch, torch.nn.functional, *map(torch.tensor, arrays))
    errors = against_float64(run, arrays, rng.standard_normal(tuple(probe.shape)))
    assert max(errors["ours"]) < 5e-3
    for mine, other in zip(errors["ours"], errors["theirs"], strict=True):
        assert mine <= 2 * other + 1e-7, errors


# --- custom functions -----------------------------------------------------------------------------------------------------


def scaled_product(framework, cast_inputs=None, decorated=True):
    """A Function that notes what it saw, for either framework."""
    seen = []

    def state_of() -> bool:
        return framework.is_autocast_enabled("cpu")

    def dtype(t) -> str:
        return str(t.dtype).removeprefix("torch.")

    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = x @ w
        seen.append(("forward", dtype(x), dtype(w), dtype(y), state_of()))
        return y

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = g @ w.t()
        seen.append(("backward", dtype(g), dtype(gx), state_of()))
        return gx, x.t() @ g

    if decorated:
        forward = framework.amp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)(forward)
        backward = framework.amp.custom_bwd(device_type="cpu")(backward)
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Product", (framework.autograd.Function,), body), seen


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("cast", [None, "float32", "float16"])
def test_custom_functions_see_what_pytorchs_see(inside: bool, cast: str | None):
    found = []
    for framework in (tm, torch):
        dtype = None if cast is None else getattr(framework, cast)
        function, seen = scaled_product(framework, dtype)
        x, w = (framework.ones(3, 3).requires_grad_() for _ in range(2))
        with framework.autocast("cpu", dtype=framework.float16, enabled=inside):
            y = function.apply(x.half() if inside else x, w)
        y.sum().backward()
        seen.append([str(t.dtype).removeprefix("torch.") for t in (y, x.grad, w.grad)])
        found.append(seen)
    assert found[0] == found[1]


def test_custom_functions_cast_what_is_inside_of_arguments():
    half = {"a": [tm.ones(2), (tm.ones(2, dtype=tm.int64), "text")], "b": np.ones(2), "c": tm.ones(2).double()}
    cast = amp.autocast_mode._cast(half, "cpu", tm.float16)
    assert cast["a"][0].dtype == tm.float16
    assert cast["a"][1][0] is half["a"][1][0]
    assert cast["a"][1][1] == "text"
    assert cast["b"] is half["b"]
    assert cast["c"] is half["c"]
    assert [t.dtype for t in amp.autocast_mode._cast(iter([tm.ones(1)]), "cpu", tm.float16)] == [tm.float16]


@pytest.mark.parametrize("inside", [True, False])
def test_what_a_custom_function_is_given_by_name_arrives(inside: bool):
    forward = amp.custom_fwd(lambda ctx, *, x: x, device_type="cpu", cast_inputs=tm.float16)
    with tm.autocast("cpu", dtype=tm.float16, enabled=inside):
        assert forward(SimpleNamespace(), x=tm.ones(1)).dtype == (tm.float16 if inside else tm.float32)


def test_custom_functions_want_a_device():
    for decorate in (amp.custom_fwd, amp.custom_bwd):
        with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
            decorate(lambda ctx: None, device_type=1)  # type: ignore[arg-type]


# --- taken along ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_autocast_and_the_scale_hold_inside_a_recompute(inside: bool, outside: bool):
    """Reproduced in Chainer: an update 1024 times too large. Backward may itself run in a region that says otherwise."""
    found = []
    for recompute in (False, True):
        tm.manual_seed(3)
        net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.LayerNorm(32))
        scaler = amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = tm.optim.SGD(net.parameters(), lr=0.1)
        x = tm.randn(8, 32, requires_grad=True)
        with tm.autocast("cpu", dtype=tm.float16, enabled=inside):
            y = tm.utils.checkpoint.checkpoint(net, x, use_reentrant=False) if recompute else net(x)
        with tm.autocast("cpu", dtype=tm.float16, enabled=outside):
            scaler.scale(y.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append([values(y), values(x.grad), *[values(p.grad) for p in net.parameters()]])
        found[-1] += [values(p) for p in net.parameters()]
        assert scope.local.autocast is None
    for plain, again in zip(*found, strict=True):
        np.testing.assert_array_equal(again, plain)


def test_casts_made_in_a_recompute_go_with_it():
    gc.collect()
    gc.disable()
    pool = device("cpu").pool
    net = nn.Linear(128, 128, bias=False)
    x = tm.ones(4, 128, requires_grad=True)
    before = pool.used_bytes()
    with tm.autocast("cpu", dtype=tm.float16):
        y = tm.utils.checkpoint.checkpoint(net, x, use_reentrant=False).float().sum()
    y.backward()
    del y
    assert pool.used_bytes() == before + net.weight.nbytes + x.nbytes, "gradients, and nothing else"
    assert gc.collect() == 0
    gc.enable()


def test_the_state_can_be_kept_and_set_again_later():
    w = tm.ones(128, 128, requires_grad=True)
    with tm.autocast("cpu", dtype=tm.float16):
        kept = scope.local.autocast
        w @ w
    assert kept.cache == {}, "what is kept pins no casts"
    pool = device("cpu").pool
    before = pool.used_bytes()
    scope.local.autocast = kept.fresh()
    try:
        assert state() == (True, tm.float16, True)
        assert (w @ w).dtype == tm.float16
        assert pool.used_bytes() == before + 128 * 128 * 2
        with tm.autocast("cpu", dtype=tm.float16, enabled=False):
            assert (w @ w).dtype == tm.float32
    finally:
        scope.local.autocast = None
    assert pool.used_bytes() == before
