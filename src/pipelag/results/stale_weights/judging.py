"""What the judges of this paper share: numbers from the logs, and how far a scale lets a claim be judged."""

from __future__ import annotations

from pipelag.results.logs import Context
from pipelag.results.verdict import Finding, NotLogged, need

PAPER = "stale_weights"
BASELINE = "non-pipelined"


def text(*values: float | None) -> str:
    """Numbers for a sentence."""
    return ", ".join("–" if v is None else f"{v:.2f}" for v in values)


def accuracy(context: Context, arm: str, **labels: str) -> float:
    """Mean final accuracy of an arm; the judgement ends where it is not logged."""
    value = context.accuracy(arm=arm, **labels)
    what = ", ".join([*labels.values(), arm])
    if value.values and not value.complete:
        raise NotLogged(f"{what}: only {value.text()}")
    return need(value.mean, what + (f" ({value.note})" if value.note else ""))


def drops(context: Context, model: str) -> dict[str, float]:
    """Baseline minus arm, in points, for the pipelined arms of a model."""
    base = accuracy(context, BASELINE, model=model)
    arms = [a for a in dict.fromkeys(i.arm.labels["arm"] for i in context.select(model=model)) if a.endswith("-stage")]
    return {arm: base - accuracy(context, arm, model=model) for arm in arms}


def listed(values: dict[str, float]) -> str:
    """A drop per arm, for a sentence."""
    return ", ".join(f"{arm} {value:+.2f}" for arm, value in values.items())


def absolute(context: Context, holds: bool, why: str, **labels: str) -> Finding:
    """For claims about sizes in points: they need the paper's data and length; otherwise only the numbers are given.

    `labels`: of the runs that the claim rests on (default: all of the result's).
    """
    short = context.shortfall(**labels)
    if short:
        return None, f"{why}; sizes in points need the paper's runs ({short})"
    release = context.releases(**labels)
    return holds, why + (f" ({release})" if release else "")


def trend(context: Context, holds: bool, why: str, **labels: str) -> Finding:
    """For claims about order: judged at any scale, which the sentence names."""
    said = "; ".join(text for text in (context.shortfall(**labels), context.releases(**labels)) if text)
    return holds, why + (f" (at this scale: {said})" if said else "")
