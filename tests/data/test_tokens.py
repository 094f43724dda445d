"""Minibatches by tokens: no sentence twice or lost, within the limit, a function of seed and number."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelag.data.text.parallel import BEGIN, END, PAD, Corpus, corpus
from pipelag.data.text.tokens import TokenBatches
from pipelag.errors import PipelagError
from pipelag.runs.text_metrics import shared_token_loss


def sentences(count: int, longest: int, seed: int = 0) -> Corpus:
    """Pairs of words a, b, c, of 1 to `longest` words a side."""
    rng = random.Random(seed)
    pairs = [(" ".join(rng.choices("abc", k=rng.randint(1, longest))) + f" s{i}", f"t{i} " + " ".join(
        rng.choices("xyz", k=rng.randint(0, longest - 1)))) for i in range(count)]  # fmt: skip
    return corpus("toy", "toy", pairs, pairs[:2])


@settings(max_examples=30)
@given(
    count=st.integers(8, 60), longest=st.integers(1, 9), multiple=st.integers(1, 4), spare=st.integers(0, 60),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_an_epoch_is_every_sentence_once_but_for_the_left_over(
    count: int, longest: int, multiple: int, spare: int, seed: int
) -> None:
    data = sentences(count, longest, seed)
    tokens = (longest + 2) * multiple + spare
    batches = TokenBatches(data, tokens, seed, multiple)
    for epoch in (0, 1):
        seen: Counter[object] = Counter()
        for t in range(epoch * len(batches), (epoch + 1) * len(batches)):
            (source, decoder_inputs), (targets, share) = batches[t]
            assert source.shape[0] == decoder_inputs.shape[0] == targets.shape[0] == len(share) > 0
            assert source.shape[0] % multiple == 0
            assert max(source.numel(), targets.numel()) <= tokens
            seen.update(batches.pairs(t))
        left = batches.summary()["left_over"]
        assert 0 <= left < multiple and set(seen.values()) == {1} and seen.total() == count - left
        assert set(seen) <= set(data.train)


def test_a_minibatch_depends_on_seed_and_number_alone() -> None:
    data = sentences(200, 9)
    first, second = TokenBatches(data, 120, 3, 4), TokenBatches(data, 120, 3, 4)
    for t in range(25):
        first[t]
    for a, b in zip(first.inputs(7), second.inputs(7), strict=True):
        assert torch.equal(a, b)
    assert first.pairs(0) != TokenBatches(data, 120, 4, 4).pairs(0)
    orders = [[len(first.pairs(t)) for t in range(e * len(first), (e + 1) * len(first))] for e in (0, 1)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    source, decoder_inputs = first.inputs(2)
    targets, share = first.targets(2)
    assert (decoder_inputs[:, 0] == BEGIN).all() and ((targets == END).sum(1) == 1).all()
    assert torch.equal(decoder_inputs[:, 1:][targets[:, 1:] != PAD], targets[:, :-1][targets[:, 1:] != PAD])
    assert share[0] == pytest.approx(len(targets) / int((targets != PAD).sum()))


def test_every_epoch_and_every_seed_puts_other_sentences_of_a_length_together() -> None:
    data = sentences(200, 9)

    def together(seed: int, epoch: int) -> set[frozenset[object]]:
        batches = TokenBatches(data, 120, seed)
        return {frozenset(batches.pairs(epoch * len(batches) + t)) for t in range(len(batches))}

    first = together(0, 0)
    assert all(len(first & other) < len(first) / 2 for other in (together(0, 1), together(1, 0)))
    assert together(0, 0) == first


def test_sentences_of_like_length_come_together() -> None:
    batches = TokenBatches(sentences(500, 9), 100, 0)
    spread = [max(p) - min(p) for t in range(len(batches)) if (p := [1 + max(map(len, x)) for x in batches.pairs(t)])]
    assert max(spread) <= 2


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_mean_over_microbatches_is_that_over_all_words(parts: int) -> None:
    batches = TokenBatches(sentences(80, 9), 200, 0, 4)
    targets, share = batches.targets(0)
    scores = torch.randn(*targets.shape, 100, generator=torch.Generator().manual_seed(0))
    loss = shared_token_loss(0.1)
    whole = torch.nn.functional.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    chunks = zip(scores.chunk(parts), targets.chunk(parts), share.chunk(parts), strict=True)
    assert sum(loss(s, (w, r)) / parts for s, w, r in chunks) == pytest.approx(float(whole), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    data = sentences(8, 5)
    longest = 1 + max(max(map(len, pair)) for pair in data.train)
    with pytest.raises(PipelagError, match=f"has {longest} tokens with its end, more than the .* allow {longest * 4}"):
        TokenBatches(data, longest * 4 - 1, 0, 4)
    with pytest.raises(PipelagError, match="at least 16 sentences, and 'toy' has only 8"):
        TokenBatches(data, 1000, 0, 16)
