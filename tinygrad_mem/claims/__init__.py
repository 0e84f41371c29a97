"""Published figures about the memory of training, each found again in bytes, and the verdict.

A claim is a record in the list ``CLAIMS`` of a file of ``cases``: the command line, the page and the tests find it there.
"""

from .cases import CLAIMS as CLAIMS
from .claim import *
