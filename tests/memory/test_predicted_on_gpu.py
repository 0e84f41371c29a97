"""A prediction ``like="cuda"`` is the run on a GPU, event by event, and CuPy takes nothing that no op asked for."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, ours
from tests.memory.predicted_rows import PROGRAMS
from tests.memory.test_predicted import (
    DTYPES,
    FAMILIES,
    LAYOUTS,
    PLAIN,
    RULES,
    SIZES,
    called,
    layer,
    parted,
    trained,
    trained_rows,
)
from tests.memory.test_predicted import short_logs as short_logs
from tests.ops.cases import CASES, loss
from tests.ops.test_contract import arrays_of, step
from tests.predicted import difference_on_gpu
from tests.profiles import every, pairs, share_of_each, some
from tinygrad_mem import optim

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]

# of memory that NumPy made, and of bfloat16, a GPU has nothing
VARIANTS = [*itertools.product([way for way in LAYOUTS if way != "fortran"], SIZES, DTYPES[:3])]
# these name the cpu, which in a prediction is the same device
OF_THE_HOST = {"T.cpu", "as_tensor"}
PROGRAMS_OF_THE_HOST = ("nn.utils.rnn.pack_sequence", "amp.GradScaler", "nn.DataParallel", "compile", "load", "from_torch")


@pytest.mark.parametrize("dtype", some(["float32", "float64"], ["float64"]))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ops(case: OpCase, dtype: str, reliability: Callable[[str, int], None]):
    """In float64 of inputs that are not contiguous: the harder half. The other is a thorough run's: see ``test_functions``."""

    def run() -> None:
        tm.manual_seed(0)
        loss._made.clear()
        inputs = ours(arrays_of(case), dtype, "cuda", grad=case.grad)
        if dtype == "float64":
            turned = [t.detach().permute(*reversed(range(t.ndim))).contiguous() for t in inputs]
            turned = [t.permute(*reversed(range(t.ndim))) for t in turned]
            inputs = [t.requires_grad_(i.requires_grad) for t, i in zip(turned, inputs, strict=True)]
        step(case, inputs)

    assert difference_on_gpu(run) == ""
    reliability("rows of ops on a GPU predicted event by event", 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_functions(family: str, reliability: Callable[[str, int], None]):
    found: list[str] = []
    count = 0
    for number, call in enumerate(FAMILIES[family]):
        if call.name in OF_THE_HOST:
            continue
        rng = np.random.default_rng([number, zlib.crc32(call.name.encode())])
        tried = [PLAIN, VARIANTS[rng.integers(len(VARIANTS))]][: 1 + (number % every(2) == 0)]  # of every second call a variant
        if "init." in call.name:  # weights of no elements have no variance, and no middle
            tried = [variant for variant in tried if 0 not in variant[1].values()]
        for variant in tried:
            count += parted((str(call), *variant), lambda: called(call, *variant, True), found, difference_on_gpu)  # noqa: B023
    assert found == []
    assert count >= 0.8 * len(FAMILIES[family])
    reliability("calls of public functions on a GPU predicted event by event", count)


@pytest.mark.usefixtures("only_memory")
def test_layers(reliability: Callable[[str, int], None]):
    found: list[str] = []
    count = 0
    for row, train in trained_rows(2, 4):
        count += parted((str(row), train), lambda: layer(row, train), found, difference_on_gpu)  # noqa: B023
    assert found == []
    reliability("layers trained on a GPU and predicted event by event", count)


@pytest.mark.usefixtures("only_memory")
def test_optimizers(reliability: Callable[[str, int], None]):
    found: list[str] = []
    count = 0
    rows = pairs(RULES, ("float32", "float16"), (False, True))
    for (name, options), dtype, masters in share_of_each(rows, 2, lambda row: row[0][0]):
        what = name, options, masters, dtype
        count += parted(what, lambda: trained(*what), found, difference_on_gpu)  # noqa: B023
    assert found == []
    reliability("optimizers on a GPU predicted event by event", count)


@pytest.mark.parametrize("name", sorted({name for name, _ in RULES}))
def test_optimizers_of_what_is_not_contiguous(name: str, reliability: Callable[[str, int], None]):
    """Parameters and gradients in any order of memory are moved where they are: no copy of them is made."""
    options = next(options for rule, options in RULES if rule == name) | ({"min_8bit_size": 0} if "8bit" in name else {})
    rng = np.random.default_rng(0)
    start, gradient = (rng.standard_normal((6, 7, 10)).astype("float32") for _ in range(2))

    def stepped(dev: str, laid_out: Callable[[tm.Tensor], tm.Tensor]) -> tm.Tensor:
        p, g = (laid_out(tm.tensor(a, device=dev)) for a in (start, gradient))
        p.requires_grad_()
        rule = getattr(optim, name)([p], **options)
        for _ in range(2):
            p.grad = g
            rule.step()
        return p.detach()

    def turned(t: tm.Tensor) -> tm.Tensor:
        return t.permute(2, 0, 1).contiguous().permute(1, 2, 0).detach()

    def cut(t: tm.Tensor) -> tm.Tensor:
        return tm.stack([t, t], dim=-1)[..., 1].detach()

    right = stepped("cpu", lambda t: t).numpy()
    for layout in (turned, cut):
        laid = layout(tm.tensor(start, device="cuda"))
        assert not laid.is_contiguous()
        assert difference_on_gpu(lambda: stepped("cuda", layout)) == ""  # noqa: B023
        np.testing.assert_allclose(stepped("cuda", layout).cpu().numpy(), right, rtol=2e-6, atol=1e-7)
    reliability("optimizers of non-contiguous tensors on a GPU", 2)


@pytest.mark.parametrize("names", [names for names in PROGRAMS if not names.startswith(PROGRAMS_OF_THE_HOST)])
def test_programs(names: str, reliability: Callable[[str, int], None]):
    def run() -> None:
        tm.manual_seed(0)
        PROGRAMS[names]()

    assert difference_on_gpu(run) == ""
    reliability("programs of several parts on a GPU predicted event by event", 1)
