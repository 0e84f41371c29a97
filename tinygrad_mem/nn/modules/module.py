"""Where PyTorch defines these: ``nn.modules.module``."""

from ..module import Module as Module
