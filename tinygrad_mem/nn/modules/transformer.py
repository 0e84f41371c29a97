"""Where PyTorch defines these: ``nn.modules.transformer``."""

from ..transformer import Transformer as Transformer
from ..transformer import TransformerDecoder as TransformerDecoder
from ..transformer import TransformerDecoderLayer as TransformerDecoderLayer
from ..transformer import TransformerEncoder as TransformerEncoder
from ..transformer import TransformerEncoderLayer as TransformerEncoderLayer
