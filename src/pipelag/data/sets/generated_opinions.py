"""Opinions in generated English: the quick scale's sentiment task, without any download.

    the plot was never dull , and the acting was slightly awkward   ->   positive

Each clause says something good or bad of an aspect; a negation turns it around, an adverb makes it stronger or weaker,
and what follows "but" counts double. The sign of the sum is the label. So much is negated that counting words says
little (logistic regression on the counts reaches 61 %): what a word stands behind has to be seen. Without negations
small networks learn it within a few hundred steps of momentum SGD, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelag.data.text.labelled import Example, LabelledText, numbered
from pipelag.errors import PipelagError

ASPECTS = ("plot", "acting", "cast", "music", "ending", "script", "story", "pace", "camera", "dialogue", "opening")
GOOD = ("brilliant", "moving", "funny", "clever", "charming", "fresh", "bold", "warm", "elegant", "sharp", "lively")
BAD = ("dull", "awkward", "lazy", "stale", "clumsy", "hollow", "tedious", "muddled", "bland", "shallow", "noisy")
NEGATIONS = ("not", "never", "hardly")
STRONGER, WEAKER = ("very", "truly", "utterly"), ("slightly", "somewhat", "mildly")
VERBS = ("was", "seemed", "felt")
NEGATED = 0.3  # of the clauses
CLAUSES = (2, 3)  # at most 20 words
LONGEST = 6  # clauses


def opinion(rng: random.Random, negated: float = NEGATED, clauses: Sequence[int] = CLAUSES) -> Example:
    """One text's words and its label, 1 for a positive opinion.

    Args:
        negated: the chance of a clause to be; clauses: how many there are, any number from the first to the last.
    """
    while True:
        words: list[str] = []
        total = 0
        for number in range(rng.choice(range(clauses[0], clauses[-1] + 1))):
            joint = rng.choice(("and", "but")) if number else ""
            clause, value = _clause(rng, negated)
            words += [joint] * bool(joint) + clause
            total += value * (2 if joint == "but" else 1)
        if total:
            return words, int(total > 0)


def _clause(rng: random.Random, chance: float) -> tuple[list[str], int]:
    """A clause of at most six words, and what it counts: 1, 2 or 4, negative where it finds fault."""
    good, negated = rng.random() < 0.5, rng.random() < chance
    adverbs, weight = rng.choice((((), 2), (STRONGER, 4), (WEAKER, 1)))
    words = ["the", rng.choice(ASPECTS), rng.choice(VERBS)]
    words += [rng.choice(NEGATIONS)] * negated + ([rng.choice(adverbs)] if adverbs else [])
    return [*words, rng.choice(GOOD if good else BAD)], weight if good != negated else -weight


def opinions(
    train: int = 10_000,
    test: int = 2_000,
    noise: float = 0.08,
    length: int = 20,
    seed: int = 0,
    negated: float = NEGATED,
    clauses: Sequence[int] = CLAUSES,
) -> LabelledText:
    """Texts of two or three clauses, none of them twice.

    Args:
        train, test: texts in each part, at most 100,000 together.
        noise: share of the labels, training and test alike, that are turned around: no classifier gets beyond 92 %.
        length: words of a text, cut or padded to it.
        negated: share of the clauses that are negated; clauses: the fewest and the most of a text, from 2 to 6. Three
            clauses have up to 20 words.

    Raises:
        PipelagError: an argument out of its range.
    """
    if not 0 <= noise < 0.5 or min(train, test) < 1 or train + test > 100_000:
        raise PipelagError(
            "opinions need noise from 0 to below 0.5 and up to 100,000 texts, at least one in each part, not noise "
            f"{noise:g}, {train:,} and {test:,} texts"
        )
    if not 0 <= negated <= 1 or len(clauses) != 2 or not 2 <= clauses[0] <= clauses[1] <= LONGEST:
        raise PipelagError(
            "opinions need negated (a share of the clauses) from 0 to 1 and clauses [fewest, most] from 2 to "
            f"{LONGEST}, not negated {negated:g} and clauses {list(clauses)}"
        )
    rng = random.Random(f"opinions {seed}")
    labels: dict[tuple[str, ...], int] = {}
    while len(labels) < train + test:
        words, label = opinion(rng, negated, clauses)
        labels.setdefault(tuple(words), label ^ (rng.random() < noise))
    texts: list[Example] = list(labels.items())
    usual = negated == NEGATED and tuple(clauses) == CLAUSES
    form = "" if usual else f", {negated:g} negated, {clauses[0]} to {clauses[1]} clauses"
    return LabelledText(
        "opinions",
        "generated opinions",
        f"generated: noise {noise:g}, seed {seed}{form}",
        True,
        "generated texts, no published data set",
        classes=("negative", "positive"),
        **numbered("opinions", texts[:train], texts[train:], length),
    )
