"""Questions that people asked about memory, each as a program that shows the cause, and the same program without it.

A case is a file in ``cases``, found by its name: add one, and the command line, the tests and the list have it.
"""

from .case import *
from .cases import CASES as CASES
