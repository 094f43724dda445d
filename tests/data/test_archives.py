"""Archives that try to get out of their folder."""

from __future__ import annotations

import gc
import gzip
import tarfile
import zipfile
from pathlib import Path

import pytest

from pipelag.data.files.archives import members, unpack
from pipelag.data.files.compressed import opened
from pipelag.errors import PipelagError
from tests.data.samples import tar


def make(folder: Path, kind: str, name: str, content: bytes = b"x") -> Path:
    path = folder / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), content)
    else:
        path.write_bytes(tar({name: content}))
    return path


def test_a_compressed_file_leaves_none_open(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x"))
    with opened(tmp_path / "a.gz") as file:
        assert file.read() == b"x"
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_unpacks_what_is_in_it(tmp_path: Path, kind: str) -> None:
    unpack(make(tmp_path, kind, "one/two/three.txt", b"hello"), tmp_path / "out")
    assert [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")] == [
        "one/two/three.txt"
    ]
    assert (tmp_path / "out" / "one" / "two" / "three.txt").read_bytes() == b"hello"


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", ["/etc/a", "../a", "one/../../a", "..\\a", "C:/a"])
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(PipelagError, match="unsafe: its member .* would land outside the folder"):
        unpack(make(tmp_path, kind, name), tmp_path / "deep" / "out")
    assert {path.name for path in tmp_path.rglob("*")} == {f"a.{kind}", "deep"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("innocent")
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(member)
    with pytest.raises(PipelagError, match="'innocent' is a link or a device"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("innocent")
    member.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(PipelagError, match="'innocent' is a link or a device"):
        list(members(tmp_path / "a.zip"))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_more_than_the_limit_is_refused(tmp_path: Path, kind: str) -> None:
    archive = make(tmp_path, kind, "zeros", bytes(1001))
    assert [len(content) for _, content in members(archive, limit=1001)] == [1001]
    with pytest.raises(PipelagError, match="unpacks to more than 1,000 bytes"):
        list(members(archive, limit=1000))


def test_what_is_cut_short_or_no_archive_is_refused(tmp_path: Path) -> None:
    whole = tar({"a": bytes(range(256)) * 200})
    for content in (whole[: len(whole) // 2], b"hello", b""):
        (tmp_path / "a.tar.gz").write_bytes(content)
        with pytest.raises(PipelagError, match="not a complete tar or zip archive"):
            list(members(tmp_path / "a.tar.gz"))


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "a.tar").write_bytes(tar({"a": b"x"}))
    with pytest.raises(PipelagError, match="out exists already"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_place_that_cannot_hold_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    with pytest.raises(PipelagError, match=r"a.tar could not be unpacked into .*out \(.*\); fix that"):
        unpack(make(tmp_path, "tar", "one", b"hello"), tmp_path / "taken" / "out")
