"""Fetching against a local HTTP server that serves ranges, cuts connections and lies."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipelag.data import fetch as fetching
from pipelag.data import manifest
from pipelag.data.manifest import File
from pipelag.errors import PipelagError

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Server:
    """Serves CONTENT as /file.bin; `plan` says how many bytes each connection sends before it is cut (None: all)."""

    def __init__(self) -> None:
        self.plan: list[int | None] = []
        self.ranges: list[str | None] = []
        self.content = CONTENT
        self.honour_ranges = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                if self.path != "/file.bin":
                    self.send_error(404)
                    return
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and outer.honour_ranges else 0
                body = outer.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                limit = outer.plan.pop(0) if outer.plan else None
                self.wfile.write(body[:limit])
                self.close_connection = True

            def log_message(self, *words: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}/"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    running = Server()
    yield running
    running.http.shutdown()


def entry(content: bytes = CONTENT) -> File:
    return File(path="file.bin", bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def test_a_download_lands_whole_and_leaves_no_part(server: Server, tmp_path: Path) -> None:
    fetching.download([server.address], entry(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.bin"]


def test_a_cut_connection_is_continued_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.plan = [300_000, 200_000]
    fetching.download([server.address], entry(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_an_earlier_partial_file_is_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:700_000])
    fetching.download([server.address], entry(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == ["bytes=700000-"]


def test_a_server_that_ignores_ranges_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    server.honour_ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    fetching.download([server.address], entry(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_sum_is_refused_and_the_file_kept_aside(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(PipelagError, match=r"not what was published .* has the sha256 .* it is kept as .*file\.bin\.bad"):
        fetching.download([server.address], entry(), tmp_path / "file.bin")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.bin.bad"]


def test_a_server_that_always_cuts_is_given_up_with_what_came_kept(server: Server, tmp_path: Path) -> None:
    server.plan = [10] * fetching.TRIES
    with pytest.raises(PipelagError, match="could not be fetched .* the connection closed at 50 of 1,048,576 bytes"):
        fetching.download([server.address], entry(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:50]


def test_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    fetching.download([server.address + "gone/", server.address], entry(), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").exists()


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match="put the file into a folder and name that folder in PIPELAG_MIRROR"):
        fetching.download(["http://127.0.0.1:9/"], entry(), tmp_path / "file.bin")


def test_truncated_and_changed_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT[:10])
    with pytest.raises(PipelagError, match="has 10 bytes, and the manifest says 1,048,576: it is cut off or another file"):
        fetching.verify(path, entry())


def describe(folder: Path, key: str = "note") -> None:
    content = b"labels"
    (folder / "other.gz").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (folder / "manifest.yaml").write_text(
        f"datasets:\n  mnist:\n    layout: idx-gz\n    {key}: re-wrapped\n    files:\n"
        f"      - {{path: other.gz, bytes: 6, sha256: {digest}}}\n"
    )


def test_a_mirrors_own_release_is_used_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(tmp_path)
    monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path))
    release = fetching.fetch("mnist", to=tmp_path / "downloads")
    assert not release.official
    assert release.manifest.note == "re-wrapped"
    assert release.paths == {"other.gz": tmp_path / "other.gz"}
    assert not (tmp_path / "downloads").exists()
    (tmp_path / "other.gz").write_bytes(b"LABELS")
    with pytest.raises(PipelagError, match="has the sha256"):
        fetching.fetch("mnist")


def test_a_typo_in_a_mirrors_manifest_is_named_with_its_place(tmp_path: Path) -> None:
    describe(tmp_path, key="notes")
    with pytest.raises(PipelagError, match=r"manifest.yaml, datasets.mnist: unknown key 'notes'; did you mean 'note'"):
        manifest.in_mirror(tmp_path, "mnist")


def test_a_mirror_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match="is not a folder; correct PIPELAG_MIRROR"):
        fetching.fetch("mnist", mirrors=[tmp_path / "nowhere"])


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_official_manifests_are_complete(name: str) -> None:
    release = manifest.official(name)
    assert release.addresses
    assert all(file.sum[1] for file in release.files)


@pytest.mark.parametrize("member", ["../evil", "/evil", "link"])
def test_unsafe_archives_are_refused(tmp_path: Path, member: str) -> None:
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(member)
        if member == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info, io.BytesIO(b""))
    with pytest.raises(PipelagError, match="refused as unsafe"):
        fetching.members(path, limit=1000)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("zeros")
        info.size = 5000
        tar.addfile(info, io.BytesIO(bytes(5000)))
    with pytest.raises(PipelagError, match="more than 1,000 bytes"):
        fetching.members(path, limit=1000)
