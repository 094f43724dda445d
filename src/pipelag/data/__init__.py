"""Data sets by name. `register` adds a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelag.data.dataset import Dataset
from pipelag.errors import PipelagError, unknown

Loader = Callable[..., Dataset]
DATASETS: dict[str, Loader] = {}


def register(name: str) -> Callable[[Loader], Loader]:
    """Make a data set known by name: a function of keyword options that returns a `Dataset`."""

    def add(loader: Loader) -> Loader:
        if name in DATASETS:
            raise PipelagError(f"a data set named '{name}' is registered already; choose another name")
        DATASETS[name] = loader
        return loader

    return add


def load(name: str, **options: Any) -> Dataset:
    """The data set of that name, read from the data folder or a mirror, or generated.

    Raises:
        PipelagError: unknown name (the nearest is named), unknown option, or files that are not there or not right.
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    try:
        return DATASETS[name](**options)
    except TypeError as error:
        raise PipelagError(f"data set '{name}' does not take these options: {error}") from error


@register("digits")
def _digits(**options: Any) -> Dataset:
    from pipelag.data.quick import digits

    return digits(**options)


@register("shapes")
def _shapes(**options: Any) -> Dataset:
    from pipelag.data.quick import shapes

    return shapes(**options)


def _fetched(name: str) -> Loader:
    def read(**options: Any) -> Dataset:
        from pipelag.data.readers import read_dataset

        return read_dataset(name, **options)

    return read


for _name in ("mnist", "cifar10", "cifar100"):
    register(_name)(_fetched(_name))
