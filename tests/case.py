"""The row that every op has, and the comparison with PyTorch that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm

TOLERANCE = {"float64": (1e-10, 1e-10), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-3), "bfloat16": (1.6e-2, 1e-5)}
"""dtype -> (rtol, atol): float64 is our promise, the others are PyTorch's own test tolerances."""


@dataclass(frozen=True)
class OpCase:
    """One op, held to every promise of ``test_contract.py``.

    Attributes:
        name: unique, names the test.
        op: name of the op class that must be recorded (or several, where the function composes).
        run: our function of the tensors made from ``inputs``.
        reference: PyTorch's, of its tensors.
        inputs: makes NumPy arrays from a generator; floating ones are cast to the dtype under test and get gradients,
            integer and bool ones stay as they are.
        saved: bytes kept for backward, as a function of our input arrays *and the output arrays*: ``saved(*inputs, *outputs)``;
            arrays that the tape keeps of several names are counted once. ``None`` only for ops that save nothing: it means 0.
        grad: False for ops whose result has no gradient.
        tolerance: (rtol, atol) for float32 where PyTorch's own are not met for a stated reason.
        smooth: False where rounding makes finite differences meaningless.
        exact: False where values are random: only shapes, dtypes, bytes and devices are compared.
    """

    name: str
    op: str | Sequence[str]
    run: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Callable[[np.random.Generator], Sequence[np.ndarray]]
    saved: Callable[..., int] | None = None
    grad: bool = True
    tolerance: tuple[float, float] | None = None
    exact: bool = True
    smooth: bool = True


def flat(result: Any) -> list:
    """The tensors of a result, in order: of one tensor, a tuple, a list or a named tuple."""
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in flat(part)]
    return [result] if isinstance(result, (tm.Tensor, torch.Tensor)) else []


def ours(arrays: Sequence[np.ndarray], dtype: str, device: str = "cpu", grad: bool = True) -> list[tm.Tensor]:
    """Our tensors of the arrays: floating ones cast to ``dtype`` and requiring grad."""
    made = []
    for a in arrays:
        floating = a.dtype.kind == "f"
        t = tm.tensor(a.astype(dtype) if floating else a, device=device)
        made.append(t.requires_grad_() if floating and grad else t)
    return made


def theirs(arrays: Sequence[np.ndarray], dtype: str, grad: bool = True) -> list[torch.Tensor]:
    """PyTorch's tensors of the arrays, on the cpu."""
    made = []
    for a in arrays:
        floating = a.dtype.kind == "f"
        t = torch.tensor(a)
        t = t.to(getattr(torch, dtype)) if floating else t
        made.append(t.requires_grad_() if floating and grad else t)
    return made


def values(t: tm.Tensor) -> np.ndarray:
    """The values on the host, whatever the device."""
    return t.detach().cpu().numpy()


def assert_same(found: tm.Tensor, expected: torch.Tensor, tolerance: tuple[float, float], what: str = "") -> None:
    """Same shape, same dtype, same values."""
    reference = expected.detach().numpy()
    assert tuple(found.shape) == reference.shape, f"{what}: shape {list(found.shape)}, PyTorch has {list(reference.shape)}"
    assert found.dtype == reference.dtype, f"{what}: dtype {found.dtype}, PyTorch has {reference.dtype}"
    np.testing.assert_allclose(values(found), reference, rtol=tolerance[0], atol=tolerance[1], equal_nan=True, err_msg=what)


def against_torch(
    run: Callable[..., Any],
    reference: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    dtype: str = "float64",
    device: str = "cpu",
    grad: bool = True,
    tolerance: tuple[float, float] | None = None,
) -> None:
    """Forward and backward of ``run`` on our tensors equal those of ``reference`` on PyTorch's.

    Every floating result gets a fixed random gradient; gradients of all floating inputs are compared.
    """
    tolerance = tolerance or TOLERANCE[dtype]
    mine, other = ours(arrays, dtype, device, grad), theirs(arrays, dtype, grad)
    results, expected = flat(run(*mine)), flat(reference(*other))
    assert len(results) == len(expected), f"{len(results)} results, PyTorch has {len(expected)}"
    for i, (r, e) in enumerate(zip(results, expected, strict=True)):
        assert_same(r, e, tolerance, f"result {i}")
        assert r.requires_grad == e.requires_grad, f"result {i}: requires_grad {r.requires_grad}, PyTorch has {e.requires_grad}"
    pairs = [(r, e) for r, e in zip(results, expected, strict=True) if e.requires_grad]
    if not pairs:
        return
    rng = np.random.default_rng(7)
    seeds = [rng.standard_normal(tuple(e.shape)).astype(e.detach().numpy().dtype) for _, e in pairs]
    tm.autograd.backward([r for r, _ in pairs], [tm.tensor(s, device=device) for s in seeds])
    torch.autograd.backward([e for _, e in pairs], [torch.tensor(s) for s in seeds])
    for i, (m, o) in enumerate(zip(mine, other, strict=True)):
        assert (m.grad is None) == (o.grad is None), f"gradient {i}: {m.grad}, PyTorch has {o.grad}"
        if o.grad is not None:
            assert_same(m.grad, o.grad, tolerance, f"gradient of input {i}")
