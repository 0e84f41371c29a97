"""The addresses in a wheel's metadata: those of the remote, without passwords; none where nobody knows them."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

FILE = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "urls.py"))


@pytest.mark.parametrize(
    "remote",
    [
        "https://git.example.org/group/project.git",
        "https://name:secret@git.example.org/group/project",
        "git@git.example.org:group/project.git",
        "ssh://git@git.example.org:2222/group/project.git",
    ],
)
def test_a_remote_has_a_home(remote: str):
    urls = FILE["urls_of"](remote)
    assert urls["Homepage"] == "https://git.example.org/group/project"
    assert urls["Repository"] == "https://git.example.org/group/project.git"
    assert len(urls) == 4
    assert "secret" not in str(urls)


@pytest.mark.parametrize("remote", ["", "/srv/project.git", "../project", "file:///srv/project.git", "C:\\project", "a.b/c"])
def test_a_folder_has_none(remote: str):
    assert FILE["urls_of"](remote) == {}


def test_the_remote_of_a_clone_and_of_nothing_inside_it(tmp_path: Path):
    """An unpacked archive may lie in a folder of somebody else's clone."""
    inner = tmp_path / "inner"
    inner.mkdir()
    assert FILE["origin_of"](tmp_path) is None
    for command in (["init", "-q"], ["remote", "add", "origin", "https://git.example.org/group/project"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    assert FILE["origin_of"](tmp_path) == "https://git.example.org/group/project"
    assert FILE["origin_of"](inner) is None
