"""Under autocast, every public function gives the dtypes that PyTorch's gives, on the CPU's lists and on CUDA's."""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Any

import pytest
import torch

import tinygrad_mem as tm
from tests.amp.oracle import MIXES, dtypes_of, ours, outcome, pytorchs, theirs
from tests.profiles import some
from tests.sturdy.calls import CALLS, Call, Of, f
from tinygrad_mem import memory
from tinygrad_mem.functional.door import POLICIES
from tinygrad_mem.nn import functional as F

DIFFERENCES = {
    ("cpu", "F.pad"): "padding by reflection only moves numbers: it stays in half precision, at half the bytes",
    ("cuda", "normal"): "the dtype of the mean, as PyTorch has it on the cpu",
    ("cuda", "index_add"): "mixed dtypes are refused, as PyTorch does where it computes: its fake tensors do not look",
    ("cuda", "T.index_add_"): "the same",
    ("cuda", "index_copy"): "the same",
    ("cuda", "T.index_copy_"): "the same",
    ("cuda", "T.index_put_"): "the same",
    ("cuda", "T.addmm_"): "the same",
    ("cuda", "F.multi_head_attention_forward"): "the weights are in the dtype of the result, whose products they are for",
}
if torch.version.cuda:
    DIFFERENCES["cuda", "T.__setitem__"] = "mixed dtypes are refused; the fake tensors of a build for CUDA do not look"


@cache
def outcomes(device: str, half: str) -> tuple[dict, dict]:
    return ours(CALLS, device, half), theirs(CALLS, device, half)


# The lists of a device are the same for both halves.
REGIONS = some([*itertools.product(("cpu", "cuda"), ("float16", "bfloat16"))], [("cpu", "bfloat16"), ("cuda", "float16")])


@pytest.mark.parametrize(("device", "half"), REGIONS)
def test_every_function_gives_pytorchs_dtypes(device: str, half: str):
    mine, other = outcomes(device, half)
    wrong = set()
    for (i, mix), expected in other.items():
        if not isinstance(expected, Exception) and mine[i, mix] != expected:
            wrong.add((device, CALLS[i].name))
            assert (device, CALLS[i].name) in DIFFERENCES, f"{CALLS[i]} of {mix}: {mine[i, mix]!r}, PyTorch {expected}"
    assert wrong == {key for key in DIFFERENCES if key[0] == device}, "a difference is no more"


@pytest.mark.parametrize(("device", "half"), REGIONS)
def test_the_comparison_is_of_something(device: str, half: str):
    _, other = outcomes(device, half)
    answered = [key for key, value in other.items() if not isinstance(value, Exception)]
    assert len(answered) > 0.8 * len(CALLS) * len(MIXES)
    mixed = {CALLS[i].name for (i, mix) in answered if half in other[i, mix] and mix == ("float32",)}
    assert {"matmul", "F.linear", "F.conv2d"} <= mixed, "nothing was cast"


def listed() -> list[tuple[str, str]]:
    """(device, function) of the policies, where users can call the function."""
    found = [(device, function.__name__) for device, policies in POLICIES.items() for function in policies]
    return [(d, n) for d, n in found if hasattr(tm, n) or hasattr(F, n)]


@pytest.mark.parametrize(("device", "name"), listed())
def test_every_function_with_a_policy_is_called(device: str, name: str):
    aliases = {"upsample": "interpolate"}
    names = {call.name.removeprefix("F.").removeprefix("T.") for call in CALLS}
    assert aliases.get(name, name) in names, "a function with a policy that tests/sturdy/calls.py does not call"


def test_functions_with_a_policy_are_pytorchs():
    places = (torch, torch.nn.functional, torch.linalg, torch.Tensor)
    for policies in POLICIES.values():
        unknown = {f.__name__ for f in policies if not any(hasattr(place, f.__name__) for place in places)}
        ours = {
            "gathered_linear",
            "quantized_linear",
            "ring_attention",
            "varlen_attn",
        }  # as linear and scaled_dot_product_attention
        assert unknown <= {"rpow", "recurrent_layer", "layer_of_steps"} | ours, (
            "Tensor.__rpow__, and what RNN, LSTM and GRU call"
        )


def test_the_loss_that_does_not_fit_half_precision_is_refused_on_cuda():
    loss = Call("F.binary_cross_entropy", (f(3, 4), f(3, 4)))
    with pytorchs("cuda"):
        theirs = outcome(loss, ("float32",), torch, "cuda")
    assert "unsafe to autocast" in str(theirs)
    mine = ours([loss], "cuda")[0, ("float32",)]
    assert isinstance(mine, RuntimeError)
    assert re.search("binary_cross_entropy and nn.BCELoss are unsafe to autocast.*_with_logits", str(mine))
    assert ours([loss], "cpu")[0, ("half",)] == ["float32"]

    def within_a_disabled_region() -> None:
        p = tm.rand(3, device="cuda")
        with tm.autocast("cuda"), tm.autocast("cuda", enabled=False):
            assert F.binary_cross_entropy(p, p).dtype == tm.float32

    memory.predict(within_a_disabled_region)


@pytest.mark.parametrize("lower", ["float16", "bfloat16"])
def test_the_other_half_precision_is_not_joined(lower: str):
    """It was cast to the region's, which loses numbers beyond 65,504, or digits."""
    for first, second in itertools.product(("float16", "bfloat16", "float32", "float64"), repeat=2):
        found = []
        for lib in (tm, torch):
            each = [lib.ones(2, dtype=getattr(lib, dtype)) for dtype in (first, second)]
            with lib.autocast("cpu", dtype=getattr(lib, lower)):
                try:
                    found.append(str(lib.cat(each).dtype).removeprefix("torch."))
                except RuntimeError as error:
                    found.append(str(error)[:19])
        assert found[0] == found[1], (first, second)


@pytest.mark.parametrize("given", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("lower", ["float16", "bfloat16"])
def test_what_joins_parts_of_its_own_is_not_cast(lower: str, given: str):
    """``pad`` and ``affine_grid`` join under autocast: the other half precision became the region's."""
    found: list[Any] = []
    for lib in (tm, torch):
        x, theta = (lib.ones(*shape, dtype=getattr(lib, given)) for shape in ((2, 3, 4), (1, 2, 3)))
        with lib.autocast("cpu", dtype=getattr(lib, lower)):
            pads = [lib.nn.functional.pad(x, (1, 1), mode) for mode in ("constant", "circular", "reflect", "replicate")]
            of_theta = lib.nn.functional.affine_grid(theta, (1, 1, 2, 2), align_corners=False)
        found.append([str(y.dtype).removeprefix("torch.") for y in (of_theta, *pads)])
    assert found[0][:3] == found[1][:3]
    assert found[0][3:] == [given] * 2  # see DIFFERENCES


SEQUENCES = [
    Call("cat", ([f(2, 3), f(2, 3)],)),
    Call("stack", ((f(2, 3), f(2, 3)),)),
    Call("einsum", ("bi,bi->b", [f(2, 3), f(2, 3)])),
]


@pytest.mark.parametrize("call", SEQUENCES, ids=str)
def test_tensors_in_lists_are_cast(call: Call):
    mine, other = ours([call], "cpu"), theirs([call], "cpu")
    assert {key: value for key, value in mine.items() if not isinstance(other[key], Exception)} == {
        key: value for key, value in other.items() if not isinstance(value, Exception)
    }


NAMED = [
    Call("sum", (Of((3, 4)),), {"dtype": "float64"}),
    Call("cumsum", (Of((3, 4)), 1), {"dtype": "float64"}),
    Call("F.softmax", (Of((3, 4)), 1, 3, "float64")),
    Call("softmax", (Of((3, 4)), 1)),
]


@pytest.mark.parametrize("call", NAMED, ids=str)
def test_a_dtype_that_the_call_names_stands(call: Call):
    assert ours([call], "cuda") == theirs([call], "cuda")


def test_operators_are_functions_too():
    x, w = tm.randn(2, 3), tm.randn(3, 4)
    with tm.autocast("cpu", dtype=tm.float16):
        assert (x @ w).dtype == tm.float16
        assert (x.half() * 2 + x.half()).dtype == tm.float16
        assert (x.half() + x).dtype == tm.float32
        assert dtypes_of(tm.nn.Linear(3, 4)(x)) == ["float16"]


RECURRENT = ("RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell")


def recurrent_dtypes(library: Any, kind: str, region: str, given: str, state: str | None, packed: bool = False) -> list[str]:
    """The dtypes of what a layer in float32 gives under autocast of the CPU."""
    layer, of = getattr(library.nn, kind)(4, 5), {"dtype": getattr(library, given)}
    x = library.ones(3, 2, 4, **of) if "Cell" not in kind else library.ones(2, 4, **of)
    if packed:
        x = library.nn.utils.rnn.pack_padded_sequence(x, [3, 2])
    hx = state and library.zeros(*(2, 5) if "Cell" in kind else (1, 2, 5), dtype=getattr(library, state))
    with library.autocast("cpu", dtype=getattr(library, region)):
        y = layer(x, (hx.float(), hx) if state and "LSTM" in kind else hx)
    return dtypes_of((y[0].data, *y[1:]) if packed else y)


@cache
def pytorch_has_the_lstms_kernel(region: str) -> bool:
    """In bfloat16 on processors with AVX-512, in float16 on fewer."""
    try:
        return recurrent_dtypes(torch, "LSTM", region, "float32", None) == [region] * 3
    except RuntimeError:
        return False


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_have_pytorchs_dtypes_on_the_cpu(kind: str):
    """PyTorch runs an LSTM in one kernel, in the dtype of the region. It makes the other layers of products in it: the states
    of a GRU, of single steps and of a packed LSTM are sums with the old state and have its dtype too.

    Where the processor lacks the LSTM's kernel, PyTorch fails, or uses the way of the others. Ours has one answer everywhere.
    """
    dtypes = ("float32", "bfloat16")
    for region, given, state in itertools.product(("bfloat16", "float16"), dtypes, (None, *dtypes)):
        for packed in (False, True)[: 1 + ("Cell" not in kind)]:
            case = kind, region, given, state, packed
            mine = recurrent_dtypes(tm, *case)
            if kind == "LSTM" and not packed and not pytorch_has_the_lstms_kernel(region):
                assert mine == [region] * 3, case
            else:
                assert mine == recurrent_dtypes(torch, *case), case


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_in_half_precision_give_float32_gradients(kind: str):
    """And on CUDA all of them run in half precision."""
    found = []

    def run(where: str) -> None:
        layer = getattr(tm.nn, kind)(4, 5)
        with tm.autocast(where, dtype=tm.float16):
            y = layer(tm.randn(3, 2, 4) if "Cell" not in kind else tm.randn(3, 4))
        while isinstance(y, tuple):
            y = y[0]
        y.sum().backward()
        assert {p.grad.dtype for p in layer.parameters()} == {tm.float32}
        found.append(y.dtype)

    run("cpu")
    memory.predict(run, "cuda")
    assert found == [tm.float16 if kind in ("RNN", "LSTM", "RNNCell") else tm.float32, tm.float16]
    if "Cell" not in kind:
        with pytest.raises(ValueError, match="does not match weight dtype"):
            getattr(tm.nn, kind)(4, 5)(tm.ones(3, 4).half())


def test_in_place_functions_are_not_cast():
    total = tm.zeros(2, 4)
    with tm.autocast("cpu", dtype=tm.float16):
        total.addmm_(tm.ones(2, 3), tm.ones(3, 4))
        assert total.dtype == tm.float32
        with pytest.raises(RuntimeError, match="same dtype"):
            total.addmm_(tm.ones(2, 3).half(), tm.ones(3, 4))
        x = tm.ones(3).half()
        assert x.exp_().dtype == tm.float16


def test_bilinear_without_a_bias_stays_in_its_dtype_on_the_cpu():
    """A bias in float32 made the sum float32 whatever the product was."""
    for library in (tm, torch):
        x, weight = library.ones(2, 3), library.ones(4, 3, 3)
        with library.autocast("cpu", dtype=library.bfloat16):
            assert library.nn.functional.bilinear(x, x, weight).dtype == library.float32
