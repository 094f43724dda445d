"""What every kind of data set says of itself: its names, and which release it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Released:
    """The head of a data set.

    Args:
        name: as it is registered; title: as it is shown.
        release: which files it was read from; official: whether those are the publisher's own; note: what differs.
    """

    name: str
    title: str
    release: str
    official: bool
    note: str

    def described(self, **sizes: Any) -> dict[str, Any]:
        """The head with the set's sizes, for a run's summary."""
        head = {key: getattr(self, key) for key in ("name", "title", "release", "official", "note")}
        return head | sizes
