"""The tests. Hundreds of them start a Python: without bytecode each would compile the whole package."""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
