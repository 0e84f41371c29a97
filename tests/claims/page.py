"""``docs/claims.md``: the table of published figures. ``python -m tests.claims.page --write`` writes it; a test compares."""

from __future__ import annotations

import sys
from pathlib import Path

from tinygrad_mem.claims import CLAIMS, RULES, Judged, by_error, examine, summary
from tinygrad_mem.claims.show import found_text, part_text

PATH = Path(__file__).parents[2] / "docs" / "claims.md"
HEAD = "| claim | what it says | figure | found | verdict | why |"


def row(judged: Judged) -> str:
    """The line of the table."""
    claim, verdict, found = judged.claim, judged.verdict, judged.found
    assert verdict is not None
    assert found is not None
    beside = " ".join(f"Also included: {part_text(claim.stated, part)}." for part in found.parts)
    cells = (
        f"`{claim.name}`",
        f"{claim.says} [{claim.source.title}]({claim.source.link})",
        claim.stated.text,
        found_text(judged),
        verdict.text,
        f"{beside} {claim.why}".strip(),
    )
    return "| " + " | ".join(cells) + " |"


def written(judged: list[Judged]) -> str:
    """The whole page."""
    assert all(each.verdict for each in judged), "PyTorch and transformers are needed to write the page"
    lines = ["# Published figures, judged", "", summary(judged), RULES, ""]
    lines += [
        "`python -m tinygrad_mem claims` runs all, `claims NAME` shows one in full, `--html FILE` writes a page with the runs.",
        "",
    ]
    lines += [HEAD, "|---|---|---:|---:|---|---|", *map(row, by_error(judged))]
    return "\n".join(lines) + "\n"


def rows() -> dict[str, str]:
    """Name -> the line that stands in the page now."""
    lines = [line for line in PATH.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in lines}


def main() -> None:
    """Run all claims, and write or print the page."""
    text = written([examine(claim) for claim in CLAIMS.values()])
    if "--write" in sys.argv:
        PATH.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
