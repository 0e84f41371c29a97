"""Names of ``torch`` that are not offered, and what to use instead."""

from __future__ import annotations

_DTYPES = "use tensor(..., dtype=...); dtypes are float16, float32, float64, int8 to int64, uint8 and bool"
_ONE_PROCESS = "one process computes here"
_NOT_YET = "it is planned"

INSTEAD = {
    **dict.fromkeys(("bfloat16", "complex64", "complex128", "cfloat", "cdouble"), _DTYPES),
    **dict.fromkeys(
        ("FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor", "ShortTensor", "ByteTensor", "BoolTensor"),
        _DTYPES,
    ),
    "channels_last": "arrays are contiguous, channels before places; leave memory_format out",
    "compile": "leave it out: operations run as they are written",
    **dict.fromkeys(("jit", "fx", "export", "_dynamo"), "leave it out: operations run as they are written"),
    **dict.fromkeys(("distributed", "multiprocessing"), _ONE_PROCESS),
    **dict.fromkeys(("set_num_threads", "get_num_threads"), "set OMP_NUM_THREADS before Python starts"),
    "use_deterministic_algorithms": "leave it out: the same seed gives the same run",
    "set_float32_matmul_precision": "leave it out: products keep the precision of their operands",
    "set_printoptions": "print tensor.numpy(), which numpy.set_printoptions governs",
    "hub": "download the weights yourself, convert them to safetensors, and load() them",
    "random": "manual_seed, get_rng_state and set_rng_state are names of the package itself",
    "func": "call the module; autograd.grad() gives gradients of anything",
    "vmap": "write the batch as a dimension: operations broadcast",
    "testing": "use numpy.testing.assert_allclose on tensor.numpy()",
    "sparse": "tensors are dense",
}


def why_absent(name: str) -> str:
    """What to say of ``torch.NAME``."""
    if name in INSTEAD:
        return f"{name} is not offered: {INSTEAD[name]}"
    return f"module 'tinygrad_mem' has no attribute {name!r}; its names are those of torch, as far as they are offered"
