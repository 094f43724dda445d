"""Read files from outside and write our own: completely, or refused in one sentence. No torch, no numpy.

A file to read must be regular text of limited size: no folder, and no pipe, to which nobody may ever write. Its content
must be plain: limited in depth, length and number of values, with finite numbers only and no key twice.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from secrets import token_hex
from typing import Any

import yaml

from pipelag.errors import PipelagError

MOST_BYTES = 16 * 2**20  # for a config, a cluster or a profile; logs and traces may be larger
MOST_VALUES, DEEPEST, LONGEST = 200_000, 48, 1_000_000  # values, levels, characters of a text
MOST_INTEGER = 2**63  # integers fit in 64 bits, as logs, libraries and other languages expect


def read_text(path: Path, what: str, most: int = MOST_BYTES) -> str:
    """The text of a file.

    Args:
        what: what the file should be, for the refusal, such as "a cluster file".
        most: the most bytes that it may have.

    Raises:
        PipelagError: the file is missing, no regular file, too large, or no UTF-8 text.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
            raise PipelagError(f"'{path}' is {kind}, not {what}; name a file")
        if status.st_size > most:
            raise PipelagError(f"'{path}' has {status.st_size:,} bytes, too many for {what} ({most:,} at most)")
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a name with a zero byte raises ValueError; our refusal is one, too
        if isinstance(error, PipelagError):
            raise
        if isinstance(error, FileNotFoundError):
            raise PipelagError(f"there is no file '{path}'; it should be {what}") from error
        raise PipelagError(f"'{path}' cannot be read as {what}: {_reason(error)}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PipelagError(f"'{path}' is not {what}: it is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise PipelagError(f"'{path}' is not {what}: it is binary, or text in another encoding than UTF-8")
    return text


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML (or JSON) file; raises `PipelagError` as `read_text` and `yaml_of` do."""
    return yaml_of(read_text(path, what), f"'{path}'")


def yaml_of(text: str, where: str) -> Any:
    """The content of a YAML text. PyYAML parses it with libyaml if it can: that is five times as fast.

    Raises:
        PipelagError: the text is no YAML, has a key twice, or is not `plain`.
    """
    loader: Any = _CLoader or _Loader
    try:
        depth = 0
        for event in yaml.parse(text, loader):  # libyaml's composer crashes the interpreter on too deep nesting
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise PipelagError(f"{where} is nested more than {DEEPEST} levels deep (line {_line(event)})")
        content = yaml.load(text, loader)
    except PipelagError as error:
        raise PipelagError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    except Exception as error:  # YAMLError, or anything that its constructors raise for odd dates, numbers and tags
        raise PipelagError(f"{where} is not YAML: {_said(error)}") from error
    return plain(content, where)


def json_of(text: str, where: str, most: int = MOST_VALUES) -> Any:
    """The content of a JSON text of at most `most` values.

    Raises:
        PipelagError: the text is no JSON, has a key twice, or is not `plain`.
    """
    try:
        content = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except PipelagError as error:
        raise PipelagError(f"{where}: {error}") from error
    except RecursionError as error:
        raise PipelagError(f"{where} is nested more than {DEEPEST} levels deep") from error
    except ValueError as error:
        raise PipelagError(f"{where} is not JSON: {_said(error)}") from error
    return plain(content, where, most)


def plain(content: Any, where: str, most: int = MOST_VALUES) -> Any:
    """The content itself, if it could be JSON and its sizes are within limits. YAML aliases count as often as used.

    Raises:
        PipelagError: says where, and what is wrong.
    """
    left = most
    stack: list[tuple[Any, tuple[Any, ...]]] = [(content, ())]
    while stack:
        value, place = stack.pop()
        left -= 1
        if isinstance(value, (Mapping, list, tuple)):
            if len(place) >= DEEPEST:
                raise PipelagError(f"{where} is nested more than {DEEPEST} levels deep, or in itself")
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in items:
                wrong = None if type(key) in (str, int, bool) else "a key that is not a string"
                wrong = wrong or _wrong(key) or _wrong(item)
                if wrong:
                    at = ".".join(str(part)[:40] for part in (*place, *([key] if not _wrong(key) else [])))
                    raise PipelagError(f"{where}: {at or 'it'} is {wrong}")
                if isinstance(item, (Mapping, list, tuple)):
                    stack.append((item, (*place, key)))
                else:
                    left -= 1
        elif wrong := _wrong(value):
            raise PipelagError(f"{where} is {wrong}")
        if left < 0:
            raise PipelagError(f"{where} holds more than {most:,} values; an alias counts each time it is used")
    return content


def _wrong(value: Any) -> str | None:
    """What is wrong with a single value; None if nothing is."""
    if value is None or isinstance(value, (bool, Mapping, list, tuple)):
        return None
    if isinstance(value, int):
        return None if -MOST_INTEGER <= value < MOST_INTEGER else "a whole number of more than 64 bits"
    if isinstance(value, float):
        return None if isfinite(value) else f"{value}, which is not a finite number"
    if isinstance(value, str):
        if len(value) > LONGEST:
            return f"a string of {len(value):,} characters ({LONGEST:,} at most)"
        half = not value.isascii() and re.search("[\ud800-\udfff]", value)  # of a pair; no file can hold it
        return "a string with half a character (a lone surrogate)" if half else None
    return f"a {type(value).__name__}; it should be a string, a number, true, false, null, a list or a mapping"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise PipelagError(f"the key '{key[:60]}' appears twice")
        mapping[key] = value
    return mapping


def _no_number(word: str) -> Any:
    raise PipelagError(f"{word} is not a finite number")


def _said(error: Exception) -> str:
    """A parser's message, without its placeholder for the name of the text."""
    if "Exceeds the limit" in str(error):  # Python's message about a number of thousands of digits
        return "a whole number in it has more than 64 bits"
    return " ".join(str(error).replace('in "<unicode string>", ', "at ").split())[:300]


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Unique:
    """A loader's mixin that refuses a mapping with a key twice, of which YAML's readers silently take the last."""

    def flatten_mapping(self, node: Any) -> None:
        """Check the keys. PyYAML calls this before it makes a mapping, and for each mapping that is merged into it."""
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                name = self.construct_object(key)  # type: ignore[attr-defined]
                if name in seen:
                    raise PipelagError(f"the key '{key.value[:60]}' appears twice (line {_line(key)})")
                seen.add(name)
        super().flatten_mapping(node)  # type: ignore[misc]
        # Merged keys come before the mapping's own, which win. Keep each key once, as this may be called again.
        last = {(key.tag, key.value): pair for pair in node.value for key in [pair[0]] if _scalar(key)}
        node.value = [pair for pair in node.value if not _scalar(pair[0]) or last[pair[0].tag, pair[0].value] is pair]


def _scalar(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode)


class _Loader(_Unique, yaml.SafeLoader):
    pass


_CLoader: Any = type("_CLoader", (_Unique, yaml.CSafeLoader), {}) if hasattr(yaml, "CSafeLoader") else None
for _each in filter(None, (_Loader, _CLoader)):  # PyYAML takes 1e-3 for a text; in YAML 1.2 it is a number
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which then replaces `path` and takes its permissions; after an error it is removed.

    Raises:
        PipelagError: the path cannot be written, or the disk is full; `path` is as it was.
    """
    aside: Path | None = None
    try:
        target, mode = Path(os.path.realpath(path)), None  # a link stays a link
        with suppress(FileNotFoundError):
            mode = target.stat().st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if target.is_dir() else "a device or a pipe"
                raise PipelagError(f"'{path}' is {kind}; name a file to write to")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.parent / f".{token_hex(6)}{target.suffix}"
        open(beside, "xb").close()
        aside = beside
        if mode is not None:
            aside.chmod(stat.S_IMODE(mode) | stat.S_IWUSR)
        yield aside
        with open(aside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, target)
        aside = None
    except OSError as error:
        raise PipelagError(
            f"'{path}' cannot be written: {_reason(error)}; name a writable place with free disk space"
        ) from error
    finally:
        if aside is not None:
            with suppress(OSError):
                aside.unlink()


def remove_half_written(folder: Path) -> None:
    """Remove the temporary files that a killed `written` has left in a folder, to which nobody else may be writing."""
    for aside in folder.glob(".*"):
        if re.fullmatch(r"\.[0-9a-f]{12}\.(json|jsonl|yaml)", aside.name):
            aside.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text so that a reader sees the old file or the new one, never a part; raises `PipelagError`."""
    with written(path) as aside:
        aside.write_text(text, encoding="utf-8")


def check_writable(path: Path | None) -> None:
    """Refuse a path that `written` would refuse, before the work that it is for; leaves nothing behind. None: no path.

    Raises:
        PipelagError: as `written`.
    """
    if path is None:
        return
    made = [each for each in Path(os.path.realpath(path)).parents if not os.path.lexists(each)]
    with suppress(_Tried):
        try:
            with written(path):
                raise _Tried
        finally:
            with suppress(OSError):  # somebody else uses it by now
                for each in made:
                    each.rmdir()


class _Tried(Exception):
    """Ends an attempt to write before anything is replaced."""


def folder_for(path: Path) -> Path:
    """The folder, which is made if it is missing; raises `PipelagError` if it cannot be made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        raise PipelagError(
            f"'{path}' cannot be used as a folder to write to: {_reason(error)}; name one that can be created and "
            "written to"
        ) from error
    return path


@contextmanager
def alone(folder: Path, hint: str = "") -> Iterator[None]:
    """Keep other processes from writing into a folder, by a lock that ends with the process.

    A folder that was made for the lock is removed afterwards if nothing else was written there, as after a refusal.

    Args:
        hint: what the refusal says further.

    Raises:
        PipelagError: another process is at work there, or the folder cannot be written to.
    """
    from filelock import FileLock, Timeout  # most commands do not need it

    lock, made = FileLock(folder / "lock"), list[Path]()
    try:
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        what = f"another process is at work in {folder}; wait for it, or choose another folder"
        raise PipelagError(what + hint) from error
    except OSError as error:
        _unmake(folder, made)
        what = "locked: its disk supports no locks" if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP) else "written to"
        raise PipelagError(
            f"the folder {folder} cannot be {what} ({_reason(error)}); fix that, remove it, or choose another"
        ) from error
    try:
        yield
    finally:
        _unmake(folder, made)
        lock.release()


def _unmake(folder: Path, made: Sequence[Path]) -> None:
    """Remove a folder that was made for a lock, and the new ones above it, if nothing but the lock is in it."""
    if made and os.path.isdir(folder) and os.listdir(folder) == ["lock"]:
        with suppress(OSError):  # not empty: somebody else uses it by now
            (folder / "lock").unlink()
            for each in made:
                each.rmdir()


def is_watched() -> bool:
    """Whether standard error is a terminal. A daemon has none; what notebooks and loggers put there may not tell."""
    return bool(getattr(sys.stderr, "isatty", bool)())


def dangling(link: Path) -> str:
    """The clause that says that a symbolic link leads nowhere."""
    return f"'{link}' is a symbolic link to '{os.readlink(link)}', which does not exist"


def _reason(error: Exception) -> str:
    """What the system says; of a path in whose place a folder should be made, what stands there."""
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        place = Path(error.filename)
        place = next((each for each in (place, *place.parents) if os.path.lexists(each)), place)
        if place.is_symlink() and not place.exists():
            return dangling(place)
        if place.is_file():
            return f"'{place}' is a file"
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")
