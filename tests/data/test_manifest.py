"""Manifests are strict: a typo has a place and a nearest key."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from pipelag.data.files import manifest
from pipelag.errors import PipelagError

GOOD = "a" * 64
UNVERIFIED = ("cpusmall", "iwslt14", "tatoeba")  # nobody states their sums


@pytest.mark.parametrize("name", manifest.names())
def test_official_manifests_name_sums_and_addresses(name: str) -> None:
    for file in manifest.official(name).files:
        assert file.sha256 is not None or (name in UNVERIFIED and file.most_bytes)
        assert all(address.startswith("http") and address.endswith("/" + file.name) for address in file.addresses)


def test_official_sums_agree_with_torchvision() -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    images = ("mnist", "cifar10", "cifar100")
    ours = {file.name: file.md5 for name in images for file in manifest.official(name).files}
    torchvisions = dict(datasets.MNIST.resources)
    torchvisions |= {kind.filename: kind.tgz_md5 for kind in (datasets.CIFAR10, datasets.CIFAR100)}
    assert ours == torchvisions


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            f"datasets: {{a: {{layout: x, files: [{{path: a, bytes: 1, sha265: {GOOD}}}]}}}}",
            "unknown key 'sha265' at datasets.a.files.0.sha265; did you mean 'sha256'?",
        ),
        ("datasets: {a: {layot: x}}", "unknown key 'layot' at datasets.a.layot; did you mean 'layout'?"),
        ("datasets: {a: {layout: x}}", "datasets.a.files is missing"),
        ("dataset: {}", "unknown key 'dataset'; did you mean 'datasets'?"),
        ("datasets: {a: {layout: x, files: [{path: a, bytes: 1}]}}", "a file needs 'sha256' or 'md5'"),
        (f"datasets: {{a: {{layout: x, files: [{{path: ../a, bytes: 1, sha256: {GOOD}}}]}}}}", "'../a' points outside"),
        (
            "datasets: {a: {layout: x, files: [{path: a, bytes: 1, sha256: abc}]}}",
            "is 'abc'; it should be a string of the form ^[0-9a-f]{64}$",
        ),
        ("- 1", "it is [1]; it should be a mapping"),
        ("datasets: [", "is not YAML"),
        (
            f"datasets: {{a: {{layout: x, files: [{{path: a, bytes: 1, sha256: {GOOD}, sha256: {'b' * 64}}}]}}}}",
            "the key 'sha256' appears twice (line 1)",
        ),
    ],
)
def test_mistakes_in_a_mirror_manifest_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "manifest.yaml").write_text(text)
    with pytest.raises(PipelagError, match=re.escape(complaint)) as caught:
        manifest.mirrored(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_folder_without_manifest_has_none(tmp_path: Path) -> None:
    assert manifest.mirrored(tmp_path) is None


def test_every_stated_problem_of_a_file(tmp_path: Path) -> None:
    sums = manifest.Sums(bytes=5, md5="5d41402abc4b2a76b9719d911017c592")  # of b"hello"
    path = tmp_path / "a"
    assert sums.complaint(path) == "is missing"
    path.write_bytes(b"hell")
    assert sums.complaint(path) == "has 4 bytes instead of 5"
    path.write_bytes(b"hallo")
    assert str(sums.complaint(path)).startswith("has md5 598d4c200461b81522a3328565c25f7c instead of 5d41")
    path.write_bytes(b"hello")
    assert sums.complaint(path) is None


def test_of_two_sums_the_stronger_one_counts(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    md5, sha256 = (hashlib.new(name, b"hello").hexdigest() for name in ("md5", "sha256"))
    assert manifest.Sums(bytes=5, md5="0" * 32, sha256=sha256).complaint(tmp_path / "a") is None
    assert str(manifest.Sums(bytes=5, md5=md5, sha256="0" * 64).complaint(tmp_path / "a")).startswith("has sha256")
