"""Manifests: where a data set's files come from, how large they are and what their sums must be."""

from __future__ import annotations

from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipelag.errors import PipelagError, unknown


class File(BaseModel):
    """One file: its path below the data set's folder (or the mirror), its size, and at least one sum."""

    model_config = ConfigDict(extra="forbid")
    path: str
    bytes: int = Field(gt=0)
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    md5: str | None = Field(default=None, pattern="^[0-9a-f]{32}$")

    @model_validator(mode="after")
    def _summed(self) -> File:
        if self.sha256 is None and self.md5 is None:
            raise ValueError("needs a sha256 or an md5")
        return self

    @property
    def sum(self) -> tuple[str, str]:
        """(algorithm, hex digest), the stronger one."""
        return ("sha256", self.sha256) if self.sha256 else ("md5", self.md5 or "")


class Manifest(BaseModel):
    """A release of a data set."""

    model_config = ConfigDict(extra="forbid")
    title: str = ""
    licence: str = ""
    layout: str
    note: str = ""
    addresses: list[str] = Field(default_factory=list)
    files: list[File]


def official(name: str) -> Manifest:
    """The publisher's release of a data set, from the manifests shipped with pipelag."""
    folder = package_files("pipelag.data") / "manifests"
    known = {item.name.removesuffix(".yaml"): item for item in folder.iterdir() if item.name.endswith(".yaml")}
    if name not in known:
        raise unknown("data set to fetch", name, known)
    return parse(yaml.safe_load(known[name].read_text()), f"the manifest of {name}")


def in_mirror(mirror: Path, name: str) -> Manifest | None:
    """The release that a mirror's own `manifest.yaml` describes for this data set; None where it describes none."""
    path = mirror / "manifest.yaml"
    if not path.is_file():
        return None
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise PipelagError(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    entry = (content.get("datasets") or {}).get(name)
    return None if entry is None else parse(entry, f"{path}, datasets.{name}")


def parse(content: Any, where: str) -> Manifest:
    """Validate; the first mistake is named with its place and, for a wrong key, the nearest right one."""
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            known = File.model_fields if "files" in first["loc"] else Manifest.model_fields
            raise PipelagError(f"{where}: {unknown('key', key, known)}, at {place}") from error
        raise PipelagError(f"{where}: wrong at {place}: {first['msg']}") from error
