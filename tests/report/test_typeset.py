"""The typeset reports say what the records say; what is in a record is text there, and every reference resolves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typst

from pipelag.__main__ import main
from pipelag.experiments import load_paper, load_scale
from pipelag.report.gather import JUDGING, NO_LOG, Cells, Chapter, Run, gather
from pipelag.report.typeset import PAGE_POINTS, chapter_of, fits, left_out, pieces, table_of
from tests.report.scale import CURVES, HOSTILE, PAPER, records

__all__ = ["records"]


def data_of(project: Path, *names: str) -> dict[str, Any]:
    scale, folder = load_scale("quick"), Path("figures/quick")
    chapters = [chapter_of(chapter) for chapter in gather(names, scale, folder)]
    words = {"name": "quick", "title": "quick scale", "note": "a note"}
    return {"title": "t", "whole": len(names) > 1, "chapters": chapters, "scale": words} | {
        "words": ["holds", "fails", "cannot be judged"],
        "judging": JUDGING,
    }


def ask(project: Path, selector: str, field: str, data: dict[str, Any]) -> list[Any]:
    source = (files("pipelag.report") / "templates" / "report.typ").read_bytes()
    inputs = {"data": json.dumps(data)}
    return list(json.loads(typst.query(source, selector, field=field, root="figures/quick", sys_inputs=inputs)))


def test_a_report_has_every_result_a_link_to_the_paper_and_equal_bytes(records: Path) -> None:
    assert main(["report", "--pdf", PAPER]) == 0
    path = records / "figures/quick" / f"{PAPER}.pdf"
    first = path.read_bytes()
    assert first.startswith(b"%PDF") and not (path.parent / "pipelag.pdf").exists()
    assert main(["report", "--pdf", PAPER]) == 0
    assert path.read_bytes() == first
    data = data_of(records, PAPER)
    assert "https://arxiv.org/abs/1912.12675" in ask(records, "link", "dest", data)
    headings = json.dumps(ask(records, "heading", "body", data))
    assert all(entry["title"] in headings for entry in data["chapters"][0]["entries"])
    (image,) = ask(records, "image", "alt", data)
    assert "baseline from 52.0 to 54.0" in image
    assert [each["id"] for each in data["chapters"][0]["ambiguities"]] == ["D8", "A4"]


def test_a_study_of_our_own_is_short_of_no_paper(records: Path) -> None:
    data = data_of(records, PAPER)
    assert "different from the paper" in json.dumps(ask(records, "heading", "body", data))
    study = chapter_of(Chapter(load_paper("leaderboard"), []))
    assert study["authors"] == ""
    data["chapters"][0] |= {key: study[key] for key in ("authors", "unlike")}
    headings = json.dumps(ask(records, "heading", "body", data))
    assert "short of the full setting" in headings and "different from the paper" not in headings


def test_why_runs_have_no_log_is_said_in_words() -> None:
    runs = [Run(id=str(i), labels={}, seed=0, status=status) for i, status in enumerate((NO_LOG, "too long", NO_LOG))]
    assert left_out(runs) == [{"text": "they are not made yet", "count": 2}, {"text": "too long", "count": 1}]


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext on this machine")
def test_what_a_record_says_is_text_on_paper(records: Path) -> None:
    assert main(["report", "--pdf", PAPER]) == 0
    command = ["pdftotext", "-raw", f"figures/quick/{PAPER}.pdf", "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = "".join(text.split())
    assert "".join(HOSTILE.split()) in words
    for name in load_paper(PAPER).results:
        assert f"claimof{name}" in words and f"a<bin{name}" in words
    assert "Lifu Zhang, Tarek S. Abdelrahman" in text and "Tolerance:exact" in words


def test_several_papers_have_a_report_over_all_and_a_damaged_record_is_named_in_it(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"figures/quick/{PAPER}/table_2.json")
    path.write_text(path.read_text()[:99])
    assert main(["report", "--pdf", PAPER, "leaderboard"]) == 0
    assert {each.name for each in Path("figures/quick").glob("*.pdf")} == {
        f"{PAPER}.pdf",
        "leaderboard.pdf",
        "pipelag.pdf",
    }
    assert f"left out: {path} is damaged" in capsys.readouterr().err
    (trouble,) = [
        each["trouble"] for each in data_of(records, PAPER)["chapters"][0]["entries"] if each["title"] == "Table 2"
    ]
    assert str(path) in trouble


def test_a_damaged_figure_is_named_and_the_rest_is_typeset(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"figures/quick/{PAPER}/{CURVES}.svg").write_text("<svg not an SVG")
    assert main(["report", "--pdf", PAPER]) == 0
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and f"{PAPER}/{CURVES}.svg is damaged" in message
    (entry,) = [each for each in data_of(records, PAPER)["chapters"][0]["entries"] if each["title"] == "Figure 5a"]
    assert entry["figure"] is None and entry["trouble"] in message and entry["verdicts"]


def test_what_cannot_be_typeset_is_refused(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"figures/quick/{PAPER}/{CURVES}.svg").write_text("<not>an SVG</not>")
    assert main(["report", "--pdf", PAPER]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and f"{PAPER}.pdf cannot be typeset" in message
    assert message.endswith("snakemake --cores all --forcerun figure\n")
    shutil.copytree("figures/quick", "figures/standard")
    assert main(["report", "--pdf", PAPER, "--scale", "standard"]) == 2
    assert capsys.readouterr().err.endswith("--forcerun figure --config scale=standard\n")  # not the quick figures


def test_tables_span_as_many_columns_as_they_need() -> None:
    def table(columns: int, cell: str, rows: int = 3) -> dict[str, Any]:
        cells = [[cell] * columns] * rows
        return table_of(Cells(groups=[], titles=["t"] * columns, rows=cells))

    assert (table(3, "1.00")["wide"], table(3, "1.00")["size"]) == (False, 8.0)
    assert (table(12, "1.00 ± 0.10")["wide"], table(12, "1.00 ± 0.10")["long"]) == (True, False)
    assert table(12, "1.00 ± 0.10")["size"] < 8.0 and table(12, "1.00 ± 0.10", rows=99)["long"]
    assert table(2, "a sentence " * 9)["kinds"] == ["text"] * 2 and table(2, "a sentence " * 9)["size"] == 8.0
    assert fits(PAGE_POINTS / 4, True, 8.0) and not fits(PAGE_POINTS / 3, True, 8.0)


def test_a_table_longer_than_a_page_goes_on_on_the_next(records: Path) -> None:
    data = data_of(records, PAPER)
    (entry,) = [each for each in data["chapters"][0]["entries"] if each["figure"]]
    source = (files("pipelag.report") / "templates" / "report.typ").read_bytes()

    def pages(rows: int) -> int:
        cells = [[f"{row}.{column}" for column in range(14)] for row in range(rows)]
        entry.update(figure=None, table=table_of(Cells(groups=[], titles=["a title"] * 14, rows=cells)))
        pdf = typst.compile(source, root="figures/quick", sys_inputs={"data": json.dumps(data)})
        assert isinstance(pdf, bytes)
        return len(re.findall(rb"/Type\s*/Page\b", pdf))

    assert pages(60) < pages(180) < pages(300)


def test_lines_break_at_spaces_and_behind_hyphens_before_letters() -> None:
    assert pieces("PipeDream-2BW on Tiny-ImageNet") == ["PipeDream-2BW", "on", "Tiny-", "ImageNet"]
    assert pieces("CIFAR-10, 15-1, -3.1") == ["CIFAR-10,", "15-1,", "-3.1"]


def evaluated(project: Path, data: dict[str, Any], asked: str) -> Any:
    """What the template, when it has set some data, says of an expression."""
    source = (files("pipelag.report") / "templates" / "report.typ").read_text()
    question = f"{source}\n#context [#metadata({asked}) <asked>]".encode()
    inputs = {"data": json.dumps(data)}
    return json.loads(typst.query(question, "<asked>", field="value", root="figures/quick", sys_inputs=inputs))[0]


def test_a_column_is_as_wide_as_its_longest_word_whatever_the_others_hold(records: Path) -> None:
    def widths(least: list[int], enough: list[int], room: int) -> Any:
        first, second = (f"({', '.join(f'{each}pt' for each in some)},)" for some in (least, enough))
        return evaluated(
            records, data_of(records, PAPER), f"widths({first}, {second}, {room}pt).map(each => each.pt())"
        )

    assert widths([10, 20], [10, 80], 200) == pytest.approx([15.4, 85.4])  # all fits; a little room is spread
    assert widths([40, 10, 10], [40, 500, 12], 200) == pytest.approx([40, 148, 12], abs=0.01)
    assert widths([90, 10, 10], [95, 500, 500], 200) == pytest.approx([90, 55, 55], abs=0.01)


def test_a_chapter_without_claims_has_its_wide_tables_where_they_are_named(records: Path) -> None:
    for path in sorted((records / "figures/quick" / PAPER).glob("*.json")):
        record = json.loads(path.read_text())
        runs = [{**run, "status": "finished", "folder": "results/quick/runs/a"} for run in record["runs"]]
        wide = {"groups": [], "titles": ["a title"] * 14, "rows": [["a cell"] * 14] * 9}
        record |= {"table": wide, "is_figure": False}
        path.write_text(json.dumps(record | {"verdicts": [], "runs": runs}))
    data = data_of(records, PAPER)
    assert data["chapters"][0]["computed"]
    where = "map(each => each.location().page())"
    heads, tables, last = (
        evaluated(records, data, f"query({what}).{where}")
        for what in ("heading.where(level: 3)", "figure", "heading.where(level: 2)")
    )
    assert tables == heads and len(heads) == len(load_paper(PAPER).results) and tables[-1] <= last[-1]


def test_wide_tables_come_before_what_is_said_of_deviations(records: Path) -> None:
    data = data_of(records, PAPER)
    rows = [["a cell"] * 14] * 30
    for entry in data["chapters"][0]["entries"]:
        entry.update(figure=None, table=table_of(Cells(groups=[], titles=["a title"] * 14, rows=rows)))
    where = "map(each => each.location().page())"
    tables, heads = (
        evaluated(records, data, f"query({what}).{where}") for what in ("figure", "heading.where(level: 2)")
    )
    assert max(tables) <= heads[3]  # what was run, claims, results, what is not the paper's
