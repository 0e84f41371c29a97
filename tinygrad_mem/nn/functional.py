"""``torch.nn.functional``'s names."""

from .. import absent as _absent

# --- activations
from ..functional.activation import celu as celu
from ..functional.activation import celu_ as celu_
from ..functional.activation import elu as elu
from ..functional.activation import elu_ as elu_
from ..functional.activation import gelu as gelu
from ..functional.activation import glu as glu
from ..functional.activation import hardshrink as hardshrink
from ..functional.activation import hardsigmoid as hardsigmoid
from ..functional.activation import hardswish as hardswish
from ..functional.activation import hardtanh as hardtanh
from ..functional.activation import hardtanh_ as hardtanh_
from ..functional.activation import leaky_relu as leaky_relu
from ..functional.activation import leaky_relu_ as leaky_relu_
from ..functional.activation import logsigmoid as logsigmoid
from ..functional.activation import mish as mish
from ..functional.activation import prelu as prelu
from ..functional.activation import relu as relu
from ..functional.activation import relu6 as relu6
from ..functional.activation import relu_ as relu_
from ..functional.activation import rrelu as rrelu
from ..functional.activation import rrelu_ as rrelu_
from ..functional.activation import selu as selu
from ..functional.activation import selu_ as selu_
from ..functional.activation import silu as silu
from ..functional.activation import softplus as softplus
from ..functional.activation import softshrink as softshrink
from ..functional.activation import softsign as softsign
from ..functional.activation import tanhshrink as tanhshrink
from ..functional.activation import threshold as threshold
from ..functional.activation import threshold_ as threshold_
from ..functional.adaptive_pool import adaptive_avg_pool1d as adaptive_avg_pool1d
from ..functional.adaptive_pool import adaptive_avg_pool2d as adaptive_avg_pool2d
from ..functional.adaptive_pool import adaptive_avg_pool3d as adaptive_avg_pool3d
from ..functional.adaptive_pool import adaptive_max_pool1d as adaptive_max_pool1d
from ..functional.adaptive_pool import adaptive_max_pool2d as adaptive_max_pool2d
from ..functional.adaptive_pool import adaptive_max_pool3d as adaptive_max_pool3d

# --- attention
from ..functional.attention import scaled_dot_product_attention as scaled_dot_product_attention

# --- convolution
from ..functional.conv import conv1d as conv1d
from ..functional.conv import conv2d as conv2d
from ..functional.conv import conv3d as conv3d
from ..functional.conv import conv_transpose1d as conv_transpose1d
from ..functional.conv import conv_transpose2d as conv_transpose2d
from ..functional.conv import conv_transpose3d as conv_transpose3d
from ..functional.conv import fold as fold
from ..functional.conv import unfold as unfold

# --- sequences without alignment
from ..functional.ctc import ctc_loss as ctc_loss

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
from ..functional.dropout import alpha_dropout as alpha_dropout
from ..functional.dropout import dropout as dropout
from ..functional.dropout import dropout1d as dropout1d
from ..functional.dropout import dropout2d as dropout2d
from ..functional.dropout import dropout3d as dropout3d
from ..functional.dropout import feature_alpha_dropout as feature_alpha_dropout

# --- linear
from ..functional.embedding import embedding as embedding
from ..functional.embedding import embedding_bag as embedding_bag
from ..functional.gather import one_hot as one_hot
from ..functional.linalg import bilinear as bilinear
from ..functional.linalg import linear as linear
from ..functional.linear_loss import linear_cross_entropy as linear_cross_entropy
from ..functional.loss import binary_cross_entropy as binary_cross_entropy
from ..functional.loss import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from ..functional.loss import cross_entropy as cross_entropy
from ..functional.loss import huber_loss as huber_loss
from ..functional.loss import kl_div as kl_div
from ..functional.loss import l1_loss as l1_loss
from ..functional.loss import mse_loss as mse_loss
from ..functional.loss import nll_loss as nll_loss
from ..functional.loss import smooth_l1_loss as smooth_l1_loss
from ..functional.multi_head import multi_head_attention_forward as multi_head_attention_forward

# --- normalisation, pooling, dropout, resampling
from ..functional.norm import batch_norm as batch_norm
from ..functional.norm import group_norm as group_norm
from ..functional.norm import instance_norm as instance_norm
from ..functional.norm import layer_norm as layer_norm
from ..functional.norm import local_response_norm as local_response_norm
from ..functional.norm import normalize as normalize
from ..functional.norm import rms_norm as rms_norm
from ..functional.pool import avg_pool1d as avg_pool1d
from ..functional.pool import avg_pool2d as avg_pool2d
from ..functional.pool import avg_pool3d as avg_pool3d
from ..functional.pool import lp_pool1d as lp_pool1d
from ..functional.pool import lp_pool2d as lp_pool2d
from ..functional.pool import lp_pool3d as lp_pool3d
from ..functional.pool import max_pool1d as max_pool1d
from ..functional.pool import max_pool2d as max_pool2d
from ..functional.pool import max_pool3d as max_pool3d
from ..functional.pool import max_unpool1d as max_unpool1d
from ..functional.pool import max_unpool2d as max_unpool2d
from ..functional.pool import max_unpool3d as max_unpool3d
from ..functional.rearrange import pad as pad
from ..functional.resize import channel_shuffle as channel_shuffle
from ..functional.resize import interpolate as interpolate
from ..functional.resize import pixel_shuffle as pixel_shuffle
from ..functional.resize import pixel_unshuffle as pixel_unshuffle
from ..functional.resize import upsample as upsample
from ..functional.sample import affine_grid as affine_grid
from ..functional.sample import grid_sample as grid_sample

# --- softmax
from ..functional.softmax import gumbel_softmax as gumbel_softmax
from ..functional.softmax import log_softmax as log_softmax
from ..functional.softmax import softmax as softmax
from ..functional.softmax import softmin as softmin
from ..functional.unary import sigmoid as sigmoid
from ..functional.unary import tanh as tanh

__getattr__ = _absent.refuses("nn.functional")
