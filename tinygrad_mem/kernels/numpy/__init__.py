"""NumPy kernels. Every function computes into the buffers that it is given; none allocates."""

from .activation import *
from .attention import *
from .blockwise import *
from .conv import *
from .dropout import *
from .elementwise import *
from .embedding import *
from .factored import *
from .index import *
from .join import *
from .linalg import *
from .loss import *
from .norm import *
from .optim import *
from .piecewise import *
from .pool import *
from .random import *
from .recurrent import *
from .reduce import *
from .resize import *
from .scan import *
from .search import *
from .softmax import *
from .sort import *
