"""Report in one sentence that a model of the suite cannot take its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipelag.catalogue import HOMES
from pipelag.errors import PipelagError

FAILURES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)  # of a layer with inputs that do not fit


@contextmanager
def taking(name: str, what: str) -> Iterator[None]:
    """Turn exceptions of a model's layers into one sentence; used around a pass of the model.

    Exceptions of a user's own model keep their traceback.

    Args:
        name: the model's name.
        what: the inputs, in words.

    Raises:
        PipelagError: the model cannot take these inputs.
    """
    try:
        yield
    except PipelagError:
        raise
    except FAILURES as error:
        if name not in HOMES:
            raise
        first = str(error).strip().partition("\n")[0]
        reason = first if len(first) <= 160 else f"{first[:160]}..."
        raise PipelagError(
            f"model '{name}' cannot take {what}: {reason}; give it inputs of another shape or kind"
        ) from error
