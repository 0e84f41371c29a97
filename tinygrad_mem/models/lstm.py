"""A language model over characters: embedding, LSTM, linear.

Source: Graves, *Generating sequences with recurrent neural networks*, 2013; tied weights: Press and Wolf, *Using the output
embedding to improve language models*, 2017.
"""

from __future__ import annotations

from typing import Any

from .. import Tensor, nn


class LSTMLanguageModel(nn.Module):
    """Scores of the next token at every place: integers (N, T) -> (N, T, tokens).

    Args:
        tied: the last layer's weight is the embedding's table, counted once; ``width`` and ``hidden`` are equal then.
    """

    def __init__(
        self, tokens: int = 128, width: int = 256, hidden: int = 256, layers: int = 1, dropout: float = 0.0, tied: bool = False
    ) -> None:
        super().__init__()
        if tied and width != hidden:
            raise ValueError(f"tied weights need width == hidden, found {width} and {hidden}")
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(hidden, tokens)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: Any = None) -> Tensor:
        return self.run(tokens, state)[0]

    def run(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """The scores, and the state after the last token. For a long text, pass the detached state to the next piece: then
        backward ends at the beginning of the piece, and nothing of earlier pieces is kept."""
        y, state = self.lstm(self.embedding(tokens), state)  # N, T, hidden
        return self.head(y), state
