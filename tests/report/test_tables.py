"""Tables for readers of CSV, Markdown and LaTeX."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelag.experiments import load_paper, papers
from pipelag.experiments.schema import Paper
from pipelag.report.gather import Cells, title_of
from pipelag.report.tables import Col, Column, Formula, Table, escape, table

TABLE = Table(
    [
        Column("name", "Network"),
        Column("paper", "paper", "accuracy %", "{:.2f}"),
        Column("ours", "ours", "accuracy %", "{:.2f}"),
        Column("time", "time"),
    ],
    [{"name": "A", "paper": 91.5, "ours": 90.123456}, {"name": "B", "paper": None, "ours": 0.0, "time": "diverged"}],
    "Accuracy & time",
    ["One note."],
    rules=[1],
)


def test_csv_keeps_what_the_reader_is_spared() -> None:
    assert "A,91.5,90.123456," in TABLE.csv().splitlines()


def test_missing_is_a_dash_and_zero_is_a_number() -> None:
    assert "| A | 91.50 | 90.12 | – |" in TABLE.markdown().splitlines()
    assert "| B | – | 0.00 | diverged |" in TABLE.markdown().splitlines()


def test_signs_that_latex_prints_otherwise_are_escaped() -> None:
    assert escape("2|Ŵ| < 1 > 0_a") == r"2$|$\^{W}$|$ $<$ 1 $>$ 0\_a"


def test_a_formula_is_mathematics_in_latex_and_signs_elsewhere() -> None:
    made = table(
        [{"step": Formula.of("m̂ₜ / (√v̂ₜ + ε)", r"\hat m_t / (\sqrt{\hat v_t} + \epsilon)")}], [Col("step", "step")]
    )
    assert r"$\hat m_t / (\sqrt{\hat v_t} + \epsilon)$ \\" in made.latex()
    assert "| m̂ₜ / (√v̂ₜ + ε) |" in made.markdown() and made.texts()["rows"] == [["m̂ₜ / (√v̂ₜ + ε)"]]


def test_latex_rows_have_as_many_cells_as_columns_and_groups_span_theirs() -> None:
    lines = [line.strip() for line in TABLE.latex("t").splitlines()]
    body = [line for line in lines if line.endswith(r"\\")]
    groups, *rows = body
    assert all(row.count("&") == len(TABLE.columns) - 1 for row in rows) and len(rows) == 3
    assert r"\multicolumn{2}{c}{accuracy \%}" in groups and groups.count("&") == 2
    assert r"\cmidrule(lr){2-3}" in lines
    assert lines.index(r"\addlinespace") == lines.index(rows[2]) - 1
    assert sum(line.startswith(r"\begin") for line in lines) == sum(line.startswith(r"\end") for line in lines)


def test_the_page_gets_groups_and_cells_as_a_reader_sees_them() -> None:
    texts = TABLE.texts()
    assert texts["groups"] == [("", 1), ("accuracy %", 2), ("", 1)]
    assert texts["titles"] == ["Network", "paper", "ours", "time"]
    assert texts["rows"] == [["A", "91.50", "90.12", "–"], ["B", "–", "0.00", "diverged"]]
    assert (texts["rules"], texts["notes"]) == ([1], ["One note."])


def test_a_table_of_rows_and_columns_said_once_is_the_same_table() -> None:
    rows = [{"name": "A", "paper": 91.5, "own": 90.123456}, {"name": "B", "own": 0.0, "time": "diverged"}]
    cols = [
        Col("Network", "name"),
        Col("paper", "paper", "{:.2f}", "accuracy %"),
        Col("ours", lambda row: row["own"], "{:.2f}", "accuracy %"),
        Col("time", "time"),
    ]
    from_rows = table(rows, cols, "Accuracy & time", ["One note."], rule_by="Network")
    assert (from_rows.csv(), from_rows.markdown(), from_rows.latex("t")) == (
        TABLE.csv(),
        TABLE.markdown(),
        TABLE.latex("t"),
    )


def test_a_rule_goes_where_the_cell_is_another_than_the_one_above() -> None:
    rows = [{"net": net, "n": number} for number, net in enumerate("aabbac")]
    made = table(rows, [Col("n", "n"), Col("net", "net")], rule_by="net")
    assert made.rules == [2, 4, 5]


def test_numbers_stand_to_the_right_but_not_those_that_name_the_rows() -> None:
    made = table([{"depth": 20, "net": "a", "n": 1}], [Col("depth", "depth"), Col("net", "net"), Col("n", "n")])
    assert made.right == [False, False, True]
    assert r"\begin{tabular}{llr}" in made.latex() and "| --- | --- | ---: |" in made.markdown()


def test_labels_of_two_papers_tables_differ(tmp_path: Path) -> None:
    for paper in ("pipemare", "pipedream"):
        TABLE.save(tmp_path / paper / "table_2")
        assert rf"\label{{tab:{paper}:table_2}}" in (tmp_path / paper / "table_2.tex").read_text()


def test_titles_are_the_configs_or_else_the_ids() -> None:
    results = {
        "table_2": {"kind": "table", "caption": "c"},
        "text_headline_speedup": {"kind": "text-claim", "caption": "c"},
        "text_tta": {"kind": "text-claim", "caption": "c", "title": "time to accuracy"},
        "links": {"kind": "curve", "caption": "c", "title": "Slower links"},
        "hybrid_control": {"kind": "table", "caption": "c"},
    }
    paper = Paper.model_validate({"id": "p", "title": "t", "short": "s", "year": 1, "setups": {}, "results": results})
    assert [title_of(paper, name) for name in results] == [
        "Table 2",
        "In the text: headline speedup",
        "In the text: time to accuracy",
        "Slower links",
        "Hybrid control",
    ]


def test_every_result_that_its_id_does_not_name_has_a_title() -> None:
    for paper in map(load_paper, papers()):
        for name, result in paper.results.items():
            assert result.title or re.fullmatch(r"(table|figure|algorithm)_\d+[a-z]?", name), (paper.id, name)
        titles = [title_of(paper, name) for name in paper.results]
        assert len(set(titles)) == len(titles), paper.id


def test_a_long_cell_makes_no_text_of_the_numbers_it_stands_among() -> None:
    def kind(*cells: str) -> str:
        return Cells(groups=[], titles=["t"], rows=[[cell] for cell in cells]).kinds[0]

    long = "46.14 ± 0.80 (2 of 3 seeds, one diverges)"
    assert kind("58.45 ± 2.52", "54.81 ± 2.64", long, "–", "56.46 ± 3.37", "57.00") == "number"
    assert kind("58.45 ± 2.52", long) == "text"  # as many sentences as numbers
    assert kind("1 x 64", "2 x 32", "4 x 16", "a minibatch has too few samples for so many replicas") == "text"
    assert (kind("a", "b"), kind("–", ""), kind("1", "2")) == ("word", "number", "number")


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["≥ 0.008", "≥ 0.004", "0.002"], True),
        (["91.65", "not run here"], True),
        (["–", "diverged"], False),
        (["–", "N/A"], True),
        (["1,040 pipelined + 520 non-pipelined", "1,560 pipelined"], False),
    ],
)
def test_pages_and_markdown_agree_on_which_columns_are_of_numbers(cells: list[str], numbers: bool) -> None:
    shown = table([{"cell": cell} for cell in cells], [Col("name", lambda row: "a"), Col("title", "cell")])
    assert shown.right == [False, numbers]
    assert (Cells(**shown.texts()).kinds[1] == "number") == numbers
