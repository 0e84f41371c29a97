"""``torch.nn.functional``'s names."""

# --- activations
from ..functional.activation import *  # noqa: F403

# --- losses
from ..functional.loss import *  # noqa: F403

# --- linear
from ..functional.index import one_hot as one_hot
from ..functional.linalg import bilinear as bilinear
from ..functional.linalg import linear as linear
from ..functional.shape import pad as pad

# --- softmax
from ..functional.softmax import *  # noqa: F403
