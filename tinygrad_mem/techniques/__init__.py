"""What makes a training step smaller: each technique a small module of its own, built from hooks that a reader knows already.

``TABLE`` says of each what it does, what it costs, whether the numbers stay the same, and where it is.
"""

from .accumulation import accumulate as accumulate
from .chunking import chunked as chunked
from .compression import compressed as compressed
from .in_backward import optimizer_in_backward as optimizer_in_backward
from .inplace import InPlaceABN as InPlaceABN
from .inplace import inplace_abn as inplace_abn
from .offload import save_on_cpu as save_on_cpu
from .reversible import ReversibleBlock as ReversibleBlock
from .reversible import ReversibleSequential as ReversibleSequential
from .selection import labelled_positions as labelled_positions
from .selection import select_labelled as select_labelled
from .table import TABLE as TABLE
from .table import Technique as Technique
