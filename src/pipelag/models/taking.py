"""What is said where a model of the suite cannot take the inputs that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipelag.catalogue import HOMES
from pipelag.errors import PipelagError


@contextmanager
def taking(name: str, what: str) -> Iterator[None]:
    """Around a pass of that model over those inputs: what its layers raise becomes a sentence.

    What a user's own model raises keeps its traceback.

    Raises:
        PipelagError: the model cannot take them.
    """
    try:
        yield
    except PipelagError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if name not in HOMES:
            raise
        first = str(error).strip().partition("\n")[0]
        reason = first if len(first) <= 160 else f"{first[:160]}..."
        raise PipelagError(
            f"model '{name}' cannot take {what}: {reason}; give it inputs of another shape or kind"
        ) from error
