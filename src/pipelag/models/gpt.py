"""A GPT's parameters, floating-point operations and bytes per layer, by formulas, without torch.

The model is decoder-only, with normalisation before each half of a block, GELU, a hidden layer four times as wide,
learned embeddings of words and positions, and a separate output projection. Attention is a fused kernel, which keeps no
matrix of positions by positions. A block is two layers, so that it can be cut between attention and hidden layer. A
test compares every number with a module's own counts.

Tensor parallelism is Megatron-LM's (Shoeybi et al., arXiv 1909.08053, section 3) with sequence parallelism
(Korthikanti et al., arXiv 2205.05198, section 4.2.2): the GPUs of a stage divide heads, hidden units and words of the
vocabulary, and between two such layers the words of the sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from pipelag.errors import PipelagError
from pipelag.typed import Typed

STATISTIC = 4  # bytes of a statistic of a norm or softmax, which is kept in float32 under any precision


@dataclass(frozen=True)
class GPTLayer:
    """The counts of one layer on one GPU, for a number of sequences per pass.

    forward, backward: floating-point operations of the matrix products.
    weight_gradient: those of the backward that compute the gradients of the weights.
    kept_bytes: what the backward needs besides the weights and the layer's input, including its output.
    collectives: how many times, in a forward as in a backward, the GPUs that share the layer gather the activations of
        all words, or sum them and scatter the sums.
    gathered_bytes: the activations of all words.
    """

    name: str
    parameters: int
    forward: int
    backward: int
    weight_gradient: int
    output_bytes: int
    kept_bytes: int
    collectives: int
    gathered_bytes: int


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

    def layers(self, sequences: int, element: int = 2, tensor: int = 1) -> list[GPTLayer]:
        """The counts of all layers: the embedding, two layers per block, the output with its cross-entropy.

        Args:
            sequences: the number of sequences per pass.
            element: bytes of a number in weights and activations; 2: bfloat16.
            tensor: the GPUs that share every layer.

        Raises:
            PipelagError: the heads do not divide the width, or so many GPUs cannot share the heads or the words of a
                sequence equally.
        """
        if self.width % self.heads:
            raise PipelagError(f"a width of {self.width} cannot be divided into {self.heads} equal heads")
        for what, size in (("heads", self.heads), ("words of a sequence", self.context)):
            if size % tensor:
                raise PipelagError(f"{tensor} GPUs cannot share {size} {what} equally; tensor should divide them")
        half = [self._attention(sequences, element, tensor), self._hidden(sequences, element, tensor)]
        ends = self._embedding(sequences, element, tensor), self._head(sequences, element, tensor)
        return [ends[0], *half * self.blocks, ends[1]]

    def _embedding(self, sequences: int, element: int, tensor: int) -> GPTLayer:
        """Each GPU looks up the words that it has; the sums are scattered. Positions are on all."""
        whole = sequences * self.context * self.width * element
        parameters = (-(-self.vocabulary // tensor) + self.context) * self.width
        size = whole // tensor
        return GPTLayer("embedding", parameters, 0, 0, 0, size, size, 1, whole)

    def _attention(self, sequences: int, element: int, tensor: int) -> GPTLayer:
        """norm, fused projection of queries, keys and values, attention, projection, residual sum."""
        w, words = self.width, sequences * self.context
        products, scores = 8 * w * w * words, 4 * self.context * w * words  # two products of positions by positions
        bytes_per_word = 6 * w * element + (2 + self.heads) * STATISTIC  # norm, q, k, v, attended, sum
        return GPTLayer(
            "attention",
            (4 * w * w + 3 * w) // tensor + 3 * w,  # the norm and the last bias are on all
            (products + scores) // tensor,
            (2 * products + scores * 5 // 2) // tensor,  # the fused kernel computes the scores again
            products // tensor,
            words * w * element // tensor,
            words * bytes_per_word // tensor,
            2,
            words * w * element,
        )

    def _hidden(self, sequences: int, element: int, tensor: int) -> GPTLayer:
        """norm, widening to four times, GELU, narrowing, residual sum."""
        w, words = self.width, sequences * self.context
        products = 16 * w * w * words
        bytes_per_word = 10 * w * element + 2 * STATISTIC  # norm, 4 before and 4 after the GELU, sum
        return GPTLayer(
            "hidden",
            (8 * w * w + 4 * w) // tensor + 3 * w,
            products // tensor,
            2 * products // tensor,
            products // tensor,
            words * w * element // tensor,
            words * bytes_per_word // tensor,
            2,
            words * w * element,
        )

    def _head(self, sequences: int, element: int, tensor: int) -> GPTLayer:
        """norm, projection onto the words, cross-entropy, which keeps the log-probabilities of all words.

        The GPUs exchange a word's greatest and summed probability, but not the probabilities.
        """
        w, words, vocabulary = self.width, sequences * self.context, -(-self.vocabulary // tensor)
        products = 2 * w * vocabulary * words
        norm = w * element + 2 * STATISTIC  # of a word, which one of the GPUs has
        return GPTLayer(
            "output",
            2 * w + w * vocabulary,
            products,
            2 * products,
            products,
            STATISTIC,
            words * norm // tensor + (words * vocabulary + 1) * STATISTIC,
            1,
            words * w * element,
        )
