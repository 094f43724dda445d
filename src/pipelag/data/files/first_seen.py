"""Files of which nobody states a sum: the first one seen is the one that every later one is compared with.

Such a file is taken from its publisher's address as it comes, within the manifest's `most_bytes`. Its size and sha256
are kept in the data folder beside the download; a release with such a file is shown as not verified.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import ValidationError

from pipelag.data.files.compressed import strange
from pipelag.data.files.manifest import OfficialFile, Sums
from pipelag.errors import PipelagError
from pipelag.files import write_whole


def record_of(file: OfficialFile, home: Path) -> Path:
    """Where the sums of a file without stated ones are kept."""
    return home / f"{file.name}.first.json"


def known(file: OfficialFile, home: Path) -> Sums | None:
    """The manifest's sums of a file, or those recorded when it was first seen; None before that.

    Raises:
        PipelagError: the record cannot be read.
    """
    if file.sums is not None:
        return file.sums
    record = record_of(file, home)
    if not record.is_file():
        return None
    try:
        return Sums.model_validate_json(record.read_text())
    except (ValidationError, OSError, UnicodeDecodeError) as error:
        raise PipelagError(
            f"{record} should hold a file's size and sha256; remove it, and it will be written again"
        ) from error


def record(file: OfficialFile, path: Path, home: Path) -> Sums:
    """Take the sums of the file at `path`, the first one seen, and keep them.

    Raises:
        PipelagError: it is larger than the manifest allows, or empty, or no file of its kind; or they cannot be kept.
    """
    size = path.stat().st_size
    if not 0 < size <= (file.most_bytes or 0):
        raise PipelagError(f"{path} has {size:,} bytes; {file.name} may have 1 to {file.most_bytes or 0:,}")
    complaint = strange(path, file.name)
    if complaint:
        raise PipelagError(f"{path} {complaint}; replace it")
    with path.open("rb") as content:
        sums = Sums(bytes=size, sha256=hashlib.file_digest(content, "sha256").hexdigest())
    write_whole(record_of(file, home), json.dumps(sums.model_dump(exclude_none=True)) + "\n")
    return sums
