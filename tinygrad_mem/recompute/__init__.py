"""Recomputation: activations are not kept for backward, but computed again."""

from .blocks import checkpoint_blocks as checkpoint_blocks
from .chain import chain as chain
from .chain import front as front
from .checkpoint import checkpoint as checkpoint
from .checkpoint import checkpoint_sequential as checkpoint_sequential
from .checkpoint import checkpointed as checkpointed
from .checkpoint import noop_context_fn as noop_context_fn
from .checkpoint import set_checkpoint_debug_enabled as set_checkpoint_debug_enabled
from .checkpoint import set_checkpoint_early_stop as set_checkpoint_early_stop
from .counts import count_ops as count_ops
from .profile import Profile as Profile
from .profile import profile as profile
from .schedule import Schedule as Schedule
from .schedule import Stage as Stage
from .schedule import revolve as revolve
from .schedule import sqrt as sqrt
from .schedule import uniform as uniform
from .scheduled import Scheduled as Scheduled
from .scheduled import apply as apply
from .selective import CheckpointPolicy as CheckpointPolicy
from .selective import SelectiveCheckpointContext as SelectiveCheckpointContext
from .selective import create_selective_checkpoint_contexts as create_selective_checkpoint_contexts
from .wrapper import Checkpointed as Checkpointed
from .wrapper import apply_activation_checkpointing as apply_activation_checkpointing
from .wrapper import checkpoint_wrapper as checkpoint_wrapper
