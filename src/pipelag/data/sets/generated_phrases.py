"""Number phrases in German and English: the quick scale's translation task, which needs no download.

    vier und zwanzig tausend drei hundert sieben   ->   twenty four thousand three hundred seven

German says units before tens, and a word's translation depends on its place, so a model has to learn the order. Words
are written apart. Small numbers, which have short phrases, are rarer than large ones.
"""

from __future__ import annotations

import random

from pipelag.data.checks import check_counts
from pipelag.data.text.parallel import Corpus, Pair, corpus
from pipelag.errors import PipelagError

GERMAN = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
GERMAN_TENS = ["zwanzig", "dreissig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ENGLISH_TEENS = ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]


def german(number: int) -> list[str]:
    """A number from 0 to 999,999 in German words, written apart."""
    if number >= 1000:
        return german(number // 1000) + ["tausend"] + (german(number % 1000) if number % 1000 else [])
    if number >= 100:
        return [GERMAN[number // 100], "hundert"] + (german(number % 100) if number % 100 else [])
    if number <= 12:
        return [GERMAN[number]]
    if number < 20:
        return [GERMAN[number - 10], "zehn"]
    tens, units = divmod(number, 10)
    return ([GERMAN[units], "und"] if units else []) + [GERMAN_TENS[tens - 2]]


def english(number: int) -> list[str]:
    """A number from 0 to 999,999 in English words."""
    if number >= 1000:
        return english(number // 1000) + ["thousand"] + (english(number % 1000) if number % 1000 else [])
    if number >= 100:
        return [ENGLISH[number // 100], "hundred"] + (english(number % 100) if number % 100 else [])
    if number <= 12:
        return [ENGLISH[number]]
    if number < 20:
        return [ENGLISH_TEENS[number - 13]]
    tens, units = divmod(number, 10)
    return [ENGLISH_TENS[tens - 2]] + ([ENGLISH[units]] if units else [])


def phrases(train: int = 20_000, test: int = 500, most: int = 999_999, seed: int = 0) -> Corpus:
    """Number phrases from German to English; no number of the test set is in the training set.

    Args:
        train, test: pairs in each part.
        most: the largest number, at least train + test and at most 999,999.

    Raises:
        PipelagError: a part has no pair or `most` is out of range; or training leaves out too many words.
    """
    check_counts("phrases", train=train, test=test)
    if not train + test <= most <= 999_999:
        raise PipelagError(
            f"phrases of {train + test:,} different numbers need `most` from {train + test:,} to 999,999, not {most:,}"
        )
    numbers = random.Random(seed).sample(range(most + 1), train + test)
    pairs: list[Pair] = [(" ".join(german(n)), " ".join(english(n))) for n in numbers]
    return corpus("phrases", "number phrases", pairs[:train], pairs[train:], note=f"generated, numbers up to {most:,}")
