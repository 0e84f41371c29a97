"""Every function of ``nn.functional`` takes PyTorch's arguments, in PyTorch's order, with PyTorch's defaults."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as torch_functional

import tinygrad_mem.nn.functional as functional

LEFT_OUT = {"out"}
Signature = list[tuple[str, bool, Any]]  # name, whether it may be given by position, default


def value(node: ast.expr | None) -> Any:
    """What a default in a docstring means: ``1.0 / 8`` is a number too."""
    return inspect.Parameter.empty if node is None else eval(compile(ast.Expression(node), "a docstring", "eval"), {})


def told_by_docstring(function: Callable) -> Signature | None:
    """The arguments of a built-in function, from the first line of its docstring."""
    found = re.search(r"^\s*(?:torch\.nn\.functional\.)?(\w+)\((.*?)\)\s*->", function.__doc__ or "", re.S)
    if found is None:
        return None
    arguments = ast.parse(f"def f({found[2]}): pass").body[0].args  # type: ignore[attr-defined]
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    by_position = [(a.arg, True, value(d)) for a, d in zip(arguments.args, defaults, strict=True)]
    return by_position + [(a.arg, False, value(d)) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def told_by_python(function: Callable) -> Signature:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind is not p.KEYWORD_ONLY, p.default) for p in parameters]


def pytorchs(name: str) -> Signature | None:
    function = getattr(torch_functional, name)
    with_indices = getattr(torch_functional, f"{name}_with_indices", None)  # the plain name takes anything and dispatches
    if with_indices is not None:
        return told_by_python(with_indices)
    return told_by_python(function) if inspect.isfunction(function) else told_by_docstring(function)


NAMES = sorted(
    name
    for name, value in vars(functional).items()
    if inspect.isfunction(value) and not name.startswith("_") and hasattr(torch_functional, name)
)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_pytorchs(name: str):
    expected, found = pytorchs(name), told_by_python(getattr(functional, name))
    if expected is None:
        pytest.skip("PyTorch does not tell")
    if [n for n, _, _ in found] == ["args", "kwargs"]:
        pytest.skip("it is there to say what to use instead")
    expected = [each for each in expected if each[0] not in LEFT_OUT]
    assert [n for n, _, _ in found][: len(expected)] == [n for n, _, _ in expected]
    for (argument, by_position, default), (_, ours_by_position, ours) in zip(expected, found, strict=False):
        assert ours_by_position or not by_position, f"{argument} can be given by position there"
        assert ours == default, f"{argument} is {default!r} there, {ours!r} here"


def test_the_test_reads_docstrings():
    assert len(NAMES) > 80
    told = told_by_docstring(torch_functional.conv2d)
    assert told is not None
    assert told[1:4] == [("weight", True, inspect.Parameter.empty), ("bias", True, None), ("stride", True, 1)]
