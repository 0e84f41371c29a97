"""What published files import or ask for before they compute: it is here, answers truly, and refuses what it cannot do."""

from __future__ import annotations

import collections
import importlib
import itertools
import operator
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tests.profiles import some
from tinygrad_mem import absent, stand_ins
from tinygrad_mem.nn.attention import SDPBackend, sdpa_kernel
from tinygrad_mem.utils import _pytree
from tinygrad_mem.utils.data import DistributedSampler


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent, "_said", set())


# --- the room

PATHS = [path for paths in stand_ins.PATHS.values() for path in paths.split()]


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_one_of_pytorchs_and_leads_to_a_module(path: str):
    module = importlib.import_module(f"tinygrad_mem.{path}")
    found = operator.attrgetter(path)(tm)
    assert found is module or found is getattr(module, path.rpartition(".")[2])  # a function has its file's name
    importlib.import_module(f"torch.{path}")
    assert "nonsense" not in vars(module)


def test_a_path_may_be_the_first_thing_that_a_program_imports():
    program = "from tinygrad_mem.fx.node import Node; import tinygrad_mem.nn.modules.conv as conv; print(Node, conv.Conv2d)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "tinygrad_mem.nn.conv.Conv2d" in ran.stdout


def test_every_stand_in_has_a_path():
    homes = {path.stem for path in Path(stand_ins.__file__).parent.glob("*.py")} - {"__init__", "refused", "checks", "foreach"}
    assert homes == {home.strip(".") for home in stand_ins.PATHS if not home.startswith("..")}


# --- said once


def test_compile_gives_the_model_back_and_says_so_once(nothing_said: None):
    model = tm.nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="compile: nothing is compiled here"):
        assert tm.compile(model, mode="max-autotune", fullgraph=True) is model

    @tm.compile
    def once(x: Any) -> Any:
        return x

    @tm.compile(dynamic=True)
    def twice(x: Any) -> Any:
        return 2 * x

    assert (once(3), twice(3)) == (3, 6)
    assert tm.compile(model, disable=True) is model


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.to(memory_format=tm.channels_last),
        lambda x: x.contiguous(memory_format=tm.channels_last),
        lambda x: x.clone(memory_format=tm.channels_last),
        lambda x: tm.empty_like(x, memory_format=tm.channels_last),
        lambda x: tm.empty(2, 3, 4, 5, memory_format=tm.channels_last),
        lambda x: tm.nn.Conv2d(3, 3, 1).to(memory_format=tm.channels_last)(x),
    ],
)
def test_channels_last_changes_nothing_and_says_so_once(use: Any, nothing_said: None):
    x = tm.randn(2, 3, 4, 5)
    with pytest.warns(UserWarning, match="memory_format=channels_last changes nothing"):
        y = use(x)
    assert y.shape == (2, 3, 4, 5)
    assert y.is_contiguous()
    use(x)  # without another warning, which would be an error


def test_memory_formats_are_asked_for_truly():
    x = tm.zeros(2, 3, 4, 5)
    assert x.to(memory_format=tm.contiguous_format) is x
    with pytest.raises(TypeError, match="memory_format: expected contiguous_format or channels_last, found 'nonsense'"):
        x.contiguous(memory_format="nonsense")
    for t, last in ((x, False), (x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1), False), (tm.zeros(2, 1, 4, 5), True)):
        assert t.is_contiguous(memory_format=tm.channels_last) is last
    y = tm.zeros(2, 4, 5, 3).permute(0, 3, 1, 2)
    other = torch.zeros(2, 4, 5, 3).permute(0, 3, 1, 2)
    assert y.is_contiguous(memory_format=tm.channels_last)
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous(memory_format=tm.channels_last_3d)


# --- one process, one device


def test_a_file_may_ask_whether_it_is_distributed():
    import tinygrad_mem.distributed as dist

    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    assert rank == 0
    with pytest.raises(AttributeError, match=r"distributed\.rpc is not offered: use `distributed\.all_reduce`"):
        dist.rpc  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"multiprocessing\.spawn: one process computes here"):
        tm.multiprocessing.spawn(print)
    assert tm.multiprocessing.Queue is not None


def test_data_parallel_is_the_module_on_one_device():
    layer = tm.nn.Linear(3, 2)
    model = tm.nn.DataParallel(layer)
    x = tm.randn(4, 3)
    np.testing.assert_array_equal(values(model(x)), values(layer(x)))
    assert list(model.state_dict()) == list(torch.nn.DataParallel(torch.nn.Linear(3, 2)).state_dict())
    assert model.module is layer
    assert not isinstance(layer, tm.nn.parallel.DistributedDataParallel)
    with pytest.raises(NotImplementedError, match=r"one device computes here, found device_ids=\[0, 1\]"):
        tm.nn.DataParallel(layer, device_ids=[0, 1])
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        tm.nn.parallel.DistributedDataParallel(layer)


def test_sync_batch_norm_is_the_batch_norm_of_one_process():
    net = tm.nn.Sequential(tm.nn.Conv2d(2, 3, 1), tm.nn.BatchNorm2d(3, momentum=0.3), tm.nn.Sequential(tm.nn.BatchNorm1d(4)))
    weight = net[1].weight
    net.eval()
    made = tm.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert made is net
    assert [type(made[1]), type(made[2][0])] == [tm.nn.SyncBatchNorm] * 2
    assert made[1].weight is weight
    assert (made[1].momentum, made[1].training) == (0.3, False)
    x = np.random.default_rng(0).standard_normal((4, 3, 5))
    mine, theirs = tm.nn.SyncBatchNorm(3, dtype=tm.float64), torch.nn.SyncBatchNorm(3, dtype=torch.float64)
    np.testing.assert_allclose(values(mine(tm.tensor(x))), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(values(mine.running_var), theirs.running_var.numpy(), rtol=1e-10)
    with pytest.raises(ValueError, match="expected at least 2D input"):
        mine(tm.zeros(3, dtype=tm.float64))


@pytest.mark.parametrize("count", [0, 1, 7, 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_sampler_deals_as_pytorchs(count: int, drop_last: bool):
    for rank in range(3):
        options = {"num_replicas": 3, "rank": rank, "shuffle": False, "drop_last": drop_last}
        mine = DistributedSampler(range(count), **options)
        theirs = torch.utils.data.DistributedSampler(range(count), **options)
        assert len(mine) == len(theirs)
        if count:
            assert list(mine) == list(theirs)
    shares = [DistributedSampler(range(count), 3, rank, seed=5, drop_last=drop_last) for rank in range(3)]
    dealt = list(itertools.chain(*shares))
    assert set(dealt) == set(range(count)) if not drop_last else len(set(dealt)) == count // 3 * 3
    first = list(shares[0])
    assert first == list(shares[0])
    shares[0].set_epoch(1)
    assert count < 7 or first != list(shares[0])


def test_distributed_sampler_takes_the_default_process_group():
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedSampler(range(3))
    tm.distributed.init_process_group("fake", rank=1, world_size=4)
    try:
        assert list(DistributedSampler(range(8), shuffle=False)) == [1, 5]
    finally:
        tm.distributed.destroy_process_group()


def test_distributed_sampler_refuses_a_rank_that_is_none():
    with pytest.raises(ValueError, match=r"Invalid rank 2, rank should be in the interval \[0, 1\]"):
        DistributedSampler(range(3), 2, 2)


# --- questions that have one answer


def test_questions_have_one_answer():
    assert not tm.compiler.is_compiling()
    assert not tm.compiler.is_dynamo_compiling()
    assert not tm.compiler.is_exporting()
    assert not tm.onnx.is_in_onnx_export()
    assert not tm._dynamo.is_compiling()
    tm._dynamo.config.suppress_errors = True
    x = tm.zeros(2)
    for name in ("is_xpu", "is_mps", "is_xla", "is_mkldnn", "is_quantized", "is_nested"):
        assert getattr(x, name) is getattr(torch.zeros(2), name)
    assert x.is_cpu is True
    assert tm.zeros(2, device="meta").is_cpu is False
    assert tm.is_complex(x) is False


def test_decorators_give_the_function_back():
    def double(x: int) -> int:
        return 2 * x

    plain = [tm.compiler.disable, tm.compiler.disable(recursive=False), tm.compiler.allow_in_graph, tm._dynamo.disable]
    plain += [tm.jit.script_method, tm.jit.script_if_tracing, tm.jit._overload_method, tm.compiler.assume_constant_result]
    assert all(decorate(double) is double for decorate in plain)
    assert tm.jit.annotate(list, [1]) == [1]

    class Net(tm.jit.ScriptModule):
        size: tm.jit.Final[int] = 3

        @tm.jit.script_method
        def forward(self, x: Any) -> Any:
            return self.size * x

    assert Net()(2) == 6
    assert not isinstance(tm.nn.Linear(1, 1), tm.jit.ScriptModule)


def test_switches_change_nothing():
    tm.set_float32_matmul_precision("high")
    assert tm.get_float32_matmul_precision() == "high"
    tm.set_float32_matmul_precision("highest")
    with pytest.raises(ValueError, match="expected 'highest', 'high' or 'medium', found 'low'"):
        tm.set_float32_matmul_precision("low")
    tm.backends.cuda.enable_flash_sdp(False)
    q = tm.randn(1, 2, 3, 4)
    plain = tm.nn.functional.scaled_dot_product_attention(q, q, q)
    with (
        tm.backends.cuda.sdp_kernel(enable_flash=False),
        tm.backends.cudnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], set_priority=True),
    ):
        np.testing.assert_array_equal(values(tm.nn.functional.scaled_dot_product_attention(q, q, q)), values(plain))
    assert {b.name: b.value for b in SDPBackend if b.value >= 0} == {
        name: int(b) for name, b in torch.nn.attention.SDPBackend.__members__.items() if int(b) >= 0
    }
    with (
        pytest.raises(TypeError, match="sdpa_kernel: expected an SDPBackend or a list of them, found 'math'"),
        sdpa_kernel(["math"]),
    ):
        pass


def test_weights_are_not_downloaded():
    from tinygrad_mem.hub import load_state_dict_from_url
    from tinygrad_mem.utils.model_zoo import load_url

    assert tm.hub.get_dir().endswith("hub")
    assert tm.hub.get_dir().startswith(tm.hub._get_torch_home())
    found, theirs = (hub.HASH_REGEX.search("resnet18-f37072fd.pth") for hub in (tm.hub, torch.hub))
    assert found is not None
    assert found.group(1) == theirs.group(1)
    for load in (load_state_dict_from_url, load_url, tm.hub.download_url_to_file):
        with pytest.raises(NotImplementedError, match=r"https://x/y\.pth is not downloaded: download the weights yourself"):
            load("https://x/y.pth", progress=True)
    with pytest.raises(AttributeError, match=r"hub\.load is not offered: download the weights yourself"):
        tm.hub.load  # noqa: B018


@pytest.mark.parametrize(
    "module", ["jit", "compiler", "_dynamo", "onnx", "hub", "distributed", "accelerator", "special", "cuda", "_C"]
)
def test_other_names_say_what_to_do(module: str):
    with pytest.raises(AttributeError, match=rf"^{module}\.nonsense is not offered: \w"):
        getattr(tm, module).nonsense  # noqa: B018


# --- the GPU's names where there is no GPU


@pytest.mark.skipif(tm.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_numbers_are_0_and_its_properties_refused():
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        assert getattr(tm.cuda, name)() == getattr(torch.cuda, name)() == 0
    tm.cuda.reset_peak_memory_stats()
    tm.cuda.reset_max_memory_allocated()
    tm.cuda.empty_cache()
    tm.cuda.set_device(-1)
    assert not tm.cuda.memory_stats()
    assert "there is no GPU" in tm.cuda.memory_summary()
    assert not tm.cuda.is_bf16_supported()
    assert tm.cuda.OutOfMemoryError is tm.OutOfMemoryError
    for ask in (tm.cuda.current_device, tm.cuda.get_device_name, tm.cuda.get_device_capability, tm.cuda.mem_get_info):
        with pytest.raises(RuntimeError, match="cuda"):
            ask()
    assert tm.accelerator.current_accelerator() is None
    assert not tm.accelerator.is_available()
    with pytest.raises(NotImplementedError, match=r"cuda.set_device\(1\): 'cuda' is the first GPU: name another"):
        tm.cuda.set_device(1)


def test_in_a_prediction_the_gpus_numbers_are_those_predicted():
    told = {}

    def step() -> None:
        x = tm.zeros(1000, 1000, device="cuda")
        told["used"], told["peak"] = tm.cuda.memory_allocated(), tm.cuda.max_memory_allocated()
        told["summary"] = tm.cuda.memory_summary()
        del x
        tm.cuda.reset_peak_memory_stats()
        told["after"] = tm.cuda.max_memory_allocated()
        for gpu in (None, 0, "cuda"):
            tm.cuda.synchronize(gpu)

    tm.memory.predict(step)
    assert (told["used"], told["peak"], told["after"]) == (4_000_256, 4_000_256, 0)
    assert "4,000,256" in told["summary"]


# --- the old types


def test_old_types_make_and_recognise_tensors():
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
        mine, theirs = getattr(tm, f"{name}Tensor"), getattr(torch, f"{name}Tensor")
        for data in ([], [2, 3], [[1, 0, 1]], [np.array([1, 0])]):
            a, b = mine(*data), theirs(*data)
            assert (tuple(a.shape), f"torch.{a.dtype}") == (tuple(b.shape), str(b.dtype))
            assert isinstance(a, mine)
            assert isinstance(b, theirs)
        assert values(mine([1, 0])).tolist() == theirs([1, 0]).tolist()
        assert tm.zeros(2).type(mine).dtype == mine.dtype
        assert tm.zeros(2).type(f"torch.{name}Tensor").dtype == mine.dtype
    assert not isinstance(tm.zeros(2), tm.LongTensor)
    assert not isinstance(np.zeros(2, "f4"), tm.FloatTensor)
    assert tm.FloatTensor(tm.Size([2, 3])).shape == (2, 3)
    assert tm.LongTensor | None  # as annotations write it
    with pytest.raises(TypeError, match="FloatTensor: expected sizes, or one sequence of numbers, found 2 arguments"):
        tm.FloatTensor([1], [2])
    assert tm.memory.predict(lambda: tm.cuda.FloatTensor(2, 3).type(tm.cuda.LongTensor)).peak == 1024


def test_the_default_type():
    try:
        tm.set_default_tensor_type(tm.DoubleTensor)
        assert tm.zeros(1).dtype == tm.float64
        tm.set_default_tensor_type("torch.HalfTensor")
        assert tm.zeros(1).dtype == tm.float16
    finally:
        tm.set_default_tensor_type("torch.FloatTensor")
    assert tm.get_default_dtype() == tm.float32
    for wrong in (tm.float32, "Float", 3):
        with pytest.raises(TypeError, match="expected FloatTensor or one of its family"):
            tm.set_default_tensor_type(wrong)
    with pytest.raises(RuntimeError, match="only floating dtypes can be the default"):
        tm.set_default_tensor_type(tm.LongTensor)


# --- arguments by name, and endless samplers


@pytest.mark.parametrize(
    "call",
    [
        "L.empty(size=(2, 3))",
        "L.zeros(size=(2, 3), dtype=L.float64)",
        "L.ones(size=(2, 3), requires_grad=True)",
        "L.full(size=(2, 3), fill_value=4)",
        "L.rand(size=(2, 3))",
        "L.randn(size=[2, 3])",
        "L.randint(9, size=(2, 3))",
        "L.randint(high=9, size=(2, 3))",
        "L.randint(3, 9, size=(2, 3))",
        "L.randint(low=3, high=9, size=(2, 3), requires_grad=False)",
        "L.normal(0.0, 1.0, size=(2, 3), dtype=L.float64)",
        "L.zeros(1).new_zeros(size=(2, 3))",
        "L.zeros(1).new_empty(size=(2, 3))",
        "L.zeros(3, 2).permute(dims=(1, 0))",
        "L.permute(L.zeros(3, 2), dims=(1, 0))",
        "L.reshape(L.zeros(6), shape=(2, 3))",
        "L.zeros(2, 1).repeat(repeats=(1, 3))",
        "L.zeros(2, 6).split(split_size=[3, 3], dim=1)[0]",
        "L.nn.init.xavier_normal_(L.empty(size=(2, 3)))",
        "L.nn.Parameter(L.empty(size=(2, 3)))",
    ],
)
def test_sizes_may_be_given_by_name(call: str):
    mine, theirs = (eval(call, {"L": library}) for library in (tm, torch))
    assert (tuple(mine.shape), f"torch.{mine.dtype}", mine.requires_grad) == ((2, 3), str(theirs.dtype), theirs.requires_grad)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'sizes'"):
        tm.empty(sizes=(2, 3))
    with pytest.raises(TypeError, match=r"randint\(\) missing 1 required argument"):
        tm.randint(3)


def test_any_number_of_samples_may_be_asked_for():
    sampler = tm.utils.data.RandomSampler(range(7), replacement=True, num_samples=10**10)
    assert len(sampler) == 10**10
    drawn = list(itertools.islice(sampler, 3000))
    assert set(drawn) == set(range(7))
    tm.manual_seed(3)
    some = list(tm.utils.data.RandomSampler(range(7), replacement=True, num_samples=3000))
    tm.manual_seed(3)
    ticket = tm.device("cpu").generator.ticket()
    assert some == np.random.default_rng(ticket).integers(0, 7, 3000).tolist()  # in pieces as at once


# --- trees


_TREES = (
    3, [1, (2, [3])], {"a": [1], "b": (2, {"c": 3})}, [], (), {"z": 1, "a": 2},
    collections.deque([1, 2], 5), collections.OrderedDict(b=1, a=2), collections.defaultdict(int, b=1, a=2),
)  # fmt: skip


@pytest.mark.parametrize("tree", _TREES)
def test_trees_are_taken_apart_and_put_together(tree: Any):
    import torch.utils._pytree as theirs

    leaves, spec = _pytree.tree_flatten(tree)
    assert leaves == theirs.tree_flatten(tree)[0] == _pytree.tree_leaves(tree)
    made = _pytree.tree_unflatten(leaves, spec)
    assert made == tree
    assert type(made) is type(tree)
    assert [getattr(made, name, None) == getattr(tree, name, None) for name in ("maxlen", "default_factory")] == [True, True]
    assert _pytree.tree_map(lambda x: x + 1, tree) == theirs.tree_map(lambda x: x + 1, tree)
    assert _pytree.tree_map(lambda x, y: x * y, tree, tree) == theirs.tree_map(lambda x, y: x * y, tree, tree)


def test_other_classes_are_leaves_and_named_tuples_are_trees():
    counted, found = collections.Counter("ab"), tm.tensor([[2.0, 3.0]]).max(1)
    assert _pytree.tree_leaves([counted]) == [counted]
    made = _pytree.tree_map(lambda x: x + 1, found)
    assert type(made) is type(found)
    assert (made.values.item(), made.indices.item()) == (4.0, 2)


def test_what_published_layers_call_when_they_are_made():
    from tinygrad_mem.jit.annotations import BroadcastingList2

    def size(kernel: BroadcastingList2[int]) -> int:
        return sum(kernel)

    assert size([2, 3]) == 5
    assert tm._C._log_api_usage_once("torchvision.models.resnet18") is None


# --- tracing, quantization, and what dtypes are asked


def test_classes_of_tracing_may_be_named_and_derived_from_and_are_never_made():
    from tinygrad_mem._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from tinygrad_mem.fx.graph_module import _copy_attr

    from tinygrad_mem import fx

    class Tracer(fx.Tracer):
        pass

    assert not isinstance(tm.zeros(1), fx.Proxy)
    assert not isinstance(tm.nn.Linear(1, 1), fx.GraphModule)
    assert not isinstance(tm.nn.Linear(1, 1), tm._dynamo.eval_frame.OptimizedModule)
    for make in (
        Tracer,
        fx.Graph,
        fx.Interpreter,
        lambda: fx.GraphModule(tm.nn.Linear(1, 1), None),
        lambda: _copy_attr(1, 2, "x"),
    ):
        with pytest.raises(NotImplementedError, match="nothing is traced here: call the module itself"):
            make()
    with pytest.raises(NotImplementedError, match="nothing is compiled here"):
        tm._dynamo.OptimizedModule(tm.nn.Linear(1, 1))
    with TransformGetItemToIndex(), tm._C.DisableTorchFunctionSubclass():
        assert tm.arange(3)[1].item() == 1


@pytest.mark.filterwarnings("ignore")
def test_networks_for_quantization_compute_in_floating_numbers():
    def made(library: Any) -> Any:
        class Net(library.nn.Module):
            def __init__(self):
                super().__init__()
                self.quant, self.dequant = library.ao.quantization.QuantStub(), library.quantization.DeQuantStub()
                self.ops = library.nn.quantized.FloatFunctional()

            def forward(self, x: Any, y: Any) -> Any:
                x, f = self.quant(x), self.ops
                parts = [f.add(x, y), f.mul(x, y), f.add_relu(x, y), f.add_scalar(x, 2.0), f.mul_scalar(x, 2.0), f.matmul(x, y)]
                return self.dequant(f.cat(parts, dim=1))

        return Net()

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
    mine, theirs = made(tm), made(torch)
    assert [n for n, _ in mine.named_modules()] == [n for n, _ in theirs.named_modules()]
    np.testing.assert_allclose(
        values(mine(tm.tensor(a), tm.tensor(b))), theirs(torch.tensor(a), torch.tensor(b)).numpy(), rtol=1e-12
    )
    with pytest.raises(RuntimeError, match="is not intended to use the 'forward'"):
        mine.ops(1)
    for call in (lambda: tm.ao.quantization.prepare(mine), lambda: tm.quantization.fuse_modules(mine, [["quant"]])):
        with pytest.raises(NotImplementedError, match="there are no quantized or packed numbers: train the network as it is"):
            call()
    with pytest.raises(AttributeError, match=r"ao\.quantization\.nonsense is not offered"):
        tm.quantization.nonsense  # noqa: B018


def test_what_a_dtype_is_asked():
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"):
        mine, theirs = getattr(tm, name), getattr(torch, name)
        for question in ("is_floating_point", "is_complex", "is_signed", "itemsize"):
            assert getattr(mine, question) == getattr(theirs, question), (name, question)
        assert tm.zeros(1, dtype=mine).dtype.is_floating_point == theirs.is_floating_point
    assert np.dtype(complex).is_complex


HIDDEN = [
    "gc.get_referents = lambda *things: []",
    "gc.get_referents = lambda *things: [numpy.dtype.__dict__]",
    "gc.get_referents = lambda *things: [{}, {}]",
    "import ctypes; ctypes.pythonapi = object()",
]


@pytest.mark.parametrize("hide", some(HIDDEN, HIDDEN[1::2]))
def test_a_numpy_whose_dtypes_take_no_names_can_be_used(hide: str):
    program = f"""
import gc, sys, numpy
{hide}
import tinygrad_mem as tm
x = tm.ones(2, requires_grad=True)
(x * 2).sum().backward()
print(x.grad.tolist(), x.is_floating_point(), tm.is_complex(x), hasattr(tm.float32, "is_floating_point"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("[2.0, 2.0] True False False\n", "")


def test_operations_of_other_libraries_are_refused():
    with pytest.raises(OSError, match=r"ops\.load_library: x\.so holds operations compiled for PyTorch's tensors"):
        tm.ops.load_library("x.so")
    with pytest.raises(AttributeError, match=r"ops\.torchvision is not offered"):
        tm.ops.torchvision.nms  # noqa: B018


# --- what Hugging Face's files name


def test_dtypes_that_no_tensor_has_may_be_named():
    for name in ("uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"):
        dtype = getattr(tm, name)
        assert dtype.itemsize == getattr(torch, name).itemsize
        assert tm.zeros(1).dtype != dtype
        with pytest.raises(RuntimeError, match="dtype: expected one of float16"):
            tm.zeros(2, dtype=dtype)
        with pytest.raises(RuntimeError, match="dtype: expected one of float16"):
            tm.zeros(2).to(dtype)
    assert (tm.cfloat, tm.cdouble) == (tm.complex64, tm.complex128)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        mine, theirs = tm.finfo(getattr(tm, name)), torch.finfo(getattr(torch, name))
        for question in ("bits", "max", "min", "eps", "tiny", "smallest_normal"):
            assert getattr(mine, question) == getattr(theirs, question), (name, question)


def test_objects_of_other_classes_are_trees_when_they_say_how():
    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    _pytree.register_pytree_node(Pair, lambda p: ([p.a, p.b], "pair"), lambda c, context: Pair(*c), serialized_type_name="Pair")
    try:
        leaves, spec = _pytree.tree_flatten([Pair(1, {"x": 2}), 3])
        assert leaves == [1, 2, 3]
        built = _pytree.tree_unflatten([4, 5, 6], spec)
        assert (built[0].a, built[0].b, built[1]) == (4, {"x": 5}, 6)
    finally:
        del _pytree._REGISTERED[Pair]


def test_what_files_register_or_name_and_seldom_call():
    from tinygrad_mem.nn.attention import flex_attention

    @tm.library.custom_op("mine::double", mutates_args=())
    def double(x: Any) -> Any:
        return 2 * x

    assert tm.library.custom_op("mine::double", double)(2) == 4
    assert tm.library.register_fake("mine::double", double) is double
    assert double(3) == 6
    assert (tm.version.cuda, tm.version.hip) == (None, None)
    assert isinstance(3, tm.types.Number)
    assert not isinstance(tm.zeros(1), flex_attention.BlockMask)
    for name in ("flex_attention", "create_block_mask", "BlockMask", "AuxRequest"):
        with pytest.raises(NotImplementedError, match=rf"{name}: use nn\.functional\.scaled_dot_product_attention with"):
            getattr(flex_attention, name)()


@pytest.mark.parametrize("space", [tm, tm.nn, tm.optim, tm.utils.data, tm.autograd, tm.distributions])
def test_annotations_of_every_public_class_can_be_read(space: Any):
    """Libraries that check or build from annotations ask ``typing.get_type_hints`` of subclasses of ours."""
    for name in dir(space):
        found = getattr(space, name)
        if isinstance(found, type) and found.__module__.startswith("tinygrad_mem"):
            typing.get_type_hints(found)


# --- buffers by assignment


def test_a_buffer_is_registered_when_it_is_assigned():
    def made(lib: Any) -> Any:
        class Net(lib.nn.Module):
            def __init__(self):
                super().__init__()
                self.kept = lib.nn.Buffer(lib.arange(3.0))
                self.lost = lib.nn.Buffer(lib.ones(2), persistent=False)
                self.kept_again = lib.nn.Buffer(lib.zeros(2))
                self.kept_again = lib.nn.Buffer(lib.ones(2), persistent=False)
                self.weight = lib.nn.Parameter(lib.ones(1))

        return Net()

    mine, theirs = made(tm), made(torch)
    assert [n for n, _ in mine.named_buffers()] == [n for n, _ in theirs.named_buffers()] == ["kept", "lost", "kept_again"]
    assert list(mine.state_dict()) == list(theirs.state_dict()) == ["weight", "kept"]
    assert isinstance(mine.kept, tm.nn.Buffer)
    assert not isinstance(mine.weight, tm.nn.Buffer)
    assert not isinstance(tm.zeros(1), tm.nn.Buffer)
    assert mine.double().kept.dtype == tm.float64
    values_of = tm.zeros(2)
    mine.lost = values_of
    assert mine._buffers["lost"] is values_of
    with pytest.raises(TypeError, match="Buffer: expected a Tensor, found list"):
        tm.nn.Buffer([1.0])
    assert tm.nn.Buffer().shape == (0,)


def test_a_buffer_that_is_assigned_is_one_to_the_tracker():
    def peak(make: Any) -> int:
        def step() -> None:
            module = tm.nn.Module()
            make(module, tm.zeros(512))
            make(module, tm.zeros(256))

        return tm.memory.predict(step).by_category()["buffers"]

    def by_name(module: Any, values: Any) -> None:
        module.register_buffer("table", values)

    assert peak(lambda module, values: setattr(module, "table", tm.nn.Buffer(values))) == peak(by_name) > 0


def test_a_bar_that_shows_nothing():
    from tinygrad_mem.utils.model_zoo import tqdm

    assert list(tqdm([1, 2], desc="files")) == [1, 2]
    with tqdm(total=3) as bar:
        bar.update(1)
        bar.close()


@pytest.mark.parametrize("lib", [tm, torch], ids=["ours", "torch"])
def test_an_operation_of_a_files_own_is_found_by_name_and_has_its_registered_gradient(lib: Any):
    space = f"mine_{lib.__name__}"  # PyTorch's registry is the process's

    def scaled(x, factor: float = 2.0):
        return x.detach() * factor

    lib.library.custom_op(f"{space}::scaled", scaled, mutates_args=(), schema="(Tensor x, float factor=2.0) -> Tensor")
    lib.library.register_fake(f"{space}::scaled", lambda x, factor=2.0: lib.empty_like(x))

    def setup(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.save_for_backward(x, output)

    def backward(ctx, grad):
        assert ctx.needs_input_grad[0]
        x, output = ctx.saved_tensors
        return grad * (x + output + ctx.factor), None

    lib.library.register_autograd(f"{space}::scaled", backward, setup_context=setup)
    x = lib.tensor([1.0, 3.0], requires_grad=True)
    operation = getattr(lib.ops, space).scaled
    operation(x).sum().backward()
    assert x.grad.tolist() == [5.0, 11.0]
    assert operation.default(x, 4.0).tolist() == [4.0, 12.0]
    with lib.no_grad():
        assert not operation(x).requires_grad


def test_a_gradient_of_its_own_of_lists_is_refused():
    """The tensors in the list would get no gradient, without a word."""

    def total(xs, *, scale=1.0):
        return sum(xs) * scale

    call = tm.library.custom_op("mine::total", total)
    x = tm.ones(1, requires_grad=True)
    call([x, x], scale=2.0).backward()
    assert x.grad.tolist() == [4.0]
    call.register_autograd(lambda ctx, gradient: gradient)
    for arguments in (([x, x],), ([],)):
        with pytest.raises(
            tm.errors.NotOfferedError, match=r"mine::total has a gradient of its own: give it its tensors one by"
        ):
            call(*arguments)


@pytest.mark.parametrize(
    ("name", "error"), [("", RuntimeError), ("_index", IndexError), ("_type", TypeError), ("_value", ValueError)]
)
def test_checks_of_files(name: str, error: type[Exception]):
    for lib in (tm, torch):
        check = getattr(lib, f"_check{name}")
        check(True, lambda: "never")
        with pytest.raises(error, match=r"^the reason$"):
            check(False, lambda: "the reason")
        with pytest.raises(error, match="Expected cond to be True, but got False"):
            check(False)
        with pytest.raises(TypeError, match="cond must be a bool, but got a Tensor"):
            check(lib.tensor(True))


def test_checks_of_tensors():
    for lib in (tm, torch):
        lib._check_with(KeyError, True, lambda: "never")
        lib._check_tensor_all(lib.tensor([True, True]))
        with pytest.raises(KeyError, match="the reason"):
            lib._check_tensor_all_with(KeyError, lib.tensor([True, False]), lambda: "the reason")
        lib._assert_async(lib.tensor(2.0))
        for message in ((), ("it is zero",)):
            with pytest.raises(RuntimeError, match=message[0] if message else "Expected Tensor with single nonzero value"):
                lib._assert_async(lib.tensor(0), *message)
    tm.memory.predict(lambda: tm._check_tensor_all(tm.rand(3) < 0))


def test_scans_are_imported_and_refused():
    from tinygrad_mem._higher_order_ops.associative_scan import associative_scan

    with pytest.raises(tm.errors.NotOfferedError, match="associative_scan: nothing is compiled here: write it as a loop"):
        associative_scan(lambda a, b: a, tm.zeros(2), 0)


def test_a_layout_is_named_and_changes_nothing():
    for lib in (tm, torch):
        x = lib.ones(2, 3)
        assert x.layout == lib.strided
        for made in (
            lib.zeros(2, 3, layout=lib.strided),
            lib.full_like(x, 2.0, layout=x.layout, dtype=lib.float64),
            x.new_zeros(2, 3, layout=x.layout),
            lib.arange(6, layout=lib.strided),
        ):
            assert made.numel() == 6
    for call in (lambda: tm.zeros(2, layout="sparse_coo"), lambda: tm.ones(2).exp(layout=tm.strided, wrong=1)):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            call()


def test_sparse_tensors_are_refused():
    """A dense copy would have other bytes than the program that is asked about."""
    with pytest.raises(AttributeError, match=r"Tensor\.to_sparse is not offered: tensors are dense"):
        tm.ones(2, 2).to_sparse()
    assert tm.ones(2).to_dense(tm.float64).dtype == tm.float64


def test_transforms_are_imported_and_refused():
    from tinygrad_mem.fft import fftn

    x = tm.tensor([1.0, -2.0, 0.5, 3.0])
    with pytest.raises(tm.errors.NotOfferedError, match=r"fft\.fftn: tensors are real") as refused:
        fftn(x)
    (cosines,) = re.findall(r"`(x @ .*?)`", str(refused.value))
    names = {"x": x, "n": 4, "cos": tm.cos, "pi": tm.pi, "outer": tm.outer, "arange": tm.arange}
    np.testing.assert_allclose(eval(cosines, names).numpy(), np.fft.fft(x.numpy()).real, atol=1e-6)
    np.testing.assert_allclose(-eval(cosines, names | {"cos": tm.sin}).numpy(), np.fft.fft(x.numpy()).imag, atol=1e-6)
    with pytest.raises(AttributeError, match=r"fft\.fast is not offered: tensors are real"):
        tm.fft.fast  # noqa: B018


def test_what_the_trainers_of_transformers_name():
    from tinygrad_mem._C import Graph, Value
    from tinygrad_mem.distributed._composable.fsdp import fully_shard
    from tinygrad_mem.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
    from tinygrad_mem.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from tinygrad_mem.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from tinygrad_mem.distributed.tensor._utils import compute_local_shape_and_global_offset
    from tinygrad_mem.distributed.tensor.placement_types import Partial, Shard, _StridedShard

    from tinygrad_mem.distributed import fsdp, tensor

    assert fully_shard is fsdp.fully_shard
    assert (Shard, Partial) == (tensor.Shard, tensor.Partial)
    assert Partial() == Partial("sum") != Partial("avg")
    never = [Graph, Value, HuggingFaceStorageReader, HuggingFaceStorageWriter, _StridedShard, fsdp.FullyShardedDataParallel]
    never += [fsdp.CPUOffload, fsdp.ShardingStrategy, fsdp.MixedPrecision, fsdp.BackwardPrefetch, fsdp.StateDictType]
    assert not any(isinstance(tm.nn.Linear(1, 1), kind) for kind in never)
    functions = all_to_all_single_autograd, wait_tensor, compute_local_shape_and_global_offset, transformer_auto_wrap_policy
    for refused in (*never, *functions):
        with pytest.raises(tm.errors.NotOfferedError):
            refused(tm.zeros(1))
    with pytest.raises(tm.errors.NotOfferedError, match=r"distribute_tensor: a rank's shard is an ordinary tensor here"):
        tensor.distribute_tensor(tm.zeros(1))
    with pytest.raises(tm.errors.NotOfferedError, match=r"distributed\.fsdp\.wrap\.transformer_auto_wrap_policy: call `"):
        transformer_auto_wrap_policy()
    with pytest.raises(tm.errors.NotOfferedError, match=r"AffineTransform is not offered"):
        tm.distributions.AffineTransform(0.0, 1.0)


def test_what_diffusion_and_detection_files_name():
    from tinygrad_mem.distributed.device_mesh import DeviceMesh
    from tinygrad_mem.distributed.tensor import DTensor

    assert not any(isinstance(tm.zeros(1), kind) for kind in (DeviceMesh, DTensor))
    with pytest.raises(tm.errors.NotOfferedError, match=r"distributed\.DTensor: a rank's shard is an ordinary tensor here"):
        DTensor()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        tm.distributed.init_device_mesh("cuda", (2,))
    for lib in (_pytree, torch.utils._pytree):
        values, context = lib._dict_flatten({"a": 1, "b": 2})
        assert (values, context, lib._dict_unflatten([3, 4], context)) == ([1, 2], ["a", "b"], {"a": 3, "b": 4})
        named, context = lib._dict_flatten_with_keys({"a": 1, "b": 2})
        assert ([value for _, value in named], context) == ([1, 2], ["a", "b"])
    assert tm._dynamo.utils.is_compile_supported("cpu")  # torchvision's own roi_align is Python that it compiles
    assert isinstance(tm.TensorType, type)
    assert tm.Stream is tm.cuda.Stream


def test_functions_of_functions_are_imported_and_refused():
    from tinygrad_mem.func import grad_and_value, vmap

    for function, name in ((grad_and_value, "grad_and_value"), (vmap, "vmap")):
        with pytest.raises(tm.errors.NotOfferedError, match=rf"func\.{name}: call the module itself; `autograd\.grad"):
            function(lambda x: x)


def test_modes_are_defined_and_not_entered():
    class Skip(tm.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
            return func(*args)

    assert not tm.overrides.has_torch_function((tm.zeros(1),))
    with pytest.raises(tm.errors.NotOfferedError, match="overrides: Skip would not be called by any function"), Skip():
        pass


def test_memory_of_the_host_is_not_pinned():
    x = tm.zeros(2)
    assert x.pin_memory() is x
    assert not x.is_pinned()
