"""Import fairseq 0.12.2, with which PipeMare trains its Transformer, on today's Python.

It is used by `pipelag.models.fairseq_model` (the whole network, its weights, its generator),
`pipelag.models.fairseq_layers` (a row of layers that a pipeline trains) and `pipelag.data.text.binarised` (its data).

fairseq and the version of hydra that it pins have dataclasses whose default values are dataclasses. Python 3.11 refuses
these because they are not hashable; so `imported` gives `object`'s hash to dataclasses without one while both libraries
are imported. hydra's parser imports `typing.io`, which Python 3.13 no longer has; `imported` provides it meanwhile.
fairseq knows an optional field by the text of its type, `typing.Optional[str]`, which is `str | None` from Python 3.14
on; `imported` has it look at the type's arguments.

`make env` builds fairseq before it installs torch, or fairseq's extension would fail to build
(`workflow/envs/fairseq*.lock`). Without a C++ compiler fairseq is left out. If it is missing,
`pipelag.models.transformer` is the same network and `pipelag.runs.text_metrics.search` the same search: tests compare
scores and translations. Tests run with `-p no:hydra_pytest`, because hydra's pytest plugin would be imported before
`imported` can help.
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
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType, UnionType
from typing import Any

from pipelag.errors import PipelagError


@contextmanager
def _as_before() -> Iterator[None]:
    """While the body imports: provide what newer Pythons refuse or lack; keep the program's logging and warnings."""
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


def _know_optional_types() -> None:
    """Import `fairseq`, which makes parsers of its dataclasses at once, with their types read right."""
    spec = find_spec("fairseq")
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'fairseq'")
    sys.modules["fairseq"] = fairseq = module_from_spec(spec)
    try:
        utils: Any = import_module("fairseq.dataclass.utils")  # needs nothing else of fairseq
        plain = utils.interpret_dc_type

        def interpret(field: Any) -> Any:
            present = [each for each in typing.get_args(field) if each is not type(None)]
            optional = isinstance(field, UnionType) and len(present) == 1
            return present[0] if optional else plain(field)

        utils.interpret_dc_type = interpret
        spec.loader.exec_module(fairseq)
    except BaseException:
        sys.modules.pop("fairseq", None)  # as a failed import does
        raise


def imported() -> Any:
    """The module `fairseq`, with its models; raises `PipelagError` if it cannot be imported."""
    try:
        with _as_before():
            if "fairseq" not in sys.modules:
                _know_optional_types()
            import fairseq
            import fairseq.models.transformer
            import fairseq.sequence_generator  # noqa: F401
    except ImportError as error:
        raise PipelagError(
            f"fairseq cannot be imported ({error}); install a C++ compiler and rebuild the environment (make env), "
            "or use pipelag's own model 'transformer', which is the same network, and its own search"
        ) from error
    return fairseq
