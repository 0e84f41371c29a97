"""Where PyTorch defines these: ``nn.modules.sparse``."""

from ..embedding import Embedding as Embedding
from ..embedding import EmbeddingBag as EmbeddingBag
