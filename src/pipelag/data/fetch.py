"""Where a data set's files are: in a mirror folder, in the data folder, or on the network, in that order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelag.data import manifest
from pipelag.data.download import Unavailable, download
from pipelag.data.manifest import Manifest, MirrorRelease, Sums
from pipelag.errors import PipelagError


@dataclass(frozen=True)
class Release:
    """The verified files of one release of a data set, where they lie.

    official: they are the publisher's own, byte for byte; note: how another release differs; origin: a mirror's folder
    or the data folder; files: path and sums of each.
    """

    dataset: str
    title: str
    layout: str
    official: bool
    note: str
    origin: Path
    files: tuple[tuple[Path, Sums], ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order of the manifest."""
        return tuple(path for path, _ in self.files)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of the files' sums: equal for equal files."""
        text = " ".join(value for _, sums in self.files for value in sums.stated.values())
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """'official', or the layout and the fingerprint of another release."""
        return "official" if self.official else f"{self.layout} {self.fingerprint}"


def data_folder() -> Path:
    """Where downloads and decoded images are kept: `PIPELAG_DATA`, or `data/downloads` in the working directory."""
    return Path(os.environ.get("PIPELAG_DATA") or "data/downloads")


def mirror_folders(first: Iterable[str | Path] = ()) -> list[Path]:
    """The given folders, then those of `PIPELAG_MIRROR` (separated like those of PATH).

    Raises:
        PipelagError: one of them is not a folder.
    """
    named = [*first, *filter(None, os.environ.get("PIPELAG_MIRROR", "").split(os.pathsep))]
    folders = [Path(name) for name in named]
    for folder in folders:
        if not folder.is_dir():
            raise PipelagError(f"the mirror {folder} is not a folder; correct PIPELAG_MIRROR or --mirror")
    return folders


def fetch(name: str, to: str | Path | None = None, mirrors: Sequence[str | Path] = ()) -> Release:
    """Find or download the files of a data set, and verify them.

    The first mirror that holds the set is read where it lies, nothing is copied: a release that the mirror's own
    `manifest.yaml` describes, or the official files by name. Without one the official files are downloaded to
    `<to>/<name>/`, unless they are there.

    Args:
        name: a data set with a manifest.
        to: instead of `data_folder()`.
        mirrors: folders to look into before those of `PIPELAG_MIRROR`.

    Raises:
        PipelagError: unknown name; a mirror's file is missing or wrong; or the network does not give the files (says
            which file to put where).
    """
    official = manifest.official(name)
    for folder in mirror_folders(mirrors):
        found = _in_mirror(name, official, folder)
        if found is not None:
            return found
    home = (data_folder() if to is None else Path(to)) / name
    for file in official.files:
        if file.complaint(home / file.name) is None:
            continue
        try:
            download(file.addresses, home / file.name, file)
        except Unavailable as error:
            raise PipelagError(
                f"{error}; without a network, put {file.name} ({file.bytes:,} bytes) into {home}, or into a folder "
                "that PIPELAG_MIRROR names"
            ) from error
    return _official(name, official, home, home)


def _in_mirror(name: str, official: Manifest, folder: Path) -> Release | None:
    described = manifest.mirrored(folder)
    if described is not None and name in described.datasets:
        return _described(name, official, folder, described.datasets[name])
    for place in (folder, folder / name):
        if all((place / file.name).is_file() for file in official.files):
            for file in official.files:
                complaint = file.complaint(place / file.name)
                if complaint:
                    raise PipelagError(
                        f"{place / file.name} {complaint}, so it is not the official file; replace it, or describe it "
                        f"in {folder / 'manifest.yaml'}"
                    )
            return _official(name, official, folder, place)
    return None


def _described(name: str, official: Manifest, folder: Path, release: MirrorRelease) -> Release:
    files = tuple((folder / file.path, file) for file in release.files)
    for path, sums in files:
        complaint = sums.complaint(path)
        if complaint:
            raise PipelagError(f"{path} {complaint}; replace it or correct {folder / 'manifest.yaml'}")
    is_official = release.layout == official.layout and all(
        any(path.as_posix().endswith(f"/{file.name}") and file.complaint(path) is None for path, _ in files)
        for file in official.files
    )
    return Release(name, official.title, release.layout, is_official, release.note, folder, files)


def _official(name: str, official: Manifest, origin: Path, place: Path) -> Release:
    files = tuple((place / file.name, file) for file in official.files)
    return Release(name, official.title, official.layout, True, "", origin, files)
