"""Errors that a user can mend: one sentence that says what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PipelagError(ValueError):
    """Bad input. The command line prints its message alone, without a traceback, and exits with 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> PipelagError:
    """The refusal of an unknown name, with the nearest known one.

    >>> print(unknown("model", "resnet2O", ["resnet20", "lenet5"]))
    unknown model 'resnet2O'; did you mean 'resnet20'? (known: lenet5, resnet20)
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return PipelagError(f"unknown {kind} '{name}'{hint} (known: {', '.join(names)})")
