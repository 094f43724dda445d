"""Arms of one table may have unlike numbers of seeds: pairs are of the seeds that both have, and words count them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import pipelag.results.leaderboard  # noqa: F401  (registers the tables)
import pipelag.results.pipedream  # noqa: F401
import pipelag.results.spectrain  # noqa: F401
import pipelag.results.stale_weights  # noqa: F401
from pipelag.experiments import Arm
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.judging import Difference, by_seed
from pipelag.results.leaderboard.board import best_of
from pipelag.results.leaderboard.scores import judged, means_text
from pipelag.results.logs import Item, RunLog
from pipelag.results.stale_weights.reading import listed
from pipelag.results.verdict import JUDGES, Verdict, verdicts
from tests.results.cases import pipedream  # noqa: F401  (registers the cases)
from tests.results.cases.leaderboard import networks
from tests.results.cases.spectrain import learnt
from tests.results.made_up import CASES, Make, context, trained, trained_as

pytestmark = pytest.mark.usefixtures("in_project")
FIVE = range(5)


def with_seeds(paper: str, result: str, make: Make, seeds_of: Callable[[Arm], Iterable[int]]) -> Context:
    """A result's runs, each arm with seeds of its own."""
    runs = context(paper, result, make)
    arms = [item.arm for item in runs.items if item.arm.seed == 0]
    every = [
        replace(arm, seed=seed, spec=arm.spec.model_copy(update={"seed": seed}))
        for arm in arms
        for seed in seeds_of(arm)
    ]
    return replace(runs, items=[Item(arm, make(arm)) for arm in every])


def more_for(*names: str, by: str = "arm") -> Callable[[Arm], Iterable[int]]:
    """Five seeds for the arms whose label is one of these names, three for the others."""
    return lambda arm: FIVE if arm.spec.kind == "train" and arm.labels.get(by) in names else range(3)


def judgements(runs: Context) -> Mapping[str, Verdict]:
    return {verdict.claim: verdict for verdict in verdicts(runs)}


def text_of(runs: Context) -> str:
    table = draw(runs).table
    assert table is not None
    return table.markdown()


def test_networks_are_compared_over_the_seeds_that_both_have() -> None:
    """Table 5's own runs are table 3's, which may have more seeds than fairseq's."""
    ours = lambda arm: FIVE if arm.labels.get("writer") == "ours" else range(3)  # noqa: E731
    verdict = judgements(runs := with_seeds("leaderboard", "table_5", networks(), ours))
    assert {each.verdict for each in verdict.values()} == {"holds"}
    assert "60 of 60 evaluations" in verdict["same_translations"].why  # 20 of each of three seeds
    assert "fairseq's 89.8, ours 90.0: -0.20 ± 1.24 (3 seeds)" in verdict["bleu_not_told_apart"].why
    text = text_of(runs)
    assert "mean ± one standard deviation over seeds, 3 where nothing else is said" in text
    assert "91.0 ± 1.6 (5 seeds)" in text and "89.8 ± 1.5 |" in text


def test_networks_without_a_seed_in_common_are_not_compared() -> None:
    apart = lambda arm: [0] if arm.labels["network"] == "ours" and arm.labels.get("writer") != "fairseq's" else [1]  # noqa: E731
    verdict = judgements(with_seeds("leaderboard", "table_5", networks(), apart))
    for claim in ("same_first_loss", "same_translations", "bleu_not_told_apart"):
        assert verdict[claim].verdict == "cannot be judged"
        assert "no seed in common" in verdict[claim].why


def test_networks_that_diverge_or_learn_nothing_are_not_alike() -> None:
    """Two runs that end with no BLEU at all would be within two BLEU of each other, and write the same."""
    gone: Make = lambda arm: trained(diverged_at=7) if arm.labels["what"] == "learning" else networks()(arm)  # noqa: E731
    verdict = judgements(runs := context("leaderboard", "table_5", gone))
    assert verdict["bleu_not_told_apart"].verdict == "cannot be judged"
    assert "ours network diverged at step 7" in verdict["bleu_not_told_apart"].why
    assert verdict["same_translations"].why == "no evaluation of the two runs has a BLEU"
    assert "0.0 ± 0.0" in text_of(runs)
    low = networks({(network, "sequential"): 0.5 for network in ("ours", "fairseq's")})
    told = judgements(context("leaderboard", "table_5", lambda arm: at_least_zero(low(arm))))["bleu_not_told_apart"]
    assert told.verdict == "cannot be judged" and "does not learn to translate" in told.why


def at_least_zero(run: RunLog | None) -> RunLog | None:
    """Without the noise of made-up logs, by which a BLEU may be below zero or above one."""
    best = run.summary.get("best") if run is not None else None
    if run is None or best is None:
        return run
    return replace(run, summary=run.summary | {"best": best | {"bleu": min(best["bleu"], 0.9)}})


def test_a_first_minibatch_that_diverges_leaves_a_table() -> None:
    def make(arm: Arm) -> RunLog | None:
        first = arm.labels["what"] == "first" and arm.seed == 0
        return trained(diverged_at=0) if first else networks()(arm)

    runs = context("leaderboard", "table_5", make)
    assert "4.315" in text_of(runs)  # the mean of the other two
    assert judgements(runs)["same_first_loss"].verdict == "cannot be judged"


def test_cells_say_how_many_seeds_they_have_where_others_have_more() -> None:
    phases = [{"forward_delays": [0]}]
    ends = trained_as(
        {"sequential": 70.0, "PipeDream": 60.0, "PipeOptim": 65.0, "LWP_w": 60.0}, spread=1.0, phases=phases
    )
    runs = with_seeds("leaderboard", "table_2", ends, more_for("sequential"))
    text = text_of(runs)
    assert "Accuracy: mean ± one standard deviation over seeds, 3 where nothing else is said." in text
    assert "71.00 ± 1.58 (5 seeds)" in text and "| 65.00 ± 1.00 |" in text
    words = judged(runs, [("sequential", "PipeOptim")]).why
    assert words.startswith("sequential 71.00 % (5 seeds), PipeOptim 65.00 % (3 seeds); ")
    assert "sequential minus PipeOptim: +5.00 ± 0.00 (3 seeds)" in words
    assert "\n- Accuracy: one seed." in text_of(with_seeds("leaderboard", "table_2", ends, lambda arm: [0]))
    alike = text_of(context("leaderboard", "table_2", ends))
    assert "Accuracy: mean ± one standard deviation over 3 seeds." in alike and "| 70.00 ± 1.00 |" in alike


def test_the_usual_number_of_seeds_is_the_one_that_most_costs_have() -> None:
    def ending(arm: Arm) -> RunLog | None:
        sequential = arm.labels["arm"].startswith("sequential")
        return trained(60.0 - (0.0 if sequential else 5.0) + arm.seed, phases=[{}])

    half = with_seeds("leaderboard", "table_8", ending, more_for("half", by="work"))
    assert "+5.00 ± 0.00 (5 seeds)" in text_of(half) and "over seeds, 3 where nothing else is said" in text_of(half)
    whole = text_of(with_seeds("leaderboard", "table_8", ending, lambda arm: FIVE))
    assert "(5 seeds)" not in whole and "interval over 5 seeds, paired" in whole


def test_prices_of_runs_of_which_one_diverges_with_each_seed_are_unknown() -> None:
    """The verdict says so and goes on to the other places; it said that the arms have no seed in common."""

    def make(arm: Arm) -> RunLog | None:
        gone = arm.labels["stages"] == "16" and arm.labels["optimizer"] == "Adam"
        lost = 0.0 if arm.labels["arm"] == "sequential" else 2.0 if arm.labels["optimizer"] == "NAdam" else 5.0
        return trained(diverged_at=7) if gone else trained(60.0 - lost + arm.seed)

    told = judgements(context("leaderboard", "table_9", make))["look_ahead_not_momentum"]
    assert told.verdict == "cannot be judged"
    assert "8 stages: PipeDream with Adam 5.00, PipeDream with NAdam 2.00, less by 3.00 ± 0.00 (3 seeds)" in told.why
    unknown = "PipeDream with Adam, PipeDream with NAdam, unknown (with no seed do all of them finish)"
    assert f"16 stages: {unknown}; runs that diverge: 16 stages, PipeDream with Adam 3 of 3" in told.why


def test_a_lines_points_are_of_the_same_seeds() -> None:
    """Otherwise its slope would be that of the seeds, too."""

    def ending(arm: Arm) -> RunLog | None:
        sequential = arm.labels["arm"].startswith("sequential")
        return trained(60.0 - (0.0 if sequential else arm.spec.phases[0].stages) - 5 * (arm.seed > 2), phases=[{}])

    shallow = lambda arm: FIVE if arm.spec.phases[0].stages < 8 else range(3)  # noqa: E731
    drawn = draw(with_seeds("leaderboard", "figure_3", ending, shallow))
    assert drawn.data is not None and set(drawn.data["seed"]) == {0, 1, 2}
    assert "; 3 seeds, bands" in drawn.footer(with_seeds("leaderboard", "figure_3", ending, shallow))


def test_spectrains_cells_say_how_many_seeds_they_have_where_others_have_more() -> None:
    text = text_of(with_seeds("spectrain", "table_1", learnt({}, apart=1.0), more_for("Data P.")))
    assert "Ours: mean ± one standard deviation over seeds, 3 where nothing else is said." in text
    cells = {line.split(" | ")[1]: line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| VGG16")}
    assert "(5 seeds)" in cells["Data P."] and "seeds)" not in cells["SpecTrain"]


@pytest.mark.parametrize(
    ("result", "claim", "more"),
    [
        ("figure_11", "as_many_epochs_here", "data parallelism"),
        ("figure_11", "as_many_epochs_here", "PipeDream"),
        ("text_asp", "seven_times", "ASP"),
        ("text_asp", "seven_times", "PipeDream"),
    ],
)
def test_arrivals_are_compared_over_the_seeds_that_both_have(result: str, claim: str, more: str) -> None:
    """A further seed of one arm, with which it never arrives, says nothing about the others."""
    holds, _ = CASES["pipedream", result, claim]()
    items = []
    for item in holds.items:
        items.append(item)
        if (
            item.log is not None
            and item.arm.spec.kind == "train"
            and item.arm.labels["arm"] == more
            and not item.arm.seed
        ):
            never = replace(item.log, rows=[row | {"accuracy": 10.0} for row in item.log.rows])
            spec = item.arm.spec.model_copy(update={"seed": 3})
            items.append(Item(replace(item.arm, seed=3, spec=spec), never))
    assert len(items) > len(holds.items)
    finding = JUDGES["pipedream", result, claim](replace(holds, items=items))
    assert finding.holds is True and "(3 seeds)" in finding.why


def test_captions_type_no_number_of_seeds() -> None:
    for path in sorted(Path("config/papers").glob("*.yaml")):
        for name, result in yaml.safe_load(path.read_text())["results"].items():
            words = result["caption"].split()
            counted = [before for before, word in zip(words, words[1:], strict=False) if word.startswith("seed")]
            assert not {"one", "two", "three", "four", "five"} & set(counted), (path, name)
            assert not any(before.isdigit() for before in counted), (path, name)


def test_sentences_count_the_seeds_of_each_difference_where_they_differ() -> None:
    three, five = (Difference(1.0, 0.5, seeds) for seeds in (3, 5))
    assert listed({"a": three, "b": three}) == "a +1.00 ± 0.50, b +1.00 ± 0.50 (3 seeds)"
    assert listed({"a": three, "b": five}) == "a +1.00 ± 0.50 (3 seeds), b +1.00 ± 0.50 (5 seeds)"
    assert means_text({"a": {0: 1.0}, "b": {0: 2.0, 1: 4.0}}) == "a 1.00 % (one seed), b 3.00 % (2 seeds)"
    assert means_text({"a": {0: 1.0, 1: 0.0}, "b": {0: 2.0}}) == "a 1.00 % (of 1 of 2 seeds), b 2.00 % (one seed)"


def test_a_drop_over_fewer_seeds_says_so() -> None:
    ends = trained_as({"non-pipelined": 90.0, "4-stage": 88.0, "6-stage": 86.0}, spread=1.0)
    text = text_of(with_seeds("stale_weights", "table_2", ends, more_for("non-pipelined", "4-stage")))
    assert "Accuracies: mean ± standard deviation over seeds, 5 where nothing else is said." in text
    assert "2.00 ± 0.00 |" in text and "4.00 ± 0.00 (3 seeds)" in text


def test_what_diverges_at_every_rate_has_no_rate_of_its_own() -> None:
    """The first rate of the config is no better than another; with some seed, what diverges least is better."""
    seeds = {"Stale weights": (0, 1, 2), "1F1B, latest weights": (0,), "PipeDream": (0,)}

    def make(arm: Arm) -> RunLog | None:
        gone = arm.seed in seeds.get(arm.labels["arm"], ())
        gone |= arm.seed == 1 and arm.labels["arm"] == "PipeDream" and arm.labels["rate"] == "1"
        run = trained(70.0)
        run.rows[-1]["loss"] = 0.5 if arm.labels["rate"] == "1" else 0.7
        return trained(diverged_at=7) if gone else run

    runs = context("leaderboard", "table_4", make)
    told = judgements(runs)["staleness_wants_less"]
    assert told.verdict == "cannot be judged"
    assert told.why == "1F1B, latest weights diverges with seed 0 at each of its rates, so that none is chosen"
    rows = {line.split(" | ")[0]: line.split(" | ")[1:3] for line in text_of(runs).splitlines()}
    assert rows["| Stale weights"] == ["–", "–"]
    assert rows["| 1F1B, latest weights"] == ["0.1", "70.00 ± 0.00 (2 of 3 seeds, one diverges)"]
    assert rows["| PipeDream"] == ["≥ 0.2", "70.00 ± 0.00 (2 of 3 seeds, one diverges)"]


def test_of_methods_that_all_diverge_with_some_seed_the_best_does_with_the_fewest() -> None:
    gone = {"SC": (0, 1), "DC-ASGD": (0,)}
    make = lambda arm: trained(diverged_at=7) if arm.seed in gone.get(arm.labels["arm"], ()) else trained(50.0)  # noqa: E731
    assert best_of(context("leaderboard", "table_1", make), ("SC", "DC-ASGD")) == "DC-ASGD"


def test_seeds_that_are_left_out_leave_no_dash() -> None:
    """A table's note on dashes is about arms that are not run; the footer names left-out seeds of the others."""

    def left_out(item: Item) -> Item:
        why = (
            "too long" if item.arm.labels["arm"] == "PipeOptim with AdamW" else "three do" if item.arm.seed > 2 else ""
        )
        return Item(replace(item.arm, left_out=why), None) if why else item

    runs = with_seeds("leaderboard", "table_12", lambda arm: trained(50.0), lambda arm: FIVE)
    runs = replace(runs, items=[left_out(item) for item in runs.items])
    drawn = draw(runs)
    assert drawn.table is not None
    (note,) = [note for note in drawn.table.notes if note.startswith("–")]
    assert note == "–: not run here; PipeOptim with AdamW (too long)."
    assert "1F1B with NAdam: seeds 3, 4 (three do); PipeOptim with AdamW (too long)." in drawn.footer(runs)
    seeds = replace(runs, items=[item for item in runs.items if item.arm.labels["arm"] != "PipeOptim with AdamW"])
    drawn = draw(seeds)
    assert drawn.table is not None and not [note for note in drawn.table.notes if note.startswith("–")]
    assert "Left out: seed 3, seed 4 (three do)." in drawn.footer(seeds)


def test_a_left_out_seed_that_another_result_has_logged_counts_in_tables_as_in_verdicts() -> None:
    """The runs of two results may be the same, and only one of them may leave out seeds."""
    ends = trained_as({"non-pipelined": 90.0, "4-stage": 88.0}, spread=1.0)
    runs = context("stale_weights", "table_2", ends)
    left_out = [
        Item(replace(item.arm, left_out="two do" if item.arm.seed == 2 else ""), item.log) for item in runs.items
    ]
    accuracy = replace(runs, items=left_out).accuracy(model="LeNet-5", arm="4-stage")
    assert accuracy.text() == "88.00 ± 1.00" and accuracy.complete
    assert set(by_seed(replace(runs, items=left_out), model="LeNet-5", arm="4-stage")) == {0, 1, 2}
