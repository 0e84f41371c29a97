"""Questions that people asked about memory, each as a program that shows the cause, and the same program without it.

A case is a file in ``cases``, found by its name: add one, and the command line, the tests and the list have it.
"""

from .case import CASES as CASES
from .case import Case as Case
from .case import Finding as Finding
from .case import Program as Program
from .case import Run as Run
from .case import Source as Source
from .case import examine as examine
