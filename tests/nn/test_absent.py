"""Every public name of ``torch.nn`` and ``torch.nn.functional`` is here, or says so and what to use instead."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest
import torch

from tinygrad_mem import nn
from tinygrad_mem.nn.absent import ABSENT

PAIRS = {"nn": (torch.nn, nn), "nn.functional": (torch.nn.functional, nn.functional)}


def public(theirs: ModuleType) -> list[str]:
    """What PyTorch offers there, without what its files happen to import: helpers of scripting, typing, documentation."""
    foreign = ("typing", "torch.overrides", "torch._jit_internal", "torch._VF", "torch.types", "builtins", "collections")
    helpers = ("boolean_dispatch", "assert_int_or_pair", "ScalingType", "SwizzleType")

    def offered(name: str, value: Any) -> bool:
        if (
            name.startswith(("_", "has_torch_function"))
            or name in helpers
            or getattr(value, "__module__", None) in ("typing", "collections.abc")
        ):
            return False
        if inspect.ismodule(value):
            return value.__name__.startswith("torch.nn")
        module = getattr(value, "__module__", None) or ""
        return callable(value) and (inspect.isbuiltin(value) or not module.startswith(foreign))

    return sorted(name for name, value in vars(theirs).items() if offered(name, value))


@pytest.mark.parametrize(("where", "name"), [(where, name) for where, (theirs, _) in PAIRS.items() for name in public(theirs)])
def test_every_name_of_pytorch_is_here_or_explained(where: str, name: str):
    _, ours = PAIRS[where]
    if name in vars(ours):
        assert name not in ABSENT[where], "offered and explained away"
        return
    with pytest.raises(AttributeError, match=rf"^{where}\.{name} is not offered: \w"):
        getattr(ours, name)


@pytest.mark.parametrize(("where", "name"), [(where, name) for where in PAIRS for name in ABSENT[where]])
def test_only_names_of_pytorch_are_explained(where: str, name: str):
    assert hasattr(PAIRS[where][0], name)


@pytest.mark.parametrize("where", PAIRS)
def test_unknown_names(where: str):
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = PAIRS[where][1].Nonsense
