"""The inverse of the error function on tiles, through the normal distribution's quantiles (Wichura 1988, by regions)."""

import math

import numpy as np

from .computed import computed

A = (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4)
A += (4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3)
B = (4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4)
B += (3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3)
C = (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504)
C += (1.27045825245236838258, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4)
D = (2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1, 1.48103976427480074590e-1)
D += (1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9)
E = (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 2.96560571828504891230e-1)
E += (2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7)
F = (5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4)
F += (1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15)
"""Numerators and denominators of the quantile: in the middle (A / B), near the ends (C / D), and at them (E / F)."""


def polynomial(x, coefficients):
    """From the lowest coefficient on."""
    total = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = x * total + c
    return total


def _ratio(x, above, below):
    """The quotient of two polynomials, of which the second begins with 1."""
    return polynomial(x, above) / polynomial(x, (1.0, *below))


@computed
def erfinv(x, out):
    """out = the y with erf(y) = x: inf at 1, nan beyond. Error: a few units in the last place."""
    middle = _ratio(x * x * -0.25 + 0.180625, A, B) * x * 0.5
    r = np.sqrt(-np.log((1 - np.abs(x)) * 0.5))
    near = _ratio(np.minimum(r, 5) - 1.6, C, D)
    ends = _ratio(np.maximum(np.minimum(r, 30), 5) - 5, E, F)  # of 1 the root is inf: see below
    far = np.copysign(np.where(r > 5, ends, near), x)
    y = np.where(np.abs(x) > 0.85, far, middle)
    return np.where(np.abs(x) == 1, x * np.inf, y * math.sqrt(0.5))
