"""What is shipped: every data file of the package, and metadata, citation and hooks that agree with the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelag.experiments import load_paper
from tests.reproduced import REPRODUCED

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITED = yaml.safe_load((ROOT / "CITATION.cff").read_text())


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
        path for path in (ROOT / "src/pipelag").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
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
