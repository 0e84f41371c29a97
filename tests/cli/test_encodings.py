"""What a terminal gets: signs that its encoding has, names that move no cursor, and a quiet end where nobody reads on."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.profiles import pairs
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.text import PLAINLY, visible

HOSTILE = "a\x1b[31m\x9b0m\u202eb\nA budget of 5 bytes: fits\r\t\x00\u2028\ud800[red]é"
CLASS = f"""
from tinygrad_mem import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module({HOSTILE!r}, nn.Linear(4, 4))

    def forward(self, x):
        return next(self.children())(x)
"""
COMMANDS = {
    "estimate": ["estimate", "net.py:Net", "--input", "4", "--budget", "1MiB"],
    "json": ["estimate", "net.py:Net", "--input", "4", "--json"],
    "plan": ["plan", "lenet", "--allow", "in_backward", "--batch-size", "2"],
    "tips": ["tips", "--tip", "inplace", "--batch-size", "2"],
    "refused": ["estimate", "n\x1b[31m\u202e²", "--input", "4"],
}
ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8")
ASKED = pairs(list(COMMANDS), ENCODINGS)
RUN = f"""
import sys
from tinygrad_mem.cli import main
from tinygrad_mem.plan import times
times.SECONDS = 0.0
for name, encoding in {ASKED!r}:
    sys.argv = [name, *{COMMANDS!r}[name]]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        stream.reconfigure(encoding=encoding, errors="strict")
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 2 if name == "refused" else 0), end.code
    print("\\n==", flush=True)
"""


def unseen(text: str) -> set[str]:
    """The characters of a text that no reader sees."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def test_every_command_in_every_encoding(tmp_path: Path, reliability: Any):
    """All in one process: most of the time would be imports."""
    (tmp_path / "net.py").write_text(CLASS, encoding="utf-8")
    env = {**os.environ, "TINYGRAD_MEM_CACHE": "", "TERM": "dumb", "PYTHONPATH": str(Path(tm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr.decode("latin-1")
    parts = done.stdout.replace(b"\r\n", b"\n").split(b"\n==\n")[:-1]
    for (name, encoding), part in zip(ASKED, parts, strict=True):
        assert not unseen(part.decode(encoding)), name
        assert b"\nA budget of 5 bytes: fits" not in part
        assert part.strip() or name == "refused"
    assert b"\x1b" not in done.stderr
    reliability("commands on terminals of other encodings", len(parts))


@pytest.mark.parametrize("arguments", [["train", "--epochs", "1"], ["doctor"]], ids=["train", "doctor"])
def test_long_commands_in_ascii(arguments: list[str], tmp_path: Path):
    program = f"import sys; sys.argv = {['tinygrad_mem', *arguments]!r}\nfrom tinygrad_mem.cli import doctor, main\n"
    program += "doctor.ROUNDS, doctor.CORE_TYPES = 1, {}; main()"  # how fast the machine is does not matter here
    env = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "TERM": "dumb", "TINYGRAD_MEM_CACHE": ""}
    env["PYTHONPATH"] = str(Path(tm.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert not unseen(done.stdout.decode("ascii"))
    assert b"UnicodeEncodeError" not in done.stderr
    assert b"\x1b" not in done.stderr, "it is no terminal"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal to look at")
def test_no_color_means_no_color(tmp_path: Path):
    import pty

    found = {}
    for value in ("", "1"):
        here, there = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "NO_COLOR": value, "PYTHONPATH": str(Path(tm.__file__).parents[1])}
        command = [sys.executable, "-m", "tinygrad_mem", "estimate", "lenet"]
        with subprocess.Popen(command, stdout=there, stderr=there, cwd=tmp_path, env=env) as process:
            os.close(there)
            shown = b""
            with contextlib.suppress(OSError):  # which is how a terminal ends
                while part := os.read(here, 1 << 16):
                    shown += part
        os.close(here)
        assert process.returncode == 0, shown
        found[value] = [code for code in re.findall(rb"\x1b\[([0-9;]*)m", shown) if re.search(rb"\b[349][0-8]\b", code)]
    assert found[""]
    assert not found["1"]


@pytest.mark.parametrize(("options", "unbuffered"), pairs([[], ["--json"]], ["", "1"]))
def test_a_pipe_that_nobody_reads_ends_it_quietly(options: list[str], unbuffered: str):
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "tinygrad_mem", "estimate", "lenet", *options]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == b""


def test_visible_text():
    assert visible("plain é 層 \u00a0") == "plain é 層 \u00a0"
    assert visible("\x1b[31m\x9b\n\u202e\ud800") == r"\x1b[31m\x9b\n\u202e\ud800"
    assert visible("a\nb\rc", keep="\n") == "a\nb\\rc"
    assert "²→µ層\ud800".encode("ascii", PLAINLY) == b"^2>u\\u5c64\\ud800"
    for code in range(0x11000):
        assert not unseen(visible(chr(code)))
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", PLAINLY)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(HOSTILE, nn.Linear(64, 64))

    def forward(self, x):
        return next(self.children())(x)


def shown(size: int) -> dict[str, str]:
    """Everything that says names in the terminal."""
    model = Net()
    with memory.track() as track:
        loss = model(tm.ones(4, 64)).sum()
        memory.mark(HOSTILE)
        loss.backward()
        weight = next(model.parameters())
        explained = track.explain(weight)
        pool = tm.device("cpu").pool
        pool.set_limit(pool.total_bytes() + (1 << 20))
        try:
            with pytest.raises(OutOfMemoryError) as caught:
                tm.empty(1 << 20)
        finally:
            pool.set_limit(0)
    with memory.track() as other:
        tm.zeros(size)
    tables = {by: track.table(by) for by in ("category", "module", "op", "line", "mark")}
    changed = track.compare(other)
    texts = {"comparison": str(changed), "changes": changed.table((HOSTILE, "after")), "marked": track.table(at=track.marks[0])}
    return tables | texts | {"explained": explained, "no memory": str(caught.value), "notebook": track._repr_html_()}


def test_names_in_tables_and_sentences_move_no_cursor_and_begin_no_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tm.device("cpu"), "pool", Pool("cpu"))  # no space that other tests left free is in its budget
    found = shown(100)
    assert not {name: unseen(text) for name, text in found.items() if unseen(text)}
    assert not any(line.strip("│ ").startswith("A budget") for text in found.values() for line in text.splitlines())
    assert any("x1b[31m" in text for text in found.values())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_table_can_be_printed_wherever_it_was_asked_for(encoding: str):
    with memory.track() as track:
        tm.zeros(10)
        memory.mark("µ → 層")
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding)):
        shown = track.table("mark")
        print(shown, flush=True)  # in the encoding's strict way
    assert ("│" in shown) == (encoding == "utf-8")


def test_a_page_holds_any_name(tmp_path: Path):
    with memory.track() as track:
        Net()(tm.ones(4, 64)).sum()
        memory.mark("</script><script>alert(1)</script>" + HOSTILE)
    track.to_html(tmp_path / "page.html", titles=["<script>alert(2)</script>" + HOSTILE])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert(" not in page
    assert r"\ud800" in page


@pytest.mark.parametrize(
    ("count", "said", "not_said"), [(1 << 40, "machine has no more", "limit"), (1 << 46, "no machine", "batch")]
)
def test_what_is_said_of_sizes_that_no_machine_has(count: int, said: str, not_said: str):
    with pytest.raises(OutOfMemoryError, match=said) as caught:
        tm.empty(count)
    assert not_said not in str(caught.value)
