"""Table 1: the plans found for models and clusters, and their speedups over data parallelism."""

from __future__ import annotations

from pipelag.report.tables import Col
from pipelag.results.arrivals import BETWEEN
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import agreed, measured, sized
from pipelag.results.pipedream.entries import LANGUAGE, Entry, entries, unpublished
from pipelag.results.pipedream.overheads import VISIBLE, VISIBLE_WORDS
from pipelag.results.pipedream.targets import ALIKE, ALIKE_WORDS, METRICS, against_data_parallelism, arrivals
from pipelag.results.plans import (
    ALONE,
    BOTH_COSTS,
    PRINTED,
    PRINTED_WORDS,
    READINGS,
    RING,
    SPEED_WORDS,
    Row,
    near,
    plan_in,
    planned,
    samples_per_second,
)
from pipelag.results.verdict import Finding, Judge, if_logged, judge, log_of, need

PAPER = "pipedream"
FAST = "2x8 (B)"


def epochs_gain(context: Context, entry: Entry) -> float | None:
    """Data parallelism's epochs to the target over PipeDream's; None if nothing is trained for this row."""
    model = entry.paper["model"]
    if entry.note == "80 per GPU" or model not in METRICS or entry.log is None or not entry.trained:
        return None
    return if_logged(lambda: against_data_parallelism(context, model).mean())


def to_target(context: Context, entry: Entry) -> float | None:
    """The paper's plan's speedup to the target: trained epochs times timed seconds per epoch; None without logs."""
    speed, epochs = entry.papers_plan(), epochs_gain(context, entry)
    return speed * epochs if speed and epochs else None


@drawing(PAPER, "table_1")
def table_1(context: Context) -> Drawn:
    """A row per model and cluster: the paper's plan and speedups; our plans and speedups by both forms of the cost."""
    printed, ring, papers = "ours, recurrence as printed", "ours, a ring's cost", "ours, the paper's config"
    cols = [
        Col("Model", lambda e: e.paper["model"] + (f" ({e.note})" if e.note else "")),
        Col("Servers", lambda e: e.paper["servers"]),
        Col("config", lambda e: e.paper["config"], group="paper"),
        Col("epoch", lambda e: e.paper.get("epoch"), "{:.2f}x", "paper"),
        Col("to target", lambda e: e.paper.get("tta"), "{:.2f}x", "paper"),
        Col("config", lambda e: e.config(PRINTED), group=printed),
        Col("epoch", lambda e: e.speedup(PRINTED), "{:.2f}x", printed),
        Col("config", lambda e: e.config(RING), group=ring),
        Col("epoch", lambda e: e.speedup(RING), "{:.2f}x", ring),
        Col("epoch", lambda e: e.papers_plan(), "{:.2f}x", papers),
        Col("to target", lambda e: to_target(context, e), "{:.2f}x", papers),
    ]
    notes = [
        f"ours: simulated by discrete events, gradients sent as they become ready ({profile_note(context)})",
        "the printed cost of summing gradients, 2(m-1)|w|/B, is m times a ring's, which is the cost that section 3.1's "
        "bytes give (ambiguity C4)",
        "15-1 on 4x4 cannot come from the recurrence by levels, which replicates whole servers: our partitioner also "
        "searches over all workers on one level",
        "AWD-LM: 'batch size of 80' read as 80 in all (20 on each GPU of data parallelism, 80 in a straight pipeline) "
        "and as 80 on each",
        "the paper's 15-1 is cut before the first linear layer, its 2-1-1 where a ring's cost is least",
        "config: the replicas of each stage, first to last; a single number is data parallelism, straight is one "
        "worker per stage",
    ]
    notes += [note for entry in entries(context) for note in entry.small_minibatches(READINGS)]
    notes += [note for entry in entries(context) if (note := as_good(entry))]
    notes += [idle for entry in entries(context) for reading in READINGS if (idle := without_work(entry, reading))]
    trained = dict.fromkeys(item.arm.labels["model"] for item in context.logged(what="training"))
    if trained:
        short = context.shortfall(what="training")
        words = f", but differently from the paper: {short}" if short else ""
        notes.append(f"to target, ours: from trainings of {listed(list(trained))}{words}")
        notes += arrivals(context, trained)
    return Drawn.tabled(context, entries(context, extra=True), cols, notes)


def idle_stages(plan: Row | None) -> list[int]:
    """The numbers of a plan's stages that compute nothing; empty without a plan."""
    stages = enumerate(plan["stages"] if plan else [], start=1)
    return [number for number, stage in stages if stage["forward_ms"] + stage["backward_ms"] == 0]


def without_work(entry: Entry, reading: str) -> str:
    """A note on the stages of a found plan that compute nothing; or empty."""
    idle = idle_stages(planned(entry.log, reading))
    if not idle:
        return ""
    computed = f"stage {' and '.join(map(str, idle))} computes nothing"
    return f"{entry.name}, {entry.config(reading)}: {computed}, because the recurrence has to place every worker"


def as_good(entry: Entry) -> str:
    """A note that the cost of a search predicts the paper's plan to be just as fast as the one found; or empty."""
    tied = [entry.config(reading) for reading in READINGS if entry.tied(reading)]
    found = " and ".join(dict.fromkeys(str(config) for config in tied))
    return f"{entry.name}: {entry.paper['config']} is predicted to be as fast as {found}" if tied else ""


def profile_note(context: Context) -> str:
    """The sources of the profiles behind the plans, in words."""
    sources = {i.arm.spec.published for i in context.select(what="plan")}
    words = {True: "the authors' published profiles", False: "rooflines of data sheets"}
    return "profiles: " + " and ".join(words[source] for source in sorted(sources, reverse=True))


def both_speedups(entry: Entry) -> str:
    """The speedups of the plans by the printed recurrence and by a ring's cost, in words."""
    return (
        f"{need(entry.speedup(PRINTED), entry.name):.2f}x (a ring's cost: {need(entry.speedup(RING), entry.name):.2f}x)"
    )


@judge(PAPER, "table_1", "at_least_one")
def at_least_one(context: Context) -> Finding:
    """Holds if no row's plan is slower than data parallelism, as rounded; both forms of the cost must agree."""
    rows = list(entries(context))
    slower = [[e for e in rows if need(e.speedup(reading), e.name) < 0.995] for reading in READINGS]
    below = [f"{entry.name} {both_speedups(entry)}" for entry in rows if any(entry in some for some in slower)]
    why = f"{len(rows) - len(below)} of {len(rows)} rows" + (f"; slower: {', '.join(below)}" if below else "")
    holds = agreed(*(not some for some in slower))
    return measured(context, holds, why, f"{PRINTED_WORDS}: 0.995 is 1; {BOTH_COSTS}", what="plan")


@judge(PAPER, "table_1", "one_where_data_parallel")
def one_where_data_parallel(context: Context) -> Finding:
    """Holds if the same rows have a speedup of 1.00x, have data parallelism as their plan, and are 1x in the paper.

    By the printed recurrence.
    """
    rows = list(entries(context))
    ones = [e.name for e in rows if abs(need(e.speedup(PRINTED), e.name) - 1) < 0.005]
    chosen = [e.name for e in rows if str(e.config(PRINTED)).isdigit()]
    papers_ones = [e.name for e in rows if e.paper["epoch"] == 1]
    by_ring = [e.name for e in rows if str(e.config(RING)).isdigit()]
    why = f"1.00x: {listed(ones)}; data parallel: {listed(chosen)} (by a ring's cost: {listed(by_ring)})"
    return measured(context, ones == chosen == papers_ones, why, f"{PRINTED_WORDS}: 0.995 to 1.005 is 1", what="plan")


def listed(names: list[str]) -> str:
    """Names in words."""
    return ", ".join(names) or "none"


def same_plans(model: str) -> Judge:
    """A judge that decides whether the partitioner gives the paper's plan in all rows of a model.

    Both forms of the cost must agree.
    """

    def same(context: Context) -> Finding:
        texts, rows = [], []
        for entry in entries(context):
            if entry.paper["model"] != model:
                continue
            configs = [str(plan_in(entry.log, reading, f"the plan of {entry.name}")["config"]) for reading in READINGS]
            rows.append([config == entry.paper["config"] for config in configs])
            texts.append(
                f"{entry.paper['servers']}: {configs[0]} (by a ring's cost: {configs[1]}), "
                f"printed {entry.paper['config']}{tie_in_words(entry)}"
            )
        why = "; ".join(texts) + unpublished(context, model)
        holds = agreed(*map(all, zip(*rows, strict=True)))
        return measured(context, holds, why, f"exact; {BOTH_COSTS}", what="plan", model=model)

    return same


def tie_in_words(entry: Entry) -> str:
    """That a cost predicts the paper's plan to be as fast as the one that its search found; or empty."""
    by = [
        f"by {words} cost"
        for reading, words in zip(READINGS, ("the printed", "a ring's"), strict=True)
        if entry.tied(reading)
    ]
    return f", predicted to be as fast {' and '.join(by)}" if by else ""


for _claim, _model in (
    ("plan_vgg16", "VGG-16"),
    ("plan_alexnet", "AlexNet"),
    ("plan_resnet50", "ResNet-50"),
    ("plan_gnmt16", "GNMT-16"),
    ("plan_gnmt8", "GNMT-8"),
    ("plan_awd_lm", LANGUAGE),
    ("plan_s2vt", "S2VT"),
):
    judge(PAPER, "table_1", _claim)(same_plans(_model))


@judge(PAPER, "table_1", "gnmt8_less_overhead")
def less_overhead(context: Context) -> Finding:
    """Holds if data parallelism's overhead on 2x8 (B) is smaller for GNMT-8 than for GNMT-16, by at least a point.

    The overhead is the share of its time that it waits for gradients.
    """
    shares = {}
    for model in ("GNMT-8", "GNMT-16"):
        log = log_of(context, what="plan", model=model, servers=FAST)
        alone = plan_in(log, ALONE, f"data parallelism, {model}")
        computing = (log.summary["forward_ms"] + log.summary["backward_ms"]) / 1e3
        shares[model] = 100 * (1 - computing / (alone["timed"] * log.summary["workers"]))
    less = shares["GNMT-16"] - shares["GNMT-8"]
    why = f"of data parallelism's time on {FAST}, " + ", ".join(
        f"{model} {share:.1f} %" for model, share in shares.items()
    )
    return measured(context, less >= VISIBLE, why, f"less by {VISIBLE_WORDS}", what="plan", model="GNMT-8")


@judge(PAPER, "table_1", "gnmt8_too_few_layers")
def too_few_layers(context: Context) -> Finding:
    """Holds if GNMT-8 has no straight plan over all 16 workers, or one in which some stage computes nothing."""
    log = log_of(context, what="plan", model="GNMT-8", servers=FAST)
    straight = planned(log, "straight")
    stages = straight["stages"] if straight else []
    idle = len(idle_stages(straight))
    pipeline = "no straight pipeline"
    if stages:
        rates = [f"{need(samples_per_second(log, plan), 'its rate'):.0f}" for plan in ("straight", ALONE)]
        pipeline = f"a straight pipeline has {len(stages)} stages, {idle} without work"
        pipeline += f", and {rates[0]} samples/s, where data parallelism has {rates[1]}"
    why = f"{log.summary['layers']} layers in the profile, {log.summary['workers']} workers: {pipeline}"
    return measured(context, not stages or idle > 0, why, "exact", what="plan", model="GNMT-8")


@judge(PAPER, "table_1", "epoch_speedups")
def epoch_speedups(context: Context) -> Finding:
    """Holds if the paper's plan has the printed speedup within a factor of 1.2 in every row that is not data parallel.

    A row whose model has too few layers for the plan leaves the claim open.
    """
    rows = [entry for entry in entries(context) if not str(entry.paper["config"]).isdigit()]
    for entry in rows:
        for log in (entry.log, entry.piped):
            need(samples_per_second(log, ALONE), entry.name)
    speeds = [(entry, speed) for entry in rows if (speed := entry.papers_plan()) is not None]
    inside = [entry.name for entry, speed in speeds if near(speed, entry.paper["epoch"])]
    words = ", ".join(f"{entry.name} {speed:.2f}x (printed {entry.paper['epoch']:g}x)" for entry, speed in speeds)
    without = [f"{entry.name} has too few layers for it" for entry in rows if entry.papers_plan() is None]
    which = f" ({', '.join(inside)})" if inside else ""
    why = "; ".join([f"{len(inside)} of {len(rows)} of the paper's plans{which}: {words}", *without])
    holds = False if len(inside) < len(speeds) else None if without else True
    return measured(context, holds, why, SPEED_WORDS, what="plan")


@judge(PAPER, "table_1", "vgg16_gains_more_here")
def slower_links(context: Context) -> Finding:
    """Holds if VGG-16's speedup is larger on Cluster-A than on Cluster-B, by the printed recurrence."""
    slow, fast = (entry for entry in entries(context) if entry.paper["model"] == "VGG-16")
    gains = [need(entry.speedup(PRINTED), entry.name) for entry in (slow, fast)]
    why = f"{both_speedups(slow)} on {slow.paper['servers']}, {both_speedups(fast)} on {fast.paper['servers']}"
    return measured(context, gains[0] > gains[1] + 0.005, why, PRINTED_WORDS, what="plan", model="VGG-16")


@judge(PAPER, "table_1", "same_epochs")
def same_epochs(context: Context) -> Finding:
    """Holds if PipeDream needs about as many epochs to the target as data parallelism for most trained models.

    About is within a quarter. Fails if for at least half of them it does not.
    """
    outcomes, texts = [], []
    for model in METRICS:
        efficiency = against_data_parallelism(context, model)
        gain = efficiency.gain()
        outcomes.append((None, None) if efficiency.by_rate else (gain.above(1 / ALIKE), gain.below(ALIKE)))
        texts.append(f"{model} {efficiency.text()}")
    alike = sum(all(pair) for pair in outcomes)
    unlike = sum(False in pair for pair in outcomes)
    holds = True if alike > len(outcomes) / 2 else False if unlike >= len(outcomes) / 2 else None
    why = f"alike for {alike} of {len(outcomes)} models that are trained: " + "; ".join(texts)
    return sized(context, holds, why, f"{ALIKE_WORDS}; {BETWEEN}", what="training")
