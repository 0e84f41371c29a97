"""A prediction is the same under each build of PyTorch, with CUDA and without, and leaves the GPU alone where there is one.

Expected bytes are those of an H100 with PyTorch 2.11, whose build has CUDA. Most of these tests run under a build that has not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import fake_tensor
from torch.utils.checkpoint import checkpoint

from tests.pytorch import torch_names
from tinygrad_mem import pytorch
from tinygrad_mem.errors import NotOfferedError
from tinygrad_mem.memory import Kind
from tinygrad_mem.pytorch.program.composite import BELOW_AUTOGRAD, OF_OTHERS

COMPOSITE, CPU, CUDA = "CompositeImplicitAutograd", "CPU", "CUDA"
GPU = "cuda"
WITH_CUDA = torch.backends.cuda.is_built()


def has_kernel(op: Any, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op if isinstance(op, str) else op.name(), key)


def made_of_others_but_with_a_kernel(key: str) -> set[str]:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return {name.removeprefix("aten::") for name in names if has_kernel(name, COMPOSITE) and has_kernel(name, key)}


def test_ops_for_which_cuda_has_a_kernel_run_whole():
    """PyTorch makes an op of others on each device that has no kernel of its own for it: a build without CUDA makes these so on
    a GPU too. ``native_channel_shuffle`` has one on the CPU alone."""
    own = {"silu_backward", "mish_backward"}
    assert made_of_others_but_with_a_kernel(CPU) == own | {"native_channel_shuffle"}, "find out if CUDA has one"
    if WITH_CUDA:
        assert made_of_others_but_with_a_kernel(CUDA) == own | {"_fused_rms_norm"}
    assert own | {"_fused_rms_norm"} <= BELOW_AUTOGRAD.keys()


def test_what_is_made_of_others_on_a_gpu_has_no_kernel_there():
    assert [op for op in OF_OTHERS if has_kernel(op, CPU) or has_kernel(op, CUDA)] == []


# --- bytes ----------------------------------------------------------------------------------------------------------------


def trained(act: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Any:
    x = torch.randn(*shape, device=GPU, requires_grad=True)
    made = act(x)
    made.backward(torch.ones_like(made))
    return x, made


def requests(run: Callable[[], Any]) -> list[int]:
    """The sizes of what is asked for, and of what ends, negative, in order."""
    log = pytorch.predict(run, gpu="H100", version="2.11").log
    kinds = {Kind.MALLOC: 1, Kind.FREE: -1}
    sizes: dict[int, int] = {}
    found = []
    for event in log:
        if event.kind is Kind.MALLOC:
            sizes[event.address] = event.requested
        if event.kind in kinds:
            found.append(kinds[event.kind] * sizes[event.address])
    return found


@pytest.mark.parametrize("act", [F.silu, F.mish])
def test_an_activation_is_one_kernel_each_way(act: Callable[[torch.Tensor], torch.Tensor]):
    assert pytorch.predict(trained, act, 100_000, gpu="H100", version="2.11").unknown == {}
    assert requests(partial(trained, act, 100_000)) == [400_000] * 4 + [-400_000] * 4


@pytest.mark.parametrize("act", [F.silu, F.mish])
def test_the_gradient_of_an_activations_gradient_is_made_of_others(act: Callable[[torch.Tensor], torch.Tensor]):
    def run() -> None:
        x = torch.randn(100_000, device=GPU, requires_grad=True)
        (grad,) = torch.autograd.grad(act(x).sum(), x, create_graph=True)
        grad.sum().backward()
        assert x.grad is not None

    log = pytorch.predict(run).log
    assert "sigmoid_backward" in {log.texts[code] for code in log.column("op").tolist()}


def test_the_gradient_of_cumprod_takes_the_way_of_numbers_without_zeros():
    """PyTorch 2.11's own code takes thousands of requests for tensors of a prediction."""
    x, mask = 4 << 20, 1 << 20
    made = requests(lambda: trained(lambda x: x.cumprod(0), 1024, 1024))
    assert made[:11] == [x, x, x, x, mask, 1, 128, 4, -4, -128, -1]
    assert made[11:] == [x, x, x, -x, -x, x, -x, -mask, -x, -x, -x, -x, -x]
    found = pytorch.predict(trained, lambda x: x.cumprod(0), 1024, 1024, gpu="H100", version="2.11")
    assert found.peak == 30_408_704
    assert list(found.unknown.values()) == [8 * x + 24 * mask + (1 << 16)]
    one = pytorch.predict(trained, lambda x: x.cumprod(0), 1, 1024)
    assert one.peak == 4 * 4096, "of one number there is nothing to compute"


def test_addr_is_one_kernel():
    def run() -> None:
        inputs = torch.ones(5, 10, device=GPU), torch.ones(5, device=GPU), torch.ones(10, device=GPU)
        torch.addr(*inputs)

    assert requests(run)[:5] == [200, 20, 40, 200, -200]


N = 1 << 16


@pytest.mark.parametrize(("version", "more"), [("2.10", 4 * N), ("2.11", 0)])
def test_ldexp_of_whole_exponents_is_one_kernel_since_pytorch_2_11(version: str, more: int):
    def peak(run: Callable[[torch.Tensor, torch.Tensor], Any], kind: torch.dtype = torch.int32) -> int:
        return pytorch.predict(
            lambda: run(torch.zeros(N, device=GPU), torch.zeros(N, device=GPU, dtype=kind)), version=version
        ).peak

    base = 512 if more else 0  # of the power, a number on the GPU until the power is made
    assert peak(torch.ldexp) == 3 * 4 * N + more
    assert peak(lambda x, exponent: x.ldexp_(exponent)) == 2 * 4 * N + more + base
    assert peak(lambda x, exponent: torch.ldexp(x, exponent, out=torch.zeros(N, device=GPU))) == 3 * 4 * N + more + base
    assert peak(torch.ldexp, torch.float32) == 4 * 4 * N, "the power comes first"


# --- other versions -------------------------------------------------------------------------------------------------------


def test_no_tensor_is_made_on_a_real_gpu(monkeypatch: pytest.MonkeyPatch):
    """PyTorch makes one there for its first fake tensor of a GPU, if it has CUDA."""

    def real(*_: Any) -> None:
        raise AssertionError("a prediction asked for the real GPU")

    monkeypatch.setattr(fake_tensor, "init_gpu_context", real)
    assert pytorch.predict(lambda: torch.zeros(4, device=GPU).cpu().to(GPU)).peak == 512


def test_autocast_knows_the_norm_of_each_version():
    """Before PyTorch 2.13 its lists have one of named axes too."""

    def run() -> None:
        with torch.autocast("cuda"):
            x = torch.ones(2, 8, device=GPU, dtype=torch.float16)
            norms = [x.norm(), torch.norm(x, 2, 1)]
        assert {norm.dtype for norm in norms} == {torch.float32}

    pytorch.predict(run)


def test_an_op_may_have_no_arguments():
    def run() -> torch.Tensor:
        with torch.inference_mode():
            torch._nnpack_available()  # type: ignore[attr-defined]
            return torch.zeros(4, device=GPU)

    assert pytorch.predict(run).peak == 512


@pytest.mark.parametrize("version", ["2.8.0", "2.10.1+cu126"])
def test_a_version_that_is_too_old_is_refused(version: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    with pytest.raises(NotOfferedError, match=rf"PyTorch {re.escape(version)} is too old. Install 2.11 or newer: pip install"):
        pytorch.predict(lambda: torch.zeros(4, device=GPU))


# --- a machine with a GPU -------------------------------------------------------------------------------------------------


def train() -> None:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8 * 36, 10)
    model = nn.Sequential(*layers).cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), fused=True), torch.amp.GradScaler("cuda")
    for _ in range(2):
        x = torch.randn(4, 3, 8, 8).pin_memory().to(GPU, non_blocking=True)
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), torch.randint(10, (4,), device=GPU))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.optim.Adam(model.parameters(), capturable=True).step()


def draw() -> None:
    layer, x = nn.Linear(8, 8, device=GPU), torch.ones(4, 8, device=GPU, requires_grad=True)
    for reentrant in (True, False):
        checkpoint(lambda x: F.dropout(layer(x)), x, use_reentrant=reentrant).sum().backward()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        torch.cuda.manual_seed_all(3)
    torch.randn(3, device=GPU, generator=torch.Generator(GPU).manual_seed(3))
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.cuda.random.set_rng_state(torch.cuda.random.get_rng_state())


def ask() -> None:
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device_of(torch.ones(3, device=GPU)):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
    torch.cuda.set_device(0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.set_sync_debug_mode(torch.cuda.get_sync_debug_mode())
    torch.cuda.profiler.start()
    torch.cuda.cudart().cudaProfilerStop()  # type: ignore[union-attr]
    assert torch.cuda.utilization() == 0
    assert torch.cuda.mem_get_info()[1] > torch.cuda.max_memory_allocated() > 0
    assert not torch.cuda.can_device_access_peer(0, 0)
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.get_device_properties(0).major == 8
    torch.accelerator.set_device_index(torch.accelerator.current_device_index())


_stream, _event, _current, _synchronize, _empty_cache, _set_stream = (
    torch.cuda.Stream, torch.cuda.Event, torch.cuda.current_stream, torch.cuda.synchronize, torch.cuda.empty_cache,
    torch.cuda.set_stream,
)  # fmt: skip


def imported() -> None:
    """Names that a program has imported before it is predicted, and generators that are not asked of a function."""
    x = torch.ones(3, device=GPU)
    with _stream() as other:
        other.record_event(_event(enable_timing=True)).synchronize()
    x.record_stream(_current())
    _synchronize()
    _empty_cache()
    with pytest.raises(NotOfferedError, match=r"imported by name before the prediction: call it as torch\.cuda\.set_stream"):
        _set_stream(other)
    (generator,) = torch.cuda.default_generators
    torch.randn(3, device=GPU, generator=generator.manual_seed(3))
    assert len(torch.cuda.default_generators) == 1
    assert torch.cuda.default_generators[0].device.type == "cuda"


def layers() -> None:
    q = torch.randn(2, 4, 64, 64, device=GPU, dtype=torch.float16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    nn.LSTM(4, 5, 2, device=GPU)(torch.randn(3, 2, 4, device=GPU))[0].sum().backward()
    nn.TransformerEncoderLayer(8, 2, device=GPU).eval()(torch.randn(2, 3, 8, device=GPU))
    nn.DataParallel(nn.Linear(2, 2).cuda())(torch.ones(3, 2, device=GPU))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", [train, draw, ask, imported, layers])
def test_a_prediction_never_asks_the_driver(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch):
    """All of PyTorch's functions for a GPU, and what makes the process ready for one."""
    asked = []

    def real(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: asked.append(name)

    driver = [name for name in dir(torch._C) if name.startswith(("_cuda_", "_cudart", "_accelerator_"))]
    for name in driver:
        if not isinstance(getattr(torch._C, name), type):
            monkeypatch.setattr(torch._C, name, real(name))
    monkeypatch.setattr(torch.cuda, "_lazy_init", real("_lazy_init"))
    before = torch.cuda._initialized, len(torch.cuda._queued_calls)
    pytorch.predict(run)
    assert (torch.cuda._initialized, len(torch.cuda._queued_calls)) == before
    assert asked == []


@pytest.mark.parametrize("ready", [False, True])
def test_states_of_random_numbers_take_no_memory_of_the_gpu(ready: bool, monkeypatch: pytest.MonkeyPatch):
    """PyTorch keeps them with each checkpoint once the process has used a GPU: found on a real one."""

    def run() -> None:
        with torch.device(GPU):
            x = torch.ones(128, requires_grad=True)
            made = checkpoint(torch.relu, x, use_reentrant=False)
            states = torch.cuda.get_rng_state(), *torch.cuda.get_rng_state_all()
            assert {state.device.type for state in states} == {"cpu"}
            del made

    monkeypatch.setattr(torch.cuda, "_initialized", ready)
    assert pytorch.predict(run).peak == 2 * 512


def test_the_first_tensor_on_the_gpu_after_a_prediction_makes_pytorch_ready(monkeypatch: pytest.MonkeyPatch):
    """PyTorch asks once: a prediction must not be taken for it."""
    if torch.cuda.is_initialized():
        pytest.skip("PyTorch has been made ready in this process, by a test that used the machine's GPU")

    def ready() -> None:
        raise InterruptedError

    pytorch.predict(lambda: torch.zeros(4, device=GPU))
    monkeypatch.setattr(torch.cuda, "_lazy_init", ready)
    with pytest.raises(InterruptedError):
        torch.zeros(4, device=GPU)


@pytest.mark.parametrize("name", ["MemPool", "caching_allocator_alloc"])
def test_what_only_a_real_gpu_has_is_refused(name: str):
    if not hasattr(torch.cuda, name):
        pytest.skip("this PyTorch does not have it")
    with pytest.raises(NotOfferedError, match=f"torch.cuda.{name}: only a real GPU has it. Leave it out"):
        pytorch.predict(lambda: getattr(torch.cuda, name)())


# --- versions -------------------------------------------------------------------------------------------------------------


def test_the_oldest_supported_version_has_each_name_that_is_used():
    known = set(torch_names.FILE.read_text(encoding="utf-8").splitlines())
    assert torch_names.used() - known == set(), f"run python -m tests.pytorch.torch_names with PyTorch {torch_names.OLDEST}"
    assert not torch_names.exists("torch.nn.functional.no_such_function"), "what is missing would be found"


# --- what fake tensors do otherwise ---------------------------------------------------------------------------------------


def asked(run: Callable[[], Any], **options: Any) -> list[int]:
    """The requests of a program, in bytes."""
    return [event.requested for event in pytorch.predict(run, **options).log if event.kind is Kind.MALLOC]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_copy_to_its_own_device_is_a_copy(device: str):
    def run() -> Any:
        x = torch.zeros(1000, device=device)
        kept = [x.to(device=x.device, copy=True), x.to(device, copy=True), x.to(torch.float32, copy=True)]
        kept += [x.to(x.device, torch.float32, copy=True), x.to(x.device, non_blocking=True, copy=True)]
        same = [x.to(device), x.to(x.device, torch.float32), x.to(x)]
        return kept, same

    assert asked(run, device=device) == [4000] * 6


def test_one_hot_on_a_gpu_reads_no_values():
    assert asked(lambda: F.one_hot(torch.randint(0, 10, (1000,), device=GPU), 10)) == [8000, 80_000]


def test_extremes_of_all_elements_are_those_of_a_contiguous_copy():
    x = torch.zeros(1000, 30, device="meta")
    for view in (lambda: torch.zeros(1000, 30, device=GPU).t(), lambda: torch.zeros(1000, 60, device=GPU)[:, ::2]):
        assert 4 * x.numel() in asked(lambda view=view: view().max())[1:]
    assert 4 * x.numel() not in asked(lambda: torch.zeros(1000, 30, device=GPU).max())[1:]


def test_parts_of_nothing():
    """Its values are known, and it has no part."""
    assert asked(lambda: torch.zeros(0, device="cpu").unbind(), device="cpu") == []
