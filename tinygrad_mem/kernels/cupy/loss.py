"""Losses on a GPU that are not generated from their formulas."""

from __future__ import annotations

from .cross_entropy import *  # noqa: F403


def check_probabilities(x):
    """Does nothing: reading the input would make the host wait. A number outside of [0, 1] gives nan."""
