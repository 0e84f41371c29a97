"""The ``[project.urls]`` of a wheel: where the clone that it is built from came from. hatch calls it (``pyproject.toml``)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    MetadataHookInterface: Any = object
else:
    try:
        from hatchling.metadata.plugin.interface import MetadataHookInterface
    except ModuleNotFoundError:  # hatch is there when a wheel is built, and need not be where the tests run
        MetadataHookInterface = object

_REMOTE = re.compile(r"(?:(?:https|ssh)://(?:[^@/]+@)?|[^@/:]+@)([\w-]+(?:\.[\w-]+)+)(?::\d+/|[/:])([\w./-]+?)(?:\.git)?/?")


def urls_of(origin: str) -> dict[str, str]:
    """Label -> address, from the address of a git remote; none for a folder of this machine or another form.

    A name and a password in the remote's address are left out.
    """
    found = _REMOTE.fullmatch(origin)
    if found is None:
        return {}
    home = "https://{}/{}".format(*found.groups())
    return {
        "Homepage": home,
        "Repository": f"{home}.git",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def origin_of(clone: Path) -> str | None:
    """The address of a clone's remote; nothing if the folder is none, but perhaps a folder in somebody else's clone."""
    return _git(clone, "remote", "get-url", "origin") if _git(clone, "rev-parse", "--show-prefix") == "" else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # there is no git, or no clone
        return None
    return done.stdout.strip()


class Urls(MetadataHookInterface):
    """A hook of hatch. An sdist is no clone: hatch reads there what was written when it was made."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses to what becomes a wheel's metadata."""
        metadata["urls"] = urls_of(origin_of(Path(self.root)) or "")
