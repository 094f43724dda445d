"""What a disk, a hasty hand or another program does to the files of a folder, at random."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

MOST = 1 << 20  # bytes of a file that are looked at


def truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def zero(path: Path, chance: random.Random) -> None:
    """A block that was never written."""
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content) + 1)
    content[at : at + 512] = bytes(len(content[at : at + 512]))
    path.write_bytes(content)


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def double(path: Path, chance: random.Random) -> None:
    """The tail is there twice."""
    content = path.read_bytes()
    path.write_bytes(content + content[chance.randrange(len(content) + 1) :])


def swap(path: Path, chance: random.Random) -> None:
    """Two files have each other's name."""
    others = [each for each in files(top(path)) if each != path]
    if others:
        other, aside = chance.choice(others), path.with_name("aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)


def copy(path: Path, chance: random.Random) -> None:
    """One file is there in another's place too."""
    others = [each for each in files(top(path)) if not each.samefile(path)]
    if others:
        shutil.copyfile(path, chance.choice(others), follow_symlinks=False)


def leave(path: Path, chance: random.Random) -> None:
    """What a program that was killed left beside it."""
    names = [path.stem + ".tmp", path.stem + ".damaged", f".0123456789ab{path.suffix}", path.name + "~", "step-x"]
    beside = path.with_name(chance.choice(names))
    if chance.random() < 0.3:
        (beside / "inside").mkdir(parents=True, exist_ok=True) if not beside.is_file() else None
    elif not beside.is_dir():
        beside.write_bytes(path.read_bytes()[: chance.randrange(MOST)])


def folder(path: Path, chance: random.Random) -> None:
    """A folder stands where the file was, with the file in it or with nothing."""
    aside = path.with_name("aside")
    path.rename(aside)
    path.mkdir()
    aside.rename(path / path.name) if chance.random() < 0.5 else aside.unlink()


def loop(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(path)


def pipe(path: Path, chance: random.Random) -> None:
    """Nobody will ever write to it."""
    path.unlink()
    os.mkfifo(path)


def read_only(path: Path, chance: random.Random) -> None:
    path.chmod(0o444)


def folder_read_only(path: Path, chance: random.Random) -> None:
    path.parent.chmod(0o555)


def drop_folder(path: Path, chance: random.Random) -> None:
    shutil.rmtree(path.parent)


def as_file(path: Path, chance: random.Random) -> None:
    """A file stands where its folder was."""
    if path.parent != top(path):
        shutil.rmtree(path.parent)
        path.parent.write_bytes(b"x")


KINDS: list[Callable[[Path, random.Random], None]] = [
    *(truncate, flip, zero, empty, delete, double, swap, copy, leave) * 2,
    *(folder, loop, pipe, read_only, folder_read_only, drop_folder, as_file),
]


def top(path: Path) -> Path:
    """The run's folder that a file is in."""
    return next(each for each in path.parents if each.name.startswith("run"))


def files(under: Path) -> list[Path]:
    return sorted(path for path in under.rglob("*") if path.is_file() and not path.is_symlink())


def damage(run: Path, chance: random.Random) -> str:
    """Do one of these to a file of the folder; returns what was done."""
    candidates = files(run)
    if not candidates:
        return "nothing"
    kind, path = chance.choice(KINDS), chance.choice(candidates)
    try:
        kind(path, chance)
    except PermissionError:  # of what a damage before this one made read-only
        return f"{kind.__name__} {path.relative_to(run)}, not permitted"
    return f"{kind.__name__} {path.relative_to(run)}"


def writable(run: Path) -> None:
    """Take back what `read_only` and `folder_read_only` did."""
    for path in [run, *run.rglob("*")]:
        if path.exists() and not path.is_symlink():  # a run killed early has not made its folder
            path.chmod(path.stat().st_mode | 0o700)
