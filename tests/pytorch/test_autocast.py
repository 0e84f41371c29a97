"""Autocast's decisions op by op: the requests of each op of the language model, and their ends, as PyTorch's sources say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from tests.pytorch.language_model import Model, RMSNorm, Rotary, Size, cross_entropy, log_softmax, softmax  # noqa: E402
from tests.pytorch.recorded import frees_as_before_3_14  # noqa: E402
from tinygrad_mem import pytorch  # noqa: E402
from tinygrad_mem.errors import NotOfferedError  # noqa: E402
from tinygrad_mem.memory import Kind  # noqa: E402

BEGIN = 77_777  # bytes of a block that marks the beginning
HALF = (torch.bfloat16, torch.float16)
Inputs = dict[str, Any]


def inputs() -> Inputs:
    """Of float32 unless the name says otherwise; ``w`` and ``bias`` are weights."""
    made: Inputs = {
        "x": torch.empty(2, 3, 8, device="cuda"),
        "q": torch.empty(2, 2, 3, 4, device="cuda"),
        "scores": torch.empty(2, 3, 3, device="cuda"),
        "w": torch.nn.Parameter(torch.empty(5, 8, device="cuda")),
        "bias": torch.nn.Parameter(torch.empty(5, device="cuda")),
        "mask": torch.empty(3, 3, dtype=torch.bool, device="cuda"),
        "norm": RMSNorm(8, "cuda"),
        "rotary": Rotary(3, 4, "cuda"),
    }
    dtype = torch.get_autocast_dtype("cuda")
    made |= {f"{name}16": torch.empty_like(made[name], dtype=dtype) for name in ("x", "q", "scores")}
    return made


def events(act: Callable[[Inputs], Any], dtype: torch.dtype, trained: bool = False) -> str:
    """``"+96 -0"``: 96 bytes are asked for, and the first of these requests ends; what was there before is left out.

    Trained: its backward follows, outside of autocast, after ``|``.
    """

    def run() -> None:
        with torch.autocast("cuda", dtype=dtype):
            made = inputs()
        for name, tensor in made.items():
            if trained and name[0] in "xqs":
                made[name] = tensor.requires_grad_() * 1  # no leaf, whose casts would be kept
        with torch.no_grad(), torch.autocast("cuda", dtype=dtype):
            gradient = torch.empty_like(act(made)) if trained else None
        _mark()
        with torch.autocast("cuda", dtype=dtype):
            kept = act(made)
        _mark()
        if trained:
            kept.backward(gradient)
            _mark()

    return _told(pytorch.predict(run))


def _mark() -> None:
    torch.empty(BEGIN, dtype=torch.uint8, device="cuda")


def _told(track: pytorch.Prediction) -> str:
    numbers: dict[int, int] = {}
    found: list[str] = []
    marks = count = 0
    for event in track.log:
        if event.kind is Kind.MALLOC and event.requested == BEGIN:
            marks += 1
            found += ["|"] * (marks == 2)
        elif event.kind is Kind.MALLOC and marks and event.role != "WORKSPACE":
            numbers[event.address] = count
            found.append(f"+{event.requested}")
            count += 1
        elif event.kind is Kind.FREE and event.address in numbers:
            found.append(f"-{numbers.pop(event.address)}")
        if marks == 3:
            break
    return " ".join(found).partition(" |")[0] if marks < 3 else " ".join(found)


def alike(text: str) -> list[str]:
    return frees_as_before_3_14(text.split(), lambda event: event[0] == "-")


def linear(made: Inputs) -> Any:
    return torch.einsum("... i, o i -> ... o", made["x"], made["w"])


def zeros(count: int) -> Any:
    return torch.zeros(count, dtype=torch.long, device="cuda")


FORWARD: dict[str, tuple[Callable[[Inputs], Any], str]] = {
    # the input's copy, the weight's, the result; the weight's copy is kept until the region ends
    "einsum: input, weight": (linear, "+96 +80 +60 -1"),
    "einsum, twice: the weight once": (lambda i: (linear(i), linear(i)), "+96 +80 +60 +96 +60 -1"),
    # a list is cast and dropped from its first on
    "einsum, q and k": (lambda i: torch.einsum("... q d, ... k d -> ... q k", i["q"], i["q"] * 1), "+192 +96 +96 +72 -1 -2 -0"),
    # arguments are cast from the last on: GCC computes them so
    "linear": (lambda i: F.linear(i["x"], i["w"], i["bias"]), "+10 +80 +96 +60 -0 -1"),
    "matmul: a view is not kept": (lambda i: i["x"] @ i["w"].T, "+80 +96 +60 -0"),
    "addcmul promotes": (lambda i: torch.addcmul(i["x"], i["x16"], i["x16"]), "+192 +192 +192 -1 -0"),
    # pow and rsqrt in float32, mean and products in what they get
    "norm of float32": (lambda i: i["norm"](i["x"]), "+192 +24 -0 +24 -1 +24 -2 +192 +192 -3"),
    "norm of 16 bits": (lambda i: i["norm"](i["x16"]), "+192 +192 +24 -1 +24 -2 +24 -3 +192 -0 +192 +96 -6 -4"),
    # angles of float32 make results of float32, without a copy of q
    "rotary": (lambda i: i["rotary"](i["q16"], slice(0, 3)), "+96 +96 +96 -0 -1 +96 +96 +96 -3 -4 +192 -2 -5"),
    "where": (lambda i: torch.where(i["mask"], i["scores16"], float("-inf")), "+2 +36 -0"),
    # max and its places, the difference, exp of a copy in float32, the sum, the quotient
    "softmax by hand": (lambda i: softmax(i["scores16"], -1), "+12 +48 -1 +36 -0 +72 +72 -3 +24 +72 -5 -2 -4"),
    "log-softmax by hand": (
        lambda i: log_softmax(i["x16"]),
        "+12 +48 -1 +96 +192 +192 -3 +24 -4 +24 -5 +192 -6 -2 -0",
    ),
    # log_softmax is asked for in the logits' dtype; nll_loss gets a copy, and makes a number and its weight
    "cross-entropy": (lambda i: F.cross_entropy(i["x16"].flatten(0, 1), zeros(6)), "+48 +96 +192 +4 +4 -4 -2 -1 -0"),
    "sum of two dtypes": (lambda i: i["x"] + i["x16"], "+192"),
    "cat of two dtypes": (lambda i: torch.cat([i["x"], i["x16"]]), "+384"),
    "layer norm": (lambda i: F.layer_norm(i["x16"], (8,)), "+192 +192 +24 +24 -2 -3 -0"),
    "silu by hand": (lambda i: i["x16"] * torch.sigmoid(i["x16"]), "+96 +96 -0"),
    "gelu": (lambda i: F.gelu(i["x16"]), "+96"),
    "sum": (lambda i: i["x16"].sum(-1), "+24"),
    "mean": (lambda i: i["x16"].mean(-1), "+12"),
    "pow": (lambda i: i["x16"].pow(2), "+192 +192 -0"),
    # a copy in float32, the number, which lies in memory for all losses, and the losses
    "mse": (lambda i: F.mse_loss(i["x16"], i["x"]), "+192 +192 +192 -2 -0"),
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", FORWARD)
def test_an_op_asks_for_what_the_sources_say(name: str, dtype: torch.dtype) -> None:
    act, expected = FORWARD[name]
    assert alike(events(act, dtype)) == alike(expected)


@pytest.mark.parametrize(("dtype", "expected"), [(HALF[0], "+72 +72 -0"), (HALF[1], "+72")], ids=str)
def test_softmax_reads_float16_without_a_copy_but_not_bfloat16(dtype: torch.dtype, expected: str) -> None:
    assert events(lambda i: F.softmax(i["scores16"], -1), dtype) == expected


TRAINED: dict[str, str] = {
    # the weight's gradient first; copied to float32, then to the weight's layout; then the input's
    "einsum: input, weight": "+96 +80 +60 | +80 +96 -1 -0 +160 -3 +160 -5 +192 -4 +192 -7",
    # casts end in the order in which they began, the last first: input, weight, bias
    "linear": "+10 +80 +96 +60 -0 | +96 +80 +10 -2 -1 +192 -4 +160 -5 +20 -6 +192 -7",
    "rotary": (
        "+96 +96 +96 -0 -1 +96 +96 +96 -3 -4 +192 -2 -5 | "
        "+96 +48 -7 +96 +48 -9 +96 +96 +48 -12 -11 -13 +96 +48 -14 -15 +96 -10 -8 +96 -16 +96 -17"
    ),
    "where": "+2 +36 -0 | +2 +36 -2 +36 -3",
    # the two gradients of exp meet in float32, those of the scores in 16 bits
    "softmax by hand": (
        "+12 +48 +36 -0 +72 +72 -3 +24 +72 -2 | "
        "+72 +72 +72 +72 -9 -8 -7 +72 +24 -10 -5 -12 +72 -11 -4 +36 -13 +36 +12 -15 +36 -16 -1 -17 +36 -14"
    ),
    "log-softmax by hand": (
        "+12 +48 +96 +192 +192 -3 +24 +24 +192 -6 -2 -0 | "
        "+192 +96 +24 -8 +24 -10 -5 +192 -11 -4 +96 -12 -13 +96 +12 -14 +96 -15 -1 -16 +96 -9"
    ),
    "sum of two dtypes": "+192 | +96 +96 -1 +192",
    "silu by hand": "+96 +96 | +96 +96 +96 -2 -0 -4 +96 -3",
    "pow": "+192 +192 | +192 +192 +192 -3 -2 -0 +96 -4 +96 -5",
    "layer norm": "+192 +192 +24 +24 | +192 -0 -2 -3 +96 -4 +96 -5",
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_backward_asks_for_what_the_sources_say(name: str) -> None:
    """The last requests are those of a product with 1, by which inputs are no leaves."""
    assert alike(events(FORWARD[name][0], torch.bfloat16, trained=True)) == alike(TRAINED[name])


def inference(mode: Any) -> None:
    """Two products with one weight."""
    x, weight = torch.empty(3, 8, device="cuda"), torch.nn.Parameter(torch.empty(5, 8, device="cuda"))
    with mode, torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(2):
            F.linear(x, weight)


@pytest.mark.parametrize(
    ("mode", "version", "kept"),
    [
        (torch.no_grad, "", 1),
        (torch.inference_mode, "", 2),
        (torch.inference_mode, "2.11", 2),
        (torch.inference_mode, "2.6", 1),
    ],
)
def test_casts_of_weights_are_kept_but_in_inference_mode_since_2_11(mode: Any, version: str, kept: int) -> None:
    log = pytorch.predict(lambda: inference(mode()), version=version).log
    assert sum(event.requested == 2 * 5 * 8 for event in log if event.kind is Kind.MALLOC) == kept


def test_a_cast_under_no_grad_serves_training_too() -> None:
    def run() -> None:
        x, weight = torch.empty(3, 8, device="cuda"), torch.nn.Parameter(torch.empty(5, 8, device="cuda"))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with torch.no_grad():
                F.linear(x, weight)
            loss = F.linear(x, weight).sum()
        loss.backward()
        seen.append(weight.grad is not None)

    seen: list[bool] = []
    casts = [event for event in pytorch.predict(run).log if event.kind is Kind.MALLOC and event.role == "WEIGHT_CAST"]
    assert seen == [True]
    assert len(casts) == 1


def step(dtype: torch.dtype, within: bool) -> None:
    """A step of the language model; ``within``: backward runs in autocast too."""
    model = Model(Size(vocabulary=50, width=16, layers=2, heads=2, inner=32, context=6), "cuda")
    ids = torch.zeros(2, 6, dtype=torch.long, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        loss = cross_entropy(model(ids), ids)
        if within:
            loss.backward()
    if not within:
        loss.backward()


def casts(dtype: torch.dtype, within: bool) -> Counter[str]:
    log = pytorch.predict(step, dtype, within).log
    return Counter(
        "backward" if e.phase == "backward" else "forward" for e in log if e.kind is Kind.MALLOC and e.op == "_to_copy"
    )


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_casts_of_a_training_step(dtype: torch.dtype) -> None:
    """Counted by hand, a layer and the rest.

    Forward: input and weight of q, k, v, w1, w3; weights of o and w2; q, k and the attention's weights for their products; exp.
    Backward: those, each of a weight and of an input once more in float32; 8 of rotary; 2 of sums of residuals.
    The rest: the head's input and weight, exp in the loss; in backward these, and the logits less their logarithm.
    """
    forward = 5 * 2 + 2 + 3 + 1
    assert casts(dtype, False) == {"forward": 2 * forward + 3 + 1, "backward": 2 * (forward + 8 + 2) + 3 + 1}


def test_casts_that_end_in_an_unknown_order_are_bounded() -> None:
    """Three casts, two of them above 1 MiB: a request that takes one's block may keep 1 MiB more than it asked for."""

    def run() -> None:
        weights = [torch.randn(width, width, device="cuda", requires_grad=True) for width in (1024, 1024, 512)]
        with torch.autocast("cuda", torch.bfloat16):
            for weight in weights:
                weight @ weight

    unknown = pytorch.predict(run).unknown
    assert [size for why, size in unknown.items() if "order of a table of addresses" in why] == [2 << 20]


def test_a_backward_in_autocast_sums_in_float32() -> None:
    """The sums of the gradients of both maxima are then cast: 3 more copies."""
    assert casts(torch.bfloat16, True)["backward"] == casts(torch.bfloat16, False)["backward"] + 3


@pytest.mark.parametrize(
    "call", [lambda x: torch.norm_except_dim(x), lambda x: torch._VF.norm(x), lambda x: torch._VF.norm(x, 2, [0])]
)
def test_norms_are_float32(call: Callable[..., Any]) -> None:
    """Weight norm asks for that of each row of a weight."""

    def run() -> None:
        with torch.autocast("cuda"):
            assert call(torch.empty(3, 4, device="cuda", dtype=torch.float16)).dtype is torch.float32

    assert pytorch.predict(run).peak


SWITCH = torch.set_autocast_enabled  # a program may have imported it by its name


def test_it_begins_wherever_it_is_switched_on() -> None:
    """By PyTorch's C++, in a hook of backward, and before the prediction."""
    found: list[torch.dtype] = []

    def multiply(x: torch.Tensor) -> None:
        found.append((x.detach() @ x.detach()).dtype)

    def within(gradient: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            multiply(gradient)

    def by_name() -> None:
        multiply(torch.ones(2, 2, device="cuda"))
        SWITCH("cuda", True)
        multiply(torch.ones(2, 2, device="cuda"))
        SWITCH("cuda", False)
        multiply(torch.ones(2, 2, device="cuda"))

    def in_a_hook() -> None:
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        y = x * 2
        y.register_hook(within)
        y.backward(torch.ones(2, 2, device="cuda"))

    pytorch.predict(by_name)
    pytorch.predict(in_a_hook)
    SWITCH("cuda", True)
    try:
        pytorch.predict(lambda: multiply(torch.ones(2, 2, device="cuda")))
    finally:
        SWITCH("cuda", False)
    assert found == [torch.float32, torch.float16, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_grid_under_autocast_is_refused_in_words(device: str):
    """It was predicted in float32, with too few bytes."""

    def run(enabled: bool) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            return F.affine_grid(torch.zeros(4, 2, 3, device=device), [4, 3, 16, 16], align_corners=False)

    with pytest.raises(NotOfferedError, match=rf'affine_grid under autocast.*torch\.autocast\("{device}", enabled=False\)'):
        pytorch.predict(run, True, device=device)
    assert pytorch.predict(run, False, device=device).peak > 0
