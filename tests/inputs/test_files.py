"""Files of others: right, or refused in one sentence, in no time; our own: written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pipelag.data.files.download import locked
from pipelag.errors import PipelagError
from pipelag.files import (
    DEEPEST,
    alone,
    check_writable,
    json_of,
    plain,
    read_text,
    read_yaml,
    write_whole,
    written,
    yaml_of,
)

DEVICE = next(path for path in map(Path, ("/dev/full", "/dev/null")) if path.exists())  # the first is Linux's
NINES = "&a [1,1,1,1,1,1,1,1,1]"
MANY = "\n".join(
    [
        f"a: {NINES}",
        *(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefg", "bcdefgh", strict=True)),
    ]
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested more than 48 levels deep .line 1"),
        ("- " * 100_000, "nested more than 48 levels"),
        ("&a [*a]", "or in itself"),
        (MANY, "holds more than 200,000 values"),
        ("a: 1\nb: 2\na: 3", "the key 'a' appears twice .line 3"),
        ("yes: 1\ntrue: 2", "appears twice"),
        ("a: .nan", "a is nan, which is not a finite number"),
        ("a: {b: [1, -.inf]}", "a.b.1 is -inf"),
        ("a: " + "9" * 5000, "more than 64 bits"),
        ("a: 99999999999999999999", "a is a whole number of more than 64 bits"),
        ("a: 2001-99-99", "is not YAML: month must be in 1..12"),
        ("a: 2001-01-01", "a is a date; it should be a string"),
        ("a: !!python/object/apply:os.system [x]", "is not YAML"),
        ("? {a: b}\n: c", "unhashable key at line 1"),
        ("!!int ''", "is not YAML"),
        ("!!timestamp x", "is not YAML"),
        ("a: !!binary aGk=", "a is a bytes"),
        ("1.5: 2", "a key that is not a string"),
    ],
)
def test_yaml_that_cannot_be_meant_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PipelagError, match=f"^'f'.*{sentence}") as refused:
        yaml_of(text, "'f'")
    assert len(str(refused.value)) < 500 and "\n" not in str(refused.value)


def test_yaml_that_people_write_is_read() -> None:
    text = "base: &b {lr: 1e-3, n: 1}\nown: {<<: *b, n: 2}\ntwice: [{<<: *b, n: 3}, {<<: *b}]\n"
    assert yaml_of(text, "f") == {
        "base": {"lr": 0.001, "n": 1},
        "own": {"lr": 0.001, "n": 2},
        "twice": [{"lr": 0.001, "n": 3}, {"lr": 0.001, "n": 1}],
    }
    assert yaml_of("", "f") is None and yaml_of("name: 1e3x", "f") == {"name": "1e3x"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "nested more than"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested more than"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ("[NaN]", "NaN is not a finite number"),
        ("[-Infinity]", "-Infinity is not a finite number"),
        ("[1e999]", "0 is inf"),
        ("9" * 5000, "more than 64 bits"),
        ('["\\ud800"]', "half a character"),
        ("", "is not JSON"),
        ("{", "is not JSON"),
    ],
)
def test_json_that_cannot_be_meant_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        json_of(text, "f")


def test_values_count_with_what_holds_them_and_numbers_fit_in_64_bits() -> None:
    for text, count in (("[1, 2]", 3), ("[[], [], []]", 4), ('{"a": {"b": 1}}', 3)):
        json_of(text, "this", most=count)
        with pytest.raises(PipelagError, match=f"^this holds more than {count - 1} values"):
            json_of(text, "this", most=count - 1)
    with pytest.raises(PipelagError, match="^this holds more than 200,000 values"):
        yaml_of(str([0] * 200_000), "this")
    assert json_of(f"[{-(2**63)}, {2**63 - 1}]", "this") == [-(2**63), 2**63 - 1]
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(PipelagError, match="^this is a whole number of more than 64 bits"):
            json_of(str(number), "this")


def test_a_mark_of_the_bytes_order_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: [1e-3, 1.e3, 2.5E4, +1e3]\n")
    assert read_yaml(tmp_path / "a.yaml", "a config file") == {"a": [0.001, 1000.0, 25_000.0, 1000.0]}


def test_values_made_in_python_are_plain_too() -> None:
    content: list[object] = []
    content.append(content)
    for wrong in (content, {"a": {1, 2}}, {"a": object()}, {b"a": 1}, ["x" * 2_000_000]):
        with pytest.raises(PipelagError):
            plain(wrong, "it")
    assert plain({"a": [1, (2.0, None, True)]}, "it") == {"a": [1, (2.0, None, True)]}


def test_what_is_no_file_of_text_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    loop, pipe = tmp_path / "loop", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    (tmp_path / "utf16").write_text("a: 1", encoding="utf-16")
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "large").write_bytes(b" " * 100)
    for path, sentence in {
        tmp_path: "is a folder, not a cluster file",
        loop: "Too many levels of symbolic links",
        pipe: "is a device or a pipe",
        Path("/dev/zero"): "is a device or a pipe",
        tmp_path / "utf16": "not UTF-8 text",
        tmp_path / "binary": "is binary",
        tmp_path / "none": "there is no file",
        tmp_path / "utf16" / "x": "utf16' is a file",
        Path("a\0b"): "null (byte|character)",
    }.items():
        with pytest.raises(PipelagError, match=sentence):
            read_yaml(path, "a cluster file")
    with pytest.raises(PipelagError, match="has 100 bytes, too many for a note .99 at most"):
        read_text(tmp_path / "large", "a note", 99)
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_yaml(tmp_path / "bom", "a note") == {"a": 1}


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "folder/a.txt"
    write_whole(path, "one")
    with pytest.raises(PipelagError, match="cannot be written: No space left on device"), written(path) as aside:
        aside.write_text("tw")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ZeroDivisionError), written(path) as aside:
        aside.write_text("tw")
        raise ZeroDivisionError
    assert path.read_text() == "one" and [p.name for p in path.parent.iterdir()] == ["a.txt"]
    (tmp_path / "link").symlink_to(path)
    write_whole(tmp_path / "link", "two")
    assert path.read_text() == "two" and (tmp_path / "link").is_symlink()
    old = os.umask(0o027)
    write_whole(tmp_path / "b", "x")
    os.umask(old)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o640
    (tmp_path / "b").chmod(0o600)
    write_whole(tmp_path / "b", "y")  # what nobody else could read stays so
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    for wrong, sentence in {
        tmp_path: "is a folder",
        DEVICE: "a device",
        path / "x": "a.txt' is a file",
    }.items():
        with pytest.raises(PipelagError, match=sentence):
            write_whole(wrong, "x")
    assert stat.S_ISCHR(os.stat(DEVICE).st_mode)


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could leave an empty one where a whole one was."""
    path, events, sync, replace = tmp_path / "a.txt", list[object](), os.fsync, os.replace

    def synced(number: int) -> None:
        events.append((os.fstat(number).st_ino, os.pread(number, 100, 0).decode()))
        sync(number)

    def replaced(one: Path, other: Path) -> None:
        events.append((os.stat(one).st_ino, other.name))
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_whole(path, "one")
    inode = path.stat().st_ino
    assert events == [(inode, "one"), (inode, "a.txt")]


def test_a_drawing_that_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    """A disk that is full after 4 KB, as a limit on a file's size makes it."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    (tmp_path / "t.svg").write_text("before")
    code = (
        "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pipelag.__main__ import main\nsys.exit(main(['timeline', '1f1b', '--out', 't.svg']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, preexec_fn=full, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "'t.svg' cannot be written: File too large" in done.stderr
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"t.svg": "before"}


def test_a_disk_that_keeps_no_locks_is_said_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockless(*_: object) -> None:  # as on some network disks
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", lockless)
    refused = pytest.raises(PipelagError, match=r"a/partial cannot be locked: its disk supports no locks")
    with refused, alone(tmp_path / "a/partial"):
        pass
    assert not list(tmp_path.iterdir())
    refused = pytest.raises(PipelagError, match="to read complete data sets from this one, name it in PIPELAG_MIRROR")
    with refused, locked(tmp_path / "b/file", "waiting"):
        pass


def test_a_place_is_tried_and_nothing_is_left_there(tmp_path: Path) -> None:
    write_whole(tmp_path / "old.txt", "mine")
    for right in (None, tmp_path / "old.txt", tmp_path / "new/folder/x.txt"):
        check_writable(right)
    for wrong in (tmp_path, tmp_path / "old.txt/x", Path("/dev/null"), tmp_path / ("x" * 300)):
        with pytest.raises(PipelagError, match="a file to write to|cannot be written"):
            check_writable(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"] and (tmp_path / "old.txt").read_text() == "mine"
