"""``torch.distributions``: random variables that can be drawn, and whose densities have gradients."""

from .. import absent as _absent
from ..errors import NotOfferedError
from . import bernoulli as bernoulli
from . import categorical as categorical
from . import constraints as constraints
from . import distribution as distribution
from . import independent as independent
from . import kl as kl
from . import normal as normal
from .bernoulli import Bernoulli as Bernoulli
from .categorical import Categorical as Categorical
from .categorical import OneHotCategorical as OneHotCategorical
from .distribution import Distribution as Distribution
from .independent import Independent as Independent
from .kl import kl_divergence as kl_divergence
from .normal import Normal as Normal

_OTHERS = (
    "AffineTransform Beta Binomial Cauchy Chi2 Dirichlet Exponential Gamma Geometric Gumbel HalfCauchy HalfNormal InverseGamma "
)
_OTHERS += "Kumaraswamy Laplace LogNormal LogisticNormal LowRankMultivariateNormal MixtureSameFamily Multinomial "
_OTHERS += "MultivariateNormal NegativeBinomial Pareto Poisson RelaxedBernoulli RelaxedOneHotCategorical StudentT "
_OTHERS += "TransformedDistribution Uniform VonMises Weibull Wishart"
_INSTEAD = {
    "MultivariateNormal": "use Independent(Normal(loc, scale), 1), whose covariance is diagonal",
    "Uniform": "draw with rand(), and scale; its log-probability is -log(high - low)",
    "RelaxedOneHotCategorical": "use nn.functional.gumbel_softmax",
    "Exponential": "draw with Tensor.exponential_(), and write the density",
}


class _Refused(Distribution):
    """A distribution that may be imported, and refuses to be made."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        name = type(self).__name__
        others = "there are Normal, Bernoulli, Categorical, OneHotCategorical and Independent; write the density of others"
        raise NotOfferedError(f"distributions.{name} is not offered: {_INSTEAD.get(name, others)}")


globals().update({name: type(name, (_Refused,), {"__doc__": "Not offered."}) for name in _OTHERS.split()})


__getattr__ = _absent.refuses("distributions")
