"""Fetching data files: mirrors first, then the network; resumed, verified, and landed by rename."""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from pipelag.data import manifest
from pipelag.data.manifest import File, Manifest
from pipelag.errors import PipelagError

CHUNK = 1 << 18
TRIES = 5  # per address; each continues where the one before was cut
TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Release:
    """Files that are there and verified: which release, and where each lies."""

    manifest: Manifest
    official: bool
    paths: dict[str, Path]
    origin: str  # "downloaded", or the mirror's folder name


def data_folder() -> Path:
    """Where downloads go: `PIPELAG_DATA`, else `data/downloads` below the current folder."""
    return Path(os.environ.get("PIPELAG_DATA", "data/downloads"))


def mirrors_from_environment() -> list[Path]:
    """The folders named by `PIPELAG_MIRROR`, separated as in PATH."""
    return [Path(part) for part in os.environ.get("PIPELAG_MIRROR", "").split(os.pathsep) if part]


def fetch(name: str, to: Path | None = None, mirrors: Sequence[Path] | None = None) -> Release:
    """Find or fetch a data set's files.

    Mirrors are looked into first: one with a `manifest.yaml` that describes the data set is used as it lies, whatever
    release that is; one with the official files by name is used likewise. Otherwise the official files are downloaded
    into `to`/<name>.

    Raises:
        PipelagError: a wrong sum or size (the file is kept aside as `<file>.bad`), or no address that answers.
    """
    release = manifest.official(name)
    for mirror in mirrors_from_environment() if mirrors is None else mirrors:
        if not mirror.is_dir():
            raise PipelagError(f"the mirror '{mirror}' is not a folder; correct PIPELAG_MIRROR or leave it out")
        other = manifest.in_mirror(mirror, name)
        if other is not None:
            for file in other.files:
                verify(mirror / file.path, file)
            titled = other.model_copy(update={"title": other.title or release.title})
            return Release(titled, False, {f.path: mirror / f.path for f in other.files}, mirror.name)
        for folder in (mirror, mirror / name):
            if all((folder / file.path).is_file() for file in release.files):
                for file in release.files:
                    verify(folder / file.path, file)
                return Release(release, True, {f.path: folder / f.path for f in release.files}, mirror.name)
    folder = (to or data_folder()) / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # a second fetch waits, then finds the files
        for file in release.files:
            path = folder / file.path
            if path.exists():
                verify(path, file)
            else:
                download(release.addresses, file, path)
    return Release(release, True, {f.path: folder / f.path for f in release.files}, "downloaded")


def verify(path: Path, file: File) -> None:
    """Check size and sum of a file that is there; raises `PipelagError` saying which differs."""
    if not path.is_file():
        raise PipelagError(f"{path} is missing; the manifest lists it with {file.bytes:,} bytes")
    size = path.stat().st_size
    if size != file.bytes:
        raise PipelagError(
            f"{path} has {size:,} bytes, and the manifest says {file.bytes:,}: it is cut off or another file"
        )
    algorithm, expected = file.sum
    found = digest(path, algorithm)
    if found != expected:
        raise PipelagError(f"{path} has the {algorithm} {found}, and the manifest says {expected}: replace the file")


def digest(path: Path, algorithm: str) -> str:
    """The file's sum in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def download(addresses: Sequence[str], file: File, path: Path) -> None:
    """Download one file from the first address that delivers it whole and right."""
    part = path.with_name(path.name + ".part")
    reasons = []
    for address in addresses:
        url = address.rstrip("/") + "/" + path.name
        try:
            _continue(url, file, part)
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno == 28:
                raise PipelagError(
                    f"the disk is full; {part} keeps what came so far, and the next try goes on there"
                ) from error
            reasons.append(f"{url}: {error}")
            continue
        try:
            verify(part, file)
        except PipelagError as error:
            bad = path.with_name(path.name + ".bad")
            os.replace(part, bad)
            raise PipelagError(
                f"what {url} delivers is not what was published ({error}); it is kept as {bad}"
            ) from error
        os.replace(part, path)
        return
    raise PipelagError(
        f"{path.name} could not be fetched ({'; '.join(reasons)}); where there is no network, put the file into a "
        "folder and name that folder in PIPELAG_MIRROR"
    )


def _continue(url: str, file: File, part: Path) -> None:
    """Fetch what is missing of `part`, trying again from where a cut connection left it."""
    for attempt in range(1, TRIES + 1):
        have = part.stat().st_size if part.exists() else 0
        if have >= file.bytes:
            return
        try:
            _transfer(url, file, part, have)
            if part.stat().st_size >= file.bytes:
                return
            cut = f"the connection closed at {part.stat().st_size:,} of {file.bytes:,} bytes"
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise
            cut = str(error)
        except (TimeoutError, ConnectionError, IncompleteRead) as error:
            cut = str(error) or type(error).__name__
        if attempt < TRIES:
            time.sleep(min(8.0, 0.25 * 2**attempt))
    raise OSError(f"gave up after {TRIES} tries: {cut}")


def _transfer(url: str, file: File, part: Path, have: int) -> None:
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if have and answer.status != 206:
            have = 0  # the server ignores ranges and sends everything again
        with (
            open(part, "ab" if have else "wb") as out,
            tqdm(total=file.bytes, initial=have, unit="B", unit_scale=True, desc=part.stem) as bar,
        ):
            while chunk := answer.read(CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
                if out.tell() > file.bytes:
                    break  # `verify` refuses it; no need to fill the disk
            out.flush()
            os.fsync(out.fileno())


def members(archive: Path, limit: int) -> list[tuple[str, bytes]]:
    """The regular files of a tar archive, read into memory; nothing is written to the disk.

    Raises:
        PipelagError: a member with an absolute path or `..`, a link or device, or more than `limit` bytes in all.
    """
    found, total = [], 0
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
                raise PipelagError(f"{archive} holds '{member.name}', which no data set needs: it is refused as unsafe")
            total += member.size
            if total > limit:
                raise PipelagError(f"{archive} unpacks to more than {limit:,} bytes: it is refused as unsafe")
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is not None:
                found.append((member.name, stream.read()))
    return found
