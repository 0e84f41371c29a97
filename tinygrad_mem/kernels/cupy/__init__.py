"""CuPy kernels. Every function computes into the buffers that it is given; none allocates."""

from .activation import *  # noqa: F403
from .conv import *  # noqa: F403
from .dropout import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .embedding import *  # noqa: F403
from .index import *  # noqa: F403
from .join import *  # noqa: F403
from .linalg import *  # noqa: F403
from .loss import *  # noqa: F403
from .norm import *  # noqa: F403
from .optim import *  # noqa: F403
from .pool import *  # noqa: F403
from .random import *  # noqa: F403
from .reduce import *  # noqa: F403
from .resize import *  # noqa: F403
from .scan import *  # noqa: F403
from .shape import *  # noqa: F403
from .softmax import *  # noqa: F403
from .sort import *  # noqa: F403
