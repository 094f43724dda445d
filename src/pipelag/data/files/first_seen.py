"""Files whose sums no manifest states: the first download is recorded, and later ones are compared with it.

Such a file is accepted from its publisher's address if it is no larger than the manifest's `most_bytes`. Its size and
sha256 are kept in the data folder beside the download. A release with such a file is shown as not verified.
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
    """The path of the recorded sums of a file without stated ones."""
    return home / f"{file.name}.first.json"


def known(file: OfficialFile, home: Path) -> Sums | None:
    """A file's sums: the manifest's, or those recorded when the file was first seen; None if it has not been seen.

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
    """Record the sums of the file at `path`, the first one seen; returns them.

    Raises:
        PipelagError: the file is larger than the manifest allows, empty, or of another kind than its suffix says, or
            the record cannot be written.
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
