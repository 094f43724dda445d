"""The documentation's site, without mkdocs: its pages, its index of the library, its citations."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipelag
from tests.reproduced import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
MADE = {"index.md", "api.md", "citing.md"}  # by the hook
LINK = re.compile(r"\[[^\]]+\]\(([^)\s#]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def hook() -> Any:
    (path,) = SITE["hooks"]
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages(each)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = pages(SITE["nav"])
    assert sorted(listed) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | MADE)


@pytest.mark.parametrize("path", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_to_files(path: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.S)
    lead = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in lead if not ((ROOT / path).parent / link).exists()] == []


def test_the_tests_that_the_promises_name_are_there() -> None:
    """Files below tests/ (of two tables, below tests/distributed), and `..parts..` of tests' names in their order."""
    text = (ROOT / "docs/reliability.md").read_text()
    files = set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", text))
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    known = {str(path.relative_to(ROOT / "tests" / below)) for below in ("", "distributed") for path in tests
             if path.is_relative_to(ROOT / "tests" / below)}  # fmt: skip
    names = [name for content in tests.values() for name in re.findall(r"^def (test_\w+)", content, re.M)]
    said = set(re.findall(r"`\.\.(\w[\w.]*)`", text))
    assert len(files) > 20 and sorted(files - known) == [] and len(said) > 20
    patterns = {one: re.compile(".*".join(filter(None, one.split("..")))) for one in said}
    assert sorted(one for one, pattern in patterns.items() if not any(map(pattern.search, names))) == []


def test_the_hook_keeps_links_to_pages_alone(hook: Any) -> None:
    class Files:
        def get_file_from_path(self, path: str) -> str | None:
            return {"data.md": path}.get(path)

    text = "[data](data.md#where), [x](#here), [site](https://a.b/c), [notes](../CHANGELOG.md)"
    rewritten = hook.on_page_markdown(text, None, None, Files())
    assert rewritten == "[data](data.md#where), [x](#here), [site](https://a.b/c), notes"
    image = hook.on_page_markdown("![x](../figures/headline/a_figure_1.svg)", None, None, Files())
    assert image == "![x](figures/a_figure_1.svg)"  # where `on_files` puts it


def test_the_api_names_everything_that_the_library_gives(hook: Any) -> None:
    named = [line[4:] for line in hook.api().splitlines() if line.startswith("::: ")]
    public = set(pipelag.__all__) - {"__version__", "methods", "PipelagError", "Stop"}
    assert public <= {name.rpartition(".")[2] for name in named}
    assert {"pipelag.api.train", "pipelag.models.build", "pipelag.errors.PipelagError", "pipelag.errors.Stop"} <= set(
        named
    )
    for name in named:
        home, _, last = name.rpartition(".")
        one = getattr(import_module(home), last)
        assert one.__doc__, name


def test_citations_are_those_of_the_papers(hook: Any) -> None:
    page = hook.citing()
    keys = re.findall(r"^@(\w+)\{(\w+),$", page, re.M)
    assert keys[0] == ("software", "pipelag") and [key for _, key in keys[1:]] == list(CONFIGS)
    assert set(dict(keys)) == {"software", "article", "inproceedings"}
    assert page.count("{") == page.count("}")
    for written in CONFIGS.values():
        assert f"title = {{{{{written['title']}}}}}" in page and " and ".join(written["citation"]["authors"]) in page
        assert str(written["citation"].get("doi", "")) in page and written["citation"]["venue"] in page


def test_its_environment_is_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    lines = (ROOT / "workflow/envs/docs.in").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == extra
    lock = (ROOT / "workflow/envs/docs.lock").read_text()
    names = [re.match(r"[\w.-]+", each)[0] for each in extra]  # type: ignore[index]
    assert all(f"\n{name}==" in f"\n{lock}" for name in names)
    assert "://" not in lock and "--hash=sha256:" in lock


def test_pages_load_nothing_from_elsewhere() -> None:
    (worker,) = SITE["extra"]["polyfills"]  # one of this name keeps mkdocs-material from asking another server for it
    assert "iframe-worker" in worker and SITE["theme"]["font"] is False
    assert [path for path in (worker, *SITE["extra_css"]) if not (ROOT / "docs" / path).is_file()] == []
