"""Libraries that are extras: the same sentence everywhere, with a command that is right for a checkout and for a wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tinygrad_mem import errors

ROOT = Path(__file__).parents[1]

USES = {
    "matplotlib": [
        "track.plot('x.png')",
        "main('train', '--picture', 'x.png')",
        "main('tips', '--tip', 'no_grad', '--picture', 'x.png')",
    ],
    "rich": ["track.table('op')", "track.compare(track).table()", "plan.table()"],
    "sklearn": ["main('train')", "from tinygrad_mem.data.digits import load_digits; load_digits()"],
    "torch": ["tm.from_torch(object())"],
    "cupy": ["memory.predict(lambda: None, like='cuda')", "main('estimate', 'lenet', '--device', 'cuda')"],
}
NAMES = {"sklearn": "scikit-learn", "cupy": "cupy-cuda12x"}

PROGRAM = """
import contextlib, io, json, sys, traceback
import tinygrad_mem as tm
from tinygrad_mem import memory

def main(*arguments):
    from tinygrad_mem.cli import main
    sys.argv = ["tinygrad_mem", *arguments]
    main()

with memory.track("cpu") as track:
    tm.ones(3)
{plan}
for name in [name for name in sys.modules if name.partition(".")[0] == {library!r}]:
    del sys.modules[name]
sys.modules[{library!r}] = None
said = {{}}
for use in {uses!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            exec(use)
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            status = traceback.print_exc() or 1
    said[use] = status, errors.getvalue()
print(json.dumps(said))
"""
PLAN = """
from tinygrad_mem.models.mlp import MLP
from tinygrad_mem.plan import plan as make
import tinygrad_mem.nn.functional as F
model = MLP()
optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
plan = make(model, (tm.randn(2, 784), tm.randint(0, 10, (2,))), F.cross_entropy, optimizer, "1 GiB")
"""


@pytest.mark.parametrize("library", USES)
def test_what_is_missing_has_one_cure(library: str, tmp_path: Path) -> None:
    uses = USES[library]
    program = PROGRAM.format(library=library, uses=uses, plan=PLAN if any("plan." in use for use in uses) else "")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert list(found) == uses
    cure = f"pip install {NAMES.get(library, library)}"
    for use, (status, said) in found.items():
        assert status != 0, use
        assert re.search(rf"{re.escape(cure)}\b(?!\[)", " ".join(said.split())), said
        if "main(" in use:
            assert "Traceback" not in said
    assert not list(tmp_path.iterdir()), "something was written before the library was missed"


def test_it_runs_without_asserts_and_docstrings() -> None:
    """``python -OO``: no function has a docstring there, so none may depend on one."""
    program = "import tinygrad_mem as tm; x = tm.ones(3, requires_grad=True); (x * 2).sum().backward(); print(x.add_.__doc__)"
    ran = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("None\n", "")


def test_every_cure_is_a_distribution_of_an_extra() -> None:
    """What a message tells to install is what ``pyproject.toml`` asks for, under the name that pip knows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {Requirement(line).name for lines in extras.values() for line in lines}
    for library in (*USES, "ml_dtypes", "threadpoolctl", "safetensors"):
        assert errors.install(library).removeprefix("pip install ") in asked


def test_no_message_names_an_extra_of_ours() -> None:
    """``tinygrad_mem[...]`` installs nothing in a checkout, and is another project's name where ours is not published."""
    found = [
        path for path in (ROOT / "tinygrad_mem").rglob("*.py") if re.search(r"pip install[^\n]*tinygrad_mem", path.read_text())
    ]
    assert not found
