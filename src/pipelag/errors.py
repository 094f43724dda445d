"""Errors that a user can fix: one sentence that says what is wrong and what would be right."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class PipelagError(ValueError):
    """Bad input, explained in one sentence. The command line prints only this sentence and exits with status 2."""


class Stop(Exception):
    """Raise it in a callback of `pipelag.train` to end the training; `train` then returns the training so far."""


MANY = 12  # the most names that a sentence lists
LISTS = {  # the commands that list more of them
    "method": "`pipelag methods` lists them",
    "model": "`pipelag models` lists them",
    "schedule": "`pipelag schedules` lists them",
    "schedule or method": "`pipelag schedules` and `pipelag methods` list them",
}
# The kinds of things that users can register: an unknown name may be a plugin's that was not loaded, not just a typo.
ENTERED = {*LISTS, "data set", "optimizer", "rate schedule", "loss", "metric", "kind of a run"}
# Kinds whose names differ in a digit: one that is spelt alike is another thing, and no likely slip.
ALIKE = {"device with a data sheet"}


@contextmanager
def noting(where: str) -> Iterator[None]:
    """Add the note `where` to an exception from the user's code in the body. A `PipelagError` or a `Stop` gets none."""
    try:
        yield
    except (PipelagError, Stop):
        raise
    except Exception as error:
        error.add_note(where)
        raise


def unknown(kind: str, name: str, known: Iterable[str]) -> PipelagError:
    """The refusal of an unknown name. It gives the nearest known name; if none is near, all names, or what lists them.

    >>> print(unknown("model", "resnet2O", ["resnet20", "lenet5"]))
    unknown model 'resnet2O'; did you mean 'resnet20'?
    >>> print(unknown("model", "VGG16", ["resnet20", "vgg16"]))
    unknown model 'VGG16'; did you mean 'vgg16'?
    >>> print(unknown("method", "spike", ["sequential", "spike_compensation"]))
    unknown method 'spike'; did you mean 'spike_compensation'?
    >>> print(unknown("device with a data sheet", "v200", ["a100_bf16", "v100"]))
    unknown device 'v200' with a data sheet; it should be a100_bf16 or v100
    >>> print(unknown("option of model 'vgg16'", "colour", ["width", "classes"]))
    unknown option 'colour' of model 'vgg16'; it should be classes or width
    >>> print(unknown("method", "xyz", map(str, range(45))))
    unknown method 'xyz'; `pipelag methods` lists them, and docs/extending.md says how to add one
    >>> print(unknown("metric", "xyz", []))
    unknown metric 'xyz'; none is known, and docs/extending.md says how to add one
    """
    names = sorted(set(known))
    lists = LISTS.get(kind, "") if len(names) > MANY else ""
    least = 1.0 if kind in ALIKE else 0.5
    more = ", and docs/extending.md says how to add one" if kind in ENTERED and not _near(name, names, least) else ""
    end = nearest(name, names, "it should be", lists, least)
    return PipelagError(f"unknown {named(kind, shortened(name))}{end}{more}")


def _near(name: str, names: list[str], least: float) -> list[str]:
    """The nearest of the names, upper case or lower, as a list of one, or an empty list if none is near.

    A name that begins with what was given is nearer than any that is spelt alike. least: how alike, 1 being equal.
    """
    by_lower, given = {each.lower(): each for each in names}, name[:200].lower()
    begun = sorted((each for each in by_lower if len(given) > 2 and each.startswith(given)), key=len)
    close = begun or difflib.get_close_matches(given, by_lower, n=1, cutoff=least)
    return [by_lower[each] for each in close[:1]]


def named(kind: str, name: str) -> str:
    """A name within its kind, such as "option 'x' of method 'y'" for the kind "option of method 'y'".

    >>> named("option of method 'pipemare'", "annealing"), named("data set", "cifar")
    ("option 'annealing' of method 'pipemare'", "data set 'cifar'")
    """
    split = re.match(r"(?P<what>\w+) (?P<of>(of|in|with) .*?)[:,]?$", kind, re.S)
    return f"{split['what']} '{name}' {split['of']}" if split else f"{kind} '{name}'"


def nearest(name: str, known: Iterable[str], all_of_them: str, instead: str = "", least: float = 0.5) -> str:
    """The end of a refusal: "; did you mean ...?"; if no name is near, `instead` or all names after `all_of_them`.

    least: how alike a near name must be, 1 being equal.
    """
    names = sorted(set(known))
    if near := _near(name, names, least):
        return f"; did you mean '{near[0]}'?"
    if instead:
        return f"; {instead}"
    return (
        f"; {all_of_them} {' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"
        if names
        else "; none is known"
    )


def a(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[:1] in 'aeiouAEIOU' else 'a'} {word}"


def kind_of(value: object) -> str:
    """A value's type, in words, for a message about a value of the wrong type.

    >>> kind_of(None), kind_of([1])
    ('None', 'a list')
    """
    return "None" if value is None else a(type(value).__name__)


def shortened(text: str, most: int = 60) -> str:
    """The text on one line, cut after `most` characters."""
    text = " ".join(str(text).split()) if any(c in str(text) for c in "\n\r\t") else str(text)
    return text if len(text) <= most else text[:most] + "..."


def shown(value: Any) -> str:
    """A value's repr as a refusal shows it, shortened."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    try:
        return short.repr(value)
    except ValueError:  # Python refuses to write a number of so many digits
        return "a number of very many digits"


def expect(name: str, value: Any, kind: type | tuple[type, ...], fitting: str) -> None:
    """Refuse a value of another type. fitting: what would fit, in words.

    >>> expect("the schedule", "1f1b", dict, "a mapping")
    Traceback (most recent call last):
    pipelag.errors.PipelagError: the schedule is '1f1b'; it should be a mapping
    """
    if not isinstance(value, kind):
        raise PipelagError(f"{name} is {shown(value)}; it should be {fitting}")
