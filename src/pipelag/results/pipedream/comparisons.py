"""Figures 14a and 14b and the text's comparisons with model and hybrid parallelism, FlexFlow and GPipe."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipelag.report.frames import Axis, Bars
from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import agreed, measured
from pipelag.results.pipedream.targets import COLOURS, FOUR
from pipelag.results.plans import (
    BOTH_COSTS,
    HYBRID,
    PRINTED,
    PRINTED_WORDS,
    RING,
    SEVERAL,
    SPEED_WORDS,
    by_model,
    config_of,
    in_words,
    near,
    needed,
    plan_in,
    planned,
    ratio,
)
from pipelag.results.verdict import Finding, Judge, NotLogged, if_logged, judge, log_of, need

PAPER = "pipedream"
ALONE_AT_A_TIME = "model parallel"
DEPTHS = {"NOAM": "GPipe, NOAM", "most that fit": "GPipe, most that fit"}
REPLICATED = ("VGG-16", "AlexNet")  # the models that the paper replicates in figure 14a, and figure 14b's
RECURRENT = ("GNMT-8", "GNMT-16")


@drawing(PAPER, "figure_14a")
def figure_14a(context: Context) -> Drawn:
    """A group of bars per model: model parallelism, the straight pipeline, PipeDream by the printed recurrence."""
    rows = []
    for model, log in by_model(context).items():
        if model not in (*REPLICATED, *RECURRENT):
            continue
        for bar, plan in (
            ("model parallelism", ALONE_AT_A_TIME),
            ("straight pipeline", "straight"),
            ("PipeDream", PRINTED),
        ):
            gain = ratio(log, ALONE_AT_A_TIME, plan)
            title = f"{model}\n({config_of(log, PRINTED)})"
            where = {"plan": config_of(log, plan), "where": FOUR}
            rows.append({"model": title, "scheme": bar, **where, "throughput": gain})
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("throughput", "throughput over\nmodel parallelism")
    tints = COLOURS | {"model parallelism": 7, "straight pipeline": 6}
    title = "PipeDream's plan in brackets"
    bars = Bars(y, "model", "scheme", panel="where", number="{:.1f}x", x_title=title, colours=tints)
    return Drawn.of(bars, rows)


@judge(PAPER, "figure_14a", "pipelining_doubles")
def pipelining_doubles(context: Context) -> Finding:
    """Holds if the straight pipeline has at least twice model parallelism's throughput, rounded, for all four models.

    Both must use the same partition.
    """
    gains = {}
    for model in (*REPLICATED, *RECURRENT):
        log = log_of(context, model=model)
        line, alone = (plan_in(log, name, f"{model}, {name}") for name in ("straight", ALONE_AT_A_TIME))
        if bounds(line) != bounds(alone):
            raise NotLogged(f"{model} is not cut alike with and without pipelining")
        gains[model] = alone["timed"] / line["timed"]
    why = in_words(gains)
    return measured(context, min(gains.values()) >= 1.995, why, f"{PRINTED_WORDS}: 2x and more")


def plans_of(context: Context, models: tuple[str, ...]) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """The models' plans: their rows by form of the cost, and all of them in words."""
    rows = {form: [plan_in(log_of(context, model=model), form, model) for model in models] for form in (PRINTED, RING)}
    plans = zip(models, rows[PRINTED], rows[RING], strict=True)
    return rows, ", ".join(f"{m} {row['config']} (by a ring's cost {ring['config']})" for m, row, ring in plans)


@judge(PAPER, "figure_14a", "gnmt_not_replicated")
def gnmt_straight(context: Context) -> Finding:
    """Holds if both GNMTs' plans have the straight pipeline's stages, each on one worker.

    Both forms of the cost must agree.
    """
    rows, text = plans_of(context, RECURRENT)
    lines = [bounds(plan_in(context.log(model=model), "straight", f"{model}, straight")) for model in RECURRENT]
    holds = [
        all(
            bounds(row) == line and all(stage["replicas"] == 1 for stage in row["stages"])
            for row, line in zip(plans, lines, strict=True)
        )
        for plans in rows.values()
    ]
    return measured(context, agreed(*holds), text, f"exact; {BOTH_COSTS}")


def bounds(row: dict[str, Any]) -> list[int]:
    """The last layers of a plan's stages."""
    return [stage["last"] for stage in row["stages"]]


@judge(PAPER, "figure_14a", "first_replicated")
def first_replicated(context: Context) -> Finding:
    """Holds if the plans of VGG-16 and AlexNet have several stages and replicate the first.

    Both forms of the cost must agree.
    """
    rows, text = plans_of(context, REPLICATED)
    holds = [
        all(len(row["stages"]) > 1 and row["stages"][0]["replicas"] > 1 for row in plans) for plans in rows.values()
    ]
    return measured(context, agreed(*holds), text, f"exact; {BOTH_COSTS}")


def gain_as_printed(model: str) -> Judge:
    """A judge that decides whether the speedup of PipeDream's plan over model parallelism is the text's.

    Within a factor of 1.2, for the plan by the printed recurrence.
    """

    def judged(context: Context) -> Finding:
        log = context.log(model=model)
        gain, printed = needed(log, ALONE_AT_A_TIME, PRINTED, model), float(context.result.reported[model])
        other = ratio(log, ALONE_AT_A_TIME, RING)
        why = f"{gain:.1f}x by {config_of(log, PRINTED)}" + (f" (a ring's cost: {other:.1f}x)" if other else "")
        return measured(context, near(gain, printed), f"{why}; printed {printed:g}x", SPEED_WORDS, model=model)

    return judged


judge(PAPER, "figure_14a", "vgg16_14_9")(gain_as_printed("VGG-16"))
judge(PAPER, "figure_14a", "alexnet_6_5")(gain_as_printed("AlexNet"))


def hybrid_gains(context: Context, **labels: str) -> dict[str, float]:
    """The speedup by pipelining of the best plan with several stages, by model. Raises `NotLogged` if it is missing."""
    logs = {model: log_of(context, model=model, **labels) for model in REPLICATED}
    return {model: needed(log, HYBRID, SEVERAL, model) for model, log in logs.items()}


def gains_in_words(context: Context, gains: dict[str, float]) -> str:
    """The gains in percent by model, with the plan, in words."""
    configs = {model: config_of(context.log(model=model), SEVERAL) for model in gains}
    return ", ".join(f"{model} ({configs[model]}) +{100 * (gain - 1):.0f} %" for model, gain in gains.items())


@drawing(PAPER, "figure_14b")
def figure_14b(context: Context) -> Drawn:
    """Two bars per model: the best plan with several stages without and with pipelining."""
    rows = []
    for model, log in by_model(context).items():
        gain = ratio(log, HYBRID, SEVERAL)
        title = f"{model}\n({config_of(log, SEVERAL)})"
        for bar, value in (("without pipelining", 1.0 if gain else None), ("with pipelining", gain)):
            rows.append({"model": title, "hybrid": bar, "throughput": value, "where": FOUR})
    if not rows:
        return not_logged("no plan is logged")
    y = Axis("throughput", "throughput over\nno pipelining")
    tints = {"without pipelining": 7, "with pipelining": COLOURS["PipeDream"]}  # as figure 14a's without and with
    bars = Bars(y, "model", "hybrid", panel="where", number="{:.2f}x", x_title="plan in brackets", colours=tints)
    return Drawn.of(bars, rows)


@judge(PAPER, "figure_14b", "pipelining_gains")
def pipelining_gains(context: Context) -> Finding:
    """Holds if pipelining raises the throughput of both models' hybrid plans, by more than rounding."""
    gains = hybrid_gains(context)
    why = gains_in_words(context, gains)
    return measured(context, min(gains.values()) >= 1.005, why, f"{PRINTED_WORDS}: more than 0 %")


@judge(PAPER, "figure_14b", "as_much_as_80")
def as_much_as_80(context: Context) -> Finding:
    """Holds if the larger gain is within 5 percentage points of 80 %, which the text gives in tens."""
    gains = hybrid_gains(context)
    most, printed = 100 * (max(gains.values()) - 1), context.result.reported["max_gain_percent"]
    words = "5 percentage points: the text's 'as much as 80 %' is in tens"
    why = f"at most {most:.0f} % (printed {printed} %): {gains_in_words(context, gains)}"
    return measured(context, abs(most - printed) <= 5, why, words)


def slowdown(context: Context, cluster: str, depth: str) -> float | None:
    """The percentage of the straight pipeline's throughput that GPipe loses; None without a log."""
    gain = ratio(context.log(arm=cluster), DEPTHS[depth], "straight")
    return 100 * (1 - 1 / gain) if gain else None


def slowdowns(context: Context) -> dict[str, dict[str, float]]:
    """GPipe's slowdowns in percent by cluster and depth. Raises `NotLogged` if one is missing."""
    return {
        cluster: {depth: need(slowdown(context, cluster, depth), f"GPipe, {depth}, on {cluster}") for depth in DEPTHS}
        for cluster in ("Cluster-A", "Cluster-B")
    }


@drawing(PAPER, "text_gpipe_comparison")
def gpipe_comparison(context: Context) -> Drawn:
    """GPipe's slowdowns by depth and cluster, the paper's beside ours."""
    rows = [(paper, cluster) for paper in context.result.reported for cluster in context.values("arm")]

    def microbatches(row: Any) -> int | None:
        plan = planned(context.log(arm=row[1]), DEPTHS[row[0]["depth"]])
        return plan["microbatches"] if plan else None

    cols = [
        Col("Depth", lambda row: row[0]["depth"]),
        Col("Cluster", lambda row: row[1]),
        Col("microbatches", microbatches),
        Col("paper (%)", lambda row: row[0][row[1]], "{:.0f}"),
        Col("ours (%)", lambda row: slowdown(context, row[1], row[0]["depth"]), "{:.0f}"),
    ]
    notes = ["GPipe recomputes activations in the backward; memory 16 GB, at most 8 microbatches per stage"]
    return Drawn.tabled(context, rows, cols, notes)


@judge(PAPER, "text_gpipe_comparison", "slower_shallow")
def slower_shallow(context: Context) -> Finding:
    """Holds if on both clusters GPipe is slower at the largest depth, and slower still at NOAM.

    Each by at least half a percentage point, the paper's rounding.
    """
    by_cluster = slowdowns(context)
    holds = all(depths["NOAM"] >= depths["most that fit"] + 0.5 > 1 for depths in by_cluster.values())
    text = "; ".join(
        f"{cluster} " + " and ".join(f"{v:.0f} %" for v in depths.values()) for cluster, depths in by_cluster.items()
    )
    return measured(
        context, holds, f"at NOAM and at the largest depth: {text}", f"{PRINTED_WORDS}: half a percentage point"
    )


@judge(PAPER, "text_gpipe_comparison", "as_slow_as_printed")
def as_slow_as_printed(context: Context) -> Finding:
    """Holds if GPipe's remaining throughput agrees with the printed slowdowns within a factor of 1.2.

    For both depths and both clusters.
    """
    by_cluster, missed, texts = slowdowns(context), [], []
    for paper in context.result.reported:
        for cluster in by_cluster:
            ours, printed = by_cluster[cluster][paper["depth"]], paper[cluster]
            which = f"{paper['depth']}, {cluster}"
            missed += [] if near(100 - ours, 100 - printed) else [which]
            texts.append(f"{which}: {ours:.0f} % (printed {printed} %)")
    why = "; ".join(texts) + (f"; outside the tolerance: {'; '.join(missed)}" if missed else "")
    return measured(context, not missed, why, f"what is left, {SPEED_WORDS}")


def over_model(context: Context) -> dict[str, float]:
    """The speedup of PipeDream's plan over model parallelism, for each model of figure 14a."""
    models = (*REPLICATED, *RECURRENT)
    return {model: needed(context.log(model=model), ALONE_AT_A_TIME, PRINTED, model) for model in models}


def over_hybrid(context: Context) -> dict[str, float]:
    """The speedups by pipelining of hybrid plans: figure 14b's and those for the comparison with FlexFlow."""
    gains = {}
    for item in context.items:
        gain = ratio(item.log, HYBRID, SEVERAL)
        if item.arm.labels.get("model") in REPLICATED and gain is not None:
            gains[f"{item.arm.labels['model']} on {item.arm.labels.get('servers', '1x4 (A)')}"] = gain
    if not gains:
        raise NotLogged("no plan with several stages is logged")
    return gains


def over_gpipe(context: Context) -> dict[str, float]:
    """The straight pipeline's speedup over GPipe, by depth and cluster."""
    return {
        f"{depth}, {cluster}": 1 / (1 - percent / 100)
        for cluster, depths in slowdowns(context).items()
        for depth, percent in depths.items()
    }


@drawing(PAPER, "text_headline_other")
def headline_other(context: Context) -> Drawn:
    """The ranges of speedups over other schemes, the paper's beside ours."""
    paper = context.result.reported
    least, most = paper["over_model_parallelism"]
    rows = []
    for scheme, printed, gains in (
        ("model parallelism", f"{least}x-{most}x", over_model),
        ("hybrid parallelism", f"{paper['over_hybrid']}x", over_hybrid),
        ("GPipe", f"{paper['over_gpipe']}x", over_gpipe),
    ):
        values = (if_logged(partial(gains, context)) or {}).values()
        row = {"scheme": scheme, "paper": printed}
        rows.append(row | {"least": min(values, default=None), "most": max(values, default=None)})
    cols = [
        Col("Over", "scheme"),
        Col("paper", "paper"),
        Col("least", "least", "{:.2f}x", "ours"),
        Col("most", "most", "{:.2f}x", "ours"),
    ]
    return Drawn.tabled(context, rows, cols)


@judge(PAPER, "text_headline_other", "over_model_parallelism")
def over_model_parallelism(context: Context) -> Finding:
    """Holds if the least and the greatest speedup are the printed range's ends, each within a factor of 1.2."""
    gains, (least, most) = over_model(context), context.result.reported["over_model_parallelism"]
    holds = near(min(gains.values()), least) and near(max(gains.values()), most)
    why = f"{min(gains.values()):.2f}x to {max(gains.values()):.2f}x ({in_words(gains)})"
    return measured(context, holds, why, f"both ends {SPEED_WORDS}")


@judge(PAPER, "text_headline_other", "over_gpipe")
def over_gpipe_at_its_deepest(context: Context) -> Finding:
    """Holds if the speedup over GPipe on Cluster-B at the largest depth is the printed one, within a factor of 1.2."""
    gains, printed = over_gpipe(context), context.result.reported["over_gpipe"]
    ours = gains["most that fit, Cluster-B"]
    why = f"{ours:.2f}x (printed {printed}x); all: {in_words(gains)}"
    return measured(context, near(ours, printed), why, SPEED_WORDS)


@drawing(PAPER, "text_flexflow")
def flexflow(context: Context) -> Drawn:
    """The speedup by pipelining of the best plan with several stages, the paper's beside ours."""
    ours = ratio(context.log(), HYBRID, SEVERAL)
    rows = [{"what": "AlexNet, 2x8 (B)", "paper": context.result.reported["speedup"], "ours": ours}]
    cols = [
        Col("Pipelined over not pipelined", "what"),
        Col("paper", "paper", "{:.1f}x"),
        Col("ours", "ours", "{:.2f}x"),
    ]
    notes = ["FlexFlow itself is not run: the same hybrid plan without pipelining is"]
    return Drawn.tabled(context, rows, cols, notes)
