"""Techniques that lower the memory of a training step. Each is a small module, built from hooks on saved tensors and gradients.

``TABLE`` is the catalogue: what each technique saves, what it costs, and whether the numbers stay the same.
"""

from .accumulation import accumulate as accumulate
from .catalogue import TABLE as TABLE
from .catalogue import Technique as Technique
from .chunking import chunked as chunked
from .chunking import tiled as tiled
from .compression import compressed as compressed
from .in_backward import optimizer_in_backward as optimizer_in_backward
from .inplace import InPlaceABN as InPlaceABN
from .inplace import inplace_abn as inplace_abn
from .lora import LoraLinear as LoraLinear
from .lora import lora as lora
from .offload import checkpoints_on_cpu as checkpoints_on_cpu
from .offload import save_on_cpu as save_on_cpu
from .paged import paged_optimizer as paged_optimizer
from .quantized import QuantizedLinear as QuantizedLinear
from .quantized import quantize_frozen as quantize_frozen
from .reversible import ReversibleBlock as ReversibleBlock
from .reversible import ReversibleSequential as ReversibleSequential
from .selection import labelled_positions as labelled_positions
from .selection import select_labelled as select_labelled
