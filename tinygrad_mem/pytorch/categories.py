"""The category of each block of a recording, deduced from stacks and lifetimes by rules. The first rule that applies counts.

Each rule has a category, a certainty and a reason. ``sure``: a stack shows it. ``likely``: programs usually do this. Blocks to
which no rule applies are ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..memory.attribution import CATEGORIES, Category
from .lifetimes import Lifetimes
from .stacks import SIGNS, Origins
from .steps import CODE, PHASES, Parts

_KIND = np.array([CODE.get({"recompute": "backward"}.get(name, name), 0) for name in PHASES], np.uint8)  # a part of backward
SURE, LIKELY, UNKNOWN = "sure", "likely", "unknown"


class Rule(NamedTuple):
    """A category with its certainty and the reason, and the blocks to which it applies."""

    category: Category
    certainty: str
    why: str
    applies: Callable[[Facts], np.ndarray]


@dataclass
class Facts:
    """The facts that rules use, in columns with one entry for each block."""

    older: np.ndarray  # it was allocated before the recording
    stays: np.ndarray  # it is alive at the end
    made: np.ndarray  # code of the phase in which it was allocated
    ended: np.ndarray  # code of the phase in which it was freed; if it is alive at the end: the last phase
    asked: np.ndarray  # the phase according to the stack that allocated it; known of older blocks too
    made_in: np.ndarray  # number of the step in which it was allocated
    ended_in: np.ndarray  # number of the step in which it was freed
    part: np.ndarray  # number of the stretch of one phase in which it was allocated
    end_part: np.ndarray  # number of the stretch in which it was freed
    sign: np.ndarray  # the mark of the stack that allocated it
    end_sign: np.ndarray  # the mark of the stack that freed it
    sure: np.ndarray  # stacks show both phases
    made_sure: np.ndarray  # a stack shows the first
    outlives: np.ndarray  # its step has a backward after it was allocated, and the block outlives that
    early: np.ndarray  # it was allocated before the first forward, if there is one
    cut: np.ndarray  # it was allocated in the part of a step in which the recording ends, and is alive at the end
    first_state: bool  # an optimizer made its state during the recording
    trains: bool  # there is a backward or an optimizer's step
    runs: bool  # there is a forward

    def marked(self, sign: str) -> np.ndarray:
        """The blocks that were allocated by a stack with this mark."""
        return self.sign == SIGNS.index(sign)

    def freed_by(self, sign: str) -> np.ndarray:
        """The blocks that were freed by a stack with this mark."""
        return ~self.stays & (self.end_sign == SIGNS.index(sign))

    def made_while(self, *phases: str) -> np.ndarray:
        """The blocks that were allocated in one of these phases during the recording."""
        return ~self.older & np.isin(self.made, [CODE[phase] for phase in phases])

    def ended_while(self, *phases: str) -> np.ndarray:
        """The blocks that were freed in one of these phases."""
        return ~self.stays & np.isin(self.ended, [CODE[phase] for phase in phases])


def _until_backward(b: Facts) -> np.ndarray:
    return b.ended_while("backward", "recompute") & (b.made_in == b.ended_in)


def _for_a_moment(b: Facts) -> np.ndarray:
    return ((b.part == b.end_part) & (b.made > 0)) | (b.made_while("backward") & _until_backward(b))


def _in_one_phase(b: Facts) -> np.ndarray:
    return (b.made == b.ended) & (b.made_in == b.ended_in) & b.made_while("forward", "optimizer") & ~b.stays


def _state(b: Facts) -> np.ndarray:
    return b.made_while("optimizer") & (b.stays | b.ended_while("optimizer")) & (b.part != b.end_part) & ~b.cut


_C = Category
_AS_BEFORE = (_C.ACTIVATION, _C.GRADIENT, _C.TEMPORARY, _C.OPTIMIZER_STATE)
RULES = [
    # the stack that allocated the block
    Rule(_C.WORKSPACE, SURE, "a library of kernels asked for it", lambda b: b.marked("workspace")),
    Rule(_C.PARAMETER, SURE, "Module.to moved it: a parameter or buffer", lambda b: b.marked("moved")),
    Rule(_C.OPTIMIZER_STATE, SURE, "the optimizer made it as state", lambda b: b.marked("state") & (b.part != b.end_part)),
    Rule(_C.GRADIENT, SURE, "autograd accumulates into it", lambda b: b.marked("accumulated") & (b.part != b.end_part)),
    # blocks of one part of a step
    Rule(_C.TEMPORARY, SURE, "made and freed in the same part of a step", lambda b: _for_a_moment(b) & b.sure),
    Rule(_C.TEMPORARY, LIKELY, "made and freed in the same part of a step", lambda b: _for_a_moment(b) | _in_one_phase(b)),
    # activations
    Rule(_C.ACTIVATION, SURE, "made in forward, freed in backward",
         lambda b: b.made_while("forward") & _until_backward(b) & b.sure),
    Rule(_C.ACTIVATION, LIKELY, "made before backward, freed in it",
         lambda b: b.made_while("forward", "user") & _until_backward(b)),
    Rule(_C.ACTIVATION, LIKELY, "made again in backward, freed later in it",
         lambda b: b.made_while("recompute") & _until_backward(b)),
    Rule(_C.ACTIVATION, LIKELY, "older than the recording, freed in its first backward",
         lambda b: b.older & b.ended_while("backward", "recompute") & (b.ended_in == 0)),
    # gradients
    Rule(_C.GRADIENT, SURE, "made in backward, freed by zero_grad",
         lambda b: b.made_while("backward") & b.freed_by("zero_grad") & b.made_sure),
    Rule(_C.GRADIENT, LIKELY, "freed by zero_grad", lambda b: b.freed_by("zero_grad")),
    Rule(_C.GRADIENT, LIKELY, "made in backward, alive after it", lambda b: b.made_while("backward") & b.outlives),
    # lasting blocks
    Rule(_C.OPTIMIZER_STATE, LIKELY, "made in an optimizer's step, alive after it", _state),
    Rule(_C.PARAMETER, LIKELY, "a layer made it and keeps it: a parameter or buffer", lambda b: b.marked("built") & b.stays),
    Rule(_C.PARAMETER, LIKELY, "made before the first step, never freed: a parameter or buffer",
         lambda b: b.made_while("user") & b.stays & b.early),
    Rule(_C.OPTIMIZER_STATE, LIKELY, "an optimizer's step made it before the recording",
         lambda b: b.older & b.stays & (b.asked == CODE["optimizer"])),
    Rule(_C.GRADIENT, LIKELY, "made in backward before the recording, and never freed",
         lambda b: b.older & b.stays & (b.asked == CODE["backward"]) & b.runs),
    Rule(_C.PARAMETER, LIKELY, "older than the recording, never freed: a parameter or buffer",
         lambda b: b.older & b.stays & (b.first_state or (b.runs and not b.trains))),
    # inputs
    Rule(_C.INPUT, LIKELY, "copied to the device outside of a step, and freed", lambda b: b.marked("copied") & ~b.stays),
    Rule(_C.INPUT, LIKELY, "made while data was loaded", lambda b: b.made_while("data")),
    # unknown blocks
    Rule(_C.UNTRACKED, UNKNOWN, "older than the recording, and nothing shows its purpose", lambda b: b.older),
    Rule(_C.UNKNOWN, UNKNOWN, "no stack says where it was made", lambda b: b.made == 0),
    Rule(_C.UNKNOWN, UNKNOWN, "made before backward, alive after it: the program holds it",
         lambda b: b.made_while("forward", "user") & b.outlives),
    Rule(_C.UNKNOWN, UNKNOWN, "the recording ends in the part of a step that made it", lambda b: b.cut),
    Rule(_C.UNKNOWN, UNKNOWN, "its life fits no rule", lambda b: np.ones(len(b.older), bool)),
    # chosen by :func:`_as_before` alone
    *[Rule(each, LIKELY, "the same stack made such blocks in earlier steps", lambda b: np.zeros(len(b.older), bool))
      for each in _AS_BEFORE],
]  # fmt: skip
_ALIKE = {CATEGORIES.index(each): number for number, each in enumerate(_AS_BEFORE, len(RULES) - len(_AS_BEFORE))}


def rules_of(blocks: Lifetimes, parts: Parts, origins: Origins) -> np.ndarray:
    """The number of the rule that applies to each block first."""
    facts = _facts(blocks, parts, origins)
    chosen = np.full(len(blocks), len(RULES) - 1, np.uint8)
    for number in reversed(range(len(RULES))):
        chosen[RULES[number].applies(facts)] = number
    _as_before(chosen, blocks.stack, facts)
    return chosen


def _as_before(chosen: np.ndarray, stack: np.ndarray, facts: Facts) -> None:
    """Give blocks that the recording does not show to the end the category that all blocks of their stack had in earlier
    steps."""
    unknown = np.array([rule.certainty == UNKNOWN for rule in RULES])
    asked = np.flatnonzero(facts.cut & unknown[chosen] & (stack > 0))
    before = np.flatnonzero(~facts.older & (facts.made_in < facts.made_in.max(initial=0)) & ~unknown[chosen])
    first = np.full(int(stack.max(initial=0)) + 1, -1, np.int16)
    category = np.array([CATEGORIES.index(rule.category) for rule in RULES], np.int16)[chosen]
    first[stack[before]] = category[before]
    differs = np.zeros(len(first), bool)
    differs[stack[before][first[stack[before]] != category[before]]] = True
    for code, rule in _ALIKE.items():
        chosen[asked[(first[stack[asked]] == code) & ~differs[stack[asked]]]] = rule


def _facts(blocks: Lifetimes, parts: Parts, origins: Origins) -> Facts:
    end = len(parts.phase) - 1
    older, stays = blocks.born < 0, blocks.freed == end
    born = np.maximum(blocks.born, 0)
    made = np.where(older, 0, parts.phase[born])
    made_in = np.where(older, 0, parts.step[born])
    sign, end_sign = (origins.each(each, lambda origin: SIGNS.index(origin.sign)) for each in (blocks.stack, blocks.end_stack))
    kind = _KIND[parts.phase]
    cut = stays & ~older & (made_in == parts.step[-1]) & (_KIND[made] == kind[-1])
    backward_ends = _after_backward(parts)[parts.step[born]]
    forward = np.flatnonzero(kind == _KIND[CODE["forward"]])
    return Facts(
        older,
        stays,
        made,
        parts.phase[blocks.freed],
        origins.each(blocks.stack, lambda origin: CODE[origin.phase]),
        made_in,
        parts.step[blocks.freed],
        np.where(older, -1, parts.stretch[born]),
        np.where(stays, -2, parts.stretch[blocks.freed]),
        sign,
        end_sign,
        parts.sure[born] & parts.sure[blocks.freed],
        parts.sure[born],
        ~older & ~cut & (backward_ends >= blocks.born) & (blocks.freed > backward_ends),
        blocks.born < (forward[0] if len(forward) else 0),
        cut,
        bool(np.any(sign == SIGNS.index("state"))),
        bool(np.any((kind == _KIND[CODE["backward"]]) | (kind == _KIND[CODE["optimizer"]]))),
        bool(len(forward)),
    )


def _after_backward(parts: Parts) -> np.ndarray:
    """For each step, the number of its last event of backward; -1 if it has none."""
    found = np.full(int(parts.step.max(initial=0)) + 1, -1, np.int32)
    at = np.flatnonzero(np.isin(parts.phase[:-1], (CODE["backward"], CODE["recompute"])))
    np.maximum.at(found, parts.step[at], at)
    return found
