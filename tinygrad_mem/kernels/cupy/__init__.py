"""CuPy kernels. Every function computes into the buffers that it is given; none allocates.

A docstring here says only what is different on a GPU: what a kernel computes, that of the same name in ``kernels/numpy`` says.
"""

from .attention import *
from .block_codes import *
from .blockwise import *
from .computed import GENERATED
from .conv import *
from .cross_entropy import *
from .ctc import *
from .division import *
from .dropout import *
from .elementwise import *
from .embedding import *
from .embedding_bag import *
from .factored import *
from .index import *
from .inplace_norm import *
from .join import *
from .linalg import *
from .linear_loss import *
from .loss import *
from .nll_loss import *
from .norm import *
from .optim import *
from .pool import *
from .quantize import *
from .random import *
from .rank_one import *
from .recurrent import *
from .reduce import *
from .resize import *
from .sample import *
from .scan import *
from .search import *
from .soft_cross_entropy import *
from .softmax import *
from .sort import *
from .svd import *

for _name, _kernel in GENERATED.items():  # from formulas of kernels/numpy that are marked with ``@computed`` or ``traced=True``
    globals().setdefault(_name, _kernel)
