"""cuDNN is not used."""

enabled = benchmark = deterministic = allow_tf32 = False


def is_available() -> bool:
    """Never."""
    return False
