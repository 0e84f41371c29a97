"""Words that a command does not take are refused in one sentence: the word, what was expected, where the options are listed."""

from __future__ import annotations

import pytest

from tests.cli.inside import run

WRONG = {
    "train --epochs 0": "train: --epochs 0: ",
    "train --epochs=0": "train: --epochs 0: ",
    "train --epochs x": "train: --epochs x: ",
    "train --epochz 3": "train: No such option: --epochz",
    "train --data nosuch": "train: --data nosuch: 'nosuch' is not one of 'digits', 'mnist', 'cifar10'",
    "train --picture": "train: Option '--picture' requires an argument",
    "train extra": "train: Got unexpected extra argument",
    "tips --batch-size 1": "tips: --batch-size 1: ",
    "estimate": "estimate: NETWORK is missing: a name such as vgg16",
    "estimate resnet20 --zero 9": "estimate: --zero 9: ",
    "explore --port 99999": "explore: --port 99999: ",
    "launch x.py": "launch: --ranks is missing: processes to start",
    "launch -n 0 x.py": "launch: --ranks 0: ",
    "launch -n 2": "launch: SCRIPT is missing: a Python file",
}


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("typed", WRONG)
def test_it_is_one_sentence(typed: str, columns: int):
    done = run(*typed.split(), columns=columns)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(WRONG[typed])
    assert done.stderr.endswith(f". See python -m tinygrad_mem {typed.split()[0]} --help\n")
    assert "Value error" not in done.stderr


@pytest.mark.parametrize("typed", ["nosuch", "--nosuch"])
def test_without_a_command_the_commands_are_listed(typed: str):
    done = run(typed)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("tinygrad_mem: No such ")
    assert done.stderr.endswith(
        "The commands are tips, train, estimate, plan, explore, clinic, claims, snapshot, launch, doctor\n"
    )


def test_nothing_typed_shows_the_help():
    done = run()
    assert "Measure every memory-saving tip." in done.stdout + done.stderr
