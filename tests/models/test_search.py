"""Beam search against one that is written from its description, a sentence and a hypothesis at a time."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from pipelag.data.text.parallel import BEGIN, END, PAD
from pipelag.runs.text_metrics import search

WORDS, LONGEST = 9, 6
SOURCE = torch.tensor([[4, END, PAD], [5, 6, END], [6, END, PAD], [7, 8, END]])


class Table(nn.Module):
    """Scores of the next word by the sentence's first word, the place and the last word written."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        shape = WORDS, LONGEST + 1, WORDS, WORDS
        self.scores = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        self.scores[..., END] += 1.5  # so that sentences end at different places

    def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        source, written = value
        return self.scores[source[:, :1], torch.arange(written.shape[1]), written]


def by_hand(table: Table, first: int, beam: int, lenpen: float) -> list[int]:
    """The translation of the sentence that begins with this word."""
    chances = table.scores[first].double().log_softmax(-1)
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(LONGEST + 1):
        words = (
            [END] if length == LONGEST else [word for word in range(WORDS) if word != PAD and (length or word != END)]
        )
        more = [
            (total + float(chances[length, (written or [BEGIN])[-1], word]), [*written, word])
            for (total, written), word in itertools.product(going, words)
        ]
        best = sorted(more, reverse=True)[: 2 * beam]
        ended += [(total / (length + 1) ** lenpen, written) for total, written in best[:beam] if written[-1] == END]
        if len(ended) >= beam:
            break
        going = [one for one in best if one[1][-1] != END][:beam]
    return max(ended[:beam])[1][:-1]


@pytest.mark.parametrize("lenpen", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("beam", [1, 2, 3, 5, 8])
def test_what_is_written_is_the_best_of_what_the_beam_keeps(beam: int, lenpen: float) -> None:
    lengths = set()
    for table in map(Table, range(10)):
        written = search(table, SOURCE, beam, LONGEST, lenpen)
        assert written == [by_hand(table, first, beam, lenpen) for first in SOURCE[:, 0].tolist()]
        lengths |= set(map(len, written))
    assert len(lengths) > 2 and (max(lengths) == LONGEST or lenpen == 0)


def test_chances_of_rounded_scores_are_not_rounded() -> None:
    for table in map(Table, range(20)):
        table.scores = table.scores.bfloat16()
        assert search(table, SOURCE, 3, LONGEST) == [by_hand(table, first, 3, 1.0) for first in SOURCE[:, 0].tolist()]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_diverged_model_writes_whole_words_to_the_end(beam: int) -> None:
    table = Table(0)
    table.scores[:] = float("nan")
    for sentence in search(table, SOURCE, beam, LONGEST):
        assert 1 <= len(sentence) <= LONGEST and not {PAD, END} & set(sentence)
