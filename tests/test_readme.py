"""The front door says only what is true: its code runs, its commands are the ones that CI runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import tinygrad_mem
from tests.cli import inside
from tinygrad_mem.cli.networks import OPTIMIZERS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}


def test_the_test_command_is_what_ci_runs():
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1].removesuffix(' "$@"')
    assert command in README.splitlines()


def test_both_commands_make_their_own_environment():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv .venv && ")]
    assert len(commands) == 2
    assert commands[0].endswith("-m tinygrad_mem tips")


BLOCKS = [
    each for page in PAGES.values() for each in re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", page, flags=re.S)
]


@pytest.mark.parametrize(("block", "printed"), BLOCKS, ids=[block.splitlines()[-1][:40] for block, _ in BLOCKS])
def test_python_blocks_print_what_they_say(block: str, printed: str, capsys: pytest.CaptureFixture):
    """A block runs as it stands; it prints the comments behind its ``print(...)``, or the block that follows it."""
    said = [line.split("  # ", 1)[1] for line in block.splitlines() if line.startswith("print(") and "  # " in line]
    exec(compile(block, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == (printed.splitlines() or said)


COMMANDS = re.findall(r"^python -m (tinygrad_mem [^\n]*)$(?:\n```\n\n```\n(.*?)```)?", README, flags=re.M | re.S)


@pytest.mark.parametrize(("line", "printed"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_other_commands_run(line: str, printed: str):
    """And print what the block behind them says."""
    ran = inside.run(*shlex.split(line)[1:])
    assert ran.returncode == 0, ran.stderr
    if printed:
        assert [text.rstrip() for text in ran.stdout.splitlines()] == printed.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for link in re.findall(r"\]\((?!http)([^)#]+)", PAGES[page]):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("anchor", re.findall(r"\]\(#([^)]+)\)", README))
def test_links_within_the_page_lead_to_a_title(anchor: str):
    """As GitHub names them: small letters, without punctuation, hyphens for spaces."""
    titles = re.findall(r"^## (.+)$", README, flags=re.M)
    assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_the_ratios_are_those_of_the_page_of_benchmarks():
    """Its tables are of bytes, and of the times of networks on a CPU and on a GPU; behind these are two small ops."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").partition("## Where the time goes")[0]
    parts = re.split(r"\*\*Times|## On a GPU", page)
    bytes_, times, gpu = ([float(each) for each in re.findall(r"\| ([\d.]+) \|$", part, re.M)] for part in parts)
    networks = times[:-2]
    assert len(bytes_) == 13
    said = f"of 13 networks are {min(bytes_):.2f} to {max(bytes_)} times"
    assert said in " ".join(README.split())
    assert f"on a CPU: {min(networks):.2f} to {max(networks)}, by network" in " ".join(README.split())
    assert f"on an H100: {min(gpu[:-2])} to {max(gpu[:-2])}" in " ".join(README.split())


@pytest.mark.parametrize(("file", "line"), [("CITATION.cff", r"^version: (.+)$"), ("README.md", r"^  version = \{(.+)\},$")])
def test_a_citation_names_this_version(file: str, line: str):
    assert re.findall(line, (ROOT / file).read_text(encoding="utf-8"), re.M) == [tinygrad_mem.__version__]


def test_the_number_of_optimizers():
    assert f"`--optimizer` ({len(OPTIMIZERS)} of them)" in README
