"""No number in the README is typed: what it says of results is what the published logs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelag.__main__ import main
from pipelag.commands.digest import BEGIN, END

pytestmark = pytest.mark.usefixtures("in_project")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_the_readme_says_what_the_logs_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", "README.md", "--check"]) == 0, capsys.readouterr().err


def test_no_result_is_told_outside_the_digest() -> None:
    text = (ROOT / "README.md").read_text()
    own = text[: text.index(BEGIN)] + text[text.index(END) :]
    own = re.sub(r"```.*?```", "", own, flags=re.S)
    assert not re.findall(r"\d ?%|\d\.\d+x|\b\d\.\d\d", own.replace("Python 3.11", ""))


def test_a_wrong_number_and_a_document_without_marks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipelag.commands.digest.digest", lambda scale, tables: "| 12.3 |")
    document = tmp_path / "mine.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    assert main(["digest", str(document), "--check"]) == 2
    assert "says other numbers than the logs" in capsys.readouterr().err
    assert main(["digest", str(document)]) == 0
    assert document.read_text() == f"before\n{BEGIN}\n\n| 12.3 |\n{END}\nafter\n"
    assert main(["digest", str(document), "--check"]) == 0
    assert main(["digest", str(tmp_path / "missing.md")]) == 2
    assert "missing.md cannot be read as text" in capsys.readouterr().err
    document.write_text("nothing")
    assert main(["digest", str(document)]) == 2
    assert "needs the marks" in capsys.readouterr().err
