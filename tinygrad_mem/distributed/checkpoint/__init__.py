"""``torch.distributed.checkpoint``: state that several ranks hold, in safetensors files, loaded by any number of ranks.

``folder.py`` writes and reads; ``state_dict.py`` names the state of an optimizer by its parameters.
"""

from ... import absent as _absent
from . import state_dict as state_dict
from .folder import load as load
from .folder import save as save

__getattr__ = _absent.refuses("distributed")
