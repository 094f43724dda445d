"""A GPT's parameters, floating-point operations and bytes per layer, by formulas, without torch.

The model is decoder-only, with normalisation before each half of a block, GELU, a hidden layer four times as wide,
learned embeddings of words and positions, and a separate output projection. Attention is a fused kernel, which keeps no
matrix of positions by positions. A block is two layers, so that it can be cut between attention and hidden layer. A
test compares every number with a module's own counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from pipelag.typed import Typed

STATISTIC = 4  # bytes of a statistic of a norm or softmax, which is kept in float32 under any precision


@dataclass(frozen=True)
class GPTLayer:
    """The counts of one layer, for a number of sequences per pass.

    forward, backward: floating-point operations of the matrix products.
    weight_gradient: those of the backward that compute the gradients of the weights.
    kept_bytes: what the backward needs besides the weights and the layer's input, including its output.
    """

    name: str
    parameters: int
    forward: int
    backward: int
    weight_gradient: int
    output_bytes: int
    kept_bytes: int


class GPT(Typed):
    """The sizes of a GPT. context: the number of words of a sequence."""

    blocks: int = Field(ge=1, le=10_000)
    width: int = Field(ge=1, le=2**20)
    heads: int = Field(ge=1, le=2**12)
    vocabulary: int = Field(default=50257, ge=1, le=2**24)
    context: int = Field(default=2048, ge=1, le=2**20)

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        return sum(layer.parameters for layer in self.layers(1))

    def layers(self, sequences: int, element: int = 2) -> list[GPTLayer]:
        """The counts of all layers: the embedding, two layers per block, the output with its cross-entropy.

        Args:
            sequences: the number of sequences per pass.
            element: bytes of a number in weights and activations; 2: bfloat16.
        """
        half = [self._attention(sequences, element), self._hidden(sequences, element)]
        return [self._embedding(sequences, element), *half * self.blocks, self._head(sequences, element)]

    def _embedding(self, sequences: int, element: int) -> GPTLayer:
        size = sequences * self.context * self.width * element
        return GPTLayer("embedding", (self.vocabulary + self.context) * self.width, 0, 0, 0, size, size)

    def _attention(self, sequences: int, element: int) -> GPTLayer:
        """norm, fused projection of queries, keys and values, attention, projection, residual sum."""
        w, words = self.width, sequences * self.context
        products, scores = 8 * w * w * words, 4 * self.context * w * words  # two products of positions by positions
        bytes_per_word = 6 * w * element + (2 + self.heads) * STATISTIC  # norm, q, k, v, attended, sum
        return GPTLayer(
            "attention",
            4 * w * w + 6 * w,
            products + scores,
            2 * products + scores * 5 // 2,  # the fused kernel computes the scores again
            products,
            words * w * element,
            words * bytes_per_word,
        )

    def _hidden(self, sequences: int, element: int) -> GPTLayer:
        """norm, widening to four times, GELU, narrowing, residual sum."""
        w, words = self.width, sequences * self.context
        products = 16 * w * w * words
        bytes_per_word = 10 * w * element + 2 * STATISTIC  # norm, 4 before and 4 after the GELU, sum
        return GPTLayer(
            "hidden", 8 * w * w + 7 * w, products, 2 * products, products, words * w * element, words * bytes_per_word
        )

    def _head(self, sequences: int, element: int) -> GPTLayer:
        """norm, projection onto the words, cross-entropy, which keeps the log-probabilities of all words."""
        w, words = self.width, sequences * self.context
        products = 2 * w * self.vocabulary * words
        bytes_per_word = w * element + (2 + self.vocabulary) * STATISTIC
        return GPTLayer(
            "output",
            2 * w + w * self.vocabulary,
            products,
            2 * products,
            products,
            STATISTIC,
            words * bytes_per_word + STATISTIC,
        )
