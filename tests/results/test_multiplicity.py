"""Claims that tests over seeds judge, corrected for how many they are."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipelag.commands.digest import corrected
from pipelag.results.context import Context
from pipelag.results.judging import T95, Difference, all_of, any_of, quantile, sized
from pipelag.results.multiplicity import least_surprising, two_sided
from pipelag.results.verdict import (
    JUDGES,
    TESTS,
    Finding,
    NotLogged,
    SeedTest,
    Verdict,
    any_one,
    judged,
    nothing,
    resting_on,
)
from tests.results.made_up import context, trained


@pytest.mark.parametrize(("freedom", "quantile"), list(enumerate(T95, 1)))
def test_p_values_are_those_of_the_printed_quantiles(freedom: int, quantile: float) -> None:
    assert two_sided(quantile, freedom) == pytest.approx(0.05, abs=2e-6)


@pytest.mark.parametrize(("seeds", "printed"), [(11, 2.22814), (12, 2.20099), (21, 2.08596), (101, 1.98397)])
def test_quantiles_of_many_seeds_are_those_of_their_own_degrees_of_freedom(seeds: int, printed: float) -> None:
    assert quantile(seeds) == pytest.approx(printed, abs=1e-5)


def test_of_nothing_nothing_is_told() -> None:
    assert all_of([]) is None and any_of([]) is None


def test_p_values_of_one_and_two_degrees_of_freedom() -> None:
    """Cauchy's distribution, and t / sqrt(2 + t^2)."""
    for t in (0.0, 0.3, 2.0, 40.0):
        assert two_sided(-t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t))
        assert two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_benjamini_and_hochbergs_own_example() -> None:
    """Of fifteen p-values of a study of heart attacks the four smallest are rejected (by Bonferroni's rule three)."""
    printed = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344]
    printed += [0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    assert least_surprising(printed) == 0.0095
    assert least_surprising([0.06, 0.9]) < 0
    assert least_surprising([]) < 0


def test_a_test_over_seeds_notes_its_p_value_for_the_claim_alone() -> None:
    """Of the bound that it is asked about; of one seed there is none, and nowhere else is anything noted."""
    three = Difference.of({0: 1.0, 1: 2.0, 2: 3.0}, dict.fromkeys(range(3), 0.0))
    three.above()
    tests: list[SeedTest] = []
    token = TESTS.set(tests)
    try:
        three.within(0.0, 9.0)
        three.within(9.0, 0.0)
        Difference(2.0, 1.0, 1).above()
    finally:
        TESTS.reset(token)
    t = 2 / (1 / math.sqrt(3))
    p, surer = 1 - t / math.sqrt(2 + t * t), 1 - 3.5 * t / math.sqrt(2 + (3.5 * t) ** 2)
    assert [test.favour for test in tests] == pytest.approx([p, surer, 1, 1])
    assert [test.against for test in tests] == pytest.approx([1, 1, surer, p])


def test_what_holds_only_before_the_correction_is_named() -> None:
    """Of four that are tested two hold; the second of them would need 0.05 * 2 / 4."""
    table = "table_1"

    def verdict(claim: str, word: str, p: float | None) -> tuple[str, Verdict]:
        return table, Verdict(claim, claim, word, "", p=p)

    judgements = [
        verdict("sure", "holds", 0.001),
        verdict("unsure", "holds", 0.04),
        verdict("open", "cannot be judged", 0.3),
        verdict("failing", "fails", 0.9),
        verdict("counted", "holds", None),
    ]
    section = "\n".join(corrected({"leaderboard": judgements}))
    assert "| Leaderboard | 4 | 2 | 1 |" in section
    assert "Table 1 `unsure`" in section and "`sure`" not in section
    assert corrected({"leaderboard": judgements[-1:]}) == []


@pytest.mark.usefixtures("in_project")
def test_one_of_many_parts_fails_a_claim_only_where_it_is_told_among_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six comparisons that a claim rests on, one in twenty is told against it by chance."""
    runs = context("stale_weights", "table_4", lambda arm: trained(90.0))
    claim = runs.result.claims[0]

    def verdict_on(against: float, parts: int, others: float = 0.1) -> Verdict:
        def judge(_: Context) -> Finding:
            steps = [Difference(against, 1.0, 3), *[Difference(others, 1.0, 3)] * (parts - 1)]
            return Finding(all_of(step.above() for step in steps), "", "")

        monkeypatch.setitem(JUDGES, (runs.paper.id, runs.name, claim.id), judge)
        return judged(runs, claim)

    assert verdict_on(-1.1, 1).verdict == "fails"
    unsure = verdict_on(-1.1, 6)
    assert (
        unsure.verdict == "cannot be judged"
        and "of 6 comparisons, the strongest against the claim has p = 0.04" in unsure.why
    )
    assert verdict_on(-1.1, 6, others=90.0).verdict == "cannot be judged", (
        "how sure the others are says nothing against it"
    )
    assert verdict_on(-4.0, 6).verdict == "fails"


@pytest.mark.usefixtures("in_project")
def test_a_claim_has_the_p_value_of_what_it_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of tests that can only speak against it, nor of one of many where another is enough; none where it is left
    open for another reason than what tests tell."""
    runs = context("stale_weights", "table_4", lambda arm: trained(90.0))
    claim = runs.result.claims[0]
    sure, unsure = Difference(10.0, 1.0, 3), Difference(0.1, 1.0, 3)

    def p_of(judge: Callable[[Context], Finding]) -> float | None:
        monkeypatch.setitem(JUDGES, (runs.paper.id, runs.name, claim.id), judge)
        return judged(runs, claim).p

    def vetoed(_: Context) -> Finding:
        with resting_on(nothing):
            unsure.above()
        return Finding(sure.above(), "", "")

    def left_open(_: Context) -> Finding:
        sure.above()
        raise NotLogged("a run has no log")

    alone = p_of(lambda _: Finding(sure.above(), "", ""))
    assert alone is not None and alone < 0.01
    assert p_of(vetoed) == alone
    assert p_of(lambda _: Finding(any_of(each.above() for each in (unsure, sure)), "", "")) == pytest.approx(2 * alone)
    failing = p_of(lambda _: Finding(all_of(each.above() for each in (sure, Difference(-10.0, 1.0, 3))), "", ""))
    assert failing == 1, "what speaks against a claim does not speak for it"
    assert p_of(left_open) is None
    smaller = [replace(i, arm=replace(i.arm, spec=i.arm.spec.model_copy(update={"batch": 1}))) for i in runs.items]
    runs = replace(runs, items=smaller)
    assert p_of(lambda context: sized(context, sure.above(), "", "")) is None


def test_against_one_of_many_speaks_what_all_of_them_do() -> None:
    assert any_one([SeedTest(1.0, 0.001), SeedTest(1.0, 0.2)]) == [SeedTest(1.0, 0.2)]
    assert any_one([SeedTest(0.01, 1.0), SeedTest(1.0, 0.2)]) == [SeedTest(0.02, 1.0)]
    assert any_one([SeedTest(0.8, 1.0), SeedTest(0.9, 1.0)])[0].favour == 1.0 and any_one([]) == []


def test_no_difference_at_all_from_a_bound_is_no_surprise() -> None:
    tests: list[SeedTest] = []
    token = TESTS.set(tests)
    try:
        Difference.of(dict.fromkeys(range(3), 70.0), dict.fromkeys(range(3), 70.0)).above()
    finally:
        TESTS.reset(token)
    assert tests == [(1.0, 1.0)]
