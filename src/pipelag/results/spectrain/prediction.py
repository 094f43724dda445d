"""Figure 9: how close predicted weights come to the true ones, for SpecTrain and for every method that predicts."""

from __future__ import annotations

import pandas as pd

from pipelag.report.style import COLOURS, PAGE, figure
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact
from pipelag.results.logs import Context, RunLog
from pipelag.results.verdict import Finding, judge, need

PAPER = "spectrain"
HORIZONS = (1, 2, 3)


def series(context: Context) -> pd.DataFrame:
    """One line per method, seed, step and s: RMSE of predicted and of stale weights."""
    lines = []
    for item in context.items:
        for row in item.log.rows if item.log else ():
            for s in HORIZONS:
                if f"rmse_stale_{s}" in row:
                    lines.append(
                        {
                            "method": item.arm.labels["arm"],
                            "seed": item.arm.seed,
                            "step": row["step"],
                            "s": s,
                            "predicted": row[f"rmse_predicted_{s}"],
                            "stale": row[f"rmse_stale_{s}"],
                        }
                    )
    return pd.DataFrame(lines)


@drawing(PAPER, "figure_9")
def figure_9(context: Context) -> Drawn:
    """A panel per s; the stale weights of SpecTrain's run in black, every method's predictions in colour."""
    data = series(context)
    if data.empty:
        return not_logged("no run has been logged")
    mean = data.groupby(["method", "s", "step"], as_index=False, sort=False)[["predicted", "stale"]].mean()
    fig, panels = figure(PAGE, 2.3, ncols=len(HORIZONS), sharey=True)
    for axes, s in zip(panels, HORIZONS, strict=True):
        here = mean[mean["s"] == s]
        stale = here[here["method"] == "SpecTrain"]
        axes.plot(stale["step"], stale["stale"], color=COLOURS[0], label="stale ($W_{t-s}$), SpecTrain's run")
        for number, method in enumerate(context.values("arm"), start=1):
            own = here[here["method"] == method]
            axes.plot(
                own["step"], own["predicted"], color=COLOURS[number], label=rf"predicted ($\hat{{W}}_t$), {method}"
            )
        axes.set_title(f"s = {s}")
        axes.set_xlabel("iteration")
        axes.set_yscale("log")
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.5)
    panels[0].set_ylabel("RMSE")
    handles, labels = panels[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3)
    return Drawn(figure=fig, data=data)


def means(context: Context, method: str = "SpecTrain") -> dict[int, tuple[float, float]]:
    """s -> (mean RMSE predicted, mean RMSE stale) over the run and its seeds."""
    logs: list[RunLog] = context.logs(arm=method)
    need(1.0 if logs else None, method)
    data = series(context)
    data = data[data["method"] == method]
    return {s: tuple(data[data["s"] == s][["predicted", "stale"]].mean()) for s in HORIZONS}  # type: ignore[misc]


@judge(PAPER, "figure_9", "predicted_below_stale")
def predicted_below_stale(context: Context) -> Finding:
    """Means over the run."""
    found = means(context)
    holds = all(predicted < stale for predicted, stale in found.values())
    return exact(holds, "predicted / stale: " + ", ".join(f"s = {s}: {p / q:.2f}" for s, (p, q) in found.items()))


@judge(PAPER, "figure_9", "grows_with_s")
def grows_with_s(context: Context) -> Finding:
    """Means over the run."""
    stale = [stale for _, stale in means(context).values()]
    return exact(stale == sorted(stale) and stale[0] < stale[-1], ", ".join(f"{value:.2e}" for value in stale))


@judge(PAPER, "figure_9", "small_ratio")
def small_ratio(context: Context) -> Finding:
    """The paper's 1.5 % rests on spikes of the stale RMSE (1000 times the average); ours is reported as it is."""
    predicted, stale = means(context)[3]
    percent = 100 * predicted / stale
    reported = context.result.reported["s3_mean_ratio_percent"]
    return exact(percent <= 2 * reported, f"{percent:.1f} % at s = 3 (paper: {reported} %, dominated by spikes)")
