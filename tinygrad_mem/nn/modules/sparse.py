"""Where PyTorch defines these: ``nn.modules.sparse``."""

from ..embedding import Embedding as Embedding
