"""More single ops as programs for a GPU: those that were read in PyTorch's sources, and had not been seen on one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.pytorch.gpu_ops import BF16, F32, GPU, both_ways, integers, t

aten = torch.ops.aten
SHAPES = ((10, 100_000), (1024, 1024), (70_000, 64), (3, 3_000_000), (100_000, 10))
IMAGES = ((2, 3, 16, 16), (8, 64, 32, 32), (1, 512, 7, 7), (4, 12, 100, 100))
_SMALL = 2_000_000  # elements of what is sorted or scanned


def _flash(queries: int, keys: int, size: int, dropout: float = 0.0, heads: int = 4, causal: bool = False) -> torch.Tensor:
    q, k, v = (t(2, n, tokens, size, dtype=BF16) for n, tokens in ((heads, queries), (4, keys), (4, keys)))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal, enable_gqa=heads != 4)


FLASH: dict[str, Callable[[], Any]] = {
    f"flash {q}x{k} {size} {name}": partial(_flash, q, k, size, **options)
    for q, k in ((64, 64), (512, 512), (1, 8192), (16, 16_384), (300, 77))
    for size in (32, 96, 128)
    for name, options in (("", {}), ("dropout", {"dropout": 0.1}), ("heads", {"heads": 8}), ("causal", {"causal": True}))
    if name != "causal" or q == k
}
FLASH |= {f"{name}no grad": partial(torch.no_grad(), run) for name, run in FLASH.items() if name.endswith(" ")}


def _isin(elements: int, tests: int, unique: bool) -> torch.Tensor:
    return torch.isin(integers(1000, elements), torch.randperm(tests, device=GPU), assume_unique=unique)


def _bag(count: int, width: int) -> torch.Tensor:
    begins = torch.arange(0, count, 5, device=GPU)
    return F.embedding_bag(integers(1000, count), t(1000, width), begins, max_norm=1.0, mode="sum")


CHOSEN: dict[str, Callable[[], Any]] = {
    **{
        f"isin {elements} in {tests} {unique}": partial(_isin, elements, tests, unique)
        for elements in (10, 1000, 100_000)
        for tests in (3, 50, 5000)
        for unique in (False, True)
    },
    **{f"isin {n} one": lambda n=n: torch.isin(integers(1000, n), 5) for n in (10, 100_000)},
    **{
        f"{name} max_norm {n}x{width}": partial(function, n, width)
        for n in (1, 7, 500, 3072, 3073, 60_000)
        for width in (8, 300)
        for name, function in (
            ("embedding", lambda n, width: F.embedding(integers(1000, n), t(1000, width), max_norm=1.0)),
            ("embedding_bag", _bag),
        )
    },
    "one_hot": lambda: F.one_hot(integers(10, 5000), 10),
    "to copy": lambda: t(1000).to(GPU, copy=True),
    "to copy strided": lambda: t(100, 30).t().to(device=torch.device(GPU, 0), copy=True, non_blocking=True),
}

EXTREMES = ("max", "min", "std", "var", "std_mean", "var_mean", "median", "nanmedian")
OVER = ("amax", "aminmax", "std", "var_mean", "argmax", "cummax", "median", "nanmedian", "logsumexp")


def _over(name: str, shape: tuple[int, int], axis: int, turned: bool) -> Any:
    x = t(*shape, grad=name != "aminmax")
    return getattr(torch, name)(x.t() if turned else x, dim=axis)


def _of_all(name: str, shape: tuple[int, int], kind: str) -> Any:
    x = t(*shape)
    return getattr(torch, name)({"turned": x.t(), "part": x[:, 1:], "whole": x, "expanded": x[:, :1].expand(shape)}[kind])


REDUCED: dict[str, Callable[[], Any]] = {
    **{
        f"{name} of {rows}x{columns} {axis}{' turned' if turned else ''}": partial(_over, name, (rows, columns), axis, turned)
        for rows, columns in SHAPES
        for name in OVER
        for axis in (0, 1)
        for turned in (False, True)
        if rows * columns <= _SMALL or name not in ("cummax", "median", "nanmedian")
        if not turned or rows * columns <= _SMALL
    },
    **{
        f"{name} of all {rows}x{columns} {kind}": partial(_of_all, name, (rows, columns), kind)
        for rows, columns in SHAPES
        for name in EXTREMES
        for kind in ("whole", "turned", "part", "expanded")
        if rows * columns <= _SMALL
    },
    **{
        f"{name} {rows}x{columns}": lambda name=name, r=rows, c=columns: getattr(torch, name)(
            [t(r, c, grad=False), t(c, grad=False), t(r, grad=False)]
        )
        for rows, columns in SHAPES
        for name in ("_foreach_norm", "_foreach_max")
    },
}


def _normal(count: int, expanded: bool) -> torch.Tensor:
    return torch.normal(
        t(count, 3, grad=False), torch.ones(3, device=GPU).expand(count, 3) if expanded else torch.ones(count, 3, device=GPU)
    )


COUNTED: dict[str, Callable[[], Any]] = {
    f"{name} {n}": partial(function, n)
    for n in (10, 1000, 100_000, 3_000_000)
    for name, function in {
        "unique": lambda n: torch.unique(integers(50, n)),
        "unique all": lambda n: torch.unique(integers(50, n), return_inverse=True, return_counts=True),
        "unique_consecutive": lambda n: torch.unique_consecutive(integers(50, n)),
        "unique_consecutive all": lambda n: torch.unique_consecutive(integers(50, n), return_inverse=True, return_counts=True),
        "searchsorted": lambda n: torch.searchsorted(torch.arange(n, device=GPU), integers(n, 777)),
        "bucketize": lambda n: torch.bucketize(t(n, grad=False), torch.arange(10.0, device=GPU)),
        "nll_loss": lambda n: F.nll_loss(t(n, 10).log_softmax(1), integers(10, n)),
        "nll_loss none": lambda n: F.nll_loss(t(n, 10).log_softmax(1), integers(10, n), reduction="none"),
        "soft_margin_loss": lambda n: F.soft_margin_loss(t(n), t(n, grad=False).sign()),
        "soft_margin_loss none": lambda n: F.soft_margin_loss(t(n), t(n, grad=False).sign(), reduction="none"),
        "masked_scatter": lambda n: t(n).tanh().masked_scatter(t(n, grad=False) > 0, t(n)),
        "dirichlet": lambda n: aten._sample_dirichlet(torch.rand(n, 3, device=GPU) + 0.1),
        "normal expanded": partial(_normal, expanded=True),
        "normal plain": partial(_normal, expanded=False),
    }.items()
}


def _losses_of_pixels(shape: tuple[int, ...], dtype: torch.dtype, reduction: str) -> torch.Tensor:
    return F.nll_loss(t(*shape, dtype=dtype).log_softmax(1), integers(shape[1], shape[0], *shape[2:]), reduction=reduction)


OF_PIXELS: dict[str, Callable[[], Any]] = {
    f"{name} {shape} {dtype}": partial(function, shape, dtype)
    for shape in IMAGES
    for dtype in (F32, BF16)
    for name, function in {
        "group norm 1": lambda s, d: F.group_norm(t(*s, dtype=d), 1, t(s[1], dtype=d), t(s[1], dtype=d)),
        "layer norm": lambda s, d: F.layer_norm(t(*s, dtype=d), s[1:], t(*s[1:], dtype=d), t(*s[1:], dtype=d)),
        "adaptive": lambda s, d: F.adaptive_avg_pool2d(t(*s, dtype=d), 5),
        "nearest": lambda s, d: F.interpolate(t(*s, dtype=d), scale_factor=2, mode="nearest"),
        "bilinear": lambda s, d: F.interpolate(t(*s, dtype=d), scale_factor=2, mode="bilinear"),
        "bicubic": lambda s, d: F.interpolate(t(*s, dtype=d), scale_factor=2, mode="bicubic"),
        "losses of pixels": partial(_losses_of_pixels, reduction="mean"),
        "losses of pixels none": partial(_losses_of_pixels, reduction="none"),
    }.items()
}
OF_PIXELS |= {
    f"batch_norm_stats {shape} {last}": lambda s=shape, last=last: torch.batch_norm_stats(
        t(*s, grad=False).to(memory_format=torch.channels_last if last else torch.contiguous_format), 1e-5
    )
    for shape in IMAGES
    for last in (False, True)
}
OTHERS: dict[str, Callable[[], Any]] = {
    f"{name} {n}": partial(function, n)
    for n in (5, 100)
    for name, function in {
        "geqrf": lambda n: torch.geqrf(t(n, n, grad=False)),
        "where host": lambda n: torch.where(t(n, n) > 0, t(n, n), torch.tensor(1.0)),
        "chunk_cat": lambda n: aten._chunk_cat([t(n, 7, grad=False), t(n + 3, 5, grad=False)], 0, 4),
    }.items()
}
MORE_OPS: dict[str, Callable[[], Any]] = {
    name: partial(both_ways, run)
    for table in (FLASH, CHOSEN, REDUCED, COUNTED, OF_PIXELS, OTHERS)
    for name, run in table.items()
}
