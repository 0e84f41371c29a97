"""``torch.nn.attention``'s names: attention of sequences without padding."""

from . import varlen as varlen
