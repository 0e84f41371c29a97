"""Lists of public names are made: stubs agree with the decorators, and a type checker and an editor know every name."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import tinygrad_mem as tm
from tests.stubs import outdated
from tinygrad_mem.functional.door import PUBLIC, public


def test_stubs_are_up_to_date():
    assert outdated() == [], "python -m tests.stubs --write"


USES = {
    "tm.relu": "(input: Tensor, inplace: bool = False) -> Tensor",
    "tm.zeros(2).absolute": "() -> Tensor",
    "tm.zeros(2).T + 1": "Tensor",
    "tm.zeros(2) == 1": "Any",
    "tm.zeros(2).add_(1)": "Tensor",
    "F.conv1d(tm.zeros(1, 2, 3), tm.zeros(2, 2, 1))": "Tensor",
    "tm.float32": "dtype[floating[_32Bit]]",
    "tm.nn.Linear(2, 3)": "Linear",
    "tm.optim.Adam": "type[Adam]",
}
ABSENT = ("tm.unknown", "F.unknown", "tm.zeros(2).unknown")


def test_a_type_checker_knows_names_and_signatures(tmp_path: Path):
    """It knows a name that is not there, too."""
    script = tmp_path / "script.py"
    asked = [*(f"reveal_type({use})" for use in USES), *ABSENT]
    script.write_text("\n".join(["import tinygrad_mem as tm", "import tinygrad_mem.nn.functional as F", *asked]))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(tm.__file__).parents[1])
    found = json.loads(done.stdout)["generalDiagnostics"]
    types = [each["message"] for each in found if each["severity"] == "information"]
    assert types == [f'Type of "{use}" is "{kind}"' for use, kind in USES.items()]
    assert [each["rule"] for each in found if each["severity"] == "error"] == ["reportAttributeAccessIssue"] * len(ABSENT)


def test_what_a_function_says_of_itself():
    assert tm.relu is tm.nn.functional.relu
    assert tm.clip is tm.clamp
    assert tm.Tensor.clip is tm.clamp
    assert {"relu", "clip", "zeros"} <= set(dir(tm))
    assert {"clip", "add_", "T"} <= set(dir(tm.zeros(2)))
    assert tm.relu.__module__ == "tinygrad_mem.functional.activation"
    assert tm.exp_.__doc__ == "In-place form of :func:`exp`."
    for place, functions in PUBLIC.items():
        for name, function in functions.items():
            assert pickle.loads(pickle.dumps(function)) is function, f"{place}.{name}"


def test_a_place_that_does_not_exist_is_refused():
    with pytest.raises(KeyError, match="nowhere"):

        @public("nowhere.f")
        def f() -> None:
            """Nothing."""
