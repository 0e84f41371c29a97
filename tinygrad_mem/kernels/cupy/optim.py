"""Update rules: one fused kernel per parameter. As in ``kernels/numpy/optim.py``; arithmetic is in the state's dtype."""

from __future__ import annotations

from functools import cache as _cache

import cupy as _cupy


@_cache
def _kernel(name, inputs, outputs, body):
    return _cupy.ElementwiseKernel(inputs, outputs, body, name)  # pyright: ignore


def _update(name, p, g, states, numbers, body, roots=()):
    """Run ``body`` on every element: W is the dtype of the arithmetic, d the gradient after weight decay, x the parameter.

    ``states`` and ``numbers`` are name -> array and name -> number; ``None`` among the states is left out. A state in half
    precision is widened, and rounded to nearest when it is written; then those in ``roots`` are stored as square roots.
    """
    wide = "float64" if p.dtype.char == "d" else "float32"
    kept = {key: a for key, a in states.items() if a is not None}
    half = [key for key, a in kept.items() if a.dtype.char == "e"]
    inputs = ", ".join([f"{g.dtype.name} g", *[f"{wide} {key}" for key in numbers]])
    outputs = [f"{p.dtype.name} p", *[f"{a.dtype.name} {key}{'_' * (key in half)}" for key, a in kept.items()]]
    head = f"typedef {'double' if wide == 'float64' else 'float'} W; W x = (W)p; W d = (W)g;\n"
    tail = f"\np = ({'double' if p.dtype.char == 'd' else 'float'})x;"
    for key in half:
        head += f"W {key} = (float){key}_; " + (f"{key} *= {key};\n" if key in roots else "\n")
        tail += f" {key}_ = (float)({f'sqrt({key})' if key in roots else key});"
    kernel = _kernel(name, inputs, ", ".join(outputs), head + body + tail)
    kernel(g, *[float(n) for n in numbers.values()], p, *kept.values())


def unscale(grad, inverse, found):
    """grad *= inverse, and found = 1 where an element of grad was not finite; half precision is multiplied in float32."""
    wide = "double" if grad.dtype.char == "d" else "float"
    body = f"{wide} x = ({wide})grad; if (!isfinite(x)) found[0] = 1; grad = ({wide})(inverse == 1 ? x : x * inverse);"
    outputs = f"{grad.dtype.name} grad, raw float32 found"
    _kernel("unscale", f"{'float64' if wide == 'double' else 'float32'} inverse", outputs, body)(float(inverse), grad, found)


def renew_master(p, out):
    """out = p where p is not out rounded: what others have written to a parameter since enters its float32 copy."""
    body = "float16 rounded = (float)master; if (!((float)rounded == (float)p)) master = (float)p;"
    _kernel("renew_master", "float16 p", "float32 master", body)(p, out)


def _decayed(weight_decay, maximize):
    """The line of CUDA that adds weight decay to the gradient."""
    return ("d = -d; " if maximize else "") + ("d += weight_decay * x;" if weight_decay else "")


_MEANS = "m += (1 - beta1) * (d - m); v = beta2 * v + (1 - beta2) * d * d;"


def sgd_step(p, g, buf, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """d = g + weight_decay * p; buf = momentum * buf + (1 - dampening) * d; p -= lr * buf (Nesterov: d + momentum * buf)."""
    body = _decayed(weight_decay, maximize)
    if buf is not None:
        body += " buf = momentum * buf + (1 - dampening) * d; d = " + ("d + momentum * buf;" if nesterov else "buf;")
    numbers = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    _update("sgd_step", p, g, {"buf": buf}, numbers, body + " x -= lr * d;")


def adam_step(p, g, m, v, top, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """m, v = running means of d and d**2; p = shrink * p - step_size * m / (sqrt(v) / root + eps), d = g + weight_decay * p."""
    square = "v" if top is None else "top"
    body = f"{_decayed(weight_decay, maximize)} x *= shrink; {_MEANS} "
    body += "" if top is None else "top = max(top, v); "
    body += f"x -= step_size * m / (sqrt({square}) / root + eps);"
    numbers = {"step_size": step_size, "beta1": beta1, "beta2": beta2, "eps": eps, "root": root}
    numbers |= {"weight_decay": weight_decay, "shrink": shrink}
    _update("adam_step", p, g, {"m": m, "v": v, "top": top}, numbers, body, roots=("v", "top"))


def rmsprop_step(p, g, v, buf, mean, lr, alpha, eps, momentum, weight_decay, maximize):
    """v = running mean of d**2; p -= lr * d / (sqrt(v) + eps), d = g + weight_decay * p; mean centers, buf is momentum."""
    body = f"{_decayed(weight_decay, maximize)} v = alpha * v + (1 - alpha) * d * d; W square = v; "
    body += "" if mean is None else "mean += (1 - alpha) * (d - mean); square -= mean * mean; "
    body += "d /= sqrt(square) + eps; "
    body += "" if buf is None else "buf = momentum * buf + d; d = buf; "
    numbers = {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum, "weight_decay": weight_decay}
    _update("rmsprop_step", p, g, {"v": v, "buf": buf, "mean": mean}, numbers, body + "x -= lr * d;", roots=("v",))


def adagrad_step(p, g, total, rate, eps, weight_decay, maximize):
    """total += d**2; p -= rate * d / (sqrt(total) + eps), d = g + weight_decay * p."""
    body = f"{_decayed(weight_decay, maximize)} total += d * d; x -= rate * d / (sqrt(total) + eps);"
    numbers = {"rate": rate, "eps": eps, "weight_decay": weight_decay}
    _update("adagrad_step", p, g, {"total": total}, numbers, body, roots=("total",))


def adadelta_step(p, g, v, moved, lr, rho, eps, weight_decay, maximize):
    """v, moved = running means of d**2 and of the steps squared; p -= lr * d * sqrt(moved + eps) / sqrt(v + eps)."""
    body = f"{_decayed(weight_decay, maximize)} v = rho * v + (1 - rho) * d * d; d *= sqrt(moved + eps) / sqrt(v + eps); "
    body += "moved = rho * moved + (1 - rho) * d * d; x -= lr * d;"
    numbers = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
    _update("adadelta_step", p, g, {"v": v, "moved": moved}, numbers, body, roots=("v", "moved"))


def adamax_step(p, g, m, top, rate, beta1, beta2, eps, weight_decay, maximize):
    """m = running mean of d; top = max(beta2 * top, |d| + eps); p -= rate * m / top, d = g + weight_decay * p."""
    body = f"{_decayed(weight_decay, maximize)} m += (1 - beta1) * (d - m); "
    body += "top = max((W)(beta2 * top), (W)((d < 0 ? -d : d) + eps)); x -= rate * m / top;"
    numbers = {"rate": rate, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    _update("adamax_step", p, g, {"m": m, "top": top}, numbers, body)


def nadam_step(p, g, m, v, rate_g, rate_m, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """Adam's m and v; p = shrink * p - (rate_g * d + rate_m * m) / (sqrt(v) / root + eps), d = g + weight_decay * p."""
    body = f"{_decayed(weight_decay, maximize)} x *= shrink; {_MEANS} x -= (rate_g * d + rate_m * m) / (sqrt(v) / root + eps);"
    numbers = {"rate_g": rate_g, "rate_m": rate_m, "beta1": beta1, "beta2": beta2, "eps": eps, "root": root}
    numbers |= {"weight_decay": weight_decay, "shrink": shrink}
    _update("nadam_step", p, g, {"m": m, "v": v}, numbers, body, roots=("v",))


def radam_step(p, g, m, v, rate, rectified, beta1, beta2, eps, weight_decay, shrink, maximize):
    """Adam's m and v; p = shrink * p - rate * m, divided by sqrt(v) + eps where ``rectified``; d = g + weight_decay * p."""
    body = f"{_decayed(weight_decay, maximize)} x *= shrink; {_MEANS} x -= rate * m"
    body += " / (sqrt(v) + eps);" if rectified else ";"
    numbers = {"rate": rate, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay, "shrink": shrink}
    _update("radam_step", p, g, {"m": m, "v": v}, numbers, body, roots=("v",))
