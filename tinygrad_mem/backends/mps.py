"""Apple's GPUs are not used."""


def is_available() -> bool:
    """Never."""
    return False
