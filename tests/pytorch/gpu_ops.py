"""Single ops, forward and backward, as programs for a GPU, with shapes on which it depends what their kernels ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

GPU = "cuda"
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LAST = torch.channels_last
LENGTHS = (1000, 5000, 20_000, 100_000, 1_000_000, 10_000_000)
MATRICES = ((10, 100_000), (1024, 1024), (4096, 1000), (70_000, 64), (100_000, 10), (3, 3_000_000))
COUNTS = (1, 7, 500, 3072, 3073, 5000, 60_000)
IMAGES = ((8, 64, 32, 32), (2, 30, 7, 9), (16, 256, 4, 4))


def both_ways(function: Callable[..., Any], *args: Any) -> Any:
    """The results of a function, and the gradients of all of them; everything is held until the end."""
    made = function(*args)
    for result in made if isinstance(made, (tuple, list)) else [made]:
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.backward(torch.ones_like(result), retain_graph=True)
    return made


def t(*shape: int, dtype: torch.dtype = F32, grad: bool = True) -> torch.Tensor:
    """A leaf on the GPU."""
    return torch.randn(*shape, device=GPU, dtype=dtype).requires_grad_(grad)


def three(*shape: int, dtype: torch.dtype = F32) -> Any:
    return (t(*shape, dtype=dtype) for _ in range(3))


def two(*shape: int, dtype: torch.dtype = BF16, grad: bool = True) -> Any:
    return (t(*shape, dtype=dtype, grad=grad) for _ in range(2))


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device=GPU)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=GPU)


# --- attention and products -----------------------------------------------------------------------------------------------


def _forced(kernel: SDPBackend) -> torch.Tensor:
    with sdpa_kernel(kernel):
        return attention(*three(2, 8, 512, 64, dtype=BF16), is_causal=True)


def _one_query(keys: int) -> torch.Tensor:
    return attention(t(1, 8, 1, 64, dtype=BF16, grad=False), *two(1, 8, keys, 64, grad=False))


def _few_queries(keys: int) -> torch.Tensor:
    return attention(t(1, 4, 16, 128, dtype=BF16, grad=False), *two(1, 4, keys, 128, grad=False))


def _of_few_heads() -> torch.Tensor:
    return attention(t(2, 8, 512, 64, dtype=BF16), *two(2, 2, 512, 64), enable_gqa=True)


def _masked(*shape: int) -> torch.Tensor:
    return attention(*three(*shape, dtype=BF16), attn_mask=torch.ones(512, 512, device=GPU, dtype=torch.bool))


def _added_mask() -> torch.Tensor:
    return attention(*three(2, 4, 512, 256, dtype=BF16), attn_mask=torch.zeros(512, 512, device=GPU, dtype=BF16))


def _evaluated_encoder() -> torch.Tensor:
    with torch.no_grad():
        return nn.TransformerEncoderLayer(64, 4, 128, device=GPU, batch_first=True).eval()(t(2, 50, 64))


def _grouped() -> torch.Tensor:
    ends = torch.tensor([64, 128, 200, 256], device=GPU, dtype=torch.int32)
    return F.grouped_mm(t(256, 64, dtype=BF16), t(4, 64, 32, dtype=BF16), offs=ends)


ATTENTION: dict[str, Callable[[], Any]] = {
    "flash": lambda: attention(*three(2, 8, 512, 64, dtype=BF16), is_causal=True),
    "flash odd": lambda: attention(*three(2, 8, 500, 64, dtype=BF16)),
    "flash d80": lambda: attention(*three(2, 8, 300, 80, dtype=F16)),
    "flash dropout": lambda: attention(*three(2, 8, 512, 64, dtype=BF16), dropout_p=0.1),
    "flash gqa": _of_few_heads,
    "flash turned": lambda: attention(*(x.transpose(1, 2) for x in three(2, 512, 8, 64, dtype=BF16)), is_causal=True),
    **{f"flash one query {n}": partial(_one_query, n) for n in (128, 512, 1000, 4096)},
    **{f"flash few queries {n}": partial(_few_queries, n) for n in (512, 4096)},
    "efficient f32": lambda: attention(*three(2, 8, 512, 64)),
    "efficient f32 causal": lambda: attention(*three(2, 8, 512, 64), is_causal=True),
    "efficient f32 odd": lambda: attention(*three(2, 8, 500, 40)),
    "efficient mask bf16": lambda: _masked(2, 8, 512, 64),
    "efficient mask bf16 128": lambda: _masked(2, 8, 512, 128),
    "efficient mask bf16 256": _added_mask,
    "efficient f32 256": lambda: attention(*three(2, 4, 512, 256)),
    "efficient f32 long": lambda: attention(*three(1, 2, 4096, 64)),
    "efficient f32 cross": lambda: attention(t(1, 2, 100, 64), t(1, 2, 4096, 64), t(1, 2, 4096, 64)),
    "math f64": lambda: attention(*three(2, 2, 128, 64, dtype=F64)),
    "cudnn attention": lambda: _forced(SDPBackend.CUDNN_ATTENTION),
    "math attention": lambda: _forced(SDPBackend.MATH),
    "mha": lambda: nn.MultiheadAttention(64, 4, batch_first=True, device=GPU)(*[t(2, 50, 64)] * 3),
    "encoder": lambda: nn.TransformerEncoderLayer(64, 4, 128, device=GPU)(t(50, 2, 64)),
    "encoder fast": _evaluated_encoder,
}
PRODUCTS: dict[str, Callable[[], Any]] = {
    "mm large": lambda: t(4096, 4096, dtype=BF16) @ t(4096, 4096, dtype=BF16),
    "linear one column": lambda: F.linear(t(64, 200), t(1, 200), t(1)),
    "linear one row": lambda: F.linear(t(1, 200), t(100, 200), t(100)),
    "linear then relu, linear": lambda: F.linear(F.relu(F.linear(t(64, 200), t(100, 200), t(100))), t(10, 100), t(10)),
    "addmm beta": lambda: torch.addmm(t(64, 100), t(64, 200), t(200, 100), beta=0.5),
    "baddbmm": lambda: torch.baddbmm(t(4, 64, 30), t(4, 64, 200), t(4, 200, 30)),
    "addbmm": lambda: torch.addbmm(t(64, 30), t(4, 64, 200), t(4, 200, 30)),
    "mv": lambda: t(64, 200) @ t(200),
    "dot": lambda: t(2000) @ t(2000),
    "outer": lambda: torch.outer(t(200), t(100)),
    "einsum": lambda: torch.einsum("bhqd,bhkd->bhqk", t(2, 4, 30, 16), t(2, 4, 30, 16)),
    "mm strided": lambda: t(300, 400)[:, ::2] @ t(200, 100),
    "bilinear": lambda: F.bilinear(t(20, 30), t(20, 40), t(10, 30, 40), t(10)),
    "grouped_mm": _grouped,
}
PRODUCTS_BY_DTYPE: dict[str, Callable[[torch.dtype], Any]] = {
    "mm": lambda d: t(300, 200, dtype=d) @ t(200, 100, dtype=d),
    "linear": lambda d: F.linear(t(64, 200, dtype=d), t(100, 200, dtype=d), t(100, dtype=d)),
    "linear 3d": lambda d: F.linear(t(4, 64, 200, dtype=d), t(100, 200, dtype=d), t(100, dtype=d)),
    "bmm": lambda d: t(4, 64, 200, dtype=d) @ t(4, 200, 30, dtype=d),
}

# --- convolutions and recurrent layers ------------------------------------------------------------------------------------


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=LAST)


def _3x3(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, weight, t(64, dtype=x.dtype), padding=1)


def _weights(d: torch.dtype) -> torch.Tensor:
    return t(64, 64, 3, 3, dtype=d)


CONVOLUTIONS: dict[str, Callable[[torch.dtype], Any]] = {
    "conv 3x3": lambda d: _3x3(t(*IMAGES[0], dtype=d), _weights(d)),
    "conv 3x3 last": lambda d: _3x3(_last(t(*IMAGES[0], dtype=d)), _last(_weights(d))),
    "conv 3x3 input last": lambda d: _3x3(_last(t(*IMAGES[0], dtype=d)), _weights(d)),
    "conv 1x1": lambda d: F.conv2d(t(*IMAGES[0], dtype=d), t(128, 64, 1, 1, dtype=d)),
    "conv depthwise": lambda d: F.conv2d(t(*IMAGES[0], dtype=d), t(64, 1, 3, 3, dtype=d), padding=1, groups=64),
    "conv groups": lambda d: F.conv2d(t(*IMAGES[0], dtype=d), t(64, 16, 3, 3, dtype=d), padding=1, groups=4),
    "conv stride": lambda d: F.conv2d(t(8, 3, 224, 224, dtype=d), t(64, 3, 7, 7, dtype=d), stride=2, padding=3),
    "conv transposed": lambda d: F.conv_transpose2d(t(8, 64, 16, 16, dtype=d), t(64, 32, 4, 4, dtype=d), stride=2, padding=1),
    "conv1d": lambda d: F.conv1d(t(8, 64, 500, dtype=d), t(128, 64, 5, dtype=d), t(128, dtype=d)),
    "conv3d": lambda d: F.conv3d(t(2, 16, 8, 32, 32, dtype=d), t(32, 16, 3, 3, 3, dtype=d), padding=1),
    "conv dilated": lambda d: F.conv2d(t(4, 32, 32, 32, dtype=d), t(32, 32, 3, 3, dtype=d), padding=2, dilation=2),
    "lstm": lambda d: nn.LSTM(64, 128, 2, device=GPU, dtype=d)(t(20, 8, 64, dtype=d))[0],
}
MORE_LAYERS: dict[str, Callable[[], Any]] = {
    "conv f64": lambda: F.conv2d(t(4, 16, 32, 32, dtype=F64), t(16, 16, 3, 3, dtype=F64), padding=1),
    "conv not contiguous": lambda: F.conv2d(t(8, 32, 32, 64).permute(0, 3, 1, 2), _weights(F32), padding=1),
    "conv transposed input": lambda: F.conv2d(t(*IMAGES[0]).transpose(2, 3), _weights(F32), padding=1),
    "gru": lambda: nn.GRU(64, 128, bidirectional=True, device=GPU)(t(20, 8, 64))[0],
    "rnn": lambda: nn.RNN(64, 128, batch_first=True, device=GPU)(t(8, 20, 64))[0],
    "lstm dropout": lambda: nn.LSTM(64, 128, 2, dropout=0.5, device=GPU)(t(20, 8, 64))[0],
    "lstm proj": lambda: nn.LSTM(64, 128, 1, proj_size=32, device=GPU)(t(20, 8, 64))[0],
    "lstm cell": lambda: nn.LSTMCell(64, 128, device=GPU)(t(8, 64)),
    "gru cell": lambda: nn.GRUCell(64, 128, device=GPU)(t(8, 64)),
}

# --- over the elements of one axis ----------------------------------------------------------------------------------------

ONE_AXIS: dict[str, Callable[[int], Any]] = {
    "mean": lambda n: t(n).mean(),
    "max": lambda n: t(n).max(),
    "argmax": lambda n: t(n).argmax(),
    "norm": lambda n: t(n).norm(),
    "std": lambda n: t(n).std(),
    "any": lambda n: (t(n) > 9).any(),
    "prod": lambda n: t(n).prod(),
    "cumsum": lambda n: t(n).cumsum(0),
    "sort": lambda n: t(n).sort()[0],
    "topk": lambda n: t(n).topk(50)[0],
    "topk many": lambda n: t(n).topk(n // 2)[0],
    "randperm": lambda n: torch.randperm(n, device=GPU),
    "median": lambda n: t(n).median(),
    "nanmedian": lambda n: t(n).nanmedian(),
    "mode": lambda n: t(n).mode()[0],
    "sum int": lambda n: torch.ones(n, dtype=torch.int32, device=GPU).sum(),
    "sum bool": lambda n: torch.ones(n, dtype=torch.bool, device=GPU).sum(),
    "mse": lambda n: F.mse_loss(t(n), t(n, grad=False)),
    "l1": lambda n: F.l1_loss(t(n), t(n, grad=False)),
    "smooth": lambda n: F.smooth_l1_loss(t(n), t(n, grad=False)),
    "huber": lambda n: F.huber_loss(t(n), t(n, grad=False)),
    "bce": lambda n: F.binary_cross_entropy(torch.rand(n, device=GPU).requires_grad_(), torch.rand(n, device=GPU)),
    "bce logits": lambda n: F.binary_cross_entropy_with_logits(t(n), torch.rand(n, device=GPU)),
    "multinomial": lambda n: torch.multinomial(torch.rand(n, device=GPU), 5),
    "multinomial r": lambda n: torch.multinomial(torch.rand(n, device=GPU), 5, replacement=True),
    "logsumexp": lambda n: t(n).logsumexp(0),
    "histc": lambda n: torch.histc(t(n), 50),
    "index_put": lambda n: _put(n),
    "index": lambda n: t(n)[torch.arange(0, n, 2, device=GPU)],
    "index_add": lambda n: t(n).index_add(0, torch.arange(n, device=GPU), t(n)),
    "scatter_add": lambda n: t(n).scatter_add(0, torch.arange(n, device=GPU), t(n)),
}


def _put(n: int) -> torch.Tensor:
    return torch.zeros(n, device=GPU).index_put((torch.arange(n, device=GPU),), torch.ones(n, device=GPU), accumulate=True)


# --- over an axis of a matrix ---------------------------------------------------------------------------------------------

OF_DTYPE: dict[str, Callable[[int, int, torch.dtype], Any]] = {
    "softmax": lambda r, c, d: t(r, c, dtype=d).softmax(1),
    "log_softmax": lambda r, c, d: t(r, c, dtype=d).log_softmax(1),
    "layer_norm": lambda r, c, d: F.layer_norm(t(r, c, dtype=d), (c,), t(c, dtype=d), t(c, dtype=d)),
    "rms_norm": lambda r, c, d: F.rms_norm(t(r, c, dtype=d), (c,), t(c, dtype=d)),
}
OVER_AXIS = (
    "max", "argmax", "amax", "var", "std", "logsumexp", "cumsum", "cumprod", "sort", "argsort", "median", "norm", "any", "all",
    "prod", "mode",
)  # fmt: skip
SHORT = ("mode", "median", "prod")  # of fewer than two million numbers
OF_MATRIX: dict[str, Callable[[int, int], Any]] = {
    "cross_entropy": lambda r, c: F.cross_entropy(t(r, c), zeros(r)),
    "cross_entropy s": lambda r, c: F.cross_entropy(t(r, c), zeros(r), label_smoothing=0.1),
    "index rows": lambda r, c: t(r, c)[zeros(r)],
    "searchsorted": lambda r, c: torch.searchsorted(t(c, grad=False).sort()[0], t(r, c, grad=False)),
    "kl": lambda r, c: F.kl_div(t(r, c).log_softmax(1), torch.rand(r, c, device=GPU), reduction="batchmean"),
}


def _over_axis(name: str, r: int, c: int, axis: int) -> Any:
    x = t(r, c)
    if name in ("any", "all"):
        x = x > 0  # the numbers end
    return getattr(torch, name)(x, dim=axis)


def _reduced(name: str, r: int, c: int, axis: int, d: torch.dtype) -> torch.Tensor:
    return getattr(t(r, c, dtype=d), name)(axis)


# --- rows of tables -------------------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[int], Any]] = {
    "embedding freq": lambda n: F.embedding(integers(1000, n), t(1000, 64), scale_grad_by_freq=True),
    "embedding bf": lambda n: F.embedding(integers(1000, n), t(1000, 64, dtype=BF16)),
    "embedding cut": lambda n: F.embedding(integers(1000, 4, n)[:, :-1], t(1000, 64)),
    "index table": lambda n: t(1000, 64)[integers(1000, n)],
    "index two": lambda n: t(1000, 64)[integers(1000, n), zeros(n)],
    "gather": lambda n: t(n, 30).gather(1, zeros(n, 5)),
    "index_select": lambda n: t(1000, 30).index_select(0, integers(1000, n)),
}


def _embedding(n: int, width: int) -> torch.Tensor:
    return F.embedding(integers(1000, n), t(1000, width))


def _embedding_bag(n: int, width: int) -> torch.Tensor:
    return F.embedding_bag(integers(1000, n, 1), t(1000, width))


# --- images ---------------------------------------------------------------------------------------------------------------

OF_IMAGES: dict[str, Callable[[torch.Tensor, int, torch.dtype], Any]] = {
    "batch_norm": lambda x, c, d: nn.BatchNorm2d(c, device=GPU)(x),
    "batch_norm eval": lambda x, c, d: nn.BatchNorm2d(c, device=GPU).eval()(x),
    "group_norm": lambda x, c, d: F.group_norm(x, 2, t(c, dtype=d), t(c, dtype=d)),
    "instance_norm": lambda x, c, d: F.instance_norm(x),
    "max_pool": lambda x, c, d: F.max_pool2d(x, 2),
    "avg_pool": lambda x, c, d: F.avg_pool2d(x, 2),
    "adaptive": lambda x, c, d: F.adaptive_avg_pool2d(x, 1),
    "adaptive 3": lambda x, c, d: F.adaptive_avg_pool2d(x, 3),
    "adaptive max": lambda x, c, d: F.adaptive_max_pool2d(x, 3),
    "up nearest": lambda x, c, d: F.interpolate(x, scale_factor=2, mode="nearest"),
    "up bilinear": lambda x, c, d: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "up bicubic": lambda x, c, d: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "up area": lambda x, c, d: F.interpolate(x, scale_factor=2, mode="area"),
    "dropout": lambda x, c, d: F.dropout(x),
    "dropout2d": lambda x, c, d: F.dropout2d(x),
    "prelu": lambda x, c, d: F.prelu(x, t(c, dtype=d)),
    "pixel_shuffle": lambda x, c, d: F.pixel_unshuffle(x[..., :4, :4], 2),
}


def _images(function: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> Any:
    x = t(*shape, dtype=dtype).to(memory_format=LAST if last else torch.contiguous_format)
    return function(x, shape[1], dtype)


def _plain_batch_norm(*shape: int) -> torch.Tensor:
    return torch.batch_norm(t(*shape), t(shape[1]), t(shape[1]), None, None, True, 0.1, 1e-5, False)


# --- the rest -------------------------------------------------------------------------------------------------------------


def _linalg(name: str, n: int) -> Any:
    x = t(n, n)
    return getattr(torch.linalg, name)(x @ x.t() + 10 * torch.eye(n, device=GPU))


def _ctc() -> torch.Tensor:
    logs, labels = t(50, 4, 20).log_softmax(2), torch.randint(1, 20, (4, 10), device=GPU)
    return F.ctc_loss(logs, labels, torch.full((4,), 50), torch.full((4,), 10))


def _stft() -> torch.Tensor:
    return torch.stft(t(4, 4000), 256, window=torch.hann_window(256, device=GPU), return_complex=True).abs()


def _clipped() -> torch.Tensor:
    model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4))).to(GPU)
    model(t(10, 300)).sum().backward()
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0)


ACTIVATIONS = (
    "gelu", "silu", "mish", "elu", "selu", "hardswish", "softplus", "leaky_relu", "logsigmoid", "relu6", "celu", "tanhshrink",
    "softsign", "hardtanh",
)  # fmt: skip
REST: dict[str, Callable[[], Any]] = {
    "ctc": _ctc,
    "fft": lambda: torch.fft.rfft(t(64, 1000)).abs(),
    "fft2": lambda: torch.fft.fft2(t(8, 64, 64)).abs(),
    "stft": _stft,
    "cdist": lambda: torch.cdist(t(100, 8), t(200, 8)),
    "pdist": lambda: F.pdist(t(100, 8)),
    "cat": lambda: torch.cat([t(100, 3), t(100, 5)], 1),
    "stack": lambda: torch.stack([t(100, 3) for _ in range(5)]),
    "where": lambda: torch.where(t(100, 100) > 0, t(100, 100), 0.0),
    "roll": lambda: torch.roll(t(100, 100), 3, 0),
    "repeat_interleave": lambda: torch.repeat_interleave(t(100, 3), 4, 0),
    "tril": lambda: t(100, 100).tril(),
    "normal": lambda: torch.normal(torch.zeros(10000, device=GPU), torch.ones(10000, device=GPU)),
    "bernoulli": lambda: torch.bernoulli(torch.rand(10000, device=GPU)),
    "item": lambda: t(10).sum().item(),
    "isnan": lambda: t(10000).isnan().any(),
    "cosine": lambda: F.cosine_similarity(t(100, 64), t(100, 64)),
    "normalize": lambda: F.normalize(t(100, 64)),
    "gumbel": lambda: F.gumbel_softmax(t(100, 64), hard=True),
    "glu": lambda: F.glu(t(100, 64)),
    **{f"act {name}": lambda name=name: getattr(F, name)(t(1000, 100)) for name in ACTIVATIONS},
    "to cpu": lambda: t(100, 100).t().cpu(),
    "to cpu half": lambda: t(100, 100).to("cpu", F16),
    "from cpu t": lambda: torch.randn(100, 100).t().to(GPU),
    "from cpu half": lambda: torch.randn(100, 100).to(GPU, F16),
    "from cpu pinned": lambda: torch.randn(100, 100).pin_memory().to(GPU, non_blocking=True),
    "copy strided": lambda: torch.zeros(100, 100, device=GPU).t().copy_(torch.randn(100, 100)),
    "clip_grad_norm": _clipped,
}


def _programs() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Name, function and arguments of each."""
    for table in (ATTENTION, PRODUCTS, MORE_LAYERS, REST):
        yield from ((name, partial(both_ways, function)) for name, function in table.items())
    for table, dtypes in ((PRODUCTS_BY_DTYPE, (F32, BF16, F16, F64)), (CONVOLUTIONS, (F32, BF16, F16))):
        for name, function in table.items():
            yield from ((f"{name} {d}", partial(both_ways, function, d)) for d in dtypes)
    for n in LENGTHS:
        yield from ((f"{name} {n}", partial(both_ways, function, n)) for name, function in ONE_AXIS.items())
        yield from ((f"sum {n} {d}", partial(both_ways, lambda n, d: t(n, dtype=d).sum(), n, d)) for d in (F32, BF16))
    for rows, columns in MATRICES:
        yield from _of_matrix(rows, columns)
    for n in COUNTS:
        yield from ((f"{name} {n}", partial(both_ways, function, n)) for name, function in ROWS.items())
        for width in (8, 300):
            yield f"embedding {n} {width}", partial(both_ways, _embedding, n, width)
            yield f"embedding_bag {n} {width}", partial(both_ways, _embedding_bag, n, width)
    for shape in IMAGES:
        for name, function in OF_IMAGES.items():
            for d, last in ((d, last) for d in (F32, BF16) for last in (False, True)):
                yield f"{name} {shape} {d} {last}", partial(both_ways, _images, function, shape, d, last)
        grid = (shape[0], 10, 10, 2)
        sampled = partial(both_ways, lambda s, g: F.grid_sample(t(*s), t(*g), align_corners=False), shape, grid)
        yield f"grid_sample {shape}", sampled
        yield f"unfold {shape}", partial(both_ways, lambda s: F.unfold(t(*s), 3), shape)
        yield f"bn no cudnn {shape}", partial(both_ways, _plain_batch_norm, *shape)
    for n in (16, 300):
        for name in ("cholesky", "inv", "svd", "qr", "eigh", "det", "slogdet", "pinv"):
            yield f"linalg {name} {n}", partial(both_ways, _linalg, name, n)
        yield f"solve {n}", partial(both_ways, lambda n: torch.linalg.solve(t(n, n), t(n, 3)), n)
        yield f"matrix_exp {n}", partial(both_ways, lambda n: torch.matrix_exp(t(n, n) / 100), n)


def _of_matrix(rows: int, columns: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    shape = f"{rows}x{columns}"
    for d in (F32, BF16):
        for name, axis in product(("sum", "mean"), (0, 1)):
            yield f"{name} {shape} {axis} {d}", partial(both_ways, _reduced, name, rows, columns, axis, d)
        for name, function in OF_DTYPE.items():
            yield f"{name} {shape} {d}", partial(both_ways, function, rows, columns, d)
    for axis in (0, 1):
        for name in OVER_AXIS:
            if name not in SHORT or rows * columns <= 2_000_000:
                yield f"{name} {shape} {axis}", partial(both_ways, _over_axis, name, rows, columns, axis)
        yield f"softmax {shape} {axis} t", partial(both_ways, lambda r, c, a: t(r, c).t().softmax(a), rows, columns, axis)
        yield f"topk {shape} {axis}", partial(both_ways, lambda r, c, a: t(r, c).topk(3, a), rows, columns, axis)
        yield f"kthvalue {shape} {axis}", partial(both_ways, lambda r, c, a: t(r, c).kthvalue(2, a), rows, columns, axis)
    yield from ((f"{name} {shape}", partial(both_ways, function, rows, columns)) for name, function in OF_MATRIX.items())


OPS = dict(_programs())
