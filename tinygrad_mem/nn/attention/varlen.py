"""``torch.nn.attention.varlen``'s names."""

from ...functional.attention import varlen_attn as varlen_attn
