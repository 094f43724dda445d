"""The conditions under which claims are judged, said once where several claims share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from string import ascii_lowercase
from typing import Protocol

LONG = 60  # characters; what is shorter is said again where all else differs


class Conditional(Protocol):
    """A verdict, as far as it is written here: what it says, and the part of that which names its conditions."""

    @property
    def why(self) -> str:
        """The whole."""

    @property
    def conditions(self) -> str:
        """Parted by "; "; empty where there are none."""


class Notes:
    """Letters for what at least two of some verdicts name: all of their conditions, or a long one of several."""

    def __init__(self, verdicts: Sequence[Conditional]) -> None:
        conditions = [verdict.conditions for verdict in verdicts if verdict.conditions]
        whole = _shared(conditions)
        others = [part for each in conditions if each not in whole for part in each.split("; ")]
        long = [part for part in _shared(others) if len(part) >= LONG]
        self.letters = dict(zip([*whole, *long], ascii_lowercase, strict=False))  # those beyond z are said every time

    def why(self, verdict: Conditional) -> str:
        """What a verdict says, with a note's letter in place of the conditions that the note holds."""
        conditions = verdict.conditions
        parts = [conditions] if conditions in self.letters else conditions.split("; ")
        short = "; ".join(f"note {self.letters[part]}" if part in self.letters else part for part in parts)
        return verdict.why.replace(conditions, short, 1) if conditions else verdict.why

    @property
    def lines(self) -> list[str]:
        """The notes, a line each."""
        return [f"Note {letter}: {text}." for text, letter in self.letters.items()]


def _shared(texts: Iterable[str]) -> list[str]:
    return [text for text, times in Counter(texts).items() if times > 1]
