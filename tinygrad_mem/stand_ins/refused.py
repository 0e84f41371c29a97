"""Functions and classes that may be imported, and that refuse to run; and modules that have nothing else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .. import absent
from ..errors import NotOfferedError


class Refused:
    """A function or class of PyTorch's that is not offered; ``instead`` says what to do.

    Raises (when it is called):
        NotOfferedError: always.
    """

    def __init__(self, place: str, name: str, instead: str) -> None:
        self.__name__ = name
        self._sentence = f"{place}.{name}: {instead}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(self._sentence)

    with_args = __call__


def refused(place: str, names: str, instead: str) -> dict[str, Refused]:
    """Return name -> an object that refuses to run, for names separated by spaces."""
    return {name: Refused(place, name, instead) for name in names.split()}


class NeverMade:
    """The base of PyTorch's classes that may be named, derived from and asked for with ``isinstance``.

    Raises (when one is made):
        NotOfferedError: always.
    """

    refusal = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(self.refusal)


def never_made(place: str, name: str, instead: str, *bases: type) -> Any:
    """Return a class of PyTorch's that is not offered; ``instead`` says what to do."""
    members = {
        "__doc__": f"Not offered: {instead}.",
        "__module__": f"tinygrad_mem.{place}",
        "refusal": f"{place}.{name}: {instead}",
    }
    return type(name, bases or (NeverMade,), members)


MODULES = {
    "fft": (
        "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftfreq rfftfreq fftshift ifftshift",
        "tensors are real: without a gradient use `numpy.fft` on `tensor.detach().numpy()`; with one, real and imaginary part "
        "are products with matrices of cosines and sines: `x @ cos(2 * pi / n * outer(arange(n), arange(n)))`, and minus that "
        "of sin",
    ),
    "func": (
        "vmap grad grad_and_value vjp jvp linearize jacrev jacfwd hessian functional_call stack_module_state",
        "call the module itself; `autograd.grad(outputs, inputs)` gives gradients of anything, and a batch is one dimension "
        "more: operations broadcast",
    ),
    "distributed.fsdp.wrap": (
        "transformer_auto_wrap_policy size_based_auto_wrap_policy lambda_auto_wrap_policy enable_wrap wrap _or_policy",
        "call `distributed.fsdp.fully_shard` on each block",
    ),
    "_higher_order_ops": ("associative_scan", "nothing is compiled here: write it as a loop of Python"),
}
"""Modules that published files import and seldom call: their names, and what to do instead."""


def module(name: str) -> ModuleType:
    """Return a stand-in for a module of :data:`MODULES`."""
    made = ModuleType(name, f"A stand-in for ``torch.{name}``: its functions can be imported, and raise when they are called.")
    names, instead = MODULES[name]
    vars(made).update(refused(name, names, instead), __getattr__=absent.refuses(name))
    return made
