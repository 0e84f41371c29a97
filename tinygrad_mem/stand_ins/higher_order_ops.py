"""A stand-in for ``torch._higher_order_ops``: what state-space models import for compiled runs, and do not call in others."""

from .refused import refused

globals().update(refused("_higher_order_ops", "associative_scan", "nothing is compiled here: write it as a loop of Python"))
