"""The records, in files by what their figures are about."""

from importlib import import_module

from ..claim import Claim

_FILES = (
    "parameters", "states", "optimizers", "lora", "quantized", "ranks", "activations", "language", "recomputed", "logits",
    "inference", "programs", "guides",
)  # fmt: skip
CLAIMS: dict[str, Claim] = {claim.name: claim for name in _FILES for claim in import_module(f".{name}", __package__).CLAIMS}
"""By name, file by file."""
