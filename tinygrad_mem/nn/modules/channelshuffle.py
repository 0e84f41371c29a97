"""Where PyTorch defines these: ``nn.modules.channelshuffle``."""

from ..resize import ChannelShuffle as ChannelShuffle
