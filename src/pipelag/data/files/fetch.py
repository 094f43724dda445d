"""Find a data set's files: in a mirror folder, in the data folder, or on the network, in that order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelag.data.files import first_seen, manifest
from pipelag.data.files.download import Unavailable, download
from pipelag.data.files.manifest import Manifest, MirrorRelease, OfficialFile, Sums
from pipelag.errors import PipelagError


@dataclass(frozen=True)
class Release:
    """The verified files of one release of a data set, and where they are.

    official: whether the files are the publisher's own, byte for byte.
    note: how another release differs. origin: the mirror's folder or the data folder.
    files: path and sums of each file.
    verified: whether a manifest states the files' sums. Files from the publisher's address without stated sums are
    neither verified nor official, as nothing shows that they are still the same.
    """

    dataset: str
    title: str
    layout: str
    official: bool
    note: str
    origin: Path
    files: tuple[tuple[Path, Sums], ...]
    verified: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order of the manifest."""
        return tuple(path for path, _ in self.files)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of a hash of the files' sums: equal for equal files."""
        text = " ".join(value for _, sums in self.files for value in sums.stated.values())
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """'official', or else 'not verified' or the layout of another release, followed by the fingerprint."""
        if self.official:
            return "official"
        return f"{self.layout if self.verified else 'not verified'} {self.fingerprint}"


def only(paths: Sequence[Path], layout: str) -> Path:
    """The file of a layout that has one file; raises `PipelagError` if a mirror's manifest lists several."""
    if len(paths) != 1:
        raise PipelagError(f"layout {layout} has one file, not {len(paths)}: {', '.join(path.name for path in paths)}")
    return paths[0]


def data_folder() -> Path:
    """The folder of downloads and decoded data: `PIPELAG_DATA`, or `data/downloads` in the working directory."""
    return Path(os.environ.get("PIPELAG_DATA") or "data/downloads")


def mirror_folders(first: Iterable[str | Path] = ()) -> list[Path]:
    """The given folders, then those in `PIPELAG_MIRROR`, which are separated as in PATH.

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

    The files of the first mirror that holds the set are used where they are, without a copy. A mirror holds a release
    that its own `manifest.yaml` describes, or the official files by name. If no mirror holds the set, the official
    files are downloaded to `<to>/<name>/`, unless they are there.

    Args:
        name: a data set with a manifest.
        to: a folder to use instead of `data_folder()`.
        mirrors: folders to look into before those in `PIPELAG_MIRROR`.

    Raises:
        PipelagError: the name is unknown, a mirror's file is missing or wrong, or the network does not give the files
            (the message says which file to put where).
    """
    official = manifest.official(name)
    home = (data_folder() if to is None else Path(to)) / name
    for folder in mirror_folders(mirrors):
        release = _in_mirror(name, official, folder, home)
        if release is not None:
            return release
    return _official(name, official, home, home, [_downloaded(file, home) for file in official.files])


def _downloaded(file: OfficialFile, home: Path) -> Sums:
    """Download a file into the data folder, unless it is there; returns its sums."""
    path, sums = home / file.name, first_seen.known(file, home)
    if sums is None or sums.complaint(path) is not None:
        try:
            download(file.addresses, path, sums, most_bytes=file.most_bytes or 0)
        except Unavailable as error:
            size = f" ({file.bytes:,} bytes)" if file.bytes else ""
            advice = "" if file.sums else _of_the_first(file, home)
            raise PipelagError(
                f"{error}; without a network, put {file.name}{size} into {home}, or into a folder that PIPELAG_MIRROR "
                f"names{advice}"
            ) from error
    return sums or first_seen.record(file, path, home)


def _of_the_first(file: OfficialFile, home: Path) -> str:
    """Advice for a message: what to do if the publisher's file is no longer the one first seen."""
    record = first_seen.record_of(file, home)
    return f" (to accept a different file, remove {record})" if record.is_file() else ""


def _in_mirror(name: str, official: Manifest, folder: Path, home: Path) -> Release | None:
    described = manifest.mirrored(folder)
    for alias in (name, *official.aliases):
        if described is not None and alias in described.datasets:
            return _described(name, official, folder, described.datasets[alias])
    for place in (folder, folder / name):
        if not all((place / file.name).is_file() for file in official.files):
            continue
        all_sums = []
        for file in official.files:
            path = place / file.name
            sums = first_seen.known(file, home) or first_seen.record(file, path, home)
            complaint = sums.complaint(path)
            if complaint and file.sums is None:
                raise PipelagError(
                    f"{path} {complaint}, which the file had when it was first seen{_of_the_first(file, home)}"
                )
            if complaint:
                raise PipelagError(
                    f"{path} {complaint}, so it is not the official file; replace it, or describe it in "
                    f"{folder / 'manifest.yaml'}"
                )
            all_sums.append(sums)
        return _official(name, official, folder, place, all_sums)
    return None


def _described(name: str, official: Manifest, folder: Path, release: MirrorRelease) -> Release:
    files = tuple((folder / file.path, file) for file in release.files)
    for path, sums in files:
        complaint = sums.complaint(path)
        if complaint:
            raise PipelagError(f"{path} {complaint}; replace it or correct {folder / 'manifest.yaml'}")
    is_official = release.layout == official.layout and all(_holds(file, files) for file in official.files)
    return Release(name, official.title, release.layout, is_official, release.note, folder, files)


def _holds(official: OfficialFile, files: Iterable[tuple[Path, Sums]]) -> bool:
    """Whether an official file is among the files, byte for byte."""
    named = (path for path, _ in files if path.as_posix().endswith(f"/{official.name}"))
    return any(official.sums is not None and official.sums.complaint(path) is None for path in named)


def _official(name: str, official: Manifest, origin: Path, place: Path, sums: Sequence[Sums]) -> Release:
    files = tuple((place / file.name, file_sums) for file, file_sums in zip(official.files, sums, strict=True))
    unknown = [file.name for file in official.files if file.sums is None]
    note = f"not verified: nobody states a sum of {', '.join(unknown)}" if unknown else ""
    return Release(name, official.title, official.layout, not unknown, note, origin, files, not unknown)
