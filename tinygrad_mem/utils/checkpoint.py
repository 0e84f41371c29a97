"""The names of ``torch.utils.checkpoint``; they are defined in ``tinygrad_mem.recompute``."""

from ..errors import CheckpointError as CheckpointError
from ..recompute.checkpoint import checkpoint as checkpoint
from ..recompute.checkpoint import checkpoint_sequential as checkpoint_sequential
from ..recompute.checkpoint import noop_context_fn as noop_context_fn
from ..recompute.checkpoint import set_checkpoint_debug_enabled as set_checkpoint_debug_enabled
from ..recompute.checkpoint import set_checkpoint_early_stop as set_checkpoint_early_stop
from ..recompute.selective import CheckpointPolicy as CheckpointPolicy
from ..recompute.selective import SelectiveCheckpointContext as SelectiveCheckpointContext
from ..recompute.selective import create_selective_checkpoint_contexts as create_selective_checkpoint_contexts
