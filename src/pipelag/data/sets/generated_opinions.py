"""Opinions in generated English: the quick scale's sentiment task, which needs no download.

    the plot was never dull , and the acting was slightly awkward   ->   positive

Each clause says something good or bad about an aspect. A negation reverses it, an adverb makes it stronger or weaker,
and a clause after "but" counts double. The sign of the sum is the label. So many clauses are negated that word counts
say little (logistic regression on them reaches 61 %): a model has to see which word comes before which. Without
negations, small networks, too, learn the task within a few hundred steps of momentum SGD.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelag.data.text.labelled import Example, LabelledText, numbered
from pipelag.errors import PipelagError, shown

ASPECTS = ("plot", "acting", "cast", "music", "ending", "script", "story", "pace", "camera", "dialogue", "opening")
GOOD = ("brilliant", "moving", "funny", "clever", "charming", "fresh", "bold", "warm", "elegant", "sharp", "lively")
BAD = ("dull", "awkward", "lazy", "stale", "clumsy", "hollow", "tedious", "muddled", "bland", "shallow", "noisy")
NEGATIONS = ("not", "never", "hardly")
STRONGER, WEAKER = ("very", "truly", "utterly"), ("slightly", "somewhat", "mildly")
VERBS = ("was", "seemed", "felt")
NEGATED = 0.3  # the share of clauses that are negated
CLAUSES = (2, 3)  # the fewest and the most clauses of a text; three have at most 20 words
LONGEST = 6  # the most clauses that can be asked for


def opinion(rng: random.Random, negated: float = NEGATED, clauses: Sequence[int] = CLAUSES) -> Example:
    """The words of a random text and its label, 1 for a positive opinion.

    Args:
        negated: the probability that a clause is negated.
        clauses: the fewest and the most clauses; each number is equally likely.
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
    """A clause of at most six words, and its weight in the sum: 1, 2 or 4, negative if it finds fault."""
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
    """Generated texts of two or three clauses, all different.

    Args:
        train, test: texts in each part, at most 100,000 together.
        noise: the share of labels, training and test alike, that are flipped. With 0.08 no classifier exceeds 92 %.
        length: words of a text, which is cut or padded to this length.
        negated: the share of clauses that are negated.
        clauses: the fewest and the most clauses of a text, from 2 to 6. Three clauses have up to 20 words.

    Raises:
        PipelagError: an argument is out of range.
    """
    if not 0 <= noise < 0.5 or min(train, test) < 1 or train + test > 100_000:
        raise PipelagError(
            "opinions need noise from 0 to below 0.5 and up to 100,000 texts, at least one in each part, not noise "
            f"{noise:g}, {train:,} and {test:,} texts"
        )
    is_pair = isinstance(clauses, Sequence) and len(clauses) == 2
    whole = is_pair and all(type(number) is int for number in clauses)
    if not 0 <= negated <= 1 or not whole or not 2 <= clauses[0] <= clauses[1] <= LONGEST:
        raise PipelagError(
            "opinions need negated (a share of the clauses) from 0 to 1 and clauses [fewest, most] from 2 to "
            f"{LONGEST}, whole numbers, not negated {negated:g} and clauses {shown(clauses)}"
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
