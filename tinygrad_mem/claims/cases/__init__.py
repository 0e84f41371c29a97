"""The records, in files by what their figures are about."""

from ..claim import Claim
from . import (
    activations,
    guides,
    inference,
    language,
    logits,
    lora,
    optimizers,
    parameters,
    programs,
    quantized,
    ranks,
    recomputed,
    states,
)

_FILES = (
    parameters,
    states,
    optimizers,
    lora,
    quantized,
    ranks,
    activations,
    language,
    recomputed,
    logits,
    inference,
    programs,
    guides,
)
CLAIMS: dict[str, Claim] = {claim.name: claim for file in _FILES for claim in file.CLAIMS}
"""By name, file by file."""
