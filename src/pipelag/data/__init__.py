"""Data sets by name: `load("cifar10")`. `register` adds a user's own. Importing this package does not load torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelag.errors import PipelagError, unknown

if TYPE_CHECKING:
    from pipelag.data.dataset import Dataset
    from pipelag.data.labelled import LabelledText
    from pipelag.data.language import RunningText
    from pipelag.data.text import Corpus

Loader = Callable[..., "Dataset | Corpus | RunningText | LabelledText"]
DATASETS: dict[str, Loader] = {}


def register(name: str) -> Callable[[Loader], Loader]:
    """Make a data set known by name: a function of keyword options that returns a `Dataset`.

    Raises:
        PipelagError: the name is taken.
    """

    def add(loader: Loader) -> Loader:
        if name in DATASETS:
            raise PipelagError(f"a data set named '{name}' is registered already; choose another name")
        DATASETS[name] = loader
        return loader

    return add


def load(name: str, **options: Any) -> Any:
    """The data set of that name (`Dataset`, `Corpus`, `RunningText` or `LabelledText`): read, downloaded, or generated.

    Args:
        name: a registered name; see `DATASETS`.
        options: keyword arguments of that data set, such as `train=` and `difficulty=` of 'shapes'.

    Raises:
        PipelagError: unknown name (the nearest is given), unknown option, or files that are not there or not right.
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    loader = DATASETS[name]
    takes = inspect.signature(loader).parameters
    for option in options:
        if option not in takes and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            raise unknown(f"option of data set '{name}':", option, takes)
    return loader(**options)


def _downloaded(name: str, to: str | None = None, mirrors: tuple[str, ...] = ()) -> Dataset:
    from pipelag.data.readers import read

    return read(name, to, mirrors)


for _name in ("mnist", "cifar10", "cifar100", "tiny_imagenet"):
    register(_name)(partial(_downloaded, _name))


@register("digits")
def _digits(size: int = 28) -> Dataset:
    from pipelag.data.quick import digits

    return digits(size)


@register("shapes")
def _shapes(
    train: int = 10_000, test: int = 2_000, difficulty: float = 1.0, size: int = 32, classes: int = 10, seed: int = 0
) -> Dataset:
    from pipelag.data.quick import shapes

    return shapes(train, test, difficulty, size, classes, seed)


@register("phrases")
def _phrases(train: int = 20_000, test: int = 500, most: int = 999_999, seed: int = 0) -> Corpus:
    from pipelag.data.phrases import phrases

    return phrases(train, test, most, seed)


@register("multi30k")
def _multi30k(
    least_count: int = 3, most_tokens: int = 50, source: str = "de", target: str = "en", test: int | None = None
) -> Corpus:
    from pipelag.data.multi30k import multi30k

    return multi30k(least_count, most_tokens, source, target, test)


@register("tatoeba")
def _tatoeba(
    source: str = "de",
    target: str = "en",
    merges: int = 10_000,
    most_pieces: int = 1000,
    test: int = 2000,
    seed: int = 0,
    train: int | None = None,
) -> Corpus:
    from pipelag.data.translation import tatoeba

    return tatoeba(source, target, merges, most_pieces, test, seed, train)


@register("iwslt14")
def _iwslt14(
    source: str = "de", target: str = "en", merges: int = 10_000, most_pieces: int = 1000, tested_on: str = "test"
) -> Corpus:
    from pipelag.data.translation import iwslt14

    return iwslt14(source, target, merges, most_pieces, tested_on)


@register("wmt17")
def _wmt17(
    source: str = "en", target: str = "de", merges: int = 40_000, most_pieces: int = 1000, tested_on: str = "test"
) -> Corpus:
    from pipelag.data.translation import wmt17

    return wmt17(source, target, merges, most_pieces, tested_on)


@register("fairseq")
def _fairseq(folder: str, source: str = "de", target: str = "en", tested_on: str = "test") -> Corpus:
    from pipelag.compat.binarised import read

    return read(folder, source, target, tested_on)


@register("grammar")
def _grammar(train: int = 6000, test: int = 400, seed: int = 0) -> RunningText:
    from pipelag.data.language import grammar

    return grammar(train, test, seed)


@register("ptb")
def _ptb() -> RunningText:
    from pipelag.data.language import penn_treebank

    return penn_treebank()


@register("opinions")
def _opinions(
    train: int = 10_000, test: int = 2_000, noise: float = 0.08, length: int = 20, seed: int = 0
) -> LabelledText:
    from pipelag.data.opinions import opinions

    return opinions(train, test, noise, length, seed)


@register("imdb")
def _imdb(
    length: int = 20, most_words: int | None = 10_000, least_count: int = 1, last: bool = False, test: int | None = None
) -> LabelledText:
    from pipelag.data.imdb import imdb

    return imdb(length, most_words, least_count, last, test)


def __getattr__(name: str) -> Any:
    if name == "Dataset":
        from pipelag.data.dataset import Dataset

        return Dataset
    raise AttributeError(f"module 'pipelag.data' has no attribute '{name}'")
