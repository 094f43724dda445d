"""Whether a resumed training has the same learning rates, loss and data as the one that wrote its checkpoint.

They are compared by texts that are cheap to make: the factors on the learning rate (at each of the first thousand
steps, then at every hundredth), the name of the loss and the names in its code, the number of minibatches in an epoch,
and a hash of the first minibatch. A difference is reported in a warning and not refused: a loader may shuffle without a
seed, and a user may change the rate during a training on purpose.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import CodeType
from typing import Any

import torch

EACH, EVERY, MOST = 1000, 100, 20_000  # rates noted: of each of the first steps, then every so many, at most
PLAIN = (bool, int, float, str, type(None))
RATES, LENGTH = "rates", "minibatches in an epoch"


def rates_told(rate: Callable[[int], float], total: int) -> dict[str, str]:
    """The factors on the learning rate, as [step, factor] where they change; empty if the function fails."""
    steps = [*range(min(total, EACH)), *range(EACH, total, EVERY)][:MOST]
    with suppress(Exception):  # training calls the function too, and lets it raise
        factors = [(step, float(rate(step))) for step in steps]
        changes = [next(rows) for _, rows in groupby(factors, key=lambda row: row[1])]
        return {RATES: json.dumps(changes)}
    return {}


def loss_told(loss: Any) -> dict[str, str]:
    """A loss function's name, its settings and a hash of the names in its code, which differ for most other losses."""
    return {"loss": _told(loss)}


def _told(value: Any) -> str:
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, partial):
        settings = [*map(_told, value.args), *(f"{name}={_told(one)}" for name, one in sorted(value.keywords.items()))]
        return f"{_told(value.func)}({', '.join(settings)})"
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__qualname__}{_settings_of(value) if named is not value else ''}"
    if str(value.__module__).startswith("torch."):
        return str(value.__qualname__)
    cells = []
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # the cell is still empty
            cells += [repr(cell.cell_contents)] if isinstance(cell.cell_contents, PLAIN) else []
    inside = hashlib.sha256(repr((_names_in(code), cells)).encode()).hexdigest()[:8]
    return f"{value.__qualname__} {inside}"


def _settings_of(thing: Any) -> str:
    plain = [
        f"{name}={one!r}" for name, one in sorted(getattr(thing, "__dict__", {}).items()) if isinstance(one, PLAIN)
    ]
    return f"({', '.join(each for each in plain if not each.startswith(('_', 'training=')))})"


def _names_in(code: CodeType) -> list[Any]:
    """The names and the plain constants in a function's code, which are the same in every version of Python."""
    constants = [_names_in(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return [code.co_names, [one for one in constants if isinstance(one, (*PLAIN, list)) and one is not None]]


def data_told(length: int | None, first: tuple[Any, Any]) -> dict[str, str]:
    """The number of minibatches in an epoch, if known, and the shapes and a hash of the first minibatch."""
    count = {} if length is None else {LENGTH: str(length)}
    digest, shapes = hashlib.sha256(), list[str]()
    for part in first:
        values = part.values() if isinstance(part, Mapping) else part if isinstance(part, tuple) else (part,)
        for value in values:
            if isinstance(value, torch.Tensor):
                shapes.append(f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}")
                with suppress(RuntimeError, TypeError, NotImplementedError):  # sparse tensors, say, have no plain bytes
                    digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return count | {"a first minibatch": f"{', '.join(shapes)} ({digest.hexdigest()[:8]})"}


def warn_of_others(where: Any, past: Mapping[str, str], here: Mapping[str, str], done: int) -> None:
    """Warn of differences from the training that left checkpoints in `where` after `done` steps."""
    for name, now in here.items():
        was = past.get(name, now)
        if name == LENGTH and done <= min(int(was), int(now)):  # within the first epoch, the length has not mattered
            continue
        before, after = _rates_apart(was, now, done) if name == RATES else (f"{name} {was}", f"{name} {now}")
        if before != after:
            warnings.warn(
                f"the checkpoints in {where} are of a training with {before}, but this one has {after}: the result of "
                "continuing belongs to neither",
                stacklevel=4,
            )


def _rates_apart(was: str, now: str, done: int) -> tuple[str, str]:
    """The first done step at which the factors differ, as a text for each training; ("", "") if there is none."""
    before, after = (dict(json.loads(text)) for text in (was, now))
    one = other = None
    for step in sorted(step for step in before.keys() | after.keys() if step < done):
        one, other = before.get(step, one), after.get(step, other)
        if one != other:
            return f"a rate factor of {one:g} at step {step}", f"a factor of {other:g} there"
    return "", ""
