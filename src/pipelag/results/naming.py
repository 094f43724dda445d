"""Names of runs for sentences: what distinguishes some of a result's runs from its others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from pipelag.results.logs import Item


def told_apart(items: Sequence[Item], others: Sequence[Item]) -> str:
    """Name some runs by what distinguishes them from the others: model or task, up to three labels, or seeds.

    Empty if nothing does, or if there are no others.
    """
    if not others:
        return ""
    keys = [key for key in items[0].arm.labels if all(item.arm.labels.get(key) for item in items) and key != "what"]
    keys.sort(key=lambda key: (key not in ("model", "task"), len({shown_of(item, key) for item in items})))
    telling = next((some for size in (1, 2, 3) for some in combinations(keys, size) if _tell(some, items, others)), ())
    if not telling:
        seeds = sorted({item.arm.seed for item in items})
        if not {other.arm.seed for other in others} & set(seeds):
            return few(f"seed {seed}" for seed in seeds)
        return _seeds_of_some(keys, items, others, seeds)
    if len(telling) == 1 and all(shown_of(item, telling[0]).replace(".", "").isdigit() for item in items):  # what of?
        telling = (*[key for key in keys if len({item.arm.labels[key] for item in items}) == 1][:1], *telling)
    return ": ".join(few(dict.fromkeys(shown_of(item, key) for item in items)) for key in telling)


def _seeds_of_some(keys: Sequence[str], items: Sequence[Item], others: Sequence[Item], seeds: Sequence[int]) -> str:
    """Name runs that are the same seeds of all runs with some values of a label; empty if they are no such runs."""
    for key in keys:
        ours, theirs = (
            {(shown_of(i, key), i.arm.seed) for i in some if key in i.arm.labels} for some in (items, others)
        )
        values = dict.fromkeys(shown_of(item, key) for item in items)
        if ours.isdisjoint(theirs) and len(ours) == len(values) * len(seeds):
            return f"{few(values)}: {'seed' if len(seeds) == 1 else 'seeds'} {few(map(str, seeds))}"
    return ""


def _tell(keys: Sequence[str], items: Iterable[Item], others: Iterable[Item]) -> bool:
    """Whether these labels distinguish the runs: no other run shares one run's values of them."""
    having = [other for other in others if all(key in other.arm.labels for key in keys)]
    ours, theirs = ({tuple(shown_of(item, key) for key in keys) for item in each} for each in (items, having))
    return ours.isdisjoint(theirs)


def few(names: Iterable[str]) -> str:
    """Names in words; if there are more than four, the first four and the number of the rest."""
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def shown_of(item: Item, key: str) -> str:
    """A run's label as figures show it.

    Labels give a rate relative to the common one, and figures the learning rate itself. A setup is shown as its number
    of stages; checkpoints as the number of segments into which they divide the stages, which is what is recomputed.
    """
    spec = item.arm.spec
    if key == "rate" and spec.optimizer is not None:
        return f"{spec.optimizer.lr:g}"
    if key == "setup" and spec.phases:
        return f"{max(phase.stages for phase in spec.phases)} stages"
    if key == "checkpoints" and spec.phases and spec.phases[-1].segments:
        return f"{spec.phases[-1].segments} segments"
    return item.arm.labels[key]
