"""Programs as PyTorch's users write them: each is predicted, or refused in words, and leaves everything as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import logging
import os
import random
import struct
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

torch = pytest.importorskip("torch")
from torch import nn, profiler  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split  # noqa: E402

from tests.pytorch_memory import pytorch_peak  # noqa: E402
from tinygrad_mem.errors import DataDependenceError, DeviceError, NotOfferedError  # noqa: E402
from tinygrad_mem.pytorch.predict import predict  # noqa: E402
from tinygrad_mem.pytorch.program.ledger import Ledger  # noqa: E402
from tinygrad_mem.pytorch.program.state import STATES  # noqa: E402

OUTSIDE = torch.ones(4, 16)
PATH = REAL = Path()  # of files: one that a prediction may not write, one of PyTorch's
MODEL = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("cuda")


def data(rows: int = 8):
    return torch.randn(rows, 16, device="cuda"), torch.randint(0, 4, (rows,), device="cuda")


def step(model: nn.Module, optimizer, batch=None):
    x, y = batch or data()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def sgd(model: nn.Module):
    return torch.optim.SGD(model.parameters(), 0.1)


class Samples(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int):
        return torch.full((16,), float(i)), i % 4


# --- programs that are predicted ------------------------------------------------------------------------------------------


def prints():
    loss = step(model := net(), sgd(model))
    assert f"{loss:.3f} {loss.item():.2f}" == "unknown unknown"


def settings():
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cuda")
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cuda", True)
    torch.autograd.set_detect_anomaly(True)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.cuda.enable_cudnn_sdp(False)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"  # which the next prediction would read
    torch.set_printoptions(precision=2)
    warnings.simplefilter("ignore")
    gc.enable()
    torch.randn(3)


def hooks_in_backward():
    model = net()
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for _ in range(2):
        x, y = data()
        F.cross_entropy(model(x), y).backward()


def recomputed_moves():
    x, y = data()
    body = net()
    for reentrant in (True, False):
        out = checkpoint.checkpoint(lambda x: body(x + torch.ones(16).to("cuda")), x.requires_grad_(), use_reentrant=reentrant)
        F.cross_entropy(out, y).backward()


def loaders():
    model = net()
    optimizer = sgd(model)
    for x, y in DataLoader(Samples(), 4, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True):
        step(model, optimizer, (x.cuda(non_blocking=True), y.to("cuda")))
    x, y = data(16)
    for batch in DataLoader(TensorDataset(x, y), 4, shuffle=True):
        assert batch[0].is_cuda
        step(model, optimizer, batch)
    here = TensorDataset(torch.randn(16, 16), torch.zeros(16, dtype=torch.long))
    for a, b in DataLoader(random_split(here, [12, 4])[0], 4, shuffle=True):
        step(model, optimizer, (a.cuda(), b.cuda()))


def averaged():
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    step(model, sgd(model))
    average.update_parameters(model)
    torch.optim.swa_utils.update_bn(DataLoader(TensorDataset(*data()), 4), average)
    copy.deepcopy(model)


def masked_transformer():
    model = nn.Transformer(16, 2, 1, 1, 16, batch_first=True).to("cuda")
    mask = nn.Transformer.generate_square_subsequent_mask(4, device="cuda")
    model(torch.randn(2, 4, 16, device="cuda"), torch.randn(2, 4, 16, device="cuda"), tgt_mask=mask).sum().backward()


def meta_first():
    with torch.device("meta"):
        model = nn.Linear(1000, 1000)
    assert torch.cuda.memory_allocated() == 0
    assert all(p.is_meta and not p.is_cpu and p.device == torch.device("meta") for p in model.parameters())
    x = torch.ones(1000)
    moved = (
        x.to("meta"),
        x.to(model.weight),
        x.cuda().to(model.weight.device),
        x.to(device="meta"),
        torch.as_tensor(x, device="meta"),
    )
    for there in (*moved, model(x.to("meta")), x.to("meta").half(), model.weight.new_tensor([1.0])):
        assert there.device.type == "meta"
    assert (x.device.type, model.to("meta").weight.to("meta") is model.weight) == ("cpu", True)
    with contextlib.suppress(NotImplementedError):
        model.cuda()
        raise AssertionError("PyTorch cannot copy out of meta")
    model.to_empty(device="cuda")
    assert torch.cuda.memory_allocated() == 4_000_256 + 4_096  # rounded up to 512 bytes each


def the_gpus_own():
    generator = torch.Generator("cuda").manual_seed(1)
    torch.randn(4, device="cuda", generator=generator)
    assert isinstance(generator, torch.Generator)
    torch.cuda.memory_summary()
    assert torch.cuda.get_arch_list() == ["sm_{}{}".format(*torch.cuda.get_device_capability())]
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.range_pop()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.randn(4, pin_memory=True)
    torch.distributions.Normal(torch.zeros(3, device="cuda"), 1.0).log_prob(torch.zeros(3, device="cuda"))


def clipped():
    x, y = data()
    model = net()
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    torch.optim.SGD(model.parameters(), 0.1, fused=True).step()


def saves_and_loads():
    model, file = net(), io.BytesIO()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}, PATH)
    torch.save(model, file)
    assert PATH.read_text() == "kept"
    state = torch.load(PATH, map_location={"cuda:0": "cpu"})
    assert {tensor.device.type for tensor in state["model"].values()} == {"cpu"}
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    other = torch.load(file, weights_only=False)
    assert other[0].weight.is_cuda
    assert other[0].weight.requires_grad
    step(other, sgd(other))


def loads_what_was_there():
    state = torch.load(REAL, map_location="cuda")
    assert torch.cuda.memory_allocated() == 2 * 512
    model = nn.Sequential(nn.Linear(16, 4)).to("cuda")
    model.load_state_dict(state["model"])
    assert state["epoch"] == 3


def loads_safe_tensors():
    """It asked for an address, and was told about that."""
    header = b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
    PATH.write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    try:
        load_file(PATH, device="cuda")
    finally:
        PATH.write_text("kept")


def data_parallel():
    model = nn.DataParallel(net())
    step(model, sgd(model), (torch.randn(8, 16), data()[1]))


def numbers_of_gpus():
    assert torch.device(0) == torch.device("cuda", 0)
    assert nn.Linear(4, 4).to(0)(torch.ones(2, 4, device=0)).device == torch.ones(1).to(0).device == torch.device("cuda", 0)


def profiled():
    model = net()
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA], profile_memory=True) as found:
        step(model, sgd(model))
        found.step()
    assert torch.get_device_module() is torch.cuda


RIGHT = [
    prints, saves_and_loads, loads_what_was_there, data_parallel, numbers_of_gpus, settings, hooks_in_backward,
    recomputed_moves, loaders, averaged, masked_transformer, meta_first, the_gpus_own, clipped, profiled,
]  # fmt: skip


# --- programs that are refused --------------------------------------------------------------------------------------------


def sparse():
    nn.Embedding(10, 4, sparse=True).to("cuda")(torch.zeros(2, dtype=torch.long, device="cuda")).sum().backward()


def counts():
    torch.zeros((torch.randn(8, device="cuda") > 0).sum().item(), device="cuda")


def a_bound():
    torch.arange(torch.randint(1, 5, (3,)).max())


def a_graph():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


def in_a_thread():
    thread = threading.Thread(target=_quietly)
    thread.start()
    thread.join()


def _quietly():
    with contextlib.suppress(NotOfferedError):
        net()


def moves_a_module():
    MODEL[1].cuda()


def sets_data():
    OUTSIDE.data = torch.zeros(3)


def wants_gradients():
    OUTSIDE.requires_grad_()


def predicts_inside():
    predict(net)


def nests():
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")


def nests_by_a_mask():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).to("cuda").eval()
    mask = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
    with torch.no_grad():
        encoder(torch.randn(2, 5, 16, device="cuda"), src_key_padding_mask=mask)


def two_gpus():
    nn.DataParallel(net(), [0, 1])(data()[0])


def loads_by_a_function():
    torch.load(PATH, map_location=lambda storage, place: storage)


def safe_tensors():
    save_file({"a": torch.ones(3, device="cuda")}, PATH)


def data_parallel():
    _alone(lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))


def _alone(run):
    """Run it in a process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        run()
    finally:
        torch.distributed.destroy_process_group()


def on_a_mesh():
    _alone(lambda: torch.distributed.init_device_mesh("cuda", (1,)))


def functions_of_functions():
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it should be compiled
        flex_attention(*[torch.randn(1, 2, 128, 16, device="cuda")] * 3)


def packed_for_another_library():
    torch.utils.dlpack.to_dlpack(torch.zeros(3, device="cuda"))


@torch.library.custom_op("tinygrad_mem_tests::no_shapes", mutates_args=())
def of_its_own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def an_op_of_its_own():
    of_its_own(torch.zeros(3, device="cuda"))


def traced():
    torch.jit.trace(nn.Linear(4, 4), torch.zeros(1, 4))


def exported():
    torch.export.export(nn.Linear(4, 4), (torch.zeros(1, 4),))


def a_subclass():
    SUBCLASS[0] + 1


SUBCLASS = [TwoTensor(torch.zeros(2), torch.zeros(2))]


REFUSED = [
    (
        data_parallel,
        NotOfferedError,
        r"test_program_breadth\.py:\d+ .*: torch\.distributed: say which process is predicted: predict\(run, world_size=8",
    ),
    (
        on_a_mesh,
        NotOfferedError,
        r"test_program_breadth\.py:\d+ .*: torch\.distributed: say which process .* or estimate --ranks 8",
    ),
    (functions_of_functions, NotOfferedError, r"functions_of_functions: flex_attention takes functions.*plain functions"),
    (traced, NotOfferedError, r"traced: torch\.jit\.trace records a run with real tensors.*Predict the module itself"),
    (packed_for_another_library, NotOfferedError, r"another_library: DLPack gives the memory .*Leave it out of what is"),
    (
        an_op_of_its_own,
        NotOfferedError,
        r"an_op_of_its_own: There was no fake impl.*use `of_its_own\.register_fake`.*A prediction",
    ),
    (exported, NotOfferedError, r"exported: torch\.export\.export records a run with real tensors"),
    (a_subclass, NotOfferedError, r"a_subclass: a TwoTensor: what such tensors hold is not predicted\. Use plain tensors"),
    (nests, NotOfferedError, r"nests: nested tensors: their memory is not predicted. Use padded tensors with a mask"),
    (nests_by_a_mask, NotOfferedError, r"nests_by_a_mask: .*Pad instead .*enable_nested_tensor=False"),
    (two_gpus, NotOfferedError, r"two_gpus: the program uses several GPUs.*Predict it with one, such as nn\.DataParallel"),
    (loads_by_a_function, NotOfferedError, r"loads_by_a_function: torch\.load: a function as map_location.*Give a device"),
    (safe_tensors, NotOfferedError, r"safe_tensors: safetensors reads and writes values.*Leave saving out .* torch\.save"),
    (loads_safe_tensors, NotOfferedError, r"loads_safe_tensors: safetensors reads and writes.*from its configuration"),
    (sparse, NotOfferedError, r"test_program_breadth\.py:\d+ sparse: .*layout torch\.sparse_coo.*Use dense"),
    (counts, DataDependenceError, r"counts: zeros: a size or an index .*not known .*Give it a fixed number"),
    (a_bound, DataDependenceError, r"a_bound: a tensor is used as a plain number.*Give it a fixed"),
    (a_graph, NotOfferedError, r"a_graph: torch\.cuda\.graph: a graph keeps a pool.*without it"),
    (
        in_a_thread,
        NotOfferedError,
        r"breadth\.py:\d+ net: the program uses .* thread that it starts, .*Call the thread's function directly",
    ),
    (moves_a_module, DeviceError, r"moves_a_module: a BatchNorm1d that was made outside .* is moved.*Make the model inside"),
    (sets_data, DeviceError, r"sets_data: \.data is set for a tensor that was made outside"),
    (wants_gradients, DeviceError, r"wants_gradients: requires_grad is set for a tensor that was made outside"),
    (
        predicts_inside,
        NotOfferedError,
        r"predicts_inside: .*inside a program that is being predicted. Run one prediction after the other",
    ),
]


def shifted_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@pytest.fixture
def checks_of_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch turns them off, for the whole process, when it compiles for the first time. They are as before after the test."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", torch.distributions.Distribution._validate_args)


COMPILED = "torch.compile: the function was predicted as it is written"


@pytest.mark.usefixtures("checks_of_distributions")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lambda x: torch.compile(torch.sin)(x), COMPILED),
        (lambda: torch.compile(backend="eager")(shifted_sine), COMPILED),
        (lambda: torch.compile(nn.Flatten(), backend="eager"), COMPILED),
        (lambda: torch.jit.script(nn.Flatten()), "torch.jit.script: the function was predicted op by op"),
        (lambda: torch.jit.script(half), "torch.jit.script: the function was predicted op by op"),
    ],
)
def test_what_a_compiler_would_run_otherwise_is_noted_wherever_it_was_compiled(make, said):
    run = make()
    track = predict(lambda: run(torch.zeros(3, 3, device="cuda")))
    assert [note for note in track.notes if note.startswith(said)]
    assert not predict(lambda: torch.zeros(3, device="cuda").sin()).notes


def half(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu()


def test_shared_memory_is_the_tensors_own_on_a_gpu_and_refused_on_the_cpu():
    assert predict(lambda: nn.Linear(4, 4, device="cuda").share_memory()).peak == 1024
    with pytest.raises(NotOfferedError, match=r"allocator does not count\. Leave it out"):
        predict(lambda: nn.Linear(4, 4).share_memory(), device="cpu")


# --- what must be as before -----------------------------------------------------------------------------------------------


def snapshot():
    """What a prediction may not leave changed: states, functions, hooks, filters, the user's own modules."""
    owners = [torch, torch.cuda, torch.cuda.memory, torch.autograd, torch.utils, torch.accelerator, nn.Module, nn.RNNBase]
    functions = [
        {k: v for k, v in vars(owner).items() if callable(v)}
        for owner in (*owners, DataLoader, threading.Thread, nn.modules.transformer)
    ]
    hooks = [len(v) for k, v in vars(nn.modules.module).items() if k.startswith("_global") and isinstance(v, dict)]
    states = {name: read() for name, (read, _) in STATES.items()}
    kernels = torch._C._dispatch_dump("aten::batch_norm")
    held = [(id(t), t.device, t.requires_grad, t.clone()) for t in (OUTSIDE, *MODEL.parameters(), *MODEL.buffers())]
    rest = gc.isenabled(), warnings.filters[:], logging.root.level, torch._C._len_torch_function_stack()
    return functions, hooks, states, kernels, held, rest


def assert_same(now, before):
    assert type(now) is type(before)
    if isinstance(now, dict):
        assert before.keys() <= now.keys()  # modules get submodules as these are imported
        for key in before:
            assert_same(now[key], before[key])
    elif isinstance(now, (list, tuple)):
        assert len(now) == len(before)
        for a, b in zip(now, before, strict=True):
            assert_same(a, b)
    elif isinstance(now, torch.Tensor):
        assert torch.equal(now, before)
    elif isinstance(now, np.ndarray):
        assert np.array_equal(now, before)
    else:
        assert now is before or now == before


@pytest.fixture(scope="module", autouse=True)
def _files(tmp_path_factory: pytest.TempPathFactory):
    global PATH, REAL
    PATH, REAL = (tmp_path_factory.mktemp("saved") / name for name in ("kept.pt", "real.pt"))
    PATH.write_text("kept")
    torch.save({"model": {"0.weight": torch.ones(4, 16), "0.bias": torch.ones(4)}, "epoch": 3}, REAL)


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """The first prediction imports parts of PyTorch, which add their own filters of warnings once."""
    predict(net)


def predicted(program):
    """Its prediction, or its error; either way everything is as before."""
    before = snapshot()
    try:
        return predict(program)
    finally:
        assert_same(snapshot(), before)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # of PyTorch 2.12
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_a_program_is_predicted_and_leaves_everything_as_it_was(program):
    assert predicted(program).peak > 0


@pytest.mark.parametrize(("program", "kind", "words"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_program_is_refused_in_words_and_leaves_everything_as_it_was(program, kind, words):
    with pytest.raises(kind, match=words):
        predicted(program)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit, torch.OutOfMemoryError])
@pytest.mark.parametrize("where", ["first", "forward", "backward", "loader", "last"])
def test_an_error_at_any_point_leaves_everything_as_it_was(error, where):
    def now(at: str, *_):
        if at == where:
            raise error("here")

    def program():
        settings()
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        now("first")
        model = net()
        model[0].register_forward_hook(lambda *_: now("forward"))
        model[2].weight.register_hook(lambda _: now("backward"))
        for _ in DataLoader(Samples(), 4, collate_fn=lambda batch: now("loader")):
            pass
        with torch.autocast("cuda"):
            step(model, sgd(model))
            now("last")

    if error is torch.OutOfMemoryError:
        assert not predicted(program).fits
    else:
        with pytest.raises(error, match="here"):
            predicted(program)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # of PyTorch 2.12
def test_a_profile_prints_nothing(capfd: pytest.CaptureFixture[str]):
    """PyTorch printed 60 lines for each event of the GPU that it lacked."""
    predicted(profiled)
    assert "CUDA" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("program", [lambda: torch.zeros(8).numel() + torch.ones(8).numel(), lambda: torch.zeros(8)])
def test_an_interrupt_while_a_tensor_ends_is_not_lost(program, monkeypatch: pytest.MonkeyPatch):
    """Python prints the errors of callbacks of weak references, and goes on."""
    own, interrupts = Ledger.free, [KeyboardInterrupt("here")]

    def free(*args):
        if interrupts:
            raise interrupts.pop()
        own(*args)

    monkeypatch.setattr(Ledger, "free", free)
    with pytest.raises(KeyboardInterrupt, match="here"):
        predict(program, device="cpu")
    assert predict(program, device="cpu").peak == 32


def test_predictions_in_two_threads_and_training_beside_them_do_not_meet():
    def program():
        return step(model := net(), torch.optim.Adam(model.parameters()))

    def training():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.0), nn.Linear(32, 4))
        optimizer, x, y = torch.optim.Adam(model.parameters()), torch.ones(8, 16), torch.zeros(8, dtype=torch.long)
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item(), torch.cuda.is_available()

    alone, trained = predict(program).peak, training()
    found: dict[str, object] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({f"p{i}": predict(program).peak})) for i in range(2)]
    for thread in threads:
        thread.start()
    found["training"] = training()
    for thread in threads:
        thread.join()
    assert found == {"p0": alone, "p1": alone, "training": trained}


# --- what a prediction says -----------------------------------------------------------------------------------------------


def test_state_and_gradients_are_named_from_their_birth_on():
    """Also at a peak within the first step, before the optimizer is done."""

    def program():
        step(model := net(), torch.optim.Adam(model.parameters(), foreach=False))

    owners = [block.owner for block in predict(program).live("peak")]
    for name in ("gradient", "state"):
        assert {f"{name} of Sequential.{part}" for part in ("0.weight", "2.weight", "2.bias")} & set(owners)
    assert not [owner for owner in owners if "zeros_like" in owner]


@pytest.mark.parametrize("name", ["torch.cuda.HalfTensor", torch.cuda.HalfTensor])
def test_names_of_types_have_the_device(name):
    """As in programs that are older than ``.to``."""
    found = []

    def program() -> None:
        x = torch.zeros(300, device="cuda")
        there = torch.zeros(300).type(name)
        found.extend([x.type(), x.type(torch.int64).type(), x.cpu().type(), there.type(), there.device.type, there.dtype])

    peak = predict(program, device="cuda").peak
    kinds = ["cuda.FloatTensor", "cuda.LongTensor", "FloatTensor", "cuda.HalfTensor"]
    assert found == [*[f"torch.{kind}" for kind in kinds], "cuda", torch.float16]
    assert peak == 1536 + 1024 + 2560  # 300 numbers in float32, in float16, and a moment in int64


def test_a_prediction_without_memory_has_a_peak_of_0():
    track = predict(lambda: None)
    assert (track.peak, track.by_category(), track.live()) == (0, {}, [])


def on_the_cpu_saved():
    model, file = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 4000)), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    model.load_state_dict(torch.load(REAL, mmap=True)["model"], strict=False)
    model.load_state_dict(again.state_dict(), assign=True)
    state = torch.load(REAL, mmap=True)
    again(torch.ones(3, 16)).sum().backward()
    return state, model, again


def mixture():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = MixtralForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 100, (2, 16))
    model(ids, labels=ids).loss.backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [on_the_cpu_saved, mixture])
def test_peaks_on_the_cpu_are_pytorchs(program):
    assert predict(program, device="cpu").peak == pytorch_peak(program)


@pytest.mark.filterwarnings("ignore")
def test_rows_of_grouped_products_begin_at_lines_on_cuda():
    """Source: ``create_grouped_gemm_output_tensor``: the last axis is padded to 16 bytes."""

    def program():
        rows, groups = torch.ones(6, 5, device="cuda"), torch.tensor([2, 6], device="cuda", dtype=torch.int32)
        found.append(torch._grouped_mm(rows, torch.ones(2, 5, 7, device="cuda"), offs=groups).stride())
        found.append(torch._grouped_mm(rows.t(), torch.ones(6, 7, device="cuda"), offs=groups).stride())

    found = []
    predict(program)
    assert found == [(8, 1), (5 * 8, 8, 1)]
