"""Data sets by name: `load("cifar10")`. `register` adds a user's own. Importing this package does not load torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pipelag.data.files.generated_cache import made_once
from pipelag.errors import unknown
from pipelag.registry import entered
from pipelag.typed import check_keywords

if TYPE_CHECKING:
    from pipelag.data.images.dataset import Dataset
    from pipelag.data.images.imagenet import ImageFolders
    from pipelag.data.text.labelled import LabelledText
    from pipelag.data.text.language import RunningText
    from pipelag.data.text.parallel import Corpus

Loader = Callable[..., "Dataset | ImageFolders | Corpus | RunningText | LabelledText"]
# A loader, or "module:function" where it is found, so that listing the names is cheap.
DATASETS: dict[str, Loader | str] = {
    "digits": "pipelag.data.sets.generated_images:digits",
    "shapes": "pipelag.data.sets.generated_images:shapes",
    "phrases": "pipelag.data.sets.generated_phrases:phrases",
    "multi30k": "pipelag.data.sets.multi30k:multi30k",
    "tatoeba": "pipelag.data.sets.translation:tatoeba",
    "iwslt14": "pipelag.data.sets.translation:iwslt14",
    "wmt16": "pipelag.data.sets.translation:wmt16",
    "wmt17": "pipelag.data.sets.translation:wmt17",
    "fairseq": "pipelag.data.text.binarised:read",
    "grammar": "pipelag.data.text.language:grammar",
    "ptb": "pipelag.data.text.language:penn_treebank",
    "opinions": "pipelag.data.sets.generated_opinions:opinions",
    "imdb": "pipelag.data.sets.imdb:imdb",
    "imagenet": "pipelag.data.images.imagenet:imagenet",
}
GENERATED = ("digits", "shapes", "phrases", "grammar", "opinions")  # need no files; equal options give equal data
# Sets that may not be redistributed: a run reads the user's own copy, and is left out if there is none.
USERS_OWN = {
    "imagenet": "ImageNet is not passed on: put train/ and val/, with a folder per class, into a folder `imagenet` "
    "inside one that PIPELAG_MIRROR names",
}


def absent(name: str) -> str:
    """Why a set in `USERS_OWN` cannot be read here; empty if it can, and for all other sets."""
    if name not in USERS_OWN:
        return ""
    from pipelag.data.files.fetch import mirror_folders

    here = any((folder / name / "train").is_dir() for folder in mirror_folders())
    return "" if here else USERS_OWN[name]


def register(name: str) -> Callable[[Loader], Loader]:
    """Register a data set by name.

    It decorates a function of keyword options that returns a `Dataset`, `ImageFolders`, `Corpus`, `RunningText` or
    `LabelledText`.

    Raises:
        PipelagError: the name is taken.
    """

    return entered("data set", name, DATASETS)


def load(name: str, /, **options: Any) -> Any:
    """Read, download or generate a data set by its name.

    Args:
        name: a registered name; see `DATASETS`.
        options: keyword arguments of that data set, such as `train=` and `difficulty=` for 'shapes'.

    Returns:
        A `Dataset`, `ImageFolders`, `Corpus`, `RunningText` or `LabelledText`.

    Raises:
        PipelagError: the name is unknown (the nearest is given), an option is unknown, or files are missing or wrong.
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    entry = DATASETS[name]
    loader: Loader = resolve_name(entry) if isinstance(entry, str) else entry
    check_keywords(loader, 0, options, f"option of data set '{name}':")
    return made_once(name, options, partial(loader, **options)) if name in GENERATED else loader(**options)


def _downloaded(name: str, to: str | None = None, mirrors: tuple[str, ...] = ()) -> Dataset:
    from pipelag.data.images.readers import read

    return read(name, to, mirrors)


for _name in ("mnist", "cifar10", "cifar100", "tiny_imagenet"):
    register(_name)(partial(_downloaded, _name))


def __getattr__(name: str) -> Any:
    if name == "Dataset":
        from pipelag.data.images.dataset import Dataset

        return Dataset
    raise AttributeError(f"module 'pipelag.data' has no attribute '{name}'")
