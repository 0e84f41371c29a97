"""Layers, containers, parameters: ``torch.nn``'s names."""

from .. import absent as _absent

# the public names, nothing else
from . import attention as attention
from . import common_types as common_types
from . import functional as functional
from . import init as init
from . import quantized as quantized
from . import utils as utils
from .activation import *
from .containers import *
from .conv import *
from .dropout import *
from .embedding import *
from .linear import *
from .loss import *
from .module import *
from .multihead import *
from .norm import *
from .padding import *
from .parallel import *
from .parameter import *
from .parameter_containers import *
from .pooling import *
from .resize import *
from .rnn import *
from .transformer import *

__getattr__ = _absent.refuses("nn")
