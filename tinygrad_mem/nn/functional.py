"""``torch.nn.functional``'s names."""

# --- activations
from ..functional.activation import *  # noqa: F403

# --- convolution
from ..functional.conv import conv1d as conv1d
from ..functional.conv import conv2d as conv2d
from ..functional.conv import conv3d as conv3d
from ..functional.conv import conv_transpose1d as conv_transpose1d
from ..functional.conv import conv_transpose2d as conv_transpose2d
from ..functional.conv import conv_transpose3d as conv_transpose3d
from ..functional.conv import fold as fold
from ..functional.conv import unfold as unfold

# --- losses
from ..functional.distance import cosine_embedding_loss as cosine_embedding_loss
from ..functional.distance import cosine_similarity as cosine_similarity
from ..functional.distance import gaussian_nll_loss as gaussian_nll_loss
from ..functional.distance import hinge_embedding_loss as hinge_embedding_loss
from ..functional.distance import margin_ranking_loss as margin_ranking_loss
from ..functional.distance import pairwise_distance as pairwise_distance
from ..functional.distance import poisson_nll_loss as poisson_nll_loss
from ..functional.distance import soft_margin_loss as soft_margin_loss
from ..functional.distance import triplet_margin_loss as triplet_margin_loss
from ..functional.distance import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss

# --- linear
from ..functional.index import one_hot as one_hot
from ..functional.linalg import bilinear as bilinear
from ..functional.linalg import linear as linear
from ..functional.loss import binary_cross_entropy as binary_cross_entropy
from ..functional.loss import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from ..functional.loss import cross_entropy as cross_entropy
from ..functional.loss import huber_loss as huber_loss
from ..functional.loss import kl_div as kl_div
from ..functional.loss import l1_loss as l1_loss
from ..functional.loss import mse_loss as mse_loss
from ..functional.loss import nll_loss as nll_loss
from ..functional.loss import smooth_l1_loss as smooth_l1_loss
from ..functional.shape import pad as pad

# --- softmax
from ..functional.softmax import *  # noqa: F403
