"""A masked language model: a transformer's encoder that learns to find hidden tokens.

Only the positions that were hidden reach the output projection, whose rows are as long as the vocabulary: of 15 % of the
tokens instead of all.

Source: Devlin et al., *BERT: pre-training of deep bidirectional transformers*, 2019.
"""

from __future__ import annotations

from .. import Tensor, arange, nn
from ..nn import functional as F

# (layers, heads, width)
SIZES = {"bert-tiny": (2, 2, 128), "bert-small": (4, 8, 512), "bert-base": (12, 12, 768), "bert-large": (24, 16, 1024)}


class Embeddings(nn.Module):
    """Tokens (N, T) -> (N, T, width): a row a token, a row a position, normalised."""

    def __init__(self, vocabulary: int, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.norm(self.word_embeddings(tokens) + self.position_embeddings(places)))


class MaskedLanguageModel(nn.Module):
    """Tokens (N, T) -> logits (N, T, vocabulary), or of some positions only (positions, vocabulary).

    The output projection is the embedding's weight.
    """

    def __init__(
        self, layers: int, heads: int, width: int, context: int = 512, vocabulary: int = 30522, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, width, context, dropout)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0.0, 0.02)
        self.decoder.weight = self.embeddings.word_embeddings.weight

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Logits of all positions, or of those in ``positions``.

        Args:
            padding_mask: (N, T), True where there is no token.
            positions: int64, counted through (N, T) row by row: those that a loss is taken of.
        """
        x = self.encoder(self.embeddings(tokens), src_key_padding_mask=padding_mask)  # N, T, width
        if positions is not None:
            x = x.flatten(0, 1).index_select(0, positions)  # positions, width
        return self.decoder(self.norm(F.gelu(self.transform(x))))


def bert(size: str = "bert-base", context: int = 512) -> MaskedLanguageModel:
    """By size: "bert-tiny", "bert-small", "bert-base" (109,512,762 parameters, without segments), "bert-large".

    Raises:
        ValueError: there is no such size.
    """
    if size not in SIZES:
        raise ValueError(f"bert: the size is one of {', '.join(SIZES)}, found {size!r}")
    return MaskedLanguageModel(*SIZES[size], context=context)
