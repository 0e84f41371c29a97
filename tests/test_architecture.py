"""The rooms are as ``docs/architecture.md`` draws them: imports run downwards, kernels come in pairs, importing is cheap."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache, partial
from graphlib import TopologicalSorter
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

import tinygrad_mem
from tinygrad_mem import errors

ROOT = Path(tinygrad_mem.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
RANKS = {
    "cli": 8,
    "models": 8,
    "tips": 8,
    "clinic": 8,
    "claims": 8,
    "explore": 8,
    "cuda": 8,
    "accelerator": 8,
    "plan": 7,
    "memory": 7,
    "pytorch": 8,
    "techniques": 6,
    "recompute": 6,
    "amp": 6,
    "utils": 6,
    "linalg": 6,
    "types": 4,
    "version": 0,
    "backends": 6,
    "stand_ins": 6,
    "special": 6,
    "distributed": 6,
    "distributions": 6,
    "nn": 5,
    "optim": 5,
    "data": 5,
    "io": 5,
    "safetensors": 5,
    "functional": 4,
    "autograd": 3,
    "ops": 2,
    "devices": 1,
    "kernels": 1,
    "errors": 0,
    "scope": 0,
    "interrupts": 0,
    "starting": 0,
    "callbacks": 0,
    "dtypes": 0,
    "absent": 0,
    "files": 0,
    "text": 0,
    "nesting": 0,
    "source": 0,
}
SAME_RANK = {
    ("plan", "memory"),
    ("dtypes", "errors"),
    ("dtypes", "scope"),
    ("files", "errors"),
    ("devices", "kernels"),
    ("scope", "interrupts"),
    ("callbacks", "interrupts"),
    ("io", "safetensors"),
    ("cli", "models"),
    ("cli", "tips"),
    ("cli", "pytorch"),
    ("cli", "clinic"),
    ("cli", "claims"),
    ("cli", "explore"),
    ("explore", "models"),
    ("claims", "models"),
    ("claims", "pytorch"),
    ("claims", "tips"),
    ("clinic", "models"),
    ("clinic", "pytorch"),
    ("tips", "models"),
    ("utils", "recompute"),
    ("utils", "distributed"),
    ("accelerator", "cuda"),
    ("backends", "stand_ins"),
    ("stand_ins", "amp"),
    ("stand_ins", "utils"),
    ("stand_ins", "distributed"),
    ("distributed", "techniques"),
    ("techniques", "recompute"),
}  # in this direction only
PUBLIC_FACE = ("claims", "cli", "clinic", "explore", "models", "tips")  # they are users: ``from .. import nn`` is theirs
LONGEST_FILE, LONGEST_FUNCTION = 420, 80
LONG_FILES: dict[str, str] = {
    "autograd/core.py": "the core is one file, to be read from top to bottom",
}
LONG_FUNCTIONS: dict[str, str] = {}


@cache
def trees() -> dict[Path, ast.Module]:
    """Each file of ours, parsed once for all tests here. The collector leaves them out: they are a million objects."""
    found = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    gc.freeze()
    return found


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a file, which most tests here go through."""
    return tuple(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    """They are large."""
    yield
    trees.cache_clear()
    nodes.cache_clear()


def room(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py") if parts else ""


class Imports(ast.NodeVisitor):
    """The modules of ours that a file imports, anywhere in it; blocks under ``TYPE_CHECKING`` are for type checkers only."""

    def __init__(self, package: tuple[str, ...]) -> None:
        self.package, self.found = package, []

    def visit_If(self, node: ast.If) -> None:
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        for child in node.orelse if "TYPE_CHECKING" in names else [*node.body, *node.orelse]:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first, *rest = alias.name.split(".")
            if first == "tinygrad_mem":
                self.found.append((node.lineno, tuple(rest)))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = tuple(node.module.split(".")) if node.module else ()
        if node.level:
            module = self.package[: len(self.package) - node.level + 1] + module
        elif module[:1] == ("tinygrad_mem",):
            module = module[1:]
        else:
            return
        if module:
            self.found.append((node.lineno, module))
        else:
            self.found.extend((node.lineno, (alias.name,)) for alias in node.names)


def imports_of(path: Path) -> list:
    visitor = Imports(path.relative_to(ROOT).parent.parts)
    visitor.visit(trees()[path])
    return visitor.found


def wrong_imports(path: Path, imports: list) -> list[str]:
    """A line for each import of a module that does not run downwards."""
    here, wrong = room(path.relative_to(ROOT).parts), []
    if here in ("__init__", "__main__"):
        return []
    if here not in RANKS:
        return [f"{here} has no rank: put it in the table here and in docs/architecture.md"]
    for line, module in imports:
        there = room(module)
        if here in PUBLIC_FACE and there not in RANKS:
            continue
        if there not in RANKS:
            wrong.append(f"{path}:{line} imports {there!r} from the package itself, or from a room without a rank")
        elif not (here == there or RANKS[there] < RANKS[here] or (here, there) in SAME_RANK):
            wrong.append(f"{path}:{line}: {here} (rank {RANKS[here]}) imports {there} (rank {RANKS[there]})")
    return wrong


def test_imports_run_downwards():
    wrong = [line for path in MODULES for line in wrong_imports(path, imports_of(path))]
    assert not wrong, "\n".join(wrong)


def test_the_test_sees_an_import_that_runs_upwards():
    visitor = Imports(("ops",))
    visitor.visit(
        ast.parse("def f():\n    from ..autograd.tensor import Tensor\nif TYPE_CHECKING:\n    from ..nn import Module")
    )
    assert visitor.found == [(2, ("autograd", "tensor"))]
    assert len(wrong_imports(ROOT / "ops" / "base.py", visitor.found)) == 1


BACK = {
    "autograd/tensor functional/__init__": "for type checkers: the methods that are put on Tensor",
    "autograd/graph techniques/offload": "for type checkers: save_on_cpu puts itself under PyTorch's name",
    "nn/parallel distributed/data_parallel": "for type checkers: DistributedDataParallel puts itself under PyTorch's name",
}
"""Imports (file, file) that lead back to where one came from. Without them no file imports in a circle; add none."""


def resolved(parts: tuple[str, ...], modules: dict) -> tuple[str, ...] | None:
    """The file that an import of ``parts`` reads."""
    return parts if parts in modules else (*parts, "__init__") if (*parts, "__init__") in modules else None


def reads(here: tuple[str, ...], tree: ast.Module, modules: dict) -> set:
    """The files of ours that a file imports from."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if not node.level and named[:1] != ("tinygrad_mem",):
                continue
            base = here[: len(here) - node.level] + named if node.level else named[1:]
            found |= {resolved((*base, alias.name), modules) or resolved(base, modules) for alias in node.names}
    return found - {None, here}


def test_files_do_not_import_in_circles():
    modules = {path.relative_to(ROOT).with_suffix("").parts: path for path in MODULES}
    graph, used = {}, set()
    for here, path in modules.items():
        name, graph["/".join(here)] = "/".join(here), set()
        for there in {"/".join(parts) for parts in reads(here, trees()[path], modules)}:
            rows = {row for row in BACK if fnmatch(name, row.split()[0]) and fnmatch(there, row.split()[1])}
            used |= rows
            if not rows:
                graph[name].add(there)
    list(TopologicalSorter(graph).static_order())  # CycleError names a circle
    assert used == set(BACK), "these imports are gone: take their rows away"


def public_functions() -> list:
    """(where, name, function) of all functions that users call, methods of tensors among them."""
    import tinygrad_mem as tm

    homes = {
        "tinygrad_mem": tm,
        "nn.functional": tm.nn.functional,
        "Tensor": tm.Tensor,
        "linalg": tm.linalg,
        "special": tm.special,
    }
    return [
        (where, name, function)
        for where, home in homes.items()
        for name in dir(home)
        if not name.startswith("_") and inspect.isfunction(function := inspect.getattr_static(home, name))
    ]


def test_a_public_function_stands_where_its_name_is():
    """``grep "def NAME("`` finds it, in the file that it says it is from. No function is made by another one."""
    texts: dict[str, str] = {}
    lost = []
    for where, name, function in public_functions():
        module = function.__module__
        if module not in texts:
            texts[module] = Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8")
        if f"def {function.__name__}(" not in texts[module]:
            lost.append(f"{where}.{name}: no def {function.__name__} in {module}")
    assert lost == []
    assert len(texts) > 20


def test_a_public_function_of_other_rooms_stands_where_its_name_is():
    """``grep`` finds the ``def`` of what networks, ``cuda``, ``memory`` and others offer: none is a ``partial`` or made."""
    lost = []
    for room in ("models", "cuda", "memory", "amp", "recompute", "techniques", "distributed", "data", "utils"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.stem == "__init__":
                continue
            for node in trees()[path].body:
                made = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Attribute | ast.Subscript)
                if made and isinstance(node.value, ast.Call | ast.GeneratorExp):
                    names = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
                    module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
                    lost += [
                        f"{path.relative_to(ROOT)}: {name}"
                        for name in names
                        if not name.startswith("_") and isinstance(getattr(module, name, None), FunctionType | partial)
                    ]
    assert lost == []


def test_a_function_that_pytorch_offers_is_declared_public():
    """``@public`` stands on it. Otherwise it has no name for users, no door and no place in the stubs."""
    bare = []
    for path in sorted((ROOT / "functional").glob("*.py")):
        for node in trees()[path].body:
            if isinstance(node, ast.FunctionDef) and not any("public(" in ast.unparse(each) for each in node.decorator_list):
                offered = [
                    place for place in (torch, torch.nn.functional, torch.Tensor, torch.special) if hasattr(place, node.name)
                ]
                if offered and not node.name.startswith("_"):
                    bare.append(f"{path.name}: {node.name}")
    assert bare == []


SHARED_NAMES = {
    "Replay": "of a log through the pool of CuPy, and of a recording through the allocator of PyTorch",
    "Case": "one try of a tip, and a question of the clinic",
    "Block": "memory of the pool, what a track says of it, and a transformer's",
    "MLP": "two networks have one",
    "Named": "a network by its name, and that of a tip",
    "Attention": "the op, and a tip's",
}
"""Names of classes that stand for two things, with the reason. An op has its layer's name, a kernel of CuPy that of NumPy's."""


def test_a_class_name_stands_for_one_thing():
    homes: dict[str, set] = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).parts
        alike = {"ops": "nn", "techniques": "nn", "nn": "nn", "stand_ins": "amp", "amp": "amp"}
        home = f"kernels/{path.name}" if parts[0] == "kernels" else alike.get(parts[0], "/".join(parts))
        for node in nodes(trees()[path]):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(home)
    twice = {name: sorted(where) for name, where in homes.items() if len(where) > 1}
    assert set(twice) == set(SHARED_NAMES), twice


def kernels(module) -> dict:
    """The kernels that a package exports, by the family that they come from; generated ones by that of their formula."""
    families: dict[str, dict] = {}
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None) or ""
        ours = home.startswith(f"{module.__name__}.") or hasattr(value, "traced")
        if callable(value) and not name.startswith("_") and ours and ".fast." not in home:
            families.setdefault(home.rpartition(".")[2], {})[name] = value
    return families


FAMILIES = sorted(p.stem for p in (ROOT / "kernels" / "numpy").glob("*.py"))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "__init__"])
def test_kernels_come_in_pairs(family):
    from tinygrad_mem.kernels import numpy as ours

    first = kernels(ours).get(family, {})
    second = kernels(pytest.importorskip("tinygrad_mem.kernels.cupy")).get(family, {})
    if first and not second:
        pytest.xfail(f"kernels/cupy/{family}.py has no kernels yet: these ops do not run on cuda")
    assert sorted(first) == sorted(second)
    for name, kernel in first.items():
        assert list(inspect.signature(kernel).parameters) == list(inspect.signature(second[name]).parameters), name


def test_a_kernel_has_a_plain_formula():
    """``@formula(...)`` above it: the sum, in NumPy, that the fast way computes. A check and a size need none."""
    from tinygrad_mem.kernels import numpy as ours

    lacking = {
        family
        for family, found in kernels(ours).items()
        for name, kernel in found.items()
        if not (name.startswith("check_") or name.endswith("_workspace") or hasattr(kernel, "formula"))
    }
    assert lacking == set()


HEAVY = [
    "cupy",
    "torch",
    "rich",
    "typer",
    "matplotlib",
    "sklearn",
    "safetensors",
    "mpi4py",
    "threadpoolctl",
    "scipy",
    "pandas",
    "PIL",
]


OWNERS = {"empty", "empty_like", "zeros", "workspace", "contiguous", "grad_buffer", "take"}
"""What of an op's context may give it an array that nobody else holds."""


def unnamed(call: ast.Call) -> int:
    """Arguments of a call that may be arrays without a name."""
    owned = 0
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        found = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
        owned += any(isinstance(f, ast.Attribute) and f.attr in OWNERS and ast.unparse(f.value) == "ctx" for f in found)
    return owned


def test_an_op_names_what_it_gives_to_a_kernel():
    """Of two arrays that a kernel alone holds, it lets go in an order of its own: not the same on meta. One is no choice."""
    found = []
    for path in sorted((ROOT / "ops").glob("*.py")):
        calls = [node for node in nodes(trees()[path]) if isinstance(node, ast.Call)]
        kernels = [call for call in calls if ast.unparse(call.func).startswith("ctx.kernels.")]
        found += [f"{path.name}:{call.lineno}" for call in kernels if unnamed(call) > 1]
    assert found == [], "give all but one of these arguments a name first"
    two: Any = ast.parse("ctx.kernels.f(ctx.take('x').reshape(1), ctx.contiguous(y), out=gx)", mode="eval").body
    assert unnamed(two) == 2


@pytest.mark.parametrize("module", ["tinygrad_mem", "tinygrad_mem.memory", "tinygrad_mem.utils.data", "tinygrad_mem.models"])
def test_importing_imports_numpy_only(module):
    program = f"import sys, {module}\nprint(sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exception_is_defined_in_errors_and_derives_from_what_pytorch_raises():
    bases = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__:
            assert issubclass(value, errors.TinygradMemError), name
            assert issubclass(value, bases) or value is errors.TinygradMemError, name
            assert name.endswith("Error"), name
            assert value.__doc__, name
    for path, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                for base in node.bases:
                    text = ast.unparse(base)
                    assert not text.endswith(("Error", "Exception")), (
                        f"{path}:{node.lineno}: {node.name} belongs into errors.py"
                    )


def test_files_and_functions_stay_readable():
    files, functions = {}, {}
    for path, tree in trees().items():
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if len(text.splitlines()) > LONGEST_FILE:
            files[name] = len(text.splitlines())
        for node in nodes(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    functions[f"{name}::{node.name}"] = length
    assert set(files) == set(LONG_FILES), files
    assert set(functions) == set(LONG_FUNCTIONS), functions


def test_every_module_says_what_it_is():
    for path, tree in trees().items():
        assert ast.get_docstring(tree), f"{path} has no docstring"


# --- what is put back at the end of a block

PUT_BACK_BY_CONTEXTLIB = {
    "files.py: replacing": "what a signal leaves is a temporary file, which the next call removes",
}
"""Functions that do something after their ``yield`` and are decorated with contextlib's contextmanager, and why they may be."""


def _putting_back(tree: ast.AST) -> list[str]:
    """Functions that contextlib's ``contextmanager`` is used for, other than those that end with their only ``yield``.

    A signal that is heard as the block ends does not reach what is after the ``yield``: ``interrupts.context`` sees to that.
    """
    named = ("contextmanager", "asynccontextmanager")
    uses = {id(n): n for n in nodes(tree) if getattr(n, "attr", getattr(n, "id", "")) in named}
    found = []
    for f in (n for n in nodes(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))):
        mine = [d for d in f.decorator_list if uses.pop(id(d), None)]
        if not mine:
            continue
        last = f.body[-1]
        ends = isinstance(last, ast.Expr) and isinstance(last.value, ast.Yield)
        yields = [n for n in ast.walk(f) if isinstance(n, (ast.Yield, ast.YieldFrom))]
        if not (ends and len(yields) == 1):
            found.append(f.name)
    return found + [f"line {n.lineno}" for n in uses.values()]


def test_what_puts_back_does_not_rely_on_contextlib():
    found = {f"{path.relative_to(ROOT)}: {name}" for path, tree in trees().items() for name in _putting_back(tree)}
    assert found == set(PUT_BACK_BY_CONTEXTLIB)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    check()\n    yield", False),
        ("    yield\n    back()", True),
        ("    try:\n        yield\n    finally:\n        back()", True),
        ("    with state():\n        yield", True),
        ("    if x:\n        yield\n        return\n    yield", True),
    ],
)
@pytest.mark.parametrize("decorator", ["contextmanager", "contextlib.contextmanager", "contextlib.asynccontextmanager"])
def test_the_rule_finds_what_puts_back(body: str, found: bool, decorator: str):
    assert bool(_putting_back(ast.parse(f"@{decorator}\ndef f():\n{body}\n"))) == found
    assert _putting_back(ast.parse(f"def f():\n{body}\ng = {decorator}(f)\n")) == [f"line {body.count(chr(10)) + 3}"]


def test_docstrings_open_with_a_thing_or_an_act():
    """``The peak in bytes`` or ``Return the peak``, and not ``What was highest``: the first words say what it is."""
    asking = re.compile(r"(What|Who|Whose|How|Where|When|Which|Whether|Why|That) ")
    found = []
    for path, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if asking.match(first) and not first.endswith("?"):
                    found.append(f"{path.relative_to(ROOT)}: {first}")
    assert found == []
