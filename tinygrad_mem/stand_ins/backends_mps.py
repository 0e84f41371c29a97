"""Apple's GPUs are not used."""


def is_available() -> bool:
    """Never."""
    return False


def is_built() -> bool:
    """Never."""
    return False
