"""The kernel of attention that runs, and the requests of each."""

from __future__ import annotations

from math import ceil, prod
from typing import Any, NamedTuple

import torch

from .call import Gpu, KernelCall, nbytes, row, up

_HALF = (torch.float16, torch.bfloat16)
_SHORT = {"efficient": "mem_efficient"}  # in the names of PyTorch's switches
_LARGE = ((8, 0), (9, 0), (10, 0), (10, 3))  # cards with at least 164 KiB of shared memory in a multiprocessor
_LOCKS = 16  # bytes before each tile of a gradient of queries
_OF_CUDNN, _MORE = 256, 1 << 20  # bytes that cuDNN's attention was found to take for itself, and the most that it may


def backend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    gqa: bool = False,
    gpu: Gpu | None = None,
) -> str:
    """The kernel of ``scaled_dot_product_attention``: ``"flash"``, ``"efficient"``, ``"cudnn"`` or ``"math"``.

    Args:
        q, k, v: of shapes batch x heads x tokens x size.
        mask: bool, or added to the scores.
        gqa: heads of ``k`` and ``v`` are shared by several of ``q``.
        gpu: the GPU on which it runs.

    Raises:
        RuntimeError: the switches of PyTorch leave none that takes these tensors.

    Source: ``transformers/cuda/sdp_utils.cpp``, ``select_sdp_backend``.
    """
    gpu = gpu or Gpu()
    fits = {"flash": _flash, "efficient": _efficient, "cudnn": _cudnn, "math": lambda *_: True}
    for name in _order(gpu):
        if getattr(torch.backends.cuda, f"{_SHORT.get(name, name)}_sdp_enabled")() and fits[name](
            gpu, q, k, v, mask, dropout, causal, gqa
        ):
            return name
    raise RuntimeError("No available kernel. Aborting execution.")  # in PyTorch's words


def _order(gpu: Gpu) -> tuple[str, ...]:
    """cuDNN's first on Hopper and large Blackwells since PyTorch 2.8, from some cuDNN on; else flash.

    Source: ``sdp_utils.cpp``, ``check_prefer_cudnn_attention`` and ``priority_order``.
    """
    if gpu.version >= (2, 10):
        wanted = gpu.settings.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1" and gpu.cudnn > 91500
        large = gpu.capability in ((9, 0), (9, 3), (10, 0), (10, 3))
    else:
        wanted = gpu.settings.get("TORCH_CUDNN_SDPA_PREFERRED") != "0" and gpu.version >= (2, 8) and gpu.cudnn >= 90900
        large = gpu.capability in ((9, 0), (10, 0))
    return ("cudnn", "flash", "efficient", "math") if wanted and large else ("flash", "efficient", "math", "cudnn")


def _shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shared: bool) -> bool:
    """Four axes, equal batches, equal heads (or a whole number of them for each shared one), no empty sequence."""
    if not q.dim() == k.dim() == v.dim() == 4 or not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    heads = q.shape[1], k.shape[1], v.shape[1]
    if not (heads[0] == heads[1] == heads[2] or (shared and heads[1] == heads[2] and heads[0] % heads[1] == 0)):
        return False
    return min(q.shape[2], k.shape[2]) > 0


def _dense(mask: torch.Tensor | None, *tensors: torch.Tensor, single: bool) -> bool:
    """True if the last axis has stride 1; with ``single``, an axis of size 1 counts too."""
    dense = all(t.stride(-1) == 1 for t in tensors) or (single and tensors[0].shape[-1] == 1)
    return dense and (mask is None or mask.stride(-1) == 1)


def _flash(
    gpu: Gpu, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, dropout: float, causal: bool, gqa: bool
) -> bool:
    if mask is not None or not _shapes(q, k, v, gqa) or not _dense(None, q, k, v, single=True):
        return False
    size, trained = q.shape[-1], torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    if not size == k.shape[-1] == v.shape[-1] or size > 256 or q.dtype not in _HALF:
        return False
    newest = (9, 0) if gpu.version < (2, 7) else (12, 1)
    if not (8, 0) <= gpu.capability <= newest or not q.dtype == k.dtype == v.dtype:
        return False
    if trained and (8, 6) <= gpu.capability <= (8, 9) and (192 < size <= 224 or (size > 224 and dropout > 0)):
        return False
    return not (causal and q.shape[-2] != k.shape[-2])


def _efficient(
    gpu: Gpu, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, dropout: float, causal: bool, gqa: bool
) -> bool:
    if not _shapes(q, k, v, False) or not _dense(mask, q, k, v, single=False):
        return False
    newest = (9, 0) if gpu.version < (2, 7) else (12, 1)
    step, size, other = _alignment(gpu, q.dtype), q.shape[-1], v.shape[-1]
    if size != k.shape[-1] or size % step or other % step or not size or not other:
        return False
    takes = (torch.float32, *_HALF) if gpu.capability >= (8, 0) else (torch.float32, torch.float16)
    return (5, 0) <= gpu.capability <= newest and q.dtype in takes and q.dtype == k.dtype == v.dtype


def _alignment(gpu: Gpu, dtype: torch.dtype) -> int:
    """The number of which the size of a head is a multiple. Source: ``sdp_utils.cpp``, ``minimum_gemm_alignment``."""
    half = dtype in _HALF
    least = 4 if gpu.capability >= (8, 0) else 1
    cores = gpu.capability >= (8, 0) or (gpu.capability >= (7, 0) and half)
    return max(least, 128 // (16 if half else 32)) if cores else least


def _cudnn(
    gpu: Gpu, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, dropout: float, causal: bool, gqa: bool
) -> bool:
    if not _shapes(q, k, v, gqa) or not _dense(mask, q, k, v, single=True) or gpu.deterministic:
        return False
    sizes = q.shape[-1], v.shape[-1]
    wide = gpu.capability[0] == 10 and gpu.cudnn >= 91100 and sizes == (192, 128)
    if (max(sizes) > _widest(gpu) and not wide) or any(size % 8 for size in sizes):
        return False
    if k.shape[2] == 1 or (dropout and (q.shape[2] == 1 or 91100 < gpu.cudnn < 91400)):
        return False
    return q.dtype in _HALF and gpu.capability >= (8, 0) and not (mask is not None and mask.requires_grad)


def _widest(gpu: Gpu) -> int:
    """The most numbers in a head that cuDNN's attention takes. Source: ``sdp_utils.cpp``, ``check_cudnn_tensor_shapes``."""
    return 256 if gpu.capability == (9, 0) and gpu.cudnn >= 91000 else 128


# --- what they take -------------------------------------------------------------------------------------------------------


def splits(gpu: Gpu, blocks: int, keys: int) -> int:
    """Into how many parts the keys are split to fill the GPU. Source: ``flash_api.cpp``, ``num_splits_heuristic``."""
    units = gpu.processors * 2
    if blocks >= 0.8 * units:
        return 1
    most = min(128, units, keys)

    def counts(parts: int) -> bool:
        return parts == 1 or up(keys, parts) != up(keys, parts - 1)

    waves = {parts: blocks * parts / units for parts in range(1, most + 1) if counts(parts)}
    good = {parts: wave / ceil(wave) for parts, wave in waves.items()}
    best = max(good.values())
    return next(parts for parts in range(1, most + 1) if parts in good and good[parts] >= 0.85 * best)


@row(
    "_scaled_dot_product_flash_attention",
    takes="after the output and its sums: if the keys are split into parts to fill the GPU, for each part one sum for each "
    "query and the output, in float32; with dropout (which splits nothing) a few numbers",
    source="transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv",
    seen="h100",
)
def flash(call: KernelCall) -> None:
    q, k = call["query"], call["key"]
    (batch, heads, queries, size), keys = q.shape, k.shape[2]
    if queries == 1 and heads > k.shape[1] and not call["is_causal"] and call["dropout_p"] == 0 and size % 8 == 0:
        queries, heads = heads // k.shape[1], k.shape[1]  # queries of heads that share keys are one sequence
    call.result(0, 1)
    states = range(2, len(call.outs))
    if call["dropout_p"]:
        few = call.ask(16)
        call.result(*reversed(states))
        return call.free(few)
    size = up(size, 8) * 8
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    parts, asked = splits(call.gpu, batch * heads * up(queries, 64), up(keys, block)), ()
    if parts > 1:
        rows = parts * batch * heads * queries
        asked = call.ask(rows * 4), call.ask(rows * up(size, 32) * 32 * 4)
    call.result(*states)
    call.free(*asked)


@row(
    "_scaled_dot_product_flash_attention_backward",
    takes="contiguous copies of the gradient and the output; after the results: one float32 for each query (rounded up to 128 "
    "queries) and the gradient of q in float32 (heads rounded up to sizes of 32); if heads share keys and values, gradients of "
    "k and v for each head of q",
    source="transformers/cuda/flash_attn/flash_api.cpp, mha_bwd; attention_backward.cu",
    seen="h100",
)
def flash_backward(call: KernelCall) -> None:
    q, k, grad = call["query"], call["key"], call["grad_out"]
    batch, heads, queries, size = q.shape
    for tensor in (grad, call["out"]):
        call.contiguous(tensor.transpose(1, 2))
    call.result(0, 1, 2)
    rows = up(queries, 128) * 128
    call.ask(batch * heads * rows * 4)
    parts = up(call.gpu.processors, batch * heads) if call.gpu.deterministic else 1
    call.ask(parts * batch * rows * heads * up(size, 32) * 32 * 4)
    if k.shape[1] != heads:
        call.temporary(*[batch * k.shape[2] * heads * size * q.element_size()] * 2)


@row(
    "_scaled_dot_product_efficient_attention _efficient_attention_forward",
    takes="the output in float32, if it has 16 bits and heads of v have more than 128 numbers; the log-sums are a result of "
    "the op, for each head a multiple of 32",
    source="transformers/cuda/attention.cu, _efficient_attention_forward",
    seen="h100",
)
def efficient(call: KernelCall) -> None:
    q, v = call["query"], call["value"]
    if q.dtype in _HALF and v.shape[-1] > 128:
        call.ask(prod(q.shape[:3]) * v.shape[-1] * 4)


class _Tile(NamedTuple):
    """The kernel of efficient attention's backward: rows of queries and of keys that a block takes at once.

    ``registers``: True if it sums the gradients of its keys and values in registers.
    """

    queries: int
    keys: int
    registers: bool


def _tiles(gpu: Gpu, half: bool, size: int, dropout: bool) -> list[_Tile]:
    """The kernels that may run, the first that fits into a multiprocessor's shared memory; ``size``: the widest head.

    Source: ``mem_eff_attention/kernels/generate_kernels.py``, ``BwdKernel.get_all``.
    """
    if size <= 64 or (gpu.capability < (8, 0) and not half):
        return [_Tile(64, 64, half and size <= 64)]
    small = _Tile(64, 64, False)
    if size > 128 or not half:
        return [_Tile(128, 64, False), small]
    if gpu.capability in ((8, 6), (8, 9)) and size <= 96 and not dropout:
        return [_Tile(128, 64, True)]
    return [_Tile(128, 128 if gpu.capability >= (8, 0) else 64, True), small]


def _sums(gpu: Gpu, tile: _Tile, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> int:
    """Bytes of a kernel's sums. Source: ``mem_eff_attention/kernel_backward.h``, ``Params::workspace_size``;
    ``attention_backward.cu``, the number of parts of the keys."""
    heads, (keys, size), values = prod(q.shape[:2]), k.shape[2:], v.shape[3]
    wide = 0
    if q.dtype in _HALF and not tile.registers:
        parts = 1 if gpu.deterministic else max(1, min(up(keys, tile.keys), 200 // max(1, heads)))
        parts = 1 if heads >= 256 and keys <= 2 * tile.keys else parts
        columns = (up(size, tile.queries) + up(values, tile.queries)) * tile.queries
        wide = parts * up(keys, tile.keys) * tile.keys * columns * 4
    blocks = up(q.shape[2], tile.queries) * up(size, tile.keys)
    return heads * (wide + blocks * (tile.queries * tile.keys * 4 + _LOCKS))


@row(
    "_scaled_dot_product_efficient_attention_backward _efficient_attention_backward",
    takes="a contiguous copy of the gradient; after the results: one float32 for each query, which float32 inputs get from a "
    "product of gradient and output; sums of the gradient of q in tiles of 64 or 128 queries; with 16 bits also sums of the "
    "gradients of k and v for each part of the keys, if they do not fit into registers",
    source="transformers/cuda/attention_backward.cu, _efficient_attention_backward; mem_eff_attention/kernel_backward.h, "
    "workspace_size",
    seen="h100 (float32)",
)
def efficient_backward(call: KernelCall) -> None:
    q, k, v, grad = call["query"], call["key"], call["value"], call["grad_out_"]
    if call.get("grad_input_mask") is None:  # the op whose tokens come before its heads
        q, k, v, grad = (tensor.transpose(1, 2) for tensor in (q, k, v, grad))
    half = q.dtype in _HALF
    call.contiguous(grad.transpose(1, 2))
    call.result(*range(len(call.outs)))
    queries = prod(q.shape[:3]) * 4
    tiles = _tiles(call.gpu, half, max(q.shape[3], v.shape[3]), call["dropout_p"] > 0)
    if half and (call.gpu.capability != (7, 0) or tiles[0].registers):
        delta = call.ask(queries)  # the kernel computes it
    else:
        wide = [call.temporary(prod(grad.shape) * 4) for _ in range(2 * half)]
        product = call.temporary(prod(grad.shape) * 4)
        call.free(*wide)
        delta = call.ask(queries)
        if min(q.shape[1:3]) > 1:
            found, delta = delta, call.ask(queries)  # turned, as the kernel reads it
            call.free(found)
        call.free(product)
    first = call.gpu.capability in _LARGE
    sizes = [_sums(call.gpu, tile, q, k, v) for tile in tiles]
    call.ask(sizes[0 if first else -1])
    call.free(delta)
    if call.get("cu_seqlens_q") is not None:
        call.bound(
            max(sizes) * call.get("cu_seqlens_q").shape[0], "efficient attention's backward may keep its sums for each sequence"
        )
    if half or not first:
        call.bound(
            max(sizes), "the size of the sums in efficient attention's backward depends on the kernel that CUTLASS chooses"
        )


@row(
    "_scaled_dot_product_cudnn_attention",
    takes="first two 64-bit numbers for the random state; then the output, and, only if a gradient is needed, one float32 for "
    "each query; a workspace whose size only cuDNN knows: 256 bytes wherever it was recorded with more than one query",
    source="cudnn/MHA.cpp, run_cudnn_SDP_fprop",
    seen="h100",
)
def by_cudnn(call: KernelCall) -> None:
    q, k, v = call["query"], call["key"], call["value"]
    call.result(6, 7, 0, 1)
    parts = 0
    if q.shape[2] > 1:
        call.ask(_OF_CUDNN)
    else:  # of the keys, each with a result
        parts = prod(q.shape[:2]) * up(k.shape[2], 128) * (v.shape[3] + 2) * 4
    call.bound(_MORE + parts, "cuDNN alone knows the workspace of its attention")


@row(
    "_scaled_dot_product_cudnn_attention_backward",
    takes="after the results: a copy of a gradient whose last axis has a stride other than 1; a workspace whose size only "
    "cuDNN knows: recorded were 256 bytes, the gradient of q in float32, one float32 for each query, and, if heads share keys "
    "and values, gradients of k and v for each head of q",
    source="cudnn/MHA.cpp, run_cudnn_SDP_bprop; cudnn_frontend, node/scaled_dot_product_flash_attention.h",
    seen="h100",
)
def by_cudnn_backward(call: KernelCall) -> None:
    q, k, v, grad = call["query"], call["key"], call["value"], call["grad_out"]
    if grad.stride(-1) != 1:
        call.temporary(nbytes(grad))
    sums = prod(q.shape[:3]) * (q.shape[3] + 1) * 4
    if k.shape[1] != q.shape[1]:
        sums += prod(q.shape[:2]) * k.shape[2] * (k.shape[3] + v.shape[3]) * q.element_size()
    call.ask(_OF_CUDNN + sums)
    known = call.gpu.capability == (9, 0) and call.get("attn_bias") is None
    call.bound(_MORE + (0 if known else sums), "cuDNN alone knows the workspace of its attention")
