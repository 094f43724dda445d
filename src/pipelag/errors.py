"""Errors that a user can mend: one sentence that says what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PipelagError(ValueError):
    """Bad input. The command line prints its message alone, without a traceback, and exits with 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> PipelagError:
    """The refusal of an unknown name, with the nearest known one, or where none is near, all of them.

    >>> print(unknown("model", "resnet2O", ["resnet20", "lenet5"]))
    unknown model 'resnet2O'; did you mean 'resnet20'?
    >>> print(unknown("model", "vgg", ["resnet20", "lenet5"]))
    unknown model 'vgg'; it should be lenet5 or resnet20
    """
    return PipelagError(f"unknown {kind} '{shortened(name)}'{nearest(name, known, 'it should be')}")


def nearest(name: str, known: Iterable[str], all_of_them: str) -> str:
    """The end of a refusal: "; did you mean ...?", or all names after the given words; nothing where there are none."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{near[0]}'?"
    return (
        f"; {all_of_them} {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"
        if names
        else "; none is known"
    )


def a(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[:1] in 'aeiouAEIOU' else 'a'} {word}"


def kind_of(value: object) -> str:
    """What somebody gave where something else was wanted.

    >>> kind_of(None), kind_of([1])
    ('None', 'a list')
    """
    return "None" if value is None else a(type(value).__name__)


def shortened(text: str, most: int = 60) -> str:
    """The beginning of a long text, on one line."""
    text = " ".join(str(text).split()) if any(c in str(text) for c in "\n\r\t") else str(text)
    return text if len(text) <= most else text[:most] + "..."
