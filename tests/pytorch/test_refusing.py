"""Programs with mistakes: a prediction raises PyTorch's own error, at the user's line, and never says a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.opinfo.said import tables
from tests.profiles import share_of_each
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.program import refusing
from tinygrad_mem.pytorch.program.dispatcher import operators

HALF, LONG = torch.float16, torch.int64
Program = Callable[[str], Any]  # of a device


def ones(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device=device, dtype=dtype)


def packed(batch: torch.Tensor, *lengths: int) -> nn.utils.rnn.PackedSequence:
    return nn.utils.rnn.pack_padded_sequence(batch, torch.tensor(lengths))


SHAPES: dict[str, Program] = {
    "matmul": lambda d: ones(d, 3, 4) @ ones(d, 5, 6),
    "linear": lambda d: nn.Linear(4, 3, device=d)(ones(d, 2, 5)),
    "add": lambda d: ones(d, 2, 3) + ones(d, 4),
    "conv2d": lambda d: nn.Conv2d(3, 4, 3, device=d)(ones(d, 1, 4, 8, 8)),
    "view": lambda d: ones(d, 2, 3).view(7),
    "cat": lambda d: torch.cat([ones(d, 2, 3), ones(d, 2, 4)]),
    "stack": lambda d: torch.stack([ones(d, 2), ones(d, 3)]),
    "layer_norm": lambda d: nn.LayerNorm(5, device=d)(ones(d, 2, 4)),
    "cross_entropy": lambda d: F.cross_entropy(ones(d, 4, 5), ones(d, 3, dtype=LONG)),
    "bmm": lambda d: torch.bmm(ones(d, 2, 3, 4), ones(d, 2, 5, 6)),
    "masked_fill_": lambda d: ones(d, 3).masked_fill_(ones(d, 4, dtype=torch.bool), 0),
    "a mask": lambda d: ones(d, 2)[ones(d, 3, dtype=torch.bool)],
    "gather": lambda d: ones(d, 2, 3).gather(1, ones(d, 3, 1, dtype=LONG)),
    "backward": lambda d: (ones(d, 2).requires_grad_() * 2).backward(),
    "packed, of two sequences": lambda d: packed(ones(d, 5, 2, 4), 5, 3, 1),
    "packed, of none": lambda d: packed(ones(d, 5, 2, 4), 5, 0),
    "packed, the longest last": lambda d: packed(ones(d, 5, 2, 4), 3, 5),
    "packed, without numbers": lambda d: packed(ones(d, 5, 2, 0), 5, 3),
    "padded": lambda d: nn.utils.rnn.pad_packed_sequence(packed(ones(d, 5, 2, 4), 5, 3), total_length=4),
    "view of a part": lambda d: ones(d, 4, 5)[:, :3].view(-1),
    "view in place of reshape": lambda d: ones(d, 4, 5).t().view(2, 10),
}
DTYPES: dict[str, Program] = {
    "embedding_bag": lambda d: F.embedding_bag(ones(d, 3), ones(d, 3, 4), ones(d, 1, dtype=LONG)),
    "matmul": lambda d: ones(d, 2, 3) @ ones(d, 3, 2, dtype=HALF),
    "linear": lambda d: nn.Linear(4, 3, device=d)(ones(d, 2, 4, dtype=HALF)),
    "linear of whole numbers": lambda d: nn.Linear(4, 3, device=d)(ones(d, 2, 4, dtype=LONG)),
    "attention": lambda d: nn.MultiheadAttention(8, 2, device=d)(*[ones(d, 2, 3, 8, dtype=HALF)] * 3),
    "cross_entropy": lambda d: F.cross_entropy(ones(d, 4, 5), ones(d, 4)),
    "nll_loss": lambda d: F.nll_loss(ones(d, 4, 5), ones(d, 4, dtype=torch.int32)),
    "an index": lambda d: ones(d, 3, 4)[ones(d, 2)],
    "embedding": lambda d: F.embedding(ones(d, 3), ones(d, 3, 4)),
    "scatter_": lambda d: ones(d, 3, 4).scatter_(1, ones(d, 3, 1, dtype=LONG), ones(d, 3, 1, dtype=HALF)),
    "index_add_": lambda d: ones(d, 3).index_add_(0, ones(d, 1, dtype=LONG), ones(d, 1, dtype=HALF)),
    "x[i] = y": lambda d: ones(d, 3).__setitem__(ones(d, 1, dtype=LONG), ones(d, 1, dtype=HALF)),
    "add_": lambda d: ones(d, 3, dtype=LONG).add_(1.5),
    "mean": lambda d: ones(d, 3, dtype=LONG).mean(),
    "multinomial": lambda d: torch.multinomial(ones(d, 4, dtype=LONG), 2),
    "where": lambda d: torch.where(ones(d, 3), ones(d, 3), 0.0),
    "cdist": lambda d: torch.cdist(ones(d, 3, 2), ones(d, 3, 2, dtype=torch.float64)),
    "softmax": lambda d: ones(d, 3, dtype=LONG).softmax(0),
    "gelu": lambda d: F.gelu(ones(d, 3, dtype=torch.int32)),
    "bits": lambda d: ones(d, 3) & ones(d, 3),
    "bits of a number": lambda d: ones(d, 3, dtype=HALF) | 1,
    "conv1d": lambda d: F.conv1d(ones(d, 1, 3, 8, dtype=torch.float64), ones(d, 4, 3, 3)),
}


def stepped_before_it_moved() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    for device in ("cpu", "cuda"):
        model.to(device)(ones(device, 2, 4)).sum().backward()
        optimizer.step()


DEVICES: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(4, 3).to("cuda")(torch.ones(2, 4)),
    "conv2d": lambda: nn.Conv2d(3, 4, 3).to("cuda")(torch.ones(1, 3, 8, 8)),
    "lstm": lambda: nn.LSTM(4, 5).to("cuda")(torch.ones(2, 3, 4)),
    "cross_entropy": lambda: F.cross_entropy(ones("cuda", 3, 4), torch.zeros(3, dtype=LONG)),
    "state of an optimizer": stepped_before_it_moved,
}


def error_of(run: Callable[[], Any]) -> tuple[type, str, list[str]]:
    with pytest.raises((RuntimeError, ValueError, IndexError)) as found:
        run()
    return type(found.value), str(found.value), getattr(found.value, "__notes__", [])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "program", [*SHAPES.values(), *DTYPES.values()], ids=[f"{n} (shapes)" for n in SHAPES] + [f"{n} (dtypes)" for n in DTYPES]
)
def test_a_mistake_is_refused_in_pytorchs_words(program: Program, device: str):
    real, predicted = error_of(lambda: program("cpu")), error_of(lambda: predict(lambda: program(device), device=device))
    assert predicted[:2] == real[:2]
    assert all("test_refusing.py" in note for note in predicted[2])
    assert len(predicted[2]) == 1


WHOLE = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def test_what_a_gpu_takes_of_whole_numbers_beside_the_cpu_is_what_pytorchs_own_table_says():
    """What PyTorch's CPU refuses is refused for a GPU, too, but for these. ``softsign`` is of ``abs``."""
    more = {op.name for op in tables.op_db if op.dtypesIfCUDA & WHOLE - op.dtypes}
    assert more <= {
        *(op._schema.name.removeprefix("aten::") for op in refusing._MORE_ON_A_GPU),
        "nn.functional.softsign",
        "__rmod__",
    }
    predict(lambda: (ones("cuda", 3, dtype=torch.bool).abs(), ones("cuda", 3, dtype=LONG).histc(4)))


BY_BUILD = {
    torch.bfloat16,
    *(each for name, each in vars(torch).items() if name.startswith("float8")),
}  # the table asks what is built


def taken_by_the_cpu_alone() -> Iterator[tuple[Any, torch.dtype]]:
    """Rows of PyTorch's own table of what kernels take, with a dtype that its CPU takes and no GPU."""
    for op in [each for each in tables.op_db if not each.name.startswith("histogram")]:  # which no prediction takes
        for dtype in sorted(op.dtypes - op.dtypesIfCUDA - BY_BUILD - {torch.complex32}, key=str):
            yield op, dtype


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(*each, id=f"{each[0].formatted_name} {each[1]}")
        for each in share_of_each(taken_by_the_cpu_alone(), 3, lambda each: each[0].formatted_name)
    ],
)
def test_what_only_the_cpu_takes_is_refused_for_a_gpu(op: Any, dtype: torch.dtype):
    """PyTorch's own samples: those that ask for no product, such as of no elements, run."""
    found = set()

    def run() -> None:
        for sample in islice(op.sample_inputs_func(op, "cuda", dtype, False), 12):
            try:
                op(sample.input, *sample.args, **sample.kwargs)
            except NotImplementedError as error:
                found.add(str(error).partition(": ")[2])

    predict(run)
    assert found == {f"PyTorch's kernel on a GPU is not implemented for {dtype}"}


@pytest.mark.parametrize("name", DEVICES)
def test_tensors_on_two_devices_are_refused(name: str):
    kind, text, _ = error_of(lambda: predict(DEVICES[name]))
    assert kind is RuntimeError
    assert text.startswith("Expected all tensors to be on the same device, but found at least two devices")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_cudnn_takes_states_of_the_dtype_of_the_input(kind: str):
    """Under autocast all are of one."""

    def run() -> None:
        layer = getattr(nn, kind)(4, 5).to("cuda")
        state = torch.zeros(1, 3, 5, device="cuda", dtype=torch.float16)
        layer(torch.ones(2, 3, 4, device="cuda"), (state, state) if kind == "LSTM" else state)

    words = "Input and hidden tensors are not the same dtype, found input tensor with Float and hidden tensor with Half"
    with pytest.raises(RuntimeError, match=words):
        predict(run)
    predict(_in_half, run)


def _in_half(run: Callable[[], None]) -> None:
    with torch.autocast("cuda", dtype=torch.float16):
        run()


def test_lengths_beyond_the_steps_are_refused():
    """PyTorch packs fewer steps than it says."""
    with pytest.raises(RuntimeError, match="a length of 6, but the batch has 5 steps"):
        predict(lambda: packed(ones("cuda", 5, 2, 4), 6, 3))


def test_attention_without_a_kernel_is_refused():
    def program() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(*[ones("cuda", 2, 2, 8, 8, dtype=dtype)] * 3)

    dtype = HALF
    assert predict(program).peak
    dtype = torch.float32
    with pytest.raises(RuntimeError, match="No available kernel"):
        predict(program)


def test_what_pytorch_accepts_runs():
    def program() -> None:
        half, index = ones("cuda", 4, dtype=HALF), torch.tensor([0, 1])
        for each in (
            half * ones("cuda", 4),
            ones("cuda", 4)[index],
            torch.cat([half, ones("cuda", 4)]),
            half + torch.tensor(1.0),
        ):
            each.sum()
        F.batch_norm(ones("cuda", 2, 4, 3, dtype=HALF), ones("cuda", 4), ones("cuda", 4))

    assert predict(program).peak


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_condition_of_bytes_is_copied():
    """The condition, two arguments, the result, and the copy of the condition as bool."""
    found = predict(lambda: torch.where(*[ones("cuda", 4096, dtype=each) for each in (torch.uint8, HALF, HALF)]))
    assert found.peak == 4096 + 3 * 2 * 4096 + 4096


def test_opaque_workspaces_are_not_made_up():
    """The backward of oneDNN's LSTM reads one: with other contents the process ends."""

    def program() -> None:
        nn.LSTM(4, 16)(torch.zeros(1, 2, 4))[0].sum().backward()

    assert predict(program, device="cpu").peak


@pytest.mark.parametrize("name", ["rrelu_with_noise", "masked_fill_.Scalar", "batch_norm_update_stats", "_foreach_add_.List"])
def test_what_an_op_writes_has_memory_of_its_own(name: str):
    """Whichever argument it writes: into one repeated element it would write beyond the memory, and end the process."""
    (op,) = operators(name)
    given: dict[str, Any] = {}

    def called(*args: Any, **kwargs: Any) -> None:
        given.update(zip([each.name for each in op._schema.arguments], args, strict=False), **kwargs)

    called._schema = op._schema  # type: ignore[attr-defined]
    with FakeTensorMode():
        fake = torch.empty(3, 5)
    types = [str(each.type) for each in op._schema.arguments]
    refusing._asked(called, tuple([[fake, fake] if "List[Tensor]" in each else fake for each in types]), {}, None)
    for argument in op._schema.arguments:
        own = argument.alias_info is not None and argument.alias_info.is_write
        value = given[argument.name]
        for tensor in value if isinstance(value, list) else [value]:
            assert tensor.shape == (3, 5)
            assert (tensor.untyped_storage().nbytes() == 60) == own
