"""The inverse of the error function on tiles, through the normal distribution's quantiles (Wichura 1988, by regions)."""

from __future__ import annotations

import math

import numpy as np

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


def _ratio(x, above, below, out, t):
    """out = the quotient of two polynomials of x, from their lowest coefficient on; the second begins with 1; t is scratch."""
    for coefficients, value in ((above, out), ((1.0, *below), t)):
        np.multiply(x, coefficients[-1], out=value)
        for c in coefficients[-2:0:-1]:
            np.add(value, c, out=value)
            np.multiply(value, x, out=value)
        np.add(value, coefficients[0], out=value)
    np.divide(out, t, out=out)


def erfinv_tile(out, x, e, r, a, b, y, t, m):
    """out = the y with erf(y) = x: inf at 1, nan beyond; out may be x. Error: a few units in the last place."""
    np.copyto(e, x)
    np.multiply(e, e, out=r)
    np.multiply(r, -0.25, out=r)
    np.add(r, 0.180625, out=r)
    _ratio(r, A, B, a, b)
    np.multiply(a, e, out=y)
    np.multiply(y, 0.5, out=y)  # right where |x| <= 0.85
    np.abs(e, out=r)
    np.subtract(1.0, r, out=r)
    np.multiply(r, 0.5, out=r)
    np.log(r, out=r)
    np.negative(r, out=r)
    np.sqrt(r, out=r)
    np.minimum(r, 30.0, out=r)  # of 1 it is inf: see below
    np.maximum(r, 5.0, out=m)
    np.subtract(m, 5.0, out=m)
    _ratio(m, E, F, t, b)
    np.greater(r, 5.0, out=m)
    np.multiply(t, m, out=t)  # right where r > 5, else 0
    np.subtract(1.0, m, out=m)
    np.minimum(r, 5.0, out=r)
    np.subtract(r, 1.6, out=r)
    _ratio(r, C, D, a, b)
    np.multiply(a, m, out=a)
    np.add(t, a, out=t)
    np.copysign(t, e, out=t)  # right where |x| > 0.85
    np.abs(e, out=r)
    np.greater(r, 0.85, out=m)
    np.multiply(t, m, out=t)
    np.subtract(1.0, m, out=m)
    np.multiply(y, m, out=y)
    np.add(y, t, out=y)
    np.not_equal(r, 1.0, out=m)
    np.multiply(m, math.sqrt(2.0), out=m)
    np.divide(y, m, out=out, casting="unsafe")  # by 0 at the ends
