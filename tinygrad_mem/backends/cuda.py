"""Matrix products on a GPU are cuBLAS's, in the precision of their operands."""

from types import SimpleNamespace

matmul = SimpleNamespace(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)
