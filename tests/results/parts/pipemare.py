"""Of claims about PipeMare that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.cases.pipemare import (
    PAPER,
    changed,
    kept_versions,
    lemma,
    narrow,
    of_arm,
    pair,
    pipelines,
    recomputed,
    rising,
    stable_ranges,
    step_holds,
    tasks,
    training,
    warmed_up,
    wide,
)
from tests.results.made_up import Make, Pair, altered, both, carried_out, context, part, with_rows

Row = dict[str, Any]


def log_of(result: str, arm: str) -> RunLog:
    """The real log of an arm that needs no training."""
    items = context(PAPER, result, carried_out, scale="quick").items
    run = next(item.log for item in items if item.arm.labels["arm"].startswith(arm))
    assert run is not None
    return run


# Figure 1 and table 1


@part(PAPER, "figure_1", "gpipe_bubbles_one_copy")
def bubbles_of_gpipe() -> Pair:
    """GPipe's passes come one after the other, as PipeMare's do."""
    return changed("figure_1", of_arm("GPipe", lambda arm, run: replace(run, rows=log_of("figure_1", "PipeMare").rows)))


def idling(row: Row) -> Row:
    """A worker waits for half of a pass in the middle of the run."""
    short = (row["kind"], row["stage"], row["minibatch"]) == ("F", 2, 3)
    return row | {"end": row["end"] - 0.5} if short else row


@part(PAPER, "figure_1", "pipedream_copies_no_bubbles")
def no_bubbles_of_pipedream() -> Pair:
    return changed("figure_1", of_arm("PipeDream", with_rows(idling)))


@part(PAPER, "figure_1", "pipemare_neither")
def no_bubbles_of_pipemare() -> Pair:
    return changed("figure_1", of_arm("PipeMare", with_rows(idling)))


@part(PAPER, "table_1", "utilisation_order")
def full_pipemare() -> Pair:
    return changed("table_1", of_arm("PipeMare", with_rows(idling)))


@part(PAPER, "table_1", "utilisation_order")
def full_pipedream() -> Pair:
    return changed("table_1", of_arm("PipeDream", with_rows(idling)))


@part(PAPER, "table_1", "memory_order")
def copies_that_suffice() -> Pair:
    """PipeMare's passes need versions that it does not say it keeps."""
    return changed("table_1", of_arm("PipeMare", with_rows(lambda row: row | {"stashed": row["kind"] == "B"})))


# The quadratic model


def losses(loss: Callable[[float], float]) -> Callable[[Arm, RunLog], RunLog]:
    """Losses by the share of the steps that have passed."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        last = run.rows[-1]["step"]
        return with_rows(lambda row: row | {"loss": loss(row["step"] / last)})(arm, run)

    return change


@part(PAPER, "figure_5a", "tau_10_diverges")
def grows_to_the_end() -> Pair:
    """It jumps a thousandfold at once, and stays there."""
    return changed("figure_5a", of_arm("tau = 10", losses(lambda share: 1e-6 if share < 0.15 else 1.0)))


@part(PAPER, "figure_5a", "tau_10_diverges")
def grows_quickly() -> Pair:
    """It diverges, a hundredfold in all the steps."""
    return changed("figure_5a", of_arm("tau = 10", losses(lambda share: 225**share)))


@part(PAPER, "figure_6a", "larger_delta_diverges")
def none_stays_bounded() -> Pair:
    """Without discrepancy it diverges, too."""
    return changed("figure_6a", of_arm("Delta = 0", losses(lambda share: 1e6**share)))


def above_alpha(alpha: float, by: float) -> Callable[[Arm, RunLog], RunLog]:
    """Another radius at step sizes above one."""
    return with_rows(lambda row: row | {"radius": row["radius"] + (by if row["alpha"] > alpha else 0.0)})


def as_discrepancy(arm: Arm, run: RunLog) -> RunLog:
    """T2's eigenvalues are those without it."""
    radii = {row["alpha"]: row["radius"] for row in log_of("figure_6b", "discrepancy").rows}
    return with_rows(lambda row: row | {"radius": radii[row["alpha"]]})(arm, run)


@part(PAPER, "figure_6b", "t2_lowers")
def lower_at_every_step_size() -> Pair:
    """Not at the largest."""
    return changed("figure_6b", of_arm("T2", above_alpha(0.1, 0.5)))


@part(PAPER, "figure_6b", "t2_lowers")
def lower_at_some() -> Pair:
    return changed("figure_6b", of_arm("T2", as_discrepancy))


@part(PAPER, "figure_6b", "t2_nearer")
def nearer_at_every_step_size() -> Pair:
    """Not at the largest."""
    return changed("figure_6b", of_arm("T2", above_alpha(0.1, 0.5)))


@part(PAPER, "figure_6b", "t2_nearer")
def nearer_on_average() -> Pair:
    return changed("figure_6b", of_arm("T2", as_discrepancy))


@part(PAPER, "figure_16", "correction_lowers")
def nearer_too() -> Pair:
    """Lower, and so much that it is further off."""
    return changed("figure_16", of_arm("corrected", with_rows(lambda row: row | {"radius": row["radius"] - 2})))


@part(PAPER, "figure_10", "all_pairs", becomes=None)
def every_pair() -> Pair:
    """Some are not tried."""
    return both(PAPER, "figure_10", stable_ranges(narrow, wide), stable_ranges(narrow, wide, pairs=800))


def finite_up_to(factor: float) -> Callable[[Arm, RunLog], RunLog]:
    """Losses of the second of the delays that stay finite up to so many times the bound."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        tau = sorted({row["tau"] for row in run.rows})[1]
        loss = lambda row: 1.0 if row["alpha"] <= factor * row["bound"] else None  # noqa: E731
        return with_rows(lambda row: row | ({"loss": loss(row)} if row["tau"] == tau else {}))(arm, run)

    return change


@part(PAPER, "figure_5b", "slope_minus_one")
def steeper_than_minus_one() -> Pair:
    """The boundary falls as tau^-1.5; in its case it falls as tau^-0.5."""
    steep = with_rows(lambda row: row | {"loss": 1.0 if row["alpha"] <= row["tau"] ** -1.5 else None})
    return changed("figure_5b", steep)


@part(PAPER, "figure_5b", "on_lemma_1")
def just_above_the_bound() -> Pair:
    """With one delay finite up to eight times the bound."""
    return changed("figure_5b", finite_up_to(8))


@part(PAPER, "figure_5b", "on_lemma_1")
def not_below_the_bound() -> Pair:
    """With one delay finite up to a quarter of the bound."""
    return changed("figure_5b", finite_up_to(1 / 4))


@part(PAPER, "text_lemma_1", "threshold")
def limit_at_the_bound() -> Pair:
    return changed("text_lemma_1", lemma(1, stable=lambda row: row["stable"] + 1e-6 * (row["tau"] == 2)))


@part(PAPER, "text_lemma_1", "threshold")
def inside_below_the_bound() -> Pair:
    return changed("text_lemma_1", lemma(1, below=lambda row: 1.001 if row["tau"] == 2 else row["below"]))


@part(PAPER, "text_lemma_1", "threshold")
def outside_above_the_bound() -> Pair:
    return changed("text_lemma_1", lemma(1, above=lambda row: 0.999 if row["tau"] == 2 else row["above"]))


@part(PAPER, "text_lemma_4", "towards_one")
def towards_one_as_derived() -> Pair:
    """Falling, but for one delay a thousandth above the formula."""
    return changed("text_lemma_4", lemma(1, omega=lambda row: row["omega"] * (1.001 if row["tau"] == 2 else 1)))


@part(PAPER, "text_decay", "free_of_delta")
def free_of_delta_in_the_first_derivative() -> Pair:
    return changed("text_decay", with_rows(lambda row: row | {"first": 0.01 * (row["gap"] == 2)}))


@part(PAPER, "text_decay", "near_exp_minus_2")
def ever_nearer() -> Pair:
    """The longest delays end as printed; in between it moves away."""
    return changed("text_decay", with_rows(lambda row: row | {"D": 0.5} if row["gap"] == 20 else row))


# Activations, memory and utilisation


@part(PAPER, "figure_9", "heads_only")
def heads_as_without() -> Pair:
    return changed("figure_9", with_rows(lambda row: row | {"without": [n + 1 for n in row["without"]]}))


@part(PAPER, "figure_9", "as_appendix")
def appendix_without() -> Pair:
    return changed("figure_9", with_rows(lambda row: row | {"without": [n + 1 for n in row["without"]]}))


@part(PAPER, "table_4", "stages_exponent")
def stages_exponent_without() -> Pair:
    return changed("table_4", with_rows(lambda row: row | {"without": row["with"]}))


@part(PAPER, "table_4", "microbatches_exponent")
def microbatches_exponent_without() -> Pair:
    return changed("table_4", with_rows(lambda row: row | {"without": row["with"]}))


def t2_of(optimizer: str) -> Pair:
    """A training step with one optimizer holds no average."""

    def change(arm: Arm, run: RunLog) -> RunLog:
        meant = arm.labels.get("what") == "copies" and optimizer in arm.labels["arm"]
        return with_rows(lambda row: row | {"average": 0})(arm, run) if meant else run

    return changed("table_2", change)


@part(PAPER, "table_2", "t2_memory")
def t2_memory_of_sgd() -> Pair:
    return t2_of("SGD")


@part(PAPER, "table_2", "t2_memory")
def t2_memory_of_adam() -> Pair:
    return t2_of("Adam")


@part(PAPER, "text_headline", "utilisation")
def headline_as_printed() -> Pair:
    """By the formula, of more microbatches."""

    def more(row: Row) -> Row:
        count, stages = row["microbatches"] + 1, row["stages"]
        used = count / (count + stages - 1) if row["method"] == "GPipe" else row["utilisation"]
        return row | {"microbatches": count, "utilisation": used}

    return changed("text_headline", pipelines(more))


@part(PAPER, "text_headline", "utilisation")
def headline_by_formula() -> Pair:
    """As printed, and two ten-thousandths off the formula."""
    off = pipelines(
        lambda row: row | ({"utilisation": 1.0002 * row["utilisation"]} if row["method"] == "GPipe" else {})
    )
    return changed("text_headline", off)


for _figure in ("figure_2", "figure_3"):

    @part(PAPER, _figure, "pipedream_memory_grows")
    def grows_and_never_falls(figure: str = _figure) -> Pair:
        """It falls, along a straight line."""
        return changed(figure, pipelines(lambda row: row | {"copies": [1000.0 - row["stages"]] * row["stages"]}))


# Trained networks


@part(PAPER, "figure_11", "imagenet_warmup")
def in_as_many_epochs() -> Pair:
    """Warmed-up training ends after half as many."""
    whole = training(tasks({("ImageNet", "Sync"): 76.0, ("ImageNet", "T1+T2+W"): 75.95}))
    half = with_rows(lambda row: row | {"epoch": row["epoch"] / 2})
    return both(PAPER, "figure_11", whole, altered(of_arm("T1+T2+W", half), whole))


TAKEN = {"W = 3/60": 50, "W = 5/60": 40, "W = 10/60": 35}


@part(PAPER, "figure_15", "fewer_epochs")
def never_more_epochs() -> Pair:
    """The second takes more than the first, the third the fewest."""
    return both(PAPER, "figure_15", warmed_up(TAKEN), warmed_up(TAKEN | {"W = 5/60": 55}))


@part(PAPER, "figure_15", "fewer_epochs")
def fewer_in_all() -> Pair:
    """The last takes an evaluation more than the others: not told to be more, and no fewer."""
    alike = dict.fromkeys(TAKEN, 40)
    return both(PAPER, "figure_15", warmed_up(TAKEN), warmed_up(alike | {"W = 10/60": 41}))


@part(PAPER, "figure_18", "t1_twelve_diverge")
def diverges_in_the_middle() -> Pair:
    """A loss that is no number in the middle of the run, and in its first tenth."""
    return pair("figure_18", recomputed(34.1, {"some": 20_000}), recomputed(34.1, {"some": 10}))


# One of all that a claim is about, where its case changes all of them or the last


@part(PAPER, "table_2", "memory_order")
def more_than_gpipe() -> Pair:
    """PipeMare holds no more than GPipe does."""
    return changed("table_2", step_holds(average=0))


@part(PAPER, "table_2", "memory_order")
def memory_order_of_each() -> Pair:
    """Of one data set PipeDream holds a single copy."""
    one = kept_versions(1)
    return changed("table_2", lambda arm, run: one(arm, run) if arm.labels.get("dataset") == "CIFAR10" else run)


@part(PAPER, "table_2", "pipedream_twice")
def twice_on_both() -> Pair:
    """Not on the second."""
    many, few = kept_versions(8), kept_versions(2)
    second = altered(lambda arm, run: (few if arm.labels.get("dataset") == "WMT17" else many)(arm, run))
    return both(PAPER, "table_2", altered(many), second, scale="quick")


@part(PAPER, "figure_6a", "larger_delta_diverges")
def at_every_step_size() -> Pair:
    """Not at the first."""
    still = losses(lambda share: 0.5)
    first = lambda arm, run: still(arm, run) if arm.labels["panel"] == "step size 0.045" else run  # noqa: E731
    return changed("figure_6a", of_arm("Delta", first))


@part(PAPER, "figure_16", "discrepancy_raises")
def with_recomputation() -> Pair:
    low = with_rows(lambda row: row | {"radius": 0.5})
    return changed("figure_16", of_arm("discrepancy and recompute", low))


for _figure in ("figure_2", "figure_3"):

    @part(PAPER, _figure, "gpipe_utilisation_falls")
    def falls_with_each(figure: str = _figure) -> Pair:
        """With the most stages it is the highest."""
        return changed(figure, pipelines(lambda row: row | ({"utilisation": 0.99} if row["stages"] > 60 else {})))

    @part(PAPER, _figure, "others_stay_full")
    def each_stays_full(figure: str = _figure) -> Pair:
        """PipeMare does not, of the most stages."""
        meant = lambda row: row["stages"] > 60 and row["method"] == "PipeMare"  # noqa: E731
        return changed(figure, pipelines(lambda row: row | ({"utilisation": 0.99} if meant(row) else {})))

    @part(PAPER, _figure, "other_memory_constant")
    def gpipes_constant(figure: str = _figure) -> Pair:
        """PipeMare's is; GPipe's is not."""
        more = lambda row: {"copies": [1 + row["stages"] // 50] * row["stages"]}  # noqa: E731
        return changed(figure, pipelines(lambda row: row | (more(row) if row["method"] == "GPipe" else {})))


@part(PAPER, "table_3", "iwslt_t1_twice", becomes=None)
def of_a_target_that_sync_reaches() -> Pair:
    """T1 is as late as synchronous training, but with one seed that never comes to it."""

    def make(sync: Callable[[Arm], float], over: tuple[int, int]) -> Make:
        return lambda arm: training({"Sync": rising(sync(arm), over[0]), "T1": rising(34.4, over[1])})(arm)

    short = make(lambda arm: 30.0 if arm.seed == 1 else 34.5, (20, 20))
    return both(PAPER, "table_3", make(lambda arm: 34.5, (8, 16)), short)


# Equal is so both ways


@part(PAPER, "figure_7", "all_reach_sync")
def not_above_sync() -> Pair:
    alike = {"Sync": 95.0, "T1": 95.0, "T1+T2": 94.95}
    return pair("figure_7", alike, alike | {"T1+T2": 96.0})


@part(PAPER, "table_3", "cifar_t1_as_both")
def t1_not_above() -> Pair:
    return pair("table_3", {"T1": 95.0, "T1+T2": 95.05}, {"T1": 95.0, "T1+T2": 94.5})


@part(PAPER, "table_3", "iwslt_w_adds")
def adds_as_much() -> Pair:
    return pair("table_3", {"T1+T2": 34.1, "T1+T2+W": 34.5}, {"T1+T2": 34.1, "T1+T2+W": 34.2})


@part(PAPER, "table_3", "iwslt_w_as_sync")
def w_not_above() -> Pair:
    return pair("table_3", {"Sync": 34.5, "T1+T2+W": 34.4}, {"Sync": 34.5, "T1+T2+W": 35.1})
