"""Conditions that claims share are said once, and nothing of them is lost."""

from __future__ import annotations

import pytest

from pipelag.report.conditions import LONG, Notes
from pipelag.results.verdict import Verdict

DATA = "CIFAR-10 from another release: " + "re-encoded pixels " * 3
SHORT = f"smaller models; a rate of 0.05 instead of 0.1; {DATA}"
OTHER = f"smaller models; a rate of 0.004 instead of 0.001; {DATA}"


def verdict(conditions: str, frame: str = "+1.0 points (at this scale: {})") -> Verdict:
    return Verdict("c", "text", "holds", frame.format(conditions), conditions=conditions)


def test_conditions_of_two_claims_are_a_note_and_those_of_one_stay() -> None:
    several = [
        verdict(SHORT),
        verdict(SHORT, "+2.0; only runs like the paper's can decide this (here: {})"),
        verdict("smaller models"),
    ]
    notes = Notes(several)
    assert [notes.why(each) for each in several] == [
        "+1.0 points (at this scale: note a)",
        "+2.0; only runs like the paper's can decide this (here: note a)",
        "+1.0 points (at this scale: smaller models)",
    ]
    assert notes.lines == [f"Note a: {SHORT}."]


def test_a_long_condition_is_a_note_where_the_others_differ_and_a_short_one_is_not() -> None:
    assert len(DATA) >= LONG
    notes = Notes([verdict(SHORT), verdict(OTHER)])
    assert notes.why(verdict(OTHER)).endswith(
        "(at this scale: smaller models; a rate of 0.004 instead of 0.001; note a)"
    )
    assert notes.lines == [f"Note a: {DATA}."]


@pytest.mark.parametrize("count", [1, 3, 60])
def test_every_condition_can_be_read_again(count: int) -> None:
    several = [verdict(f"condition {n}; {DATA}{n}") for n in range(count)] * 2 + [verdict("", "no conditions")]
    notes = Notes(several)
    for each in several:
        why = notes.why(each)
        for line in reversed(notes.lines):
            name, _, text = line.partition(": ")
            why = why.replace(name.lower() + ")", text.removesuffix(".") + ")")
        assert why == each.why


def test_claims_without_conditions_have_no_notes() -> None:
    plain = [verdict("", "exact"), verdict("", "exact")]
    assert Notes(plain).lines == [] and Notes(plain).why(plain[0]) == "exact"
