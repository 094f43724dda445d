"""The site opens with every claim; its pages lead to one another, load nothing, and show what logs say as text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pandas as pd
import pytest

from pipelag.__main__ import main
from pipelag.experiments import load_paper, load_scale
from pipelag.experiments.schema import reading_order
from pipelag.report import explore
from pipelag.report.ambiguities import cited, linker, read_sheet
from pipelag.report.gather import JUDGING, NO_LOG, Run, logged, read
from pipelag.report.search import searched
from pipelag.report.style import COLOURS
from pipelag.report.tables import Col, table
from tests.report.scale import CURVES, HOSTILE, PAPER, ROOT, VERDICTS, records

__all__ = ["records"]
VOID = ("meta", "link", "img", "input", "br")


class Page(HTMLParser):
    """What a browser would find: ids, links, what is loaded, elements by name, the text outside of scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(path.read_text())
        assert not self.open, f"{path}: {self.open} never ends"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        if tag == "a":
            self.links.append(attributes["href"] or "")
        elif tag in ("link", "script", "img", "iframe", "object"):
            self.loaded += [address for key in ("src", "href", "data") if (address := attributes.get(key))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if self.open[-1:] != ["script"] else ""


def pages(project: Path) -> dict[Path, Page]:
    assert main(["report", PAPER]) == 0
    return {path: Page(path) for path in (project / "figures/quick").rglob("*.html")}


def test_the_index_has_every_claim_with_its_reason_and_counts_right(records: Path) -> None:
    index = pages(records)[records / "figures/quick/index.html"]
    names = list(load_paper(PAPER).results)
    assert all(f"claim of {name}" in index.words and f"a < b in {name}" in index.words for name in names)
    words = " ".join(index.words.split())
    for start, word in enumerate(("hold", "fail", "cannot be judged")):
        assert words.count(f"{len(names[start::3])} {word}") == 2  # of all papers, and on the paper's card
    trained = names[::2]
    for name in trained:
        path = records / "figures/quick" / PAPER / f"{name}.json"
        record = json.loads(path.read_text())
        record["verdicts"] = [{**verdict, "learnt": True} for verdict in record["verdicts"]]
        path.write_text(json.dumps(record))
    words = " ".join(pages(records)[records / "figures/quick/index.html"].words.split())
    counts = [sum(names.index(name) % 3 == place for name in trained) for place in range(3)]
    tally = " ".join(f"{n} {word}" for n, word in zip(counts, ("hold", "fail", "cannot be judged"), strict=True))
    assert f"claims about what trained networks learn: {tally}" in words and f"By training: {tally}" in words


def test_a_result_has_its_claims_runs_files_command_and_citation(records: Path) -> None:
    site = pages(records)
    page = site[records / f"figures/quick/{PAPER}/table_2.html"]
    for name, words in zip(load_paper(PAPER).results, VERDICTS, strict=False):
        assert f"Claim 1 {words}" in " ".join(site[records / f"figures/quick/{PAPER}/{name}.html"].words.split())
    for part in (
        "A caption of table_2.",
        "claim of table_2",
        "Tolerance: exact",
        "Logged runs0 of 1",
        "no log",
        "accuracy",
    ):
        assert part in page.words
    assert "snakemake --cores all stale_weights_table_2" in page.words
    assert {"table_2.csv", "table_2.md", "table_2.tex"} <= set(page.links)
    assert {f"{CURVES}.{end}" for end in ("svg", "pdf", "png", "csv")} <= set(
        site[records / f"figures/quick/{PAPER}/{CURVES}.html"].links
    )
    assert "https://arxiv.org/abs/1912.12675" in site[records / f"figures/quick/{PAPER}/index.html"].links
    scopes = [attributes.get("scope") for tag, attributes in page.elements if tag == "th"]
    assert all(scopes) and {"col", "colgroup", "row"} == set(scopes)


def test_claims_of_our_own_are_marked_wherever_they_are_shown(records: Path) -> None:
    path = records / "figures/quick" / PAPER / "table_2.json"
    record = json.loads(path.read_text())
    assert "ours claim of table_2" not in " ".join(pages(records)[path.with_suffix(".html")].words.split())
    record["verdicts"] = [{**verdict, "own": True} for verdict in record["verdicts"]]
    path.write_text(json.dumps(record))
    site = pages(records)
    assert "ours claim of table_2" in " ".join(site[path.with_suffix(".html")].words.split())
    assert "ours Table 2: claim of table_2" in " ".join(site[records / "figures/quick/index.html"].words.split())


def test_the_commit_of_a_run_says_that_there_were_changes_beside_it() -> None:
    def of(commit: str | None) -> str:
        return Run(id="a", labels={}, seed=0, status="finished", commit=commit).source

    assert [of("fd0eb0dfbc98"), of("fd0eb0dfbc98+"), of(None)] == ["fd0eb0dfb", "fd0eb0dfb+", ""]


def test_runs_left_out_on_purpose_are_not_said_to_be_missing() -> None:
    def runs(*states: str) -> list[Run]:
        return [
            Run(id=str(i), labels={}, seed=0, status=status, folder="" if status in (NO_LOG, "too long") else "a/b")
            for i, status in enumerate(states)
        ]

    assert logged(runs("finished", "diverged", NO_LOG)) == "2 of 3"
    assert logged(runs("finished", NO_LOG, "too long", "too long")) == "1 of 4; 2 left out"


def test_every_link_leads_somewhere_and_ids_are_unique(records: Path) -> None:
    site = pages(records)
    assert len(site) == len(load_paper(PAPER).results) + 3
    for path, page in site.items():
        assert len(page.ids) == len(set(page.ids)), path
        for link in page.links:
            if link.startswith("https://"):
                continue
            name, _, fragment = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.exists(), (path, link)
            assert not fragment or fragment in site[target].ids, (path, link)


def test_nothing_is_loaded_from_elsewhere(records: Path) -> None:
    for path, page in pages(records).items():
        assert page.loaded and all((path.parent / address).is_file() for address in page.loaded), path
    for style in (records / "figures/quick/static").glob("*.css"):
        assert "url(" not in style.read_text() and "@import" not in style.read_text()
    assert "fetch(" not in (records / "figures/quick/static/site.js").read_text()


def test_what_a_log_or_a_config_says_stays_text(records: Path) -> None:
    site = pages(records)
    for path, page in site.items():
        assert not any(attributes.get("src") == "x" or "onerror" in attributes for _, attributes in page.elements), path
        assert "<script>alert" not in path.read_text(), path
    assert HOSTILE in site[records / f"figures/quick/{PAPER}/table_2.html"].words
    text = (records / f"figures/quick/{PAPER}/{CURVES}.html").read_text()
    (curves,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', text)
    assert [line["label"] for line in json.loads(curves)[0]["lines"]] == ["baseline", HOSTILE]


def test_curves_and_description_say_what_the_frame_says(records: Path) -> None:
    path = records / f"figures/quick/{PAPER}/{CURVES}.html"
    page = pages(records)[path]
    (curves,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', path.read_text())
    (panel,) = json.loads(curves)
    assert (panel["x"], panel["y"], panel["logx"], panel["logy"]) == ("iteration", "accuracy (%)", False, True)
    assert panel["levels"] == {"goal": 50.0} and panel["limits"] == [None, 80.0]
    line = panel["lines"][0]
    assert line["x"] == [1, 2, 3] and line["y"] == [52, 53, 54] and line["std"] == [1.4142] * 3
    (alt,) = [attributes["alt"] for tag, attributes in page.elements if tag == "img"]
    assert alt is not None and "accuracy (%) against iteration; baseline from 52.0 to 54.0" in alt


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text(path.read_text()[:99]), "is damaged"),
        (lambda path: path.write_text(path.read_text().replace('"caption"', '"captoin"')), "Field required at caption"),
        (
            lambda path: path.write_text(path.read_text().replace('"verdict": "', '"verdict": "x')),
            "at verdicts.0.verdict",
        ),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is damaged"),
        (lambda path: path.unlink(), "is not there"),
    ],
)
def test_a_damaged_record_is_named_and_the_rest_is_made(
    records: Path, damage: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(damage)
    damage(Path(f"figures/quick/{PAPER}/table_2.json"))
    site = pages(records)
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and f"figures/quick/{PAPER}/table_2.json" in line and message in line
    assert "snakemake --cores all stale_weights_table_2" in line
    for name in ("index.html", f"{PAPER}/index.html", f"{PAPER}/table_2.html"):
        assert f"figures/quick/{PAPER}/table_2.json" in site[records / "figures/quick" / name].words
    assert "claim of table_1" in site[records / f"figures/quick/{PAPER}/table_1.html"].words


@pytest.mark.parametrize(("end", "text"), [("csv", '"'), ("csv", None), ("svg", None), ("svg", "<svg")])
def test_a_figure_without_its_files_is_named(
    records: Path, end: str, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"figures/quick/{PAPER}/{CURVES}.{end}")
    path.unlink() if text is None else path.write_text(text)
    pages(records)
    assert str(path) in capsys.readouterr().err


def test_of_a_space_time_diagram_is_said_that_it_may_show_a_part_and_what_is_recomputed(records: Path) -> None:
    record = read(records / "figures/quick", load_paper(PAPER), CURVES).record
    assert record is not None
    passes = [("F", 0, 1), ("F", 1, 2), ("R", 2, 3), ("B", 3, 5)]
    rows = [{"worker": 0, "kind": k, "start": a, "end": b, "minibatch": 0} for k, a, b in passes]
    words = explore.seen(record.model_copy(update={"chart": None}), pd.DataFrame(rows))
    assert "1 workers" in words and "or a stretch of it" in words and "from time 0 to 5" in words
    assert "(2 forward, 1 backward, 1 recomputing; 1 minibatches)" in words


def test_nothing_drawn_at_all_is_refused(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(records / "figures")
    assert main(["report", PAPER]) == 2
    assert "draw it first: snakemake --cores all stale_weights_table_1" in capsys.readouterr().err


def test_ids_are_linked_where_they_are_cited(records: Path) -> None:
    assert cited("(ambiguities E3, E4) and ambiguity D2; A1: FS2 (D12)") == ["E3", "E4", "D2", "D12"]
    assert cited("A0 performs FS1, A1 both; on 2x8 (B), (A100)") == []
    link = linker(read_sheet(ROOT / "docs/ambiguities.md"))
    assert link("(D8) & A1", "x.html") == '(<a href="x.html#D8">D8</a>) &amp; A1'
    page = pages(records)[records / f"figures/quick/{PAPER}/table_2.html"]
    assert "../ambiguities.html#A4" in page.links and "../ambiguities.html#D8" in page.links


def test_every_ambiguity_that_is_cited_is_explained() -> None:
    known = read_sheet(ROOT / "docs/ambiguities.md")
    places = [*ROOT.glob("src/**/*.py"), *ROOT.glob("config/**/*.yaml"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    citations = {name: path for path in places for name in cited(path.read_text())}
    assert len(citations) > 15
    assert {name: path for name, path in citations.items() if name not in known} == {}
    assert all(len(entry.paragraphs) >= 2 for entry in known.values())  # what the paper says; what is done and why


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
on_paper = pytest.mark.skipif(None in (CHROMIUM, shutil.which("pdftotext")), reason="no Chromium, or no pdftotext")


@pytest.fixture
def browse(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Asks Chromium for a page of the site, as it is after its scripts have run."""
    pages(records)
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"

    def asked(address: str, *options: str) -> str:
        command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]
        command += [profile, *options, f"file://{records}/figures/quick/{address}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    return asked


@in_a_browser
def test_a_browser_filters_the_claims_and_draws_the_curves(browse: Callable[..., str]) -> None:
    total = len(load_paper(PAPER).results)
    assert f">{total} of {total} claims<" in browse("index.html", "--dump-dom")
    for words in ("figure_5b", "caption%20FIGURE_5B"):
        filtered = browse(f"index.html?q={words}", "--dump-dom")
        assert f">1 of {total} claims<" in filtered and len(re.findall(r"<li[^>]* hidden", filtered)) == total - 1
    drawn = browse(f"{PAPER}/{CURVES}.html", "--dump-dom")
    assert "<canvas" in drawn and drawn.count('aria-pressed="true"') == 2 and "alert(1)&lt;/script&gt;" in drawn


@in_a_browser
def test_the_key_of_a_curve_has_the_colour_that_the_curve_has_in_the_dark(browse: Callable[..., str]) -> None:
    def keys(*options: str) -> list[str]:
        return re.findall(r'<line [^>]*stroke="([^"]*)"', browse(f"{PAPER}/{CURVES}.html", "--dump-dom", *options))

    light, dark = keys(), keys("--blink-settings=preferredColorScheme=0")
    assert light[1] == COLOURS[1] and dark[1] not in ("", COLOURS[1])
    assert light[0] != dark[0]  # the baseline: ink on paper


def luminance(colour: str) -> float:
    """Of a colour such as #0b57a4, as WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_and_the_edges_of_what_is_typed_into_stand_out_from_their_ground() -> None:
    css = (ROOT / "src/pipelag/report/static/site.css").read_text()
    edge = re.search(r"button, input, select {[^}]*border: 1px solid var\(--(\w+)\)", css)
    assert edge is not None
    texts = [("ink", "paper"), ("soft", "paper"), ("soft", "wash"), ("link", "paper"), ("link", "wash")]
    texts += [pair for name in ("good", "bad", "unsure") for pair in ((name, "paper"), (name, f"{name}-wash"))]
    for theme in (":root {", ':root[data-theme="dark"] {', ':root:not([data-theme="light"]) {'):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", css.split(theme)[1].split("}")[0]))
        for (name, ground), least in [*((pair, 4.5) for pair in texts), ((edge[1], "paper"), 3.0)]:
            darker, lighter = sorted((luminance(colours[name]), luminance(colours[ground])))
            assert (lighter + 0.05) / (darker + 0.05) >= least, (theme, name, ground)


@on_paper
def test_a_wide_table_is_printed_whole_and_dark_colours_stay_on_the_screen(
    records: Path, browse: Callable[..., str]
) -> None:
    path = records / "figures/quick" / PAPER / "table_2.json"
    record = json.loads(path.read_text())
    names = [f"column{number:02}" for number in range(16)]
    wide = table([{name: 10_000 for name in names}], [Col(name, name) for name in names])
    path.write_text(json.dumps(record | {"table": wide.texts()}))
    pages(records)
    page, paper = path.with_suffix(".html"), records / "printed.pdf"
    page.write_text(page.read_text().replace('<html lang="en">', '<html lang="en" data-theme="dark">', 1))
    browse(f"{PAPER}/table_2.html", f"--print-to-pdf={paper}")
    words = subprocess.run(["pdftotext", str(paper), "-"], capture_output=True, text=True, check=True).stdout
    assert [name for name in names if name not in words] == []
    shown = subprocess.run(["pdftoppm", "-gray", "-r", "50", "-l", "1", str(paper)], capture_output=True, check=True)
    assert min(shown.stdout[20:]) < 0x60  # the heading, in the ink of the light theme


def test_results_come_in_reading_order() -> None:
    names = reading_order(load_paper("pipemare"))
    assert names[:2] == ["table_1", "table_2"] and names[8] == "table_9"
    assert names[9:11] == ["figure_1", "figure_2"] and names.index("figure_5b") == names.index("figure_5a") + 1
    assert names[-1].startswith("text_") and sorted(names) == sorted(load_paper("pipemare").results)


def test_a_result_is_found_by_what_its_table_and_its_lines_name(records: Path) -> None:
    pages(records)
    text = (records / "figures/quick/index.html").read_text()
    (names,) = re.findall(r'<script type="application/json" id="names">(.*?)</script>', text)
    names_of = json.loads(names)
    table, curve = names_of[f"{PAPER}_table_2"], names_of[f"{PAPER}_{CURVES}"]
    assert HOSTILE in table and "A caption of table_2." in table and " paper " in f" {table} "
    assert "baseline" in curve and HOSTILE in curve and "iteration" in curve and "accuracy (%)" in curve
    assert "1.3" not in table.split()  # numbers are not names
    listed = re.findall(r'data-result="(.*?)"', text)
    assert set(listed) == set(names_of) and len(listed) == len(load_paper(PAPER).results)


def test_a_result_is_found_by_other_words_for_what_it_says(records: Path) -> None:
    path = records / "figures/quick" / PAPER / "table_2.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"caption": "What the partitioner gives."}))
    assert "planner" in searched(read(records / "figures/quick", load_paper(PAPER), "table_2"))
    assert "planner" not in searched(read(records / "figures/quick", load_paper(PAPER), "table_3"))


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
@pytest.mark.parametrize(
    ("word", "text", "fits"),
    [
        ("utilization", "its utilisation is 1/4", True),
        ("utilis", "Utilization", True),
        ("warmup", "three warm-up epochs", True),
        ("warm-up", "three warm up epochs", True),
        ("time-to-accuracy", "the time to accuracy", True),
        ("VGG-16", "vgg16 and VGG‑16", True),
        ("tta", "without tables", False),
    ],
)
def test_spellings_and_hyphens_do_not_matter_to_the_search(word: str, text: str, fits: bool) -> None:
    script = (ROOT / "src/pipelag/report/static/site.js").read_text()
    page = "globalThis.document = { documentElement: { dataset: {} }, addEventListener() {} };"
    asked = f"console.log(finds({json.dumps(word)}, spellings({json.dumps(text)}).join(' ')));"
    printed = subprocess.run(
        [str(NODE), "-e", page + script + asked], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == str(fits).lower()


def test_the_index_says_how_a_verdict_is_reached_and_where_its_rules_are(records: Path) -> None:
    index = records / "figures/quick/index.html"
    page = pages(records)[index]
    assert JUDGING in page.words and "../../docs/judging.md" in page.links and "judging" in page.ids
    (records / "docs/judging.md").unlink()
    page = pages(records)[index]
    assert JUDGING in page.words and not any("judging.md" in link for link in page.links)


def test_the_index_links_the_ids_that_claims_cite(records: Path) -> None:
    assert "ambiguities.html#A4" in pages(records)[records / "figures/quick/index.html"].links


def test_where_nothing_was_trained_no_page_names_a_scale_a_device_or_hours(records: Path) -> None:
    folder = records / "figures/quick" / PAPER

    def ran(**entries: float) -> None:
        for path in folder.glob("*.json"):
            record = json.loads(path.read_text())
            runs = [run | {"status": "finished", "folder": "results/quick/runs/a", **entries} for run in record["runs"]]
            path.write_text(json.dumps(record | {"data": [], "devices": ["a CPU"], "runs": runs}))

    ran()
    title = load_scale("quick").title
    for name in ("index", "table_2"):
        words = pages(records)[folder / f"{name}.html"].words
        assert title not in words and "a CPU" not in words and "hours" not in words
        assert "everything is computed" in words
    ran(seconds=3.0)
    words = pages(records)[folder / "index.html"].words
    assert title in words and "a CPU" in words and "0.0 hours" in words


def test_a_published_page_says_what_draws_and_what_trains(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move(records / "figures/quick", records / "figures/published")
    (records / "results/published").mkdir(parents=True)
    shutil.copytree(
        ROOT / "results/published/cpu", records / "results/published/cpu", ignore=shutil.ignore_patterns("runs")
    )
    assert main(["report", "--scale", "published", PAPER]) == 0
    words = Page(Path(f"figures/published/{PAPER}/table_2.html")).words
    assert f"snakemake --cores all --config scale=published -- {PAPER}_table_2" in words and "without training" in words
    trains = f"snakemake --cores all --config scale=published published=cpu retrain=true -- {PAPER}_table_2"
    assert trains in words


def test_what_the_config_does_not_say_is_part_of_the_command(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> str:
        assert main(["report", PAPER]) == 0
        page = Path(f"figures/quick/{PAPER}/{CURVES}.html").read_text()
        match = re.search(r'<code id="command">(.*?)</code>', page)
        assert match is not None
        return unescape(match[1])

    assert command() == f"snakemake --cores all {PAPER}_{CURVES}"
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("also", "mine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    config = Path("config/config.yaml")
    config.write_text(config.read_text().replace(f"{PAPER}, ", ""))
    monkeypatch.setenv("PIPELAG_PLUGINS", "mine")
    config_words = f"""--config plugins='["mine"]' papers='["{PAPER}"]'"""
    assert command() == f"snakemake --cores all {config_words} -- {PAPER}_{CURVES}"
    Path(f"figures/quick/{PAPER}/table_1.json").unlink()
    capsys.readouterr()
    assert main(["report", PAPER]) == 0
    assert f"draw it first: snakemake --cores all {config_words} -- {PAPER}_table_1" in capsys.readouterr().err
    # What is told stands in the place of what the config says, so all of them are.
    config.write_text(config.read_text().replace("plugins: []", "plugins: [also]"))
    monkeypatch.setenv("PIPELAG_PLUGINS", "also,mine")
    assert main(["report", PAPER, "pipedream"]) == 0
    page = unescape(Path(f"figures/quick/{PAPER}/{CURVES}.html").read_text())
    assert f"""--config plugins='["also", "mine"]' papers='["{PAPER}", "pipedream"]' -- {PAPER}_{CURVES}""" in page
