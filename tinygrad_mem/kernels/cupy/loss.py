"""Losses on a GPU that are not generated from their formulas."""

from __future__ import annotations

from .cross_entropy import *  # noqa: F403


def check_probabilities(x, y):
    """Does nothing: reading the numbers would make the host wait. An input outside of [0, 1] gives nan, a target any number."""
