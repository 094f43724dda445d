"""What is shipped: every data file of the package, and metadata, citation and hooks that agree with the project."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from pipelag.experiments import load_paper
from tests.reproduced import REPRODUCED

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITED = yaml.safe_load((ROOT / "CITATION.cff").read_text())
LOCKS = (ROOT / "requirements.lock", *sorted((ROOT / "workflow/envs").glob("*.lock")))
SYSTEMS = {
    "x86-64 Linux": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    "Arm Linux": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    "macOS": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
}
LINUX_ONLY = ("nvidia-", "cuda-", "triton")  # beginnings of names; their wheels are for no other system of the three


def parsed(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_every_file_of_the_package_is_shipped() -> None:
    shipped = {
        path
        for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / "src").joinpath(*package.split(".")).glob(pattern)
    }
    data_files = {
        path
        for path in (ROOT / "src/pipelag").rglob("*")
        if path.suffix != ".py" and "__pycache__" not in path.parts and path.is_file()
    }
    assert data_files - shipped == set() and ROOT / "src/pipelag/py.typed" in shipped
    assert all(
        (folder / "__init__.py").exists() for folder in {path.parent for path in data_files} if any(folder.glob("*.py"))
    )


def test_authors_and_version_are_the_same_everywhere() -> None:
    (author,) = PROJECT["project"]["authors"]
    assert f"Copyright (c) 2026 {author['name'][:1].upper() + author['name'][1:]}" in (ROOT / "LICENSE").read_text()
    assert CITED["authors"] == [author] and CITED["license"] == PROJECT["project"]["license"]
    assert CITED["version"] == PROJECT["project"]["version"]
    assert f"\n## {CITED['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize("name", REPRODUCED)
def test_a_paper_is_cited_as_its_config_has_it(name: str) -> None:
    paper = load_paper(name)
    found = [each for each in CITED["references"] if each["title"] == paper.title]
    assert found, (
        f"CITATION.cff does not cite '{paper.title}': add it to its references, as config/papers/{name}.yaml has it"
    )
    (reference,) = found
    written = paper.citation
    assert written is not None
    assert [f"{one['given-names']} {one['family-names']}" for one in reference["authors"]] == written.authors
    assert reference["year"] == written.year
    assert written.venue in (reference.get("journal"), reference.get("conference", {}).get("name"))
    assert reference.get("doi", "") == written.doi
    assert [each["value"] for each in reference.get("identifiers", [])] == [f"arXiv:{n}" for n in [written.arxiv] if n]


def test_every_extra_is_bounded_and_told_of() -> None:
    """A package of two groups has the same bound in both, and the page on installing names what each group is for."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"dev", "docs", "notebooks", "slurm", "tensorboard", "transformers"}
    page = (ROOT / "docs/running.md").read_text()
    bounds: dict[str, str] = {}
    for extra, packages in extras.items():
        assert extra == "dev" or f"| `{extra}` |" in page, extra
        for written in packages:
            match = re.fullmatch(r"([\w-]+)(\[\w+\])?(>=[\d.]+(,<[\d.]+)?)?", written)
            assert match and (match[3] or match[1].startswith("types-")), written
            assert bounds.setdefault(match[1], match[3]) == match[3], written


def locked(lock: Path, system: dict[str, str], python: str = "3.11") -> dict[str, str]:
    """The versions that a lock installs on a system, by name."""
    here = {**system, "python_version": python, "python_full_version": f"{python}.0", "os_name": "posix"}
    wanted = [Requirement(line.rstrip("\\ \n")) for line in lock.read_text().splitlines() if line[:1].strip(" #")]
    chosen = [each for each in wanted if each.marker is None or each.marker.evaluate(here)]
    assert len({each.name for each in chosen}) == len(chosen), "two versions of one package"
    return {each.name: str(each.specifier) for each in chosen}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_installs_on_each_system_what_it_has_there(python: str) -> None:
    """CUDA's packages are asked for by Linux alone, and all others are of one version everywhere."""
    x86, arm, mac = (locked(LOCKS[0], system, python) for system in SYSTEMS.values())
    assert arm == x86 and {name for name in x86 if name.startswith(LINUX_ONLY)} >= {"nvidia-cudnn-cu13", "triton"}
    assert not [name for name in mac if name.startswith(LINUX_ONLY)]
    others = {name for name in x86 if not name.startswith(LINUX_ONLY)}
    assert others - {*mac} <= {"greenlet"}  # of sqlalchemy, which wants it on these processors only
    assert {name: mac[name] for name in others & {*mac}} == {name: x86[name] for name in others & {*mac}}


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_a_locked_package_needs_on_a_system_is_locked_for_it(system: str) -> None:
    """Such as appnope, which ipykernel needs on a Mac alone. It is read from the packages that are installed here."""
    versions = locked(LOCKS[0], SYSTEMS[system])
    there = {re.sub(r"[-_.]+", "-", each.name).lower(): each for each in metadata.distributions() if each.name}
    looked_at = 0
    for name in (name for name in versions if name in there and versions[name] == f"=={there[name].version}"):
        for needed in map(Requirement, there[name].requires or ()):
            here = {**SYSTEMS[system], "python_version": "3.11", "python_full_version": "3.11.0", "extra": ""}
            if needed.marker is None or needed.marker.evaluate(here):
                looked_at += 1
                assert re.sub(r"[-_.]+", "-", needed.name).lower() in versions, f"{name} needs {needed}"
    assert looked_at > 50


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locked_packages_have_hashes_and_name_no_address(lock: Path) -> None:
    text = lock.read_text()
    packages = re.split(r"\n(?=[^ #])", text)
    assert all(re.search(r"\\\n +--hash=sha256:[0-9a-f]{64}", each) for each in packages if each[:1] != "#")
    assert "://" not in text and "--index" not in text and "--find-links" not in text


def test_new_locks_are_written_for_every_system() -> None:
    (recipe,) = re.findall(r"^COMPILE := .*$", (ROOT / "Makefile").read_text(), re.M)
    assert [each for each in ("--universal", "--fork-strategy fewest", "--generate-hashes") if each not in recipe] == []


def test_ci_and_hooks_call_what_is_there() -> None:
    steps = parsed(".github/workflows/ci.yml")["jobs"]["test"]["steps"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    called = [step["run"] for step in steps if "run" in step]
    assert called == ["make env", "make lint", "make test"]
    assert {line.split()[1] for line in called} <= set(targets)
    hooks = [hook for repo in parsed(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    packages = {re.split(r"[<>=]", each)[0] for each in PROJECT["project"]["optional-dependencies"]["dev"]}
    assert all(hook["language"] == "system" for hook in hooks)
    assert {Path(hook["entry"].split()[0]).name for hook in hooks} == {"ruff", "mypy"} <= packages
