"""What is said of names that are not offered: each answer is reached, and what it advises exists and is right."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import pkgutil
import re
import types
from typing import Any

import numpy as np
import pytest
import scipy.special  # noqa: F401  (numpy and scipy are named in answers)
import torch

import tinygrad_mem as tm
from tinygrad_mem import absent
from tinygrad_mem.absent import _ALL, _ANSWERS, ANSWERS, why_absent

NAMED = [(place, name) for place in ANSWERS for name in ANSWERS[place] if name != _ALL]
SENTENCES = sorted({answer for answers in ANSWERS.values() for answer in answers.values()})
CODE = sorted({code for sentence in SENTENCES for code in re.findall(r"`([^`]+)`", sentence)})
STANDS_FOR = {*"abdnptxy", "data", "margin", "values", "index", "rows", "cos", "sin", "buffer", "path", "inputs", "outputs"}
"""Variables of the reader's in an answer."""
METHODS = {"tensor": tm.Tensor, "module": tm.nn.Module, "x": tm.Tensor, "a": tm.Tensor, "b": tm.Tensor}


def ours(place: str) -> Any:
    """The module that ``place`` names, or a tensor."""
    if place == "Tensor":
        return tm.zeros(1)
    return importlib.import_module("tinygrad_mem" + (f".{place}" if place else ""))


def theirs(place: str) -> Any:
    if place == "Tensor":
        return torch.zeros(1)
    return importlib.import_module("torch" + (f".{place}" if place else ""))


def test_there_are_about_a_hundred_at_most():
    assert 60 <= sum(map(len, _ANSWERS.values())) <= 100
    for place, rows in _ANSWERS.items():
        names = [name for row, _ in rows for name in row.split()]
        assert len(set(names)) == len(names), place


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("place", "name"), NAMED)
def test_each_answer_is_met_by_who_asks_for_a_name_of_pytorchs(place: str, name: str):
    with pytest.raises(AttributeError) as error:
        getattr(ours(place), name)
    full = f"{place}.{name}" if place else name
    assert str(error.value) == f"{full} is not offered: {ANSWERS[place][name]}"
    assert hasattr(theirs(place), name) or name in dir(theirs(place)), "torch has no such name"
    assert not hasattr(ours(place), name)
    assert getattr(ours(place), name, 7) == 7
    if place != "Tensor":
        assert name not in vars(ours(place))


@pytest.mark.parametrize("place", [place for place in ANSWERS if _ALL in ANSWERS[place]])
def test_a_place_with_one_answer_gives_it_for_every_name(place: str):
    with pytest.raises(AttributeError) as error:
        _ = ours(place).nonsense
    assert str(error.value) == f"{place}.nonsense is not offered: {ANSWERS[place][_ALL]}"


@pytest.mark.parametrize(
    "place", ["", "nn", "nn.functional", "nn.init", "optim", "optim.lr_scheduler", "autograd", "utils.data"]
)
def test_all_other_names_have_one_sentence(place: str):
    module = f"tinygrad_mem.{place}".rstrip(".")
    with pytest.raises(AttributeError, match=rf"^module '{module}' has no attribute 'nonsense'\. If torch has it, .* NumPy"):
        _ = ours(place).nonsense


def test_what_a_names_form_says():
    assert why_absent("layer_norm") == "layer_norm is not offered: use `nn.functional.layer_norm`"
    assert why_absent("LazyConv2d", "nn") == "nn.LazyConv2d is not offered: give `nn.Conv2d` its sizes"
    with pytest.raises(AttributeError, match=r"use `nn\.functional\.max_pool2d`"):
        _ = tm.max_pool2d


# --- advice


def known(node: ast.expr) -> bool:
    """Whether a name or attribute in an answer exists: here, in NumPy, in SciPy, or as a variable of the reader's."""
    if isinstance(node, ast.Name):
        spaces: tuple[Any, ...] = (tm, math)
        return node.id in {*STANDS_FOR, *METHODS, "numpy", "scipy", "time", "bool", "abs"} or any(
            hasattr(space, node.id) for space in spaces
        )
    assert isinstance(node, ast.Attribute)
    path = ast.unparse(node)
    root, _, rest = path.partition(".")
    space: Any
    if root in METHODS and rest.isidentifier():
        return hasattr(METHODS[root], rest) or rest in ("data",)
    if not re.fullmatch(r"[\w.]+", path):
        return hasattr(tm.Tensor, node.attr)  # of a tensor that a formula gives
    space = tm if hasattr(tm, root) and root not in ("numpy", "scipy") else importlib.import_module(root)
    for part in (path if space is tm else rest).split("."):
        if not hasattr(space, part):
            return False
        space = getattr(space, part)
    return True


@pytest.mark.parametrize("code", CODE)
def test_what_an_answer_names_exists(code: str):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            assert known(node), ast.unparse(node)


def test_the_test_sees_a_name_that_does_not_exist():
    for code in ("nn.functional.relo", "tensor.detach().nonsense()", "numpy.hunning", "relo(x)", "tensor.nonsense"):
        nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.Name, ast.Attribute))]
        assert not all(map(known, nodes)), code


A, B = [[0.5, -1.5, 2.0], [0.25, math.nan, -3.0]], [[1.0, -0.5, -2.0], [math.nan, 0.75, 3.0]]
P = [[0.25, 0.5, 0.75], [0.125, 0.375, 0.625]]
FORMULAS: dict[str, tuple] = {
    "dist": (P, [[1.0, 2.0, 3.0]]),
    "copysign": (A, B),
    "cov": (P,),
    "deg2rad": (A,),
    "rad2deg": (A,),
    "hypot": (A, B),
    "logaddexp": (P, P[::-1]),
    "logit": (P,),
    "sinc": ([0.0, 0.5, 1.5],),
}
LETTERS = {"dist": "ab", "copysign": "ab", "hypot": "ab", "logaddexp": "ab"}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_gives_what_pytorchs_function_gives(name: str):
    (code,) = re.findall(r"`([^`]+)`", ANSWERS[""][name])
    given = {letter: np.array(value) for letter, value in zip(LETTERS.get(name, "xy"), FORMULAS[name], strict=False)}
    found = eval(code, vars(tm) | {letter: tm.tensor(value) for letter, value in given.items()})
    expected = getattr(torch, name)(*map(torch.tensor, given.values()))
    torch.testing.assert_close(torch.tensor(found.numpy()), expected, equal_nan=True)


def test_formulas_with_more_arguments():
    x, y = np.array(P), np.array(P)[::-1].copy()
    names: dict[str, Any] = vars(tm) | {"a": tm.tensor(x), "b": tm.tensor(y), "x": tm.tensor(x), "d": 1}

    def said(name: str) -> Any:
        return eval(re.findall(r"`([^`]+)`", ANSWERS[""][name])[0], names)

    np.testing.assert_allclose(said("cross").numpy(), torch.cross(torch.tensor(x), torch.tensor(y), dim=1).numpy())
    names |= {"x": tm.tensor(x[0]), "n": 3}
    np.testing.assert_allclose(said("vander").numpy(), np.vander(x[0], 3, increasing=True))


# --- modules and tensors that answer

ANSWERING = [
    found.name
    for found in pkgutil.walk_packages(tm.__path__, "tinygrad_mem.")
    if not found.name.endswith("__main__") and hasattr(importlib.import_module(found.name), "__getattr__")
]


@pytest.mark.parametrize("place", ["tinygrad_mem", *ANSWERING])
def test_an_import_says_what_asking_for_the_name_says(place: str):
    """``from MODULE import NAME`` drops an AttributeError and its sentence, so an import meets an ImportError."""
    names = ["vander", "nonsense"] if place == "tinygrad_mem" else ["nonsense"]
    for name in names:
        with pytest.raises(AttributeError) as asked:
            getattr(importlib.import_module(place), name)
        for line in (f"from {place} import {name}", f"from {place} import {name} as other"):
            with pytest.raises(ImportError) as imported:
                exec(line)
            assert str(imported.value) == str(asked.value)
            assert imported.value.name == name


def test_many_modules_answer():
    assert len(ANSWERING) > 20
    for place in set(ANSWERS) - {"Tensor"}:
        assert hasattr(ours(place), "__getattr__"), f"{place} has answers that nobody meets"


def test_tensors_tell_of_a_misspelt_attribute_and_keep_their_own_words():
    x = tm.zeros(2)
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nonsense'"):
        x.nonsense  # noqa: B018  # pyright: ignore
    with pytest.raises(AttributeError, match="the tensor is on cpu, not on a GPU"):
        x.__cuda_array_interface__  # noqa: B018
    assert not hasattr(x, "__array_struct__")
    assert not hasattr(tm.nn.Parameter(x), "is_shared")
    assert "is_shared" not in dir(x)
    assert "sum" in dir(x)
    x.mine = 3  # pyright: ignore
    assert x.mine == 3  # pyright: ignore


def test_it_is_a_module_like_others():
    assert isinstance(tm, types.ModuleType)
    assert inspect.isfunction(absent.refuses("nn"))
