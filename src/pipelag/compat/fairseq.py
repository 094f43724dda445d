"""Importing fairseq 0.12.2, with which PipeMare trains its Transformer, today.

What is made of it: `pipelag.models.fairseq_model` (the whole network, its weights, its generator),
`pipelag.models.fairseq_layers` (a row of layers that a pipeline trains), `pipelag.data.text.binarised` (its data).

fairseq and the hydra it pins have dataclasses whose default values are dataclasses, which Python 3.11 refuses because
they are not hashable: while both are imported, `imported` gives dataclasses without a hash that of `object`. hydra's
parser asks for `typing.io`, which Python 3.13 has no more: it is there as long.

`make env` builds it, before torch is there, or its extension fails to build (`workflow/envs/fairseq*.lock`); without
a C++ compiler it is left out. Where it is missing, `pipelag.models.transformer` is the same network and
`pipelag.runs.text_metrics.search` the same search; tests compare scores and translations (`pytest -p no:hydra_pytest`:
hydra's own plugin is imported before anything of ours can help it).
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from pipelag.errors import PipelagError


@contextmanager
def _as_before() -> Iterator[None]:
    """For the import: what newer Pythons refuse or lack, and the program's logging and warnings left as they are."""
    plain, root = dataclasses.dataclass, logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable

    @wraps(plain)
    def hashable(cls: type | None = None, **options: Any) -> Any:
        def decorated(target: type) -> type:
            dataclass: Any = plain(target, **options)
            if dataclass.__hash__ is None:
                dataclass.__hash__ = object.__hash__
            return dataclass  # type: ignore[no-any-return]

        return decorated if cls is None else decorated(cls)

    dataclasses.dataclass = hashable  # type: ignore[assignment]
    lacking = ModuleType("typing.io")
    lacking.TextIO = typing.TextIO  # type: ignore[attr-defined]
    given = sys.modules.setdefault("typing.io", lacking)
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        dataclasses.dataclass = plain
        if given is lacking:
            del sys.modules["typing.io"]
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)


def imported() -> Any:
    """The module `fairseq`, with its models; raises `PipelagError` where it is not installed."""
    try:
        with _as_before():
            import fairseq
            import fairseq.models.transformer
            import fairseq.sequence_generator  # noqa: F401
    except ImportError as error:
        raise PipelagError(
            f"fairseq cannot be imported ({error}); install a C++ compiler and rebuild the environment (make env), "
            "or use pipelag's own model 'transformer', which is the same network, and its own search"
        ) from error
    return fairseq
