"""Files that nobody states a sum of: limited in size, recorded when first seen, compared from then on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pipelag.commands.fetch import describe
from pipelag.data.files import fetch as module
from pipelag.data.files import first_seen, manifest
from pipelag.data.files.download import RETRIES, download
from pipelag.data.files.fetch import fetch
from pipelag.data.files.manifest import Manifest, OfficialFile
from pipelag.errors import PipelagError
from tests.data.server import Site, serving

GZIP = b"\x1f\x8b"  # how such a file begins


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> object:
    """Make a set `cpusmall` of one file at an address."""

    def at(address: str, most: int = 100) -> Manifest:
        files = (OfficialFile(name="a.gz", urls=(address,), most_bytes=most),)
        release = Manifest(title="A", licence="free", layout="libsvm", files=files)
        monkeypatch.setattr(manifest, "official", lambda name: release)
        monkeypatch.setattr(module, "download", partial(download, pause=0.0))
        return release

    return at


def test_the_first_download_is_recorded_and_shown_as_not_verified(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    with serving(a_gz=GZIP + b"first") as site:
        publish(site.address)
        release = fetch("cpusmall")
        asked = len(site.asked)
        assert fetch("cpusmall") == release and len(site.asked) == asked
    assert release.paths[0].read_bytes() == GZIP + b"first"
    assert not release.official and not release.verified
    assert str(release) == f"not verified {release.fingerprint}"
    assert release.note == "not verified: nobody states a sum of a.gz"
    assert "the publisher's files as they were first seen" in describe(release) and "as recorded" in describe(release)


def test_another_file_than_the_first_is_refused(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    home = tmp_path / "downloads" / "cpusmall"
    with serving(a_gz=GZIP + b"first") as site:
        publish(site.address)
        fetch("cpusmall")
        (home / "a.gz").unlink()
        site.files["/a.gz"] = GZIP + b"other"
        with pytest.raises(PipelagError, match="kept aside as .*a.gz.bad.*accept a different file, rem"):
            fetch("cpusmall")
        assert not (home / "a.gz").exists()
        first_seen.record_of(manifest.official("cpusmall").files[0], home).unlink()
        assert fetch("cpusmall").paths[0].read_bytes() == GZIP + b"other"


def test_a_changed_file_in_a_mirror_is_refused(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    publish("http://127.0.0.1:9/")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "a.gz").write_bytes(GZIP + b"mine")
    assert str(fetch("cpusmall", mirrors=[mirror])).startswith("not verified ")
    (mirror / "a.gz").write_bytes(GZIP + b"else")
    with pytest.raises(PipelagError, match="a.gz has sha256 .* when it was first seen .to accept a different file"):
        fetch("cpusmall", mirrors=[mirror])


@pytest.mark.parametrize(("content", "most", "complaint"), [(b"x" * 101, 100, "has 101 by"), (b"", 100, "has 0 by")])
def test_a_file_beyond_the_limit_is_refused(  # type: ignore[no-untyped-def]
    publish, content: bytes, most: int, complaint: str
) -> None:
    with serving(a_gz=content) as site:
        publish(site.address, most)
        with pytest.raises(PipelagError, match=f"the server says that the file {complaint}.*1 to 100 are allowed"):
            fetch("cpusmall")


def test_a_cut_download_goes_on(publish) -> None:  # type: ignore[no-untyped-def]
    def served(site: Site) -> bytes:
        site.cut_after = [100, 30]  # the first is the question for the size
        return fetch("cpusmall").paths[0].read_bytes()

    content = GZIP + bytes(range(88))
    with serving(a_gz=content) as site:
        publish(site.address)
        assert served(site) == content
        assert site.asked[-1][1] == "bytes=30-"


def test_a_busy_server_is_asked_again_for_the_size(publish) -> None:  # type: ignore[no-untyped-def]
    with serving() as site:
        site.status = {"/a.gz": 429}
        publish(site.address)
        with pytest.raises(PipelagError, match="HTTP 429"):
            fetch("cpusmall")
        assert len(site.asked) == RETRIES + 1


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    publish("http://127.0.0.1:9/")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "a.gz").write_bytes(GZIP + b"mine")
    (tmp_path / "downloads").write_text("a file")
    with pytest.raises(PipelagError, match="a.gz.first.json' cannot be written: '.*downloads' is a file"):
        fetch("cpusmall", mirrors=[mirror])


def test_an_unreadable_record_says_what_to_do(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    release = publish("http://127.0.0.1:9/")
    record = first_seen.record_of(release.files[0], tmp_path / "downloads" / "cpusmall")
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with pytest.raises(PipelagError, match="first.json should hold a file's size .* remove it"):
        fetch("cpusmall")


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        ({}, "'most_bytes' if these are not known"),
        ({"bytes": 3}, "'most_bytes' if these are not known"),
        ({"bytes": 3, "sha256": "a" * 64, "most_bytes": 5}, "'most_bytes' is for a file whose size"),
    ],
)
def test_a_manifest_states_sums_or_a_limit(stated: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        OfficialFile.model_validate({"name": "a", "urls": ["http://a/"], **stated})


def test_an_error_page_with_status_200_is_no_archive(tmp_path: Path, publish) -> None:  # type: ignore[no-untyped-def]
    page = b"<!DOCTYPE html><title>Sorry</title>"
    with serving(a_gz=page) as site:
        publish(site.address)
        with pytest.raises(PipelagError, match="the file begins with b'<!DOCTYPE html><titl', which no .gz file does"):
            fetch("cpusmall")
        site.files["/a.gz"] = GZIP + b"right"
        assert fetch("cpusmall").paths[0].read_bytes() == GZIP + b"right"
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "a.gz").write_bytes(page)
    first_seen.record_of(manifest.official("cpusmall").files[0], tmp_path / "downloads" / "cpusmall").unlink()
    with pytest.raises(PipelagError, match="a.gz begins with .* which no .gz file does"):
        fetch("cpusmall", mirrors=[tmp_path / "mirror"])
