"""Popular memory-saving tips, measured: each is a training step before and after, compared in bytes, time and numbers."""

from . import activations, batch, data, lifetimes, networks, optimizers, precision, ranks, recompute, sequences
from .measure import Failed as Failed
from .measure import Measured as Measured
from .measure import measure as measure
from .tip import Case as Case
from .tip import Scene as Scene
from .tip import Tip as Tip
from .tip import Training as Training
from .verdict import Verdict as Verdict
from .verdict import verdict as verdict

_FAMILIES = (activations, lifetimes, batch, networks, recompute, precision, optimizers, sequences, data, ranks)
TIPS: dict[str, Tip] = {tip.name: tip for family in _FAMILIES for tip in family.TIPS}
"""By name, in the order of the table."""
