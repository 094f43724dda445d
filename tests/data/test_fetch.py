"""Where files are looked for, in which order, and what is said about them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipelag import data
from pipelag.__main__ import main
from pipelag.data.files import fetch as module
from pipelag.data.files import manifest
from pipelag.data.files.download import download
from pipelag.data.files.fetch import fetch
from pipelag.data.files.manifest import Manifest, OfficialFile
from pipelag.errors import PipelagError
from tests.data.samples import image_zip, mirror, mnist_files, sums
from tests.data.server import serving

FILES = mnist_files()


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """An official MNIST of 30 + 10 images, at an address where nobody answers."""
    return _publish(monkeypatch, "http://127.0.0.1:9/")


def _publish(monkeypatch: pytest.MonkeyPatch, address: str) -> Manifest:
    files = tuple(
        OfficialFile(name=name, urls=(address,), **sums(content).model_dump()) for name, content in FILES.items()
    )
    release = Manifest(title="MNIST", licence="free", layout="idx-gz", files=files)
    monkeypatch.setattr(manifest, "official", lambda name: release)
    monkeypatch.setattr(module, "download", partial(download, pause=0.0))
    return release


def put(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_downloads_into_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as site:
        site.files = {"/" + name: content for name, content in FILES.items()}
        _publish(monkeypatch, site.address)
        release = fetch("mnist")
        assert release.official and str(release) == "official"
        assert {path.parent for path in release.paths} == {tmp_path / "downloads" / "mnist"}
        first = len(site.asked)
        fetch("mnist")
        assert (first, len(site.asked)) == (4, 4)


def test_without_network_or_mirror_says_which_file_to_put_where(tmp_path: Path, official: Manifest) -> None:
    size = len(FILES["train-images-idx3-ubyte.gz"])
    with pytest.raises(PipelagError) as caught:
        fetch("mnist")
    message = str(caught.value)
    home = tmp_path / "downloads" / "mnist"
    assert "Connection refused" in message and "\n" not in message
    assert message.endswith(
        f"without a network, put train-images-idx3-ubyte.gz ({size:,} bytes) into {home}, or into a folder that "
        "PIPELAG_MIRROR names"
    )
    put(home)
    assert fetch("mnist").official


@pytest.mark.parametrize("place", ["", "mnist"])
def test_official_files_in_a_mirror_are_read_where_they_lie(tmp_path: Path, official: Manifest, place: str) -> None:
    there = put(tmp_path / "mirror" / place)
    release = fetch("mnist", mirrors=[tmp_path / "mirror"])
    assert release.official and {path.parent for path in release.paths} == {there}
    assert not (tmp_path / "downloads").exists()


def test_a_named_mirror_comes_before_those_of_the_environment(
    tmp_path: Path, official: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, empty = put(tmp_path / "one"), put(tmp_path / "two"), put(tmp_path / "empty", {})
    monkeypatch.setenv("PIPELAG_MIRROR", os.pathsep.join([str(empty), str(one), str(two)]))
    assert fetch("mnist").origin == one
    assert fetch("mnist", mirrors=[two]).origin == two


def test_a_mirror_comes_before_the_data_folder(tmp_path: Path, official: Manifest) -> None:
    put(tmp_path / "downloads" / "mnist")
    assert fetch("mnist", mirrors=[put(tmp_path / "mirror")]).origin == tmp_path / "mirror"


def test_a_file_that_only_bears_the_official_name_is_refused(tmp_path: Path, official: Manifest) -> None:
    put(tmp_path / "mirror", FILES | {"train-labels-idx1-ubyte.gz": b"x" * len(FILES["train-labels-idx1-ubyte.gz"])})
    with pytest.raises(PipelagError, match="train-labels-idx1-ubyte.gz has sha256 .* not the official file; replace"):
        fetch("mnist", mirrors=[tmp_path / "mirror"])


def test_another_release_is_used_and_named_as_what_it_is(tmp_path: Path, official: Manifest) -> None:
    other = {"sub/" + name: content for name, content in mnist_files(train=20).items()}
    folder = mirror(tmp_path / "mirror", other, name="mnist", layout="idx-gz", note="fewer images")
    release = fetch("mnist", mirrors=[folder])
    assert not release.official and release.note == "fewer images"
    assert str(release) == f"idx-gz {release.fingerprint}" and len(release.fingerprint) == 12
    dataset = data.load("mnist", mirrors=(str(folder),))
    assert dataset.summary() == {
        "name": "mnist", "title": "MNIST", "release": str(release), "official": False, "note": "fewer images",
        "train": 20, "test": 10, "classes": 10,
    }  # fmt: skip


def test_the_official_files_stay_official_where_a_manifest_describes_them(tmp_path: Path, official: Manifest) -> None:
    assert fetch("mnist", mirrors=[mirror(tmp_path / "m", FILES, name="mnist", layout="idx-gz")]).official


def test_the_official_files_read_in_another_way_are_another_release(tmp_path: Path, official: Manifest) -> None:
    assert not fetch("mnist", mirrors=[mirror(tmp_path / "m", FILES, name="mnist", layout="image-folder-zip")]).official


@pytest.mark.parametrize("name", FILES)
def test_one_file_of_another_content_makes_another_release(tmp_path: Path, official: Manifest, name: str) -> None:
    other = FILES | {name: mnist_files(train=31, test=11)[name]}
    release = fetch("mnist", mirrors=[mirror(tmp_path / "m", other, name="mnist", layout="idx-gz")])
    assert not release.official and release.fingerprint != fetch("mnist", mirrors=[put(tmp_path / "o")]).fingerprint


@pytest.mark.parametrize(("damage", "complaint"), [(b"", "has 0 bytes instead of"), (None, "is missing")])
def test_a_mirror_that_does_not_hold_what_it_says(
    tmp_path: Path, official: Manifest, damage: bytes | None, complaint: str
) -> None:
    folder = mirror(tmp_path / "mirror", mnist_files(train=20), name="mnist", layout="idx-gz")
    victim = folder / "t10k-labels-idx1-ubyte.gz"
    victim.unlink()
    if damage is not None:
        victim.write_bytes(damage)
    with pytest.raises(PipelagError, match=f"t10k-labels-idx1-ubyte.gz {complaint}.*replace it or correct"):
        fetch("mnist", mirrors=[folder])


def test_a_layout_that_nothing_reads(tmp_path: Path, official: Manifest) -> None:
    folder = mirror(tmp_path / "mirror", {"a.zip": b"a"}, name="mnist", layout="image-folder-zp")
    with pytest.raises(PipelagError, match="unknown layout 'image-folder-zp' .*; did you mean 'image-folder-zip'"):
        data.load("mnist", mirrors=(str(folder),))


def test_a_mirror_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match="nowhere is not a folder; correct PIPELAG_MIRROR or --mirror"):
        fetch("mnist", mirrors=[tmp_path / "nowhere"])


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(PipelagError, match="unknown downloadable data set 'cifar1'; did you mean 'cifar10'"):
        fetch("cifar1")


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    content = image_zip({"train/a/0.png": pixels, "test/a/0.png": pixels})
    folder = mirror(tmp_path / "m", {"all.zip": content}, name="cifar10", layout="image-folder-zip", note="tiny")
    stamp = tmp_path / "stamps" / "cifar10.txt"
    assert main(["fetch", "cifar10", "--mirror", str(folder), "--stamp", str(stamp)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("CIFAR-10: not the official files but another release (image-folder-zip ")
    assert "  note: tiny\n" in printed and f"  all.zip: {len(content)} bytes, sha256 " in printed
    assert stamp.read_text() == printed


def test_the_command_fails_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "mnst"]) == 2
    assert capsys.readouterr().err == ("pipelag fetch: unknown downloadable data set 'mnst'; did you mean 'mnist'?\n")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("shapes", "'shapes' has no files to fetch: it is generated, or read by its plugin, when a run needs it\n"),
        ("imagenet", "'imagenet' is not fetched: ImageNet is not passed on: put train/ and val/, with a folder per "),
    ],
)
def test_a_set_that_is_not_fetched_is_no_unknown_one(
    name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", name]) == 2
    assert capsys.readouterr().err.startswith(f"pipelag fetch: {sentence}")


def test_the_real_mirror(real_mirror: str) -> None:
    for name in ("mnist", "cifar10"):
        release = fetch(name)
        assert release.paths and all(path.is_relative_to(release.origin) for path in release.paths)


def test_a_stamp_that_cannot_be_written_is_refused_before_the_download(
    tmp_path: Path, official: Manifest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipelag.commands.fetch.fetch", lambda *given: pytest.fail("it was fetched"))
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file/stamp.txt", Path("/proc/no/stamp.txt")):
        assert main(["fetch", "mnist", "--stamp", str(place)]) == 2
        assert f"'{place}' " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
