"""``python -m tinygrad_mem``."""

from .cli import main

if __name__ == "__main__":
    main()
