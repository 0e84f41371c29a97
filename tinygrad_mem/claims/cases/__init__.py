"""The records, in files by what their figures are about."""

from ..claim import Claim
from . import activations, inference, logits, lora, parameters, programs, quantized, ranks, recomputed, states

_FILES = (parameters, states, lora, quantized, ranks, activations, recomputed, logits, inference, programs)
CLAIMS: dict[str, Claim] = {claim.name: claim for file in _FILES for claim in file.CLAIMS}
"""By name, file by file."""
