"""Manifests: the files of a data set, their sizes and sums, and where they are published.

The package's manifests (`manifests/<name>.yaml`) describe the official files. A mirror folder may hold another release,
described by its own `manifest.yaml`. Both are checked strictly: a sum under a misspelt key would not be checked.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from pipelag.errors import unknown
from pipelag.files import read_yaml, yaml_of
from pipelag.typed import Closed, mistake

MD5 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
SHA256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
WebFolder = Annotated[str, StringConstraints(pattern=r"^https?://.+/$")]
_Model = TypeVar("_Model", bound=BaseModel)


class Sums(Closed):
    """The size in bytes and the sums of a file, at least one sum."""

    bytes: int = Field(gt=0)
    md5: MD5 | None = None
    sha256: SHA256 | None = None

    @model_validator(mode="after")
    def _has_a_sum(self) -> Sums:
        if not self.stated:
            raise ValueError("a file needs 'sha256' or 'md5'")
        return self

    @property
    def stated(self) -> dict[str, str]:
        """The sums that are given, by algorithm, the stronger one first."""
        return {name: value for name in ("sha256", "md5") if (value := getattr(self, name))}

    def complaint(self, path: Path) -> str | None:
        """What is wrong with the file at `path`; None if its size and its strongest sum are right."""
        if not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != self.bytes:
            return f"has {size:,} bytes instead of {self.bytes:,}"
        name, expected = next(iter(self.stated.items()))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, name).hexdigest()
        return None if digest == expected else f"has {name} {digest} instead of {expected}"


class OfficialFile(Closed):
    """A file as its publisher offers it, under the same name in each of the web folders `urls`.

    If the manifest cannot state its size and sum, `most_bytes` limits its size: see `pipelag.data.files.first_seen`.
    """

    name: str
    urls: tuple[WebFolder, ...] = Field(min_length=1)
    bytes: int | None = Field(default=None, gt=0)
    md5: MD5 | None = None
    sha256: SHA256 | None = None
    most_bytes: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _verified_or_limited(self) -> OfficialFile:
        stated = [value for value in (self.bytes, self.md5, self.sha256) if value is not None]
        if self.most_bytes is None and (self.bytes is None or len(stated) < 2):
            raise ValueError("a file needs 'bytes' and 'sha256' or 'md5', or 'most_bytes' if these are not known")
        if self.most_bytes is not None and stated:
            raise ValueError(
                "'most_bytes' is for a file whose size and checksum are not known; leave out either it or these"
            )
        return self

    @property
    def sums(self) -> Sums | None:
        """The size and the sums that are stated; None if they are not known."""
        return None if self.bytes is None else Sums(bytes=self.bytes, md5=self.md5, sha256=self.sha256)

    @property
    def addresses(self) -> list[str]:
        """The file's full addresses, in the order in which they are tried."""
        return [folder + self.name for folder in self.urls]


class Manifest(Closed):
    """The official release of a data set. `aliases`: other names under which a mirror's manifest may list the set."""

    title: str
    licence: str
    layout: str
    files: tuple[OfficialFile, ...] = Field(min_length=1)
    aliases: tuple[str, ...] = ()


class MirrorFile(Sums):
    """A file of a mirror, by its path inside the mirror's folder."""

    path: str

    @model_validator(mode="after")
    def _stays_inside(self) -> MirrorFile:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{self.path}' points outside the mirror; give a path relative to the manifest")
        return self


class MirrorRelease(Closed):
    """A release of a data set that a mirror holds; `note` says how it differs from the official one."""

    layout: str
    note: str = ""
    files: tuple[MirrorFile, ...] = Field(min_length=1)


class MirrorManifest(Closed):
    """A mirror's `manifest.yaml`: releases by the data set's name. It may list sets that pipelag does not know."""

    datasets: dict[str, MirrorRelease]


def names() -> list[str]:
    """The data sets that have an official manifest."""
    folder = resources.files("pipelag.data.files") / "manifests"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


@cache
def official(name: str) -> Manifest:
    """The official manifest of a data set.

    Raises:
        PipelagError: no such manifest (the nearest name is given).
    """
    if name not in names():
        raise unknown("downloadable data set", name, names())
    source = resources.files("pipelag.data.files") / "manifests" / f"{name}.yaml"
    return _validated(Manifest, yaml_of(source.read_text(encoding="utf-8"), source.name), source.name)


def mirrored(folder: Path) -> MirrorManifest | None:
    """The manifest of a mirror folder; None if the folder has none.

    Raises:
        PipelagError: it is not a mirror's manifest; the message names the place and the nearest valid key.
    """
    path = folder / "manifest.yaml"
    return _validated(MirrorManifest, read_yaml(path, "a mirror's manifest"), str(path)) if path.is_file() else None


def _validated(model: type[_Model], content: Any, source: str) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise mistake(error, content, model).at(source) from error
