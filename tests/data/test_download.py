"""Downloads against a server that cuts, lies and fails."""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from pipelag.data.files import download as module
from pipelag.data.files.download import Unavailable, download, locked
from pipelag.errors import PipelagError
from tests.data.samples import sums
from tests.data.server import serving

CONTENT = random.Random(0).randbytes(300_000)


def test_lands_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    with serving(a_gz=CONTENT) as site:
        download([site.address + "a.gz"], tmp_path / "deep" / "a.gz", sums(CONTENT))
    assert (tmp_path / "deep" / "a.gz").read_bytes() == CONTENT
    assert {path.name for path in (tmp_path / "deep").iterdir()} <= {"a.gz", "a.gz.lock"}


def test_a_file_that_is_there_and_right_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(CONTENT)
    with serving(a_gz=CONTENT) as site:
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
    assert site.asked == []


def test_a_file_that_is_there_and_wrong_is_kept_aside(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"old")
    with serving(a_gz=CONTENT) as site:
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert (tmp_path / "a.gz.bad").read_bytes() == b"old"


def test_goes_on_from_what_an_earlier_run_left(tmp_path: Path) -> None:
    (tmp_path / "a.gz.part").write_bytes(CONTENT[:123_456])
    with serving(a_gz=CONTENT) as site:
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
    assert site.asked == [("/a.gz", "bytes=123456-")]
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_cut_connections_are_opened_again_where_they_were_cut(tmp_path: Path) -> None:
    with serving(a_gz=CONTENT) as site:
        site.cut_after = [100_000, 50_000]
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT), pause=0.0)
    assert [header for _, header in site.asked] == [None, "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(tmp_path: Path) -> None:
    (tmp_path / "a.gz.part").write_bytes(CONTENT[:1000])
    with serving(a_gz=CONTENT) as site:
        site.ranges = False
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


OTHER = random.Random(1).randbytes(300_000)


@pytest.mark.parametrize("stamp", ["ETag", "Last-Modified"])
@pytest.mark.parametrize("stated", [True, False], ids=["with a sum", "without"])
def test_a_file_that_changes_while_it_comes_is_begun_anew(tmp_path: Path, stamp: str, stated: bool) -> None:
    asked = [None, "bytes=100000-"] if stated else [None, None, "bytes=100000-"]  # the first is for the size
    with serving(a_txt=OTHER) as site:
        site.stamp, site.changes = stamp, {len(asked): {"/a.txt": CONTENT}}
        site.cut_after = [100_000] if stated else [0, 100_000]
        download(
            [site.address + "a.txt"],
            tmp_path / "a.txt",
            sums(CONTENT) if stated else None,
            most_bytes=10**6,
            pause=0.0,
        )
    assert (tmp_path / "a.txt").read_bytes() == CONTENT and [header for _, header in site.asked] == asked


def test_without_a_sum_what_an_earlier_run_left_is_not_gone_on_from(tmp_path: Path) -> None:
    """Nothing would tell that it is of another file."""
    (tmp_path / "a.txt.part").write_bytes(OTHER[:1000])
    with serving(a_txt=CONTENT) as site:
        download([site.address + "a.txt"], tmp_path / "a.txt", None, most_bytes=10**6)
    assert (tmp_path / "a.txt").read_bytes() == CONTENT and [header for _, header in site.asked] == [None, None]


def test_halves_of_two_files_are_begun_anew_once(tmp_path: Path) -> None:
    """What an earlier run left is of another file than the server has now, or the server does not tell that it is."""
    (tmp_path / "a.gz.part").write_bytes(OTHER[:1000])
    with serving(a_gz=CONTENT) as site:
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
        assert [header for _, header in site.asked] == ["bytes=1000-", None]
        site.asked.clear()
        (tmp_path / "b.gz.part").write_bytes(OTHER)
        with pytest.raises(Unavailable, match="b.gz could not be downloaded: .*: the file has sha256"):
            download([site.address + "a.gz"], tmp_path / "b.gz", sums(OTHER[::-1]))
        assert [header for _, header in site.asked] == [None]
    assert (tmp_path / "a.gz").read_bytes() == CONTENT and (tmp_path / "b.gz.bad").read_bytes() == CONTENT
    assert not (tmp_path / "a.gz.bad").exists() and not (tmp_path / "b.gz.part").exists()


def test_what_has_arrived_is_not_given_up_for_an_error_page(tmp_path: Path) -> None:
    (tmp_path / "a.gz.part").write_bytes(CONTENT[:1000])
    with serving(page_gz=b"<html>Come back later</html>") as site:
        site.ranges = False
        with pytest.raises(Unavailable, match="1,000 bytes are kept.*sends a file of 28 bytes instead of 300,000"):
            download([site.address + "page.gz"], tmp_path / "a.gz", sums(CONTENT), pause=0.0)
    assert (tmp_path / "a.gz.part").read_bytes() == CONTENT[:1000]


def test_a_server_that_keeps_cutting_is_given_up_and_the_part_kept(tmp_path: Path) -> None:
    with serving(a_gz=CONTENT) as site:
        site.cut_after = [70_000] + [0] * 20
        with pytest.raises(Unavailable, match=r"70,000 bytes are kept.*cut, after 70,000 of 300,000 bytes"):
            download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT), pause=0.0)
    assert len(site.asked) == 1 + module.RETRIES + 1
    assert (tmp_path / "a.gz.part").read_bytes() == CONTENT[:70_000]
    assert not (tmp_path / "a.gz").exists()


def test_a_truncated_file_is_named_so(tmp_path: Path) -> None:
    with (
        serving(a_gz=CONTENT[:2000]) as site,
        pytest.raises(Unavailable, match="truncated on the server: it ends after 2,000 of 300,000 bytes"),
    ):
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT), pause=0.0)


def test_wrong_bytes_are_refused_and_kept_aside(tmp_path: Path) -> None:
    wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with (
        serving(a_gz=wrong) as site,
        pytest.raises(Unavailable, match=r"has sha256 [0-9a-f]{64} instead of [0-9a-f]{64} \(kept aside as .*a.gz.bad"),
    ):
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
    assert (tmp_path / "a.gz.bad").read_bytes() == wrong
    assert not (tmp_path / "a.gz").exists() and not (tmp_path / "a.gz.part").exists()


def test_the_next_address_is_tried_after_a_missing_or_a_wrong_file(tmp_path: Path) -> None:
    with serving(a_gz=CONTENT, wrong_gz=CONTENT[::-1]) as site:
        addresses = [site.address + name for name in ("none.gz", "wrong.gz", "a.gz")]
        download(addresses, tmp_path / "a.gz", sums(CONTENT))
    assert [path for path, _ in site.asked] == ["/none.gz", "/wrong.gz", "/a.gz"]
    assert (tmp_path / "a.gz").read_bytes() == CONTENT
    assert (tmp_path / "a.gz.bad").read_bytes() == CONTENT[::-1]


def test_a_busy_server_is_asked_again_a_forbidding_one_is_not(tmp_path: Path) -> None:
    with serving(a_gz=CONTENT) as site:
        site.status = {"/busy.gz": 503, "/forbidden.gz": 403}
        with pytest.raises(Unavailable, match=r"busy.gz: HTTP 503 .*forbidden.gz: HTTP 403"):
            addresses = [site.address + "busy.gz", site.address + "forbidden.gz"]
            download(addresses, tmp_path / "a.gz", sums(CONTENT), pause=0.0)
    asked = [path for path, _ in site.asked]
    assert asked.count("/busy.gz") == module.RETRIES + 1 and asked.count("/forbidden.gz") == 1


def test_too_little_space_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Usage)
    with serving(a_gz=CONTENT) as site, pytest.raises(PipelagError, match="no space left for a.gz: 300,000 more bytes"):
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))
    assert (tmp_path / "a.gz.part").stat().st_size == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, the disk that is always full")
def test_a_disk_that_fills_up_while_writing(tmp_path: Path) -> None:
    (tmp_path / "a.gz.part").symlink_to("/dev/full")
    with serving(a_gz=CONTENT) as site, pytest.raises(PipelagError, match="no space left for a.gz"):
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_names_the_way_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PipelagError, match="cannot be written .* another folder with PIPELAG_DATA"):
        download([], tmp_path / "new" / "a.gz", sums(CONTENT))


def test_a_file_where_the_folder_should_be_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(PipelagError, match="taken cannot be written .* another folder with PIPELAG_DATA"):
        download([], tmp_path / "taken" / "a.gz", sums(CONTENT))


def test_a_server_that_falls_silent_is_asked_again_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before the silence is kept: 200 kB of it are less than is asked for at once.

    Patience begins with the silence: on a busy machine an answer may take as long.
    """
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    ask = urllib.request.urlopen

    def patient(request: urllib.request.Request, timeout: float) -> http.client.HTTPResponse:
        answer: http.client.HTTPResponse = ask(request, timeout=60)
        assert site.silent.acquire(timeout=60)
        answer.fp.raw._sock.settimeout(timeout)
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", patient)
    with serving(a_gz=CONTENT) as site:
        site.silent_after, site.silence = 90_000, 2.0
        download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT), pause=0.0)
    assert [header for _, header in site.asked] == [None, *(f"bytes={n * 90_000}-" for n in (1, 2, 3))]
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


@pytest.mark.parametrize("slow_head", [False, True])
def test_a_server_that_trickles_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_head: bool) -> None:
    """Its window begins with the answer, or with the request: on a busy machine an answer may take as long."""
    window, answer = 0.5, module._answer

    def patient(request: urllib.request.Request) -> http.client.HTTPResponse:
        with monkeypatch.context() as patch:
            patch.setattr(module, "WINDOW", window if slow_head else 60.0)
            return answer(request)

    monkeypatch.setattr(module, "WINDOW", window)
    monkeypatch.setattr(module, "_answer", patient)
    began = time.monotonic()
    with serving(a_gz=CONTENT) as site:
        site.trickle, site.slow_head = 0.01, slow_head
        sentence = "no complete answer within 0.5 s" if slow_head else "sends less than 1,000 bytes a second"
        with pytest.raises(Unavailable, match=sentence):
            download([site.address + "a.gz"], tmp_path / "a.gz", sums(CONTENT), pause=0.0)
        assert time.monotonic() - began < 240  # else it takes hours
        while len(site.asked) < module.RETRIES + 1 and time.monotonic() < began + 240:  # it may read the last one later
            time.sleep(0.01)
    assert len(site.asked) == module.RETRIES + 1


def test_two_at_once_download_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def fetch(address: str) -> None:
        try:
            download([address], tmp_path / "a.gz", sums(CONTENT))
        except BaseException as error:
            failures.append(error)

    with serving(a_gz=CONTENT) as site:
        threads = [threading.Thread(target=fetch, args=(site.address + "a.gz",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
    assert failures == []
    assert site.asked == [("/a.gz", None)]
    assert (tmp_path / "a.gz").read_bytes() == CONTENT


def test_the_lock_holds_between_processes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pipelag.data.files.download import locked\n"
        "with locked(Path(sys.argv[1]), 'waiting'): print('in')"
    )
    with locked(tmp_path / "a", "here"):
        other = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "a")],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert other.stderr is not None and other.stderr.readline() == "waiting\n"
        time.sleep(0.2)
        assert other.poll() is None
    out, _ = other.communicate(timeout=240)
    assert out == "in\n" and other.returncode == 0
