"""What makes every claim about PipeMare true, and what makes it false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.made_up import Make, Pair, altered, both, carried_out, case, log, trained, with_rows, with_summary

PAPER = "pipemare"
EPOCHS = {"images": 200.0, "ImageNet": 100.0, "translation": 60.0, "WMT17": 80.0}
BLEU = ("translation", "WMT17")
Score = float | list[float] | int | None  # the best and last; a line of evaluations; the step of divergence; no log
Scores = Callable[[Mapping[str, str]], Score]


def training(scores: Scores | Mapping[str, Score], hardware: bool = False) -> Make:
    """Training logs of an arm's labels, as long as the run; an integer is the step at which it diverged.

    hardware: runs that need no training are carried out; else they have no log.
    """

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind != "train":
            return carried_out(arm) if hardware else None
        value = scores(arm.labels) if callable(scores) else scores.get(arm.labels["arm"])
        if value is None:
            return None
        task = arm.labels["task"]
        length = {"steps": arm.spec.steps, "epochs": EPOCHS[task]}
        if isinstance(value, int):
            return trained(diverged_at=value, **length)
        line = value if isinstance(value, list) else None
        number = value[-1] if isinstance(value, list) else value + 0.01 * arm.seed
        return trained(**{"bleu" if task in BLEU else "accuracy": number}, line=line, **length)

    return make


def pair(result: str, holds: Any, fails: Any, hardware: bool = False) -> Pair:
    """Two sets of trainings at the paper scale."""
    return both(PAPER, result, training(holds, hardware), training(fails, hardware), scale="paper")


def changed(result: str, change: Callable[[Arm, RunLog], RunLog | None]) -> Pair:
    """Runs without training as they are, and changed."""
    return both(PAPER, result, carried_out, altered(change), scale="quick")


def of_arm(word: str, change: Callable[[Arm, RunLog], RunLog | None]) -> Callable[[Arm, RunLog], RunLog | None]:
    """A change of the runs whose arm begins with a word."""
    return lambda arm, run: change(arm, run) if arm.labels["arm"].startswith(word) else run


def rising(last: float, over: int, points: int = 20) -> list[float]:
    """A line that reaches its end after so many of its evaluations."""
    return [min(last, last * (i + 1) / over) for i in range(points)]


# Figure 1 and table 1


@case(PAPER, "figure_1", "gpipe_bubbles_one_copy")
def gpipe_bubbles() -> Pair:
    return changed(
        "figure_1",
        of_arm("GPipe", with_rows(lambda row: row | {"stashed": row["kind"] == "B", "reads": row["minibatch"] // 2})),
    )


@case(PAPER, "figure_1", "pipedream_copies_no_bubbles")
def pipedream_copies() -> Pair:
    live = with_rows(lambda row: row | {"stashed": False})
    return changed("figure_1", of_arm("PipeDream", live))


@case(PAPER, "figure_1", "pipemare_neither")
def pipemare_neither() -> Pair:
    stashed = with_rows(lambda row: row | {"stashed": row["kind"] == "B"})
    return changed("figure_1", of_arm("PipeMare", stashed))


@case(PAPER, "table_1", "delays_as_formula")
def delays_as_formula() -> Pair:
    one_less = with_summary(forward_delays=lambda lags: [lag - 1 for lag in lags])
    return changed("table_1", of_arm("PipeMare", one_less))


@case(PAPER, "table_1", "utilisation_order")
def utilisation_order() -> Pair:
    return changed("table_1", of_arm("GPipe", with_summary(utilisation=lambda used: used * 1.01)))


@case(PAPER, "table_1", "memory_order")
def memory_order() -> Pair:
    return changed("table_1", of_arm("PipeMare", with_summary(weight_copies=lambda copies: [n + 1 for n in copies])))


@case(PAPER, "table_1", "memory_as_formula")
def memory_as_formula() -> Pair:
    return changed("table_1", of_arm("PipeDream", with_summary(weight_copies=lambda copies: [n - 1 for n in copies])))


# The quadratic model


def flat(arm: Arm, run: RunLog) -> RunLog:
    """Losses that stay where they begin."""
    return with_rows(lambda row: row | {"loss": 0.5})(arm, run)


def growing(arm: Arm, run: RunLog) -> RunLog:
    """Losses that grow by a fortieth a step."""
    return with_rows(lambda row: row | {"loss": 0.5 * 1.025 ** row["step"]})(arm, run)


@case(PAPER, "figure_5a", "tau_10_diverges")
def tau_10_diverges() -> Pair:
    return changed("figure_5a", of_arm("tau = 10", flat))


@case(PAPER, "figure_5a", "small_tau_bounded")
def small_tau_bounded() -> Pair:
    return changed("figure_5a", of_arm("tau = 7", growing))


@case(PAPER, "figure_6a", "larger_delta_diverges")
def larger_delta_diverges() -> Pair:
    return changed("figure_6a", of_arm("Delta", flat))


@case(PAPER, "figure_5b", "slope_minus_one")
def slope_minus_one() -> Pair:
    def as_root(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"loss": 1.0 if row["alpha"] <= 0.5 / row["tau"] ** 0.5 else None}

    return changed("figure_5b", with_rows(as_root))


@case(PAPER, "figure_5b", "on_lemma_1")
def on_lemma_1() -> Pair:
    def half(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"loss": 1.0 if row["alpha"] <= row["bound"] / 2 else None}

    return changed("figure_5b", with_rows(half))


@case(PAPER, "figure_6b", "t2_lowers")
def t2_lowers() -> Pair:
    return changed("figure_6b", of_arm("T2", with_rows(lambda row: row | {"radius": row["radius"] + 0.5})))


@case(PAPER, "figure_6b", "t2_nearer")
def t2_nearer() -> Pair:
    return changed("figure_6b", of_arm("T2", with_rows(lambda row: row | {"radius": row["radius"] - 0.5})))


@case(PAPER, "figure_16", "correction_lowers")
def correction_lowers() -> Pair:
    return changed("figure_16", of_arm("corrected", with_rows(lambda row: row | {"radius": row["radius"] + 2})))


@case(PAPER, "figure_16", "correction_widens")
def correction_widens() -> Pair:
    return changed("figure_16", of_arm("corrected", with_rows(lambda row: row | {"largest_stable": 0.001})))


@case(PAPER, "figure_16", "discrepancy_raises")
def discrepancy_raises() -> Pair:
    return changed("figure_16", of_arm("discrepancy, no recompute", with_rows(lambda row: row | {"radius": 0.5})))


def stable_ranges(
    original: Callable[[float], float], mended: Callable[[float], float], pairs: int = 820, deepest: int = 27
) -> Make:
    """Figure 10's logs, with the largest stable step sizes by Delta."""
    all_of_them = [(f, b) for f in range(1, 41) for b in range(f)][:pairs]

    def make(arm: Arm) -> RunLog:
        if arm.labels["panel"] == "pipelines":
            return log([{"method": "PipeMare", "stages": 9, "microbatches": 2, "forward_delays": [deepest, 0]}])
        if arm.labels["panel"] in ("all", "below 0"):
            rows = [
                {"forward": f, "backward": b, "delta": d, "original": original(d), "T2": mended(d)}
                for f, b in all_of_them
                for d in arm.spec.options["deltas"]
            ]
            return log(rows)
        of = original if arm.labels["arm"] == "original" else mended
        return log([{"delta": float(d), "largest_stable": of(d)} for d in range(-100, 101, 10)])

    return make


def narrow(delta: float) -> float:
    return 0.04 / (1 + abs(delta))


def wide(delta: float) -> float:
    return narrow(delta) * (2 if delta > 0 else 1 if delta == 0 else 0.8)


@case(PAPER, "figure_10", "t2_wider")
def t2_wider() -> Pair:
    return both(PAPER, "figure_10", stable_ranges(narrow, wide), stable_ranges(wide, narrow))


@case(PAPER, "figure_10", "sometimes_worse")
def sometimes_worse() -> Pair:
    return both(PAPER, "figure_10", stable_ranges(narrow, wide), stable_ranges(narrow, lambda d: 2 * narrow(d)))


@case(PAPER, "figure_10", "seldom_worse")
def seldom_worse() -> Pair:
    return both(PAPER, "figure_10", stable_ranges(narrow, lambda d: 2 * narrow(d)), stable_ranges(narrow, wide))


@case(PAPER, "figure_10", "own_delays_worse_here")
def own_delays_worse_here() -> Pair:
    return both(PAPER, "figure_10", stable_ranges(narrow, wide), stable_ranges(narrow, lambda d: 2 * narrow(d)))


@case(PAPER, "figure_10", "covers_the_delays")
def covers_the_delays() -> Pair:
    return both(
        PAPER,
        "figure_10",
        stable_ranges(narrow, wide, deepest=40),
        stable_ranges(narrow, wide, deepest=41),
    )


@case(PAPER, "figure_10", "all_pairs")
def all_pairs() -> Pair:
    return both(PAPER, "figure_10", stable_ranges(narrow, wide), stable_ranges(wide, narrow))


def lemma(number: int, **entries: Callable[[dict[str, Any]], Any]) -> Callable[[Arm, RunLog], RunLog]:
    """A change of the rows of a lemma."""
    return with_rows(lambda row: row | {k: v(row) for k, v in entries.items()} if row["lemma"] == number else row)


@case(PAPER, "text_lemma_1", "threshold")
def threshold() -> Pair:
    return changed("text_lemma_1", lemma(1, above=lambda row: 0.999))


@case(PAPER, "text_lemma_2", "unstable_below_bound")
def unstable_below_bound() -> Pair:
    return changed("text_lemma_2", lemma(2, stable=lambda row: 1.01 * row["bound"]))


@case(PAPER, "text_lemma_3", "no_escape")
def no_escape() -> Pair:
    return changed("text_lemma_3", lemma(3, stable=lambda row: 1.01 * row["bound"] if row["beta"] > 0.9 else 0.0))


@case(PAPER, "text_lemma_4", "towards_one")
def towards_one() -> Pair:
    return changed("text_lemma_4", lemma(1, omega=lambda row: 0.5))


@case(PAPER, "text_decay", "free_of_delta")
def free_of_delta() -> Pair:
    return changed("text_decay", with_rows(lambda row: row | {"gamma": 0.135 ** (1 / row["gap"])}))


@case(PAPER, "text_decay", "near_exp_minus_2")
def near_exp_minus_2() -> Pair:
    return changed("text_decay", with_rows(lambda row: row | {"D": row["D"] + 0.001}))


# Activations, memory and compute


def longer_segments(pipeline: str) -> Pair:
    """As if segments twice as long cached what those of that length do."""

    def later(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"segment": 2 * row["segment"]} if row["pipeline"] == pipeline else row

    return changed("text_segments", with_rows(later))


@case(PAPER, "text_segments", "root_of_stages")
def root_of_stages() -> Pair:
    return longer_segments("PipeMare")


@case(PAPER, "text_segments", "root_of_microbatches")
def root_of_microbatches() -> Pair:
    return longer_segments("GPipe")


@case(PAPER, "figure_9", "heads_only")
def heads_only() -> Pair:
    return changed("figure_9", with_rows(lambda row: row | {"with": row["without"]}))


@case(PAPER, "figure_9", "sum_far_below")
def sum_far_below() -> Pair:
    return changed("figure_9", with_rows(lambda row: row | {"with": [n - 1 for n in row["without"]]}))


@case(PAPER, "figure_9", "as_appendix")
def as_appendix() -> Pair:
    return changed("figure_9", with_rows(lambda row: row | {"with": [n + 1 for n in row["with"]]}))


@case(PAPER, "table_4", "stages_exponent")
def stages_exponent() -> Pair:
    return changed("table_4", with_rows(lambda row: row | {"with": row["without"]}))


@case(PAPER, "table_4", "microbatches_exponent")
def microbatches_exponent() -> Pair:
    return changed("table_4", with_rows(lambda row: row | {"with": row["without"]}))


@case(PAPER, "table_5", "one_over_root")
def one_over_root() -> Pair:
    def as_printed(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"with": [1.0], "without": [row["stages"] ** 0.5]}

    return both(PAPER, "table_5", altered(with_rows(as_printed)), carried_out, scale="quick")


def no_average(arm: Arm, run: RunLog) -> RunLog:
    """As if T2 kept nothing."""
    return with_rows(lambda row: row | {"average": 0})(arm, run)


@case(PAPER, "text_t2_memory", "third")
def third() -> Pair:
    return changed("text_t2_memory", of_arm("SGD", no_average))


@case(PAPER, "text_t2_memory", "quarter")
def quarter() -> Pair:
    return changed("text_t2_memory", of_arm("Adam", no_average))


def activations_times(factor: float) -> Callable[[Arm, RunLog], RunLog]:
    """The real counts with so many times the activations of each layer."""
    return with_rows(lambda row: row | {"activations": factor * row["activations"]} if "activations" in row else row)


@case(PAPER, "text_activation_memory", "major")
def activations_are_major() -> Pair:
    return changed("text_activation_memory", activations_times(1 / 1000))


@case(PAPER, "text_activation_memory", "less_than_pipedream_here")
def less_than_pipedream_here() -> Pair:
    small, counted = altered(activations_times(1 / 1000)), altered(activations_times(1.0))
    return both(PAPER, "text_activation_memory", small, counted, scale="quick")


@case(PAPER, "text_activation_memory", "more_than_gpipe_here")
def more_than_gpipe_here() -> Pair:
    no_queues = with_rows(lambda row: row | {"with": [1] * row["stages"]} if "without" in row else row)
    return changed("text_activation_memory", no_queues)


@case(PAPER, "text_recompute_compute_share", "a_quarter")
def a_quarter() -> Pair:
    return changed("text_recompute_compute_share", with_rows(lambda row: row | {"backward": row["forward"]}))


# Table 3 and the training curves


@case(PAPER, "table_3", "cifar_t2_below")
def cifar_t2_below() -> Pair:
    return pair("table_3", {"T1": 95.0, "T2": 94.5}, {"T1": 94.5, "T2": 95.0})


@case(PAPER, "table_3", "cifar_t1_as_both")
def cifar_t1_as_both() -> Pair:
    return pair("table_3", {"T1": 95.0, "T1+T2": 95.05}, {"T1": 95.0, "T1+T2": 95.5})


@case(PAPER, "table_3", "cifar_neither_diverges")
def cifar_neither_diverges() -> Pair:
    return pair("table_3", {"neither": 700}, {"neither": 80.0})


@case(PAPER, "table_3", "iwslt_t2_zero")
def iwslt_t2_zero() -> Pair:
    return pair("table_3", {"T2": 0.1}, {"T2": 2.3})


@case(PAPER, "table_3", "iwslt_without_t1")
def iwslt_without_t1() -> Pair:
    return pair("table_3", {"T2": 0.1, "neither": 0.9}, {"T2": 0.1, "neither": 2.3})


@case(PAPER, "table_3", "iwslt_w_adds")
def iwslt_w_adds() -> Pair:
    return pair("table_3", {"T1+T2": 34.1, "T1+T2+W": 34.5}, {"T1+T2": 34.1, "T1+T2+W": 36.0})


@case(PAPER, "table_3", "iwslt_w_as_sync")
def iwslt_w_as_sync() -> Pair:
    return pair("table_3", {"Sync": 34.5, "T1+T2+W": 34.4}, {"Sync": 34.5, "T1+T2+W": 33.9})


@case(PAPER, "table_3", "iwslt_t1_twice")
def iwslt_t1_twice() -> Pair:
    twice = {"Sync": rising(34.5, 8), "T1": rising(34.4, 16)}
    return pair("table_3", twice, {"Sync": rising(34.5, 4), "T1": rising(34.4, 16)})


@case(PAPER, "table_3", "t1_lifts")
def t1_lifts() -> Pair:
    return pair("table_3", {"T1": 34.0, "neither": 3.0}, {"T1": 3.0, "neither": 34.0})


@case(PAPER, "table_3", "t2_mends_with_t1")
def t2_mends_with_t1() -> Pair:
    return pair("table_3", {"T1+T2": 34.0, "T2": 3.0}, {"T1+T2": 3.0, "T2": 34.0})


@case(PAPER, "table_3", "t1_lifts_translation_here")
def t1_lifts_translation_here() -> Pair:
    def scores(t1: float, neither: float) -> Scores:
        """Of images all alike, which does not matter here."""
        of = {"T1": t1, "neither": neither}
        return lambda labels: of.get(labels["arm"], 50.0) if labels["task"] == "translation" else 50.0

    return pair("table_3", scores(34.0, 3.0), scores(3.0, 34.0))


@case(PAPER, "table_3", "gap_remains_here")
def gap_remains_here() -> Pair:
    return pair("table_3", {"Sync": 34.5, "T1+T2+W": 17.0}, {"Sync": 34.5, "T1+T2+W": 34.5})


@case(PAPER, "figure_4", "finest_diverges")
def finest_diverges() -> Pair:
    return pair(
        "figure_4", {"no discrepancy, many more stages": 40}, {"no discrepancy, many more stages": [60.0, 10.0]}
    )


@case(PAPER, "figure_4", "plain_does_not")
def plain_does_not() -> Pair:
    return pair("figure_4", {"no discrepancy": 94.0}, {"no discrepancy": [60.0, 10.0]})


@case(PAPER, "figure_4", "discrepancy_diverges")
def discrepancy_diverges() -> Pair:
    return pair("figure_4", {"neither": 300, "no discrepancy": 94.0}, {"neither": 60.0, "no discrepancy": 94.0})


@case(PAPER, "figure_4", "discrepancy_hurts")
def discrepancy_hurts() -> Pair:
    return pair("figure_4", {"neither": 60.0, "no discrepancy": 94.0}, {"neither": 94.0, "no discrepancy": 60.0})


@case(PAPER, "figure_4", "delay_hurts")
def delay_hurts() -> Pair:
    falling = {"Sync": 95.0, "no discrepancy": 90.0, "no discrepancy, many more stages": 10.0}
    return pair("figure_4", falling, falling | {"no discrepancy": 96.0})


@case(PAPER, "figure_7", "all_reach_sync")
def all_reach_sync() -> Pair:
    return pair("figure_7", {"Sync": 95.0, "T1": 95.0, "T1+T2": 94.95}, {"Sync": 95.0, "T1": 95.0, "T1+T2": 94.0})


@case(PAPER, "figure_7", "convergence_order")
def convergence_order() -> Pair:
    order = {"Sync": rising(34.5, 4), "T1+T2+W": rising(34.5, 5), "T1+T2": rising(34.1, 9), "T1": rising(34.1, 12)}
    return pair("figure_7", order, order | {"T1+T2+W": rising(34.5, 10)})


@case(PAPER, "figure_7", "stable_over_seeds")
def stable_over_seeds() -> Pair:
    def scattered(arm: Arm) -> RunLog | None:
        if arm.labels["arm"] != "T1":
            return training(lambda labels: 90.0)(arm)
        score = 90.0 + 3 * arm.seed
        return trained(**{"bleu" if arm.labels["task"] in BLEU else "accuracy": score})

    return both(PAPER, "figure_7", training(lambda labels: 90.0), scattered)


@case(PAPER, "figure_7", "t2_speeds_up")
def t2_speeds_up() -> Pair:
    faster = {"T1+T2": rising(30.0, 5), "T1": rising(30.0, 9)}
    return pair("figure_7", faster, {"T1+T2": rising(30.0, 9), "T1": rising(30.0, 5)})


@case(PAPER, "figure_7", "warmup_speeds_up_here")
def warmup_speeds_up_here() -> Pair:
    faster = {"T1+T2+W": rising(30.0, 5), "T1+T2": rising(30.0, 9)}
    return pair("figure_7", faster, {"T1+T2+W": rising(30.0, 9), "T1+T2": rising(30.0, 5)})


def split(scores: Mapping[tuple[str, str], Score]) -> Scores:
    """Scores by the label `split` and the arm."""
    return lambda labels: scores.get((labels["split"], labels["arm"]), 50.0)


@case(PAPER, "figure_8", "resnet_needs_t2")
def resnet_needs_t2() -> Pair:
    return pair("figure_8", split({("2", "T1"): 900}), split({("2", "T1"): 80.0}))


@case(PAPER, "figure_8", "resnet_t2_trains")
def resnet_t2_trains() -> Pair:
    return pair("figure_8", split({("2", "T1+T2"): 94.0}), split({("2", "T1+T2"): [80.0, 10.0]}))


@case(PAPER, "figure_8", "transformer_needs_t2")
def transformer_needs_t2() -> Pair:
    return pair(
        "figure_8", split({("2", "T1"): 5.0, ("2", "T1+T2"): 34.0}), split({("2", "T1"): 30.0, ("2", "T1+T2"): 34.0})
    )


def t2_worth_more() -> Pair:
    more = {("2", "T1"): 20.0, ("2", "T1+T2"): 34.0, ("1", "T1"): 33.0, ("1", "T1+T2"): 34.0}
    return pair("figure_8", split(more), split(more | {("1", "T1"): 10.0}))


def t1_weakens() -> Pair:
    return pair(
        "figure_8", split({("2", "T1"): 20.0, ("1", "T1"): 33.0}), split({("2", "T1"): 33.0, ("1", "T1"): 20.0})
    )


def t2_speeds_up_split() -> Pair:
    early, late = rising(80.0, 5), rising(80.0, 9)
    return pair(
        "figure_8",
        split({("2", "T1"): late, ("2", "T1+T2"): early}),
        split({("2", "T1"): early, ("2", "T1+T2"): late}),
    )


for _task in ("images", "translation"):
    case(PAPER, "figure_8", f"t2_worth_more_{_task}_here")(t2_worth_more)
    case(PAPER, "figure_8", f"t1_weakens_{_task}")(t1_weakens)
    case(PAPER, "figure_8", f"t2_speeds_up_{_task}")(t2_speeds_up_split)


@case(PAPER, "figure_12", "t1_diverges")
def t1_diverges() -> Pair:
    return pair("figure_12", {"Sync": 95.0, "T1": 900, "T1+T2": 95.0}, {"Sync": 95.0, "T1": 90.0, "T1+T2": 95.0})


@case(PAPER, "figure_12", "t2_reaches_sync")
def t2_reaches_sync() -> Pair:
    early = [95.0] * 8 + [90.0] * 12  # before the drop of the rate, after two fifths of the run
    return pair("figure_12", {"Sync": 95.0, "T1+T2": 94.95}, {"Sync": 95.0, "T1+T2": early})


@case(PAPER, "figure_12", "t2_needed")
def t2_needed() -> Pair:
    return pair("figure_12", {"T1": 10.0, "T1+T2": 95.0}, {"T1": 95.0, "T1+T2": 94.0})


def by_number(scores: Callable[[float], float]) -> Scores:
    """Scores by the number in the arm's name."""

    def of(labels: Mapping[str, str]) -> float:
        name = labels["arm"]
        return scores(float(name.split("= ")[1].split("/")[0])) if "=" in name else 30.0

    return of


@case(PAPER, "figure_13", "resnet_small_k")
def resnet_small_k() -> Pair:
    return pair("figure_13", by_number(lambda k: 95 - k / 100), by_number(lambda k: 90 + k / 100))


@case(PAPER, "figure_13", "transformer_large_k")
def transformer_large_k() -> Pair:
    return pair("figure_13", by_number(lambda k: 30 + k / 100), by_number(lambda k: 34 - k / 100))


@case(PAPER, "table_8", "t2_mends_short_annealing_here")
def t2_mends_short_annealing() -> Pair:
    def scores(mended: float) -> Scores:
        return lambda labels: mended if labels["arm"].startswith("K with T2") else 20.0

    return pair("table_8", scores(30.0), scores(12.0))


def some_k_matches(sync: float) -> Pair:
    """Of the grid the smallest K is as good as synchronous training, and none is."""

    def scores(first: float) -> Scores:
        of = by_number(lambda k: first if k in (10, 15) else sync - 5.0)
        return lambda labels: sync if labels["arm"] == "Sync" else of(labels)

    return pair("figure_13", scores(sync), scores(sync - 5.0))


case(PAPER, "figure_13", "some_k_matches_images")(lambda: some_k_matches(95.0))
case(PAPER, "figure_13", "some_k_matches_translation")(lambda: some_k_matches(34.5))


@case(PAPER, "figure_14", "small_d_converges")
def small_d_converges() -> Pair:
    return pair("figure_14", by_number(lambda d: 34 - d), by_number(lambda d: 34 - 30 * d))


@case(PAPER, "figure_14", "small_d_converges_images")
def small_d_converges_images() -> Pair:
    return pair("figure_14", by_number(lambda d: 34 - d), by_number(lambda d: 29 - d))


def half_not_faster() -> Pair:
    return pair("figure_14", by_number(lambda d: 34 - 10 * d), by_number(lambda d: 34 - d))


def improper_d_worse() -> Pair:
    return pair("figure_14", by_number(lambda d: 34 - 10 * d), by_number(lambda d: 34 - d))


for _task in ("images", "translation"):
    case(PAPER, "figure_14", f"half_not_faster_{_task}")(half_not_faster)
    case(PAPER, "figure_14", f"improper_d_worse_{_task}")(improper_d_worse)


@case(PAPER, "figure_14", "half_matches")
def half_matches() -> Pair:
    return pair("figure_14", {"Sync": 95.0, "D = 0.5": 94.95}, {"Sync": 95.0, "D = 0.5": 94.0})


@case(PAPER, "figure_19", "cifar_t1_adds")
def cifar_t1_adds() -> Pair:
    return pair(
        "figure_19",
        {"Sync": 95.0, "Hogwild": 94.51, "Hogwild+T1": 94.8},
        {"Sync": 95.0, "Hogwild": 94.0, "Hogwild+T1": 94.8},
    )


@case(PAPER, "figure_19", "iwslt_t1_adds")
def iwslt_t1_adds() -> Pair:
    return pair(
        "figure_19",
        {"Sync": 34.5, "Hogwild": 3.6, "Hogwild+T1": 33.8},
        {"Sync": 34.5, "Hogwild": 30.0, "Hogwild+T1": 33.8},
    )


@case(PAPER, "figure_19", "t1_reaches_sync_images")
def t1_reaches_sync_images() -> Pair:
    return pair(
        "figure_19",
        {"Sync": 95.0, "Hogwild": 94.5, "Hogwild+T1": 94.8},
        {"Sync": 95.0, "Hogwild": 94.5, "Hogwild+T1": 93.0},
    )


@case(PAPER, "figure_19", "t1_reaches_sync_translation")
def t1_reaches_sync_translation() -> Pair:
    return pair(
        "figure_19",
        {"Sync": 34.5, "Hogwild": 3.6, "Hogwild+T1": 33.8},
        {"Sync": 34.5, "Hogwild": 3.6, "Hogwild+T1": 30.0},
    )


@case(PAPER, "figure_19", "t1_helps_images")
def t1_helps_images() -> Pair:
    return pair(
        "figure_19",
        {"Sync": 95.0, "Hogwild": 94.5, "Hogwild+T1": 94.8},
        {"Sync": 95.0, "Hogwild": 94.8, "Hogwild+T1": 94.5},
    )


@case(PAPER, "figure_19", "t1_helps_translation")
def t1_helps_translation() -> Pair:
    return pair(
        "figure_19",
        {"Sync": 34.5, "Hogwild": 3.6, "Hogwild+T1": 33.8},
        {"Sync": 34.5, "Hogwild": 33.8, "Hogwild+T1": 33.0},
    )


def recomputed(plain: float, scores: Mapping[str, Score], arm: str = "") -> Scores:
    """Scores by the number of checkpoints, of one arm (the others lose nothing) or of all."""
    return lambda labels: plain if arm and labels["arm"] != arm else scores.get(labels["checkpoints"], plain)


@case(PAPER, "figure_17", "t1_matches")
def recompute_t1_matches() -> Pair:
    return pair("figure_17", recomputed(95.0, {"few": 94.95}), recomputed(95.0, {"many": 94.0}, "T1"))


@case(PAPER, "figure_17", "t2_matches")
def recompute_t2_matches() -> Pair:
    return pair("figure_17", recomputed(95.0, {"few": 94.95}), recomputed(95.0, {"many": 94.0}, "T1+T2"))


@case(PAPER, "figure_18", "t1_two_stay_low")
def t1_two_stay_low() -> Pair:
    return pair("figure_18", recomputed(34.1, {"few": 9.0}), recomputed(34.1, {"few": [20.0, 9.0]}))


@case(PAPER, "figure_18", "t1_twelve_diverge")
def t1_twelve_diverge() -> Pair:
    return pair(
        "figure_18", recomputed(34.1, {"some": [10.0, 25.0, 3.0]}), recomputed(34.1, {"some": [10.0, 25.0, 20.0]})
    )


@case(PAPER, "figure_18", "t2_matches")
def translation_t2_matches() -> Pair:
    return pair("figure_18", recomputed(34.1, {"few": 34.0}), recomputed(34.1, {"some": 33.0}, "T1+T2"))


@case(PAPER, "figure_18", "w_matches")
def w_matches() -> Pair:
    return pair("figure_18", recomputed(34.5, {"few": 34.4}), recomputed(34.5, {"some": 33.0}, "T1+T2+W"))


@case(PAPER, "figure_18", "correction_matters")
def correction_matters() -> Pair:
    lost = {"few": 9.0, "some": 20.0}
    return pair("figure_18", recomputed(34.1, lost, "T1"), recomputed(34.1, lost, "T1+T2"))


# Trained for longer

ENDS = {  # of table 3's length, three and nine times that
    "Sync": [56.0, 70.0, 78.0],
    "neither": [39.0, 55.0, 66.0],
    "T1": [41.0, 58.0, 72.0],
    "T1+T2": [42.0, 62.0, 77.0],
}


def for_longer(claim: str, **fails: list[float]) -> None:
    """Ends by length that hold, and those of some arms by which the claim does not."""

    def scores(ends: Mapping[str, list[float]]) -> Scores:
        return lambda labels: ends[labels["arm"]][("once", "three times", "nine times").index(labels["length"])]

    other = ENDS | {{"mare": "T1+T2", "t1": "T1", "neither": "neither"}[key]: ends for key, ends in fails.items()}
    case(PAPER, "length", claim)(lambda: pair("length", scores(ENDS), scores(other)))


for_longer("longer_is_better_here", mare=[42.0, 62.0, 61.0])
for_longer("price_falls_here", mare=[42.0, 55.0, 77.0])
for_longer("reaches_sync_here", mare=[42.0, 62.0, 75.0])
for_longer("remedies_help_here", neither=[39.0, 55.0, 77.5])
for_longer("remedies_help_sooner_here", neither=[39.0, 62.5, 66.0])
for_longer("t1_helps_here", neither=[39.0, 55.0, 72.5])
for_longer("t2_helps_here", t1=[41.0, 58.0, 77.5])


# Table 2, and what follows from it


def tasks(scores: Mapping[tuple[str, str], Score]) -> Scores:
    """Scores by task and arm; others have no log."""
    return lambda labels: scores.get((labels["task"], labels["arm"]))


def quality(task: str, arm: str, good: Score, bad: Score, sync: Score = 34.5) -> Pair:
    """Table 2 with one arm good or bad beside the synchronous one."""
    return pair(
        "table_2", tasks({(task, "Sync"): sync, (task, arm): good}), tasks({(task, "Sync"): sync, (task, arm): bad})
    )


@case(PAPER, "table_2", "cifar_quality")
def cifar_quality() -> Pair:
    return quality("images", "T1+T2", 94.95, 94.0, 95.0)


@case(PAPER, "table_2", "imagenet_quality")
def imagenet_quality() -> Pair:
    return quality("ImageNet", "T1+T2+W", 75.95, 75.5, 76.0)


@case(PAPER, "table_2", "iwslt_quality")
def iwslt_quality() -> Pair:
    return quality("translation", "T1+T2+W", 34.5, 34.1)


@case(PAPER, "table_2", "wmt_quality")
def wmt_quality() -> Pair:
    return quality("WMT17", "T1+T2+W", 34.8, 34.0)


@case(PAPER, "table_2", "iwslt_pipedream_fails")
def iwslt_pipedream_fails() -> Pair:
    return quality("translation", "PipeDream", 0.0, 2.7)


@case(PAPER, "table_2", "wmt_pipedream_fails")
def wmt_pipedream_fails() -> Pair:
    return quality("WMT17", "PipeDream", 0.0, 2.7)


@case(PAPER, "table_2", "imagenet_pipedream_below")
def imagenet_pipedream_below() -> Pair:
    task = "ImageNet"
    return pair(
        "table_2",
        tasks({(task, "PipeDream"): 74.7, (task, "T1+T2"): 75.5}),
        tasks({(task, "PipeDream"): 75.5, (task, "T1+T2"): 74.7}),
    )


def hardware(change: Callable[[Arm, RunLog], RunLog | None]) -> Pair:
    """Table 2 without trainings: as derived, and changed."""
    return changed("table_2", change)


def used_less(method: str) -> Callable[[Arm, RunLog], RunLog]:
    """Pipelines of a method that idle a tenth more."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels.get("task") != "pipeline":
            return run
        less = with_rows(
            lambda row: row | {"utilisation": 0.9 * row["utilisation"]} if row["method"] == method else row
        )
        return less(arm, run)

    return change


@case(PAPER, "table_2", "gpipe_utilisations")
def gpipe_utilisations() -> Pair:
    return hardware(used_less("GPipe"))


@case(PAPER, "table_2", "cifar_gain")
def cifar_gain() -> Pair:
    return hardware(used_less("PipeMare"))


def reaching(task: str, sync: float, epochs: float) -> Make:
    """The warmed-up run reaches its synchronous best after so many of all epochs."""
    points = int(EPOCHS[task])
    late = [0.5 * sync if i + 1 < epochs else sync for i in range(points)]
    return training(tasks({(task, "Sync"): sync, (task, "T1+T2+W"): late}), hardware=True)


@case(PAPER, "table_2", "imagenet_gain")
def imagenet_gain() -> Pair:
    return both(PAPER, "table_2", reaching("ImageNet", 76.0, 100), reaching("ImageNet", 76.0, 40))


@case(PAPER, "table_2", "iwslt_gain")
def iwslt_gain() -> Pair:
    return both(PAPER, "table_2", reaching("translation", 34.5, 35), reaching("translation", 34.5, 15))


@case(PAPER, "table_2", "wmt_gain")
def wmt_gain() -> Pair:
    return both(PAPER, "table_2", reaching("WMT17", 27.5, 80), reaching("WMT17", 27.5, 10))


def step_holds(**entries: Any) -> Callable[[Arm, RunLog], RunLog]:
    """A change of what a training step holds."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        return with_rows(lambda row: row | entries)(arm, run) if arm.labels.get("what") == "copies" else run

    return change


@case(PAPER, "table_2", "t2_memory")
def t2_memory() -> Pair:
    return hardware(step_holds(average=0))


def kept_versions(copies: int) -> Callable[[Arm, RunLog], RunLog]:
    """PipeDream's stages hold so many copies of their weights."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels.get("task") != "pipeline":
            return run
        return with_rows(
            lambda row: row | {"copies": [copies] * row["stages"]} if row["method"] == "PipeDream" else row
        )(arm, run)

    return change


@case(PAPER, "table_2", "memory_order")
def table_memory_order() -> Pair:
    return hardware(kept_versions(1))


@case(PAPER, "table_2", "pipedream_memory")
def pipedream_memory() -> Pair:
    printed = {"CIFAR10": 1.70 * 3, "ImageNet": 0.61 * 3, "IWSLT14": 1.06 * 4, "WMT17": 1.39 * 4}

    def as_printed(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels.get("task") != "pipeline":
            return run
        held = 1 + printed[arm.labels["dataset"]]
        return with_rows(lambda row: row | {"copies": [held] * row["stages"]} if row["method"] == "PipeDream" else row)(
            arm, run
        )

    return both(PAPER, "table_2", altered(as_printed), carried_out, scale="quick")


@case(PAPER, "table_2", "pipedream_twice")
def pipedream_twice() -> Pair:
    return both(PAPER, "table_2", altered(kept_versions(8)), altered(kept_versions(2)), scale="quick")


@case(PAPER, "text_headline", "utilisation")
def headline_utilisation() -> Pair:
    return changed("text_headline", used_less("GPipe"))


@case(PAPER, "text_headline", "memory")
def headline_memory() -> Pair:
    def as_printed(arm: Arm, run: RunLog) -> RunLog:
        if arm.labels.get("task") != "pipeline":
            return run
        return with_rows(
            lambda row: row | {"copies": [1 + 1.7 * 3] * row["stages"]} if row["method"] == "PipeDream" else row
        )(arm, run)

    return both(PAPER, "text_headline", altered(as_printed), carried_out, scale="quick")


@case(PAPER, "text_quality_bound", "within")
def within() -> Pair:
    fine = {(t, a): 95.0 for t in ("images", "ImageNet") for a in ("Sync", "T1", "T1+T2", "T1+T2+W")}
    behind = {(t, a): 94.5 if t == "ImageNet" and a != "Sync" else score for (t, a), score in fine.items()}
    return pair("text_quality_bound", tasks(fine), tasks(behind))


@case(PAPER, "text_quality_bound", "translation_matches")
def translation_matches() -> Pair:
    fine = {(t, a): 34.5 for t in BLEU for a in ("Sync", "T1", "T1+T2", "T1+T2+W")}
    behind = {(t, a): 33.9 if t == "WMT17" and a != "Sync" else score for (t, a), score in fine.items()}
    return pair("text_quality_bound", tasks(fine), tasks(behind))


# Figures 2 and 3


def figures(claim: str) -> Callable[[Callable[[str], Pair]], None]:
    """Register a case for both figures."""

    def add(make: Callable[[str], Pair]) -> None:
        for figure in ("figure_2", "figure_3"):
            case(PAPER, figure, claim)(lambda figure=figure: make(figure))  # type: ignore[misc]

    return add


def pipelines(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Arm, RunLog], RunLog]:
    """A change of the pipelines' rows."""
    return lambda arm, run: with_rows(change)(arm, run) if arm.labels.get("task") == "pipeline" else run


@figures("gpipe_utilisation_falls")
def gpipe_utilisation_falls(figure: str) -> Pair:
    return changed(figure, pipelines(lambda row: row | {"utilisation": 0.5}))


@figures("others_stay_full")
def others_stay_full(figure: str) -> Pair:
    return changed(figure, pipelines(lambda row: row | {"utilisation": 0.99 * row["utilisation"]}))


@figures("pipedream_memory_grows")
def pipedream_memory_grows(figure: str) -> Pair:
    def squared(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"copies": [1 + (row["stages"] / 10) ** 4] * row["stages"]}

    return changed(figure, pipelines(squared))


@figures("other_memory_constant")
def other_memory_constant(figure: str) -> Pair:
    return changed(figure, pipelines(lambda row: row | {"copies": [1 + row["stages"] // 50] * row["stages"]}))


def at_all_stages(scores: Mapping[str, Score], worse: Mapping[str, Score]) -> Scores:
    """Scores by arm, others at the most stages."""
    return lambda labels: (worse if labels["setup"] in ("resnet50", "transformer") else scores).get(labels["arm"])


@case(PAPER, "figure_2", "accuracy_within")
def accuracy_within() -> Pair:
    fine = {"GPipe": 95.0, "PipeDream": 94.8, "PipeMare": 94.95}
    return pair("figure_2", fine, at_all_stages(fine, fine | {"PipeMare": 94.0}))


def falling(figure: str, method: str) -> Pair:
    """One method's scores over few, some and all stages: falling, and with a step back up."""

    def scores(steps: Mapping[str, float]) -> Scores:
        return lambda labels: steps.get(labels["setup"]) if labels["arm"] == method else 95.0

    model = "resnet50" if figure == "figure_2" else "transformer"
    stages = (f"{model}_few", f"{model}_some", model)
    down, up = (dict(zip(stages, values, strict=True)) for values in ((95.0, 90.0, 85.0), (95.0, 90.0, 92.0)))
    return pair(figure, scores(down), scores(up))


@figures("falls_with_stages_here")
def falls_with_stages(figure: str) -> Pair:
    return falling(figure, "PipeMare")


@figures("stashing_falls_with_stages_here")
def stashing_falls_with_stages(figure: str) -> Pair:
    return falling(figure, "PipeDream")


@case(PAPER, "figure_3", "loses_less_here")
def loses_less() -> Pair:
    """PipeMare is below PipeDream in both: what counts is how much each loses."""
    fine = {"GPipe": 34.5, "PipeDream": 30.0, "PipeMare": 25.0, "PipeMareW": 34.5}
    lost = fine | {"PipeDream": 15.0}
    return pair(
        "figure_3", at_all_stages(fine, lost | {"PipeMare": 14.0}), at_all_stages(fine, lost | {"PipeMare": 9.0})
    )


@case(PAPER, "figure_3", "close_to_best")
def close_to_best() -> Pair:
    fine = {"GPipe": 34.5, "PipeDream": 0.0, "PipeMare": 34.1, "PipeMareW": 34.5}
    return pair("figure_3", fine, at_all_stages(fine, fine | {"PipeMare": 33.0}))


@case(PAPER, "figure_3", "warmup_closes_gap")
def warmup_closes_gap() -> Pair:
    fine = {"GPipe": 34.5, "PipeDream": 0.0, "PipeMare": 34.1, "PipeMareW": 34.45}
    return pair("figure_3", fine, at_all_stages(fine, fine | {"PipeMareW": 34.0}))


# Figures 11 and 15


@case(PAPER, "figure_11", "imagenet_accuracy")
def imagenet_accuracy() -> Pair:
    task = "ImageNet"
    return pair(
        "figure_11",
        tasks({(task, "PipeDream"): 74.7, (task, "T1+T2"): 75.5}),
        tasks({(task, "PipeDream"): 75.5, (task, "T1+T2"): 74.7}),
    )


@case(PAPER, "figure_11", "imagenet_speed")
def imagenet_speed() -> Pair:
    slow, fast = rising(75.0, 12), rising(75.0, 6)
    return pair(
        "figure_11",
        tasks({("ImageNet", "PipeDream"): slow, ("ImageNet", "T1+T2"): fast}),
        tasks({("ImageNet", "PipeDream"): fast, ("ImageNet", "T1+T2"): slow}),
    )


@case(PAPER, "figure_11", "imagenet_warmup")
def imagenet_warmup() -> Pair:
    return pair(
        "figure_11",
        tasks({("ImageNet", "Sync"): 76.0, ("ImageNet", "T1+T2+W"): 75.95}),
        tasks({("ImageNet", "Sync"): 76.0, ("ImageNet", "T1+T2+W"): 75.5}),
    )


@case(PAPER, "figure_11", "pipedream_near_zero")
def pipedream_near_zero() -> Pair:
    return pair("figure_11", tasks({("WMT17", "PipeDream"): 0.0}), tasks({("WMT17", "PipeDream"): 2.7}))


@case(PAPER, "figure_11", "wmt_warmup")
def wmt_warmup() -> Pair:
    return pair(
        "figure_11",
        tasks({("WMT17", "Sync"): 27.5, ("WMT17", "T1+T2+W"): 27.8}),
        tasks({("WMT17", "Sync"): 27.5, ("WMT17", "T1+T2+W"): 27.0}),
    )


def warmed_up(taken: Mapping[str, int]) -> Make:
    """Figure 15's runs, which reach their end after so many of 60 epochs."""
    scores = {arm: [34.5 if i + 1 >= epochs else 20.0 for i in range(60)] for arm, epochs in taken.items()}
    return training(scores | {"Sync": 34.5}, hardware=True)


@case(PAPER, "figure_15", "fewer_epochs")
def fewer_epochs() -> Pair:
    taken = {"W = 3/60": 50, "W = 5/60": 40, "W = 10/60": 35}
    return both(PAPER, "figure_15", warmed_up(taken), warmed_up(taken | {"W = 10/60": 55}))


@case(PAPER, "figure_15", "better_here")
def better_here() -> Pair:
    ends = {"W = 3/60": 20.0, "W = 5/60": 24.0, "W = 10/60": 27.0, "Sync": 34.5}
    return both(PAPER, "figure_15", training(ends), training(ends | {"W = 10/60": 19.0}))


@case(PAPER, "figure_15", "lower_utilisation")
def lower_utilisation() -> Pair:
    taken = {"W = 3/60": 50, "W = 5/60": 40, "W = 10/60": 35}
    return both(PAPER, "figure_15", warmed_up(taken), warmed_up({"W = 3/60": 4, "W = 5/60": 20, "W = 10/60": 60}))
