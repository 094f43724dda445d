"""What all kinds of data sets have in common: their names, and which release they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Released:
    """A data set's names and release.

    Args:
        name: the registered name. title: the name that is shown.
        release: which files it was read from. official: whether those are the publisher's own. note: how they differ.
    """

    name: str
    title: str
    release: str
    official: bool
    note: str

    def described(self, **sizes: Any) -> dict[str, Any]:
        """These fields and the set's sizes, for a run's summary."""
        head = {key: getattr(self, key) for key in ("name", "title", "release", "official", "note")}
        return head | sizes
