"""No number in the README is typed: what it says of results is what the published logs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelag.__main__ import main
from pipelag.commands.digest import BEGIN, BRIEF, END, FAILED, ON_TRAININGS, THEIRS, counted, in_short, judgements
from pipelag.experiments import load_paper, load_scale
from pipelag.experiments.schema import Paper, Scale
from pipelag.results.verdict import Verdict

pytestmark = pytest.mark.usefixtures("in_project")
TABLES = "<!-- digest: at_scale.table_1"
ROOT = Path(__file__).resolve().parents[2]


JUDGED: dict[tuple[str, str], list[tuple[str, Verdict]]] = {}  # the README and the page of results ask for the same


def judged_once(paper: Paper, scale: Scale) -> list[tuple[str, Verdict]]:
    key = paper.id, scale.folder
    if key not in JUDGED:
        JUDGED[key] = list(judgements(paper, scale))
    return JUDGED[key]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/findings.md", "docs/scale.md", "docs/h100.md"])
def test_the_pages_say_what_the_logs_say(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelag.commands.digest.judgements", judged_once)
    published = "h100" if "h100" in page else "cpu"
    assert main(["digest", page, "--check", "--published", published]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "begin"), [("README.md", BRIEF), ("docs/results.md", BEGIN), ("docs/scale.md", TABLES)]
)
def test_no_result_is_told_outside_the_digest(page: str, begin: str) -> None:
    text = (ROOT / page).read_text()
    prose = text[: text.index(begin)] + text[text.index(END) :]
    prose = re.sub(r"```.*?```", "", prose, flags=re.S)
    assert not re.findall(r"\d ?%|\d\.\d+x|\b\d\.\d\d", prose.replace("Python 3.11–3.14", ""))


@pytest.mark.parametrize("page", ["docs/findings.md", "docs/h100.md"])
def test_no_number_of_the_findings_is_typed(page: str) -> None:
    generated = r"<!-- evidence:.*?<!-- end of evidence -->|<!-- digest:.*?<!-- end of digest -->"
    prose = re.sub(generated, "", (ROOT / page).read_text(), flags=re.S)
    assert not re.findall(r"\d ?%|\d\.\d|\d+ (?:points|updates|times|BLEU)", prose)


def test_what_counts_as_by_training_is_about_what_networks_learn() -> None:
    """Not a count or a time, of a result that networks were trained for besides; ours are none of the paper's."""
    judged = [
        ("table_1", Verdict("faster", "", "holds", "")),
        ("table_1", Verdict("learns", "", "holds", "", learnt=True)),
        ("table_1", Verdict("learns_here", "", "holds", "", learnt=True, own=True)),
        ("table_1", Verdict("slower", "", "fails", "")),
        ("table_1", Verdict("forgets", "", "fails", "", learnt=True)),
    ]
    counts = counted(load_paper("pipedream"), judged)
    kinds = (ON_TRAININGS, THEIRS, FAILED, "holds", "fails")
    assert [counts[kind] for kind in kinds] == [2, 1, 1, 3, 2]
    assert counted(load_paper("leaderboard"), judged)[THEIRS] == 0


@pytest.mark.parametrize("name", ["stale_weights", "pipemare"])
def test_trends_and_sizes_are_what_networks_learn_and_no_count_is(name: str) -> None:
    paper = load_paper(name)
    by_claim = {(result, v.claim): v for result, v in judged_once(paper, load_scale("published", "cpu"))}
    counts = {"stale_weights": ("table_5", "faster_at_every_depth"), "pipemare": ("table_2", "t2_memory")}
    trained = {"stale_weights": ("table_3", "accuracy_falls"), "pipemare": ("figure_13", "transformer_large_k")}
    assert by_claim[counts[name]].verdict == "holds" and not by_claim[counts[name]].learnt
    assert by_claim[trained[name]].verdict == "holds" and by_claim[trained[name]].learnt
    assert all(verdict.own == claim.endswith("_here") for (_, claim), verdict in by_claim.items())


def test_a_sentence_whose_evidence_turned_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "mine.md"
    line = "{} <!-- evidence: {} -->\n<!-- end of evidence -->\n"

    def digested(*named: str) -> tuple[int, str]:
        page.write_text("".join(line.format("A sentence.", one) for one in named))
        return main(["digest", str(page)]), capsys.readouterr().err

    good = "stale_weights.table_6.weights_as_printed holds, stale_weights.table_6.resnet20_is_the_exception fails"
    assert digested(good) == (0, "")
    text = page.read_text()
    assert "<summary>What the logs say (2 claims: 1 holds, 1 fails)</summary>" in text
    assert text.startswith("A sentence.") and "ResNet-20 1.03 (printed 1.03)" in text and "(printed 67," in text
    assert main(["digest", str(page), "--check"]) == 0
    page.write_text(text.replace("printed 1.03)", "printed 1.04)"))
    assert main(["digest", str(page), "--check"]) == 2 and "does not say what the logs say" in capsys.readouterr().err
    code, sentence = digested(good.replace("exception fails", "exception holds"))
    assert code == 2 and "with the verdict 'holds', but by the logs it is 'fails'" in sentence
    for wrong, words in (
        ("stale_weights.table_6.weights_as_print holds", "did you mean 'weights_as_printed'"),
        ("stale_weights.table_66.weights_as_printed holds", "unknown result"),
        ("stale_weights.table_6 holds", "is not evidence; it should be PAPER.RESULT.CLAIM"),
        ("stale_weights.table_6.weights_as_printed perhaps", "is not evidence"),
    ):
        code, sentence = digested(wrong)
        assert code == 2 and words in sentence, sentence
    page.write_text("<!-- evidence: stale_weights.table_6.weights_as_printed holds -->\n")
    assert main(["digest", str(page)]) == 2 and "in this order" in capsys.readouterr().err


def test_the_readme_is_short_and_shows_what_fails() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 700
    assert "what fails is in" in text[text.index(BRIEF) : text.index(END)]


def test_results_are_named_in_short() -> None:
    assert in_short(["table_1", "figure_10", "table_3", "text_a", "text_b"]) == "Tables 1, 3; Figure 10; the text"
    assert in_short(["table_1", "length"], {"length": "Training longer"}) == "Table 1; Training longer"


def test_a_wrong_number_and_a_document_without_marks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipelag.commands.digest.digest", lambda scale, tables: "| 12.3 |")
    document = tmp_path / "mine.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    assert main(["digest", str(document), "--check"]) == 2
    assert "does not say what the logs say" in capsys.readouterr().err
    assert main(["digest", str(document)]) == 0
    assert document.read_text() == f"before\n{BEGIN}\n\n| 12.3 |\n{END}\nafter\n"
    assert main(["digest", str(document), "--check"]) == 0
    assert main(["digest", str(tmp_path / "missing.md")]) == 2
    assert "missing.md'; it should be a Markdown file" in capsys.readouterr().err
    document.write_text(f"<!-- digest: at_scale.table_3 -->\n{END}\n")
    assert main(["digest", str(document)]) == 0
    assert "At scale, Table 3. **What is computed and where.**" in document.read_text()
    document.write_text(f"<!-- digest: at_scale.table_7 -->\n{END}\n")
    assert main(["digest", str(document)]) == 2
    for text in ("nothing", f"before\n{END}\n{BEGIN}\nafter\n"):
        document.write_text(text)
        assert main(["digest", str(document)]) == 2
        assert "needs the marks" in capsys.readouterr().err and document.read_text() == text
