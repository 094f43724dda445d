"""Every judge's verdict can turn: logs that make its sentence true, and logs that make it false."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelag.errors import PipelagError
from pipelag.experiments import Arm, load_paper, papers
from pipelag.results.judging import by_seed, every_run, extent
from pipelag.results.leaderboard.rates import by_seed as rate_by_seed
from pipelag.results.leaderboard.rates import chosen
from pipelag.results.leaderboard.scores import above, cheaper
from pipelag.results.learning import learned
from pipelag.results.logs import Item, RunLog
from pipelag.results.verdict import JUDGES, Finding, NotLogged
from tests.results.cases.leaderboard import ORDER, accuracies, searched
from tests.results.made_up import CASES, PARTS, SEEDS, Key, Pair, context, log, trained, trained_as

pytestmark = pytest.mark.usefixtures("in_project")
ROOT = Path(__file__).resolve().parents[2]


def _load() -> list[tuple[str, str, str]]:
    names = sorted(path.stem for path in (ROOT / "config/papers").glob("*.yaml"))
    for name in names:
        importlib.import_module(f"pipelag.results.{name}")
        for kind in ("cases", "parts"):
            if (ROOT / f"tests/results/{kind}/{name}.py").exists():
                importlib.import_module(f"tests.results.{kind}.{name}")
    return sorted(JUDGES)


EVERY = _load()
# What no sentence says: a list as Python writes it, "(3 seeds)x", "1 values", what is nothing
UNREAD = re.compile(r"\[\d+(, \d+)*\]|\)x\b|\b1 values|\bNone\b|\bnan\b|  ")
DANGLING = re.compile(r"^(its?|they|their|so (?!far)|the same|up to|hence|these|this|there) |\b(over|of) these\b", re.I)


def test_every_claim_has_a_judge_or_a_reason_and_every_judge_a_claim() -> None:
    claims, reasons = set(), set()
    for name in papers():
        for result, content in load_paper(name).results.items():
            for claim in content.claims:
                (reasons if claim.because else claims).add((name, result, claim.id))
    assert claims == set(JUDGES) and not reasons & claims


def test_every_claim_has_a_subject_of_its_own() -> None:
    """The site's filtered list and lists of failures show each alone, below its table's or figure's title."""
    claims = [claim for name in papers() for result in load_paper(name).results.values() for claim in result.claims]
    assert not [claim.text for claim in claims if DANGLING.search(claim.text)]


def test_one_number_is_not_called_a_range() -> None:
    assert [extent(9, 9), extent(9, 12), extent(99.99, 100, ".0f")] == ["9", "9 to 12", "100"]


def test_every_case_is_of_a_judge() -> None:
    assert set(CASES) <= set(JUDGES)


@pytest.mark.parametrize("key", EVERY, ids=".".join)
def test_a_verdict_turns(key: tuple[str, str, str]) -> None:
    assert key in CASES, f"nothing makes {'.'.join(key)} true and false: add a case to tests/results/cases/{key[0]}.py"
    holds, fails = CASES[key]()
    good, bad = JUDGES[key](holds), JUDGES[key](fails)
    assert good.holds is True, good.why
    assert bad.holds is False, bad.why
    for finding in (good, bad):
        assert finding.tolerance and finding.why
        assert not UNREAD.search(finding.why), finding.why


@pytest.mark.parametrize(
    ("key", "make", "becomes"), PARTS, ids=[f"{'.'.join(key)}-{make.__name__}" for key, make, _ in PARTS]
)
def test_each_condition_of_a_claim_turns_it(key: Key, make: Callable[[], Pair], becomes: bool | None) -> None:
    whole, broken = make()
    assert JUDGES[key](whole).holds is True, JUDGES[key](whole).why
    try:
        finding = JUDGES[key](broken)
    except NotLogged:
        assert becomes is None
        return
    assert finding.holds is becomes, finding.why


@pytest.mark.parametrize("key", EVERY, ids=".".join)
def test_without_logs_it_cannot_be_judged(key: tuple[str, str, str]) -> None:
    from tests.results.made_up import context

    try:
        finding = JUDGES[key](context(key[0], key[1], lambda arm: None))
    except NotLogged as missing:
        assert re.search(r"\w", str(missing))
        return
    assert finding.holds is None, finding.why


def test_of_an_xpipe_that_diverges_nothing_is_told() -> None:
    def judged(*diverged: tuple[str, int]) -> Finding:
        def make(arm: Arm) -> RunLog | None:
            lost = (arm.labels["arm"], arm.seed) in diverged
            return trained(diverged_at=7) if lost else trained(75.0, line=[60.0, 75.0], epochs=70.0)

        return JUDGES["pipeoptim", "figure_3a", "xpipe_lowest"](context("pipeoptim", "figure_3a", make))

    every = [("XPipe", seed) for seed in SEEDS]
    for case in (every, every[:2]):
        assert judged(*case).holds is None and f"diverges with {len(case)} of 3 seeds" in judged(*case).why
    with pytest.raises(NotLogged, match="diverged"):
        judged(*every, ("GPipe", 0))


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((57.0, 57.2, 57.1), (45.0, 0.0, 0.0), None),  # one seed with which both end, whose error is not known
        ((57.0, 57.2, 57.1), (0.0, 0.0, 0.0), True),
        ((0.0, 0.0, 0.0), (57.0, 57.2, 57.1), False),
        ((57.0, 57.2, 57.1), (45.0, 45.1, 0.0), True),
        ((45.0, 45.1, 50.0), (57.0, 57.2, 0.0), None),  # above by the one that diverges, below by the others
        ((57.0, 57.2, 0.0), (45.0, 45.1, 45.2), None),
        ((0.0, 57.2, 57.1), (45.0, 0.0, 45.2), None),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), None),
        ((57.0, 57.2, 57.1), (45.0, 45.1, 45.2), True),
    ],
)
def test_a_run_that_diverges_is_below_any_that_does_not(a: Any, b: Any, verdict: bool | None) -> None:
    assert above(dict(enumerate(a)), dict(enumerate(b)))[0] is verdict


def test_which_of_two_costs_less_is_told_where_every_run_ends() -> None:
    base, dear, cheap = ({seed: end + 0.1 * seed for seed in SEEDS} for end in (90.0, 70.0, 85.0))
    assert cheaper((base, dear), (base, cheap))[0] is True and cheaper((base, cheap), (base, dear))[0] is False
    for lost in range(4):
        first, less, second, more = (
            values | ({2: 0.0} if lost == number else {}) for number, values in enumerate((base, dear, base, cheap))
        )
        told, prices, _ = cheaper((first, less), (second, more))
        assert told is None and prices == pytest.approx((20.0, 5.0))


def test_seeds_that_a_scale_leaves_out_are_not_missed() -> None:
    def runs(missing: tuple[int, ...]) -> dict[int, Item]:
        return every_run(
            context("spectrain", "figure_9", lambda arm: None if arm.seed in missing else trained(50.0), "quick"),
            "XPipe",
            arm="XPipe",
        )

    assert [*runs((1, 2))] == [0] and [*runs(())] == [0, 1, 2]
    with pytest.raises(NotLogged, match="XPipe has no log"):
        runs((0, 1, 2))


def test_a_seed_that_is_asked_for_and_has_no_log_is_missed() -> None:
    """The mean of the others would be another arm's."""
    runs = context("stale_weights", "figure_5d", lambda arm: None if arm.seed == 1 else trained(50.0))
    for judged in (by_seed, partial(every_run, named="8 stages")):
        with pytest.raises(NotLogged, match="2 of 3"):
            judged(runs, arm="8-stage")


@pytest.mark.parametrize("classes", [10, 2])
def test_an_arm_that_does_not_learn_with_one_seed_says_nothing(classes: int) -> None:
    """By a tenth of the way from chance to all right; and where a run diverges."""
    data, edge = {"classes": classes}, 100 / classes + (100 - 100 / classes) / 10
    learns, gone = log(final={"accuracy": 99.0}, data=data), log(final=None, diverged_at=7, data=data)
    at_the_edge, above_it = (log(final={"accuracy": end}, data=data) for end in (edge, edge + 0.1))
    for one, says in ((above_it, True), (at_the_edge, False), (gone, False)):
        by_number = {0: learns, 1: one, 2: learns}
        runs = context("stale_weights", "figure_5d", lambda arm, logs=by_number: logs[arm.seed])  # type: ignore[misc]
        with nullcontext() if says else pytest.raises(NotLogged, match="seed 1"):
            learned(runs, "8 stages", arm="8-stage")


def test_labels_that_fit_the_runs_of_several_arms_are_refused() -> None:
    """Of two runs with one seed the later was taken unseen."""
    runs = context("stale_weights", "table_2", lambda arm: trained(50.0))
    assert [*by_seed(runs, model="LeNet-5", arm="6-stage")] == [0, 1, 2]
    sentence = "arm='6-stage' fits several runs of seed 0, which differ in model .*'LeNet-5'.*; name it as well"
    with pytest.raises(PipelagError, match=sentence):
        by_seed(runs, arm="6-stage")
    with pytest.raises(PipelagError, match=sentence):
        every_run(runs, "six stages", arm="6-stage")


def test_labels_that_no_run_has_are_said() -> None:
    runs = context("stale_weights", "table_2", lambda arm: trained(50.0))
    with pytest.raises(
        NotLogged,
        match="no run of table_2 has model='LeNet-5', arm='6-stage', measure='loss'; its labels are arm, model",
    ):
        by_seed(runs, model="LeNet-5", arm="6-stage", measure="loss")


def test_a_misspelt_label_of_a_judge_is_told_apart_from_a_missing_log() -> None:
    runs = context("stale_weights", "table_2", lambda arm: None)
    with pytest.raises(NotLogged, match=r"unknown model 'VGG16' of table_2; did you mean 'VGG-16'\?"):
        by_seed(runs, arm="4-stage", model="VGG16")


@pytest.mark.parametrize(
    ("result", "claim"),
    [
        ("table_1", "spectrain_as_data"),
        ("table_1", "at_least_data_on_four"),
        ("text_headline_accuracy", "spectrain_none"),
    ],
)
def test_at_least_as_accurate_holds_of_the_same_accuracy(result: str, claim: str) -> None:
    alike = context("spectrain", result, trained_as({"Data P.": 70.0, "SpecTrain": 70.0}))
    assert JUDGES["spectrain", result, claim](alike).holds is True


def test_activations_that_a_scale_does_not_keep_are_not_spoken_of() -> None:
    make = trained_as({"PipeOptim": 80.0, "Vanilla-1F1B": 70.0})
    for scale, kinds in (("paper", 2), ("quick", 1)):
        runs = context("pipeoptim", "figure_7a", lambda arm: None if arm.left_out else make(arm), scale)
        finding = JUDGES["pipeoptim", "figure_7a", "above_vanilla"](runs)
        assert finding.why.count("activations") == kinds


@pytest.mark.parametrize("result", ["table_1", "table_2", "table_3"])
def test_no_claim_of_the_leaderboard_needs_a_run_that_the_quick_scale_leaves_out(in_project: None, result: str) -> None:
    make = accuracies(ORDER | ({"SpecTrain on 1F1B": 80.0} if result == "table_2" else {}))  # each claim holds
    quick = context("leaderboard", result, lambda arm: None if arm.left_out else make(arm), "quick")
    seeds = {item.arm.labels["arm"]: 0 for item in quick.select(what="learning")}
    for item in quick.select(what="learning"):
        seeds[item.arm.labels["arm"]] += item.log is not None
    assert sorted(set(seeds.values())) == [1, 3]
    for claim in load_paper("leaderboard").results[result].claims:
        assert JUDGES["leaderboard", result, claim.id](quick).holds is True, claim.id


@pytest.mark.parametrize(
    ("middle", "last", "falls"),
    [(85.0, 80.0, True), (90.0, 90.0, None), (99.0, 95.0, False), (99.0, 80.0, None), (70.0, 80.0, None)],
)
def test_few_positions_are_judged_by_the_first_and_the_last(middle: float, last: float, falls: bool | None) -> None:
    """Of table 3's seven numbers of stages a scale leaves four out. A middle one outside of the two is no fall."""

    def make(arm: Arm) -> RunLog | None:
        ends = {"8": 90.0, "14": middle, "20": last + 0.3 * (arm.seed - 1)}
        return trained(ends[arm.labels["arm"]]) if arm.labels["arm"] in ends else None

    whole = context("stale_weights", "table_3", make)
    items = [item if item.log else replace(item, arm=replace(item.arm, left_out="no time")) for item in whole.items]
    few = replace(whole, items=items)
    finding = JUDGES["stale_weights", "table_3", "accuracy_falls"](few)
    assert finding.holds is falls
    fall = f"the first above the last by {90 - last:+.2f} ± 0.75 (3 seeds)"
    assert f"90.00, {middle:.2f}, {last:.2f}; {fall}" in finding.why


@pytest.mark.parametrize("claim", ["t1_beats_naive", "t2_adds"])
def test_of_remedies_that_do_not_learn_to_translate_nothing_is_said(claim: str) -> None:
    def with_best(bleu: float) -> Any:
        def make(arm: Arm) -> RunLog | None:
            log = accuracies(ORDER)(arm)
            if log is not None:
                log.summary["best"] = {"bleu": bleu}
            return log

        return context("leaderboard", "table_3", make)

    assert JUDGES["leaderboard", "table_3", claim](with_best(1.0)).holds is True
    with pytest.raises(NotLogged, match="does not learn to translate here: seed 0: its best of all .* 0.99"):
        JUDGES["leaderboard", "table_3", claim](with_best(0.99))


def test_a_rate_is_chosen_by_the_mean_loss_over_seeds() -> None:
    """With one seed another has the lowest of all."""
    losses = {"1": (0.5, 0.5, 0.5), "1/2": (0.1, 0.9, 0.9)}

    def make(arm: Arm) -> RunLog:
        run = trained(80.0)
        run.rows[-1]["loss"] = losses.get(arm.labels["rate"], (1.0,) * 3)[arm.seed]
        return run

    runs = context("leaderboard", "table_4", make)
    assert chosen(runs, "PipeDream") == "1"
    assert rate_by_seed(runs, "PipeDream") == {0: 0.05, 1: 0.1, 2: 0.1}


def test_runs_at_a_common_rate_that_is_each_ones_own_are_judged_once() -> None:
    """By the table of the common rate; where one method wants another they are other runs, and judged again."""
    judged = JUDGES["leaderboard", "table_13", "prediction_over_none_own"]
    ends = {"XPipe": 80.0, "PipeOptim": 80.0, "1F1B, latest weights": 60.0}
    same, _ = searched("table_13", ends, {}, 70.0)
    with pytest.raises(NotLogged, match="each one's own rate is the common rate, so table 3 already judges these runs"):
        judged(same)
    other, _ = searched("table_13", ends, {}, 70.0, own_rates={"1F1B, latest weights": "1/2"})
    assert judged(other).holds is True
