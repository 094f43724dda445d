"""Turn an arm over a setup into the spec of a run: shares, factors and ranges of cuts are written out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from pipelag.errors import PipelagError, shortened, shown, unknown
from pipelag.experiments.names import check_names
from pipelag.experiments.schema import ArmConfig, PhaseArm, Setup, proper
from pipelag.runs.spec import RunSpec
from pipelag.typed import MOST_STAGES, mistake


def spec_of(setup: Setup, arm: ArmConfig, seed: int, where: str) -> RunSpec:
    """The spec of an arm over a setup.

    Raises:
        PipelagError: a name or a value that no run can have; begins with `where`.
    """
    optimizer = setup.optimizer
    if optimizer is not None and arm.lr_times != 1.0:
        optimizer = optimizer.model_copy(update={"lr": _rounded(optimizer.lr * arm.lr_times)})
    if setup.kind in ("train", "speed") and not setup.steps:
        raise PipelagError(f"{where}: the setup does not say how many steps a run takes; give it steps")
    base = optimizer.lr if optimizer is not None else 0.0
    phases: list[dict[str, Any]] = []
    for phase in arm.phases or ([arm] if arm.method else []):
        rest = setup.steps - sum(before["steps"] for before in phases)
        everywhere = phase.lr_times if arm.phases else 1.0  # an arm of one phase has its factor in the optimizer
        phases.append(_phase(phase, setup, rest, base, everywhere, where))
    schedule = setup.lr_schedule
    if schedule.milestones and schedule.horizon is None:
        schedule = schedule.model_copy(update={"horizon": setup.steps})
    elsewhere = {"steps", "cuts", "replicas", "microbatches", "shares", "checkpoints", "seeds", "note"}
    content = setup.model_dump(exclude=elsewhere) | {
        "optimizer": optimizer and optimizer.model_dump(),
        "lr_schedule": schedule.model_dump(),
        "phases": phases,
        "seed": seed,
        "options": {**setup.options, **arm.options},
    }
    try:
        spec = RunSpec.model_validate(content)
    except ValidationError as error:
        raise mistake(error, content, RunSpec).at(where) from error
    check_names(spec, where)
    return spec


def _phase(phase: PhaseArm, setup: Setup, rest: int, base: float, everywhere: float, where: str) -> dict[str, Any]:
    """The phase's fields in a spec.

    Args:
        rest: the setup's steps minus those of the phases before this one.
        base: the optimizer's learning rate; everywhere: the factor on it for all stages.
    """
    cuts = cuts_of(phase.cuts or setup.cuts, where)
    factors = {stage: everywhere for stage in range(1, len(cuts) + 2)}
    factors |= {stage: everywhere * _number(times, where) for stage, times in phase.stage_lr_times.items()}
    steps = rest if phase.share == "rest" else _share(phase.share, setup.steps, setup, where)
    return {
        "method": phase.method,
        "options": {key: _setting(value, steps, setup, where) for key, value in phase.settings.items()},
        "microbatches": phase.microbatches or setup.microbatches,
        "replicas": phase.replicas or setup.replicas,
        "recompute": recompute_of(phase.recompute, len(cuts) + 1, setup, where),
        "steps": steps,
        "cuts": cuts,
        "stage_lr": {stage: _rounded(base * times) for stage, times in factors.items() if times != 1.0},
    }


def cuts_of(places: Sequence[int | str] | str, where: str) -> list[int]:
    """The layers to cut after, with ranges ("1-106", "4-104:4") and even spreads ("54/107") written out."""
    cuts: list[int] = []
    for place in [places] if isinstance(places, str) else places:
        even = re.fullmatch(r"(\d+)/(\d+)", str(place))
        if even is not None and 1 <= int(even[1]) <= int(even[2]):
            _few(int(even[1]), where)
            cuts += evenly(int(even[1]), int(even[2]))
            continue
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", str(place))
        if match is None or match[3] == "0" or int(match[2] or match[1]) < int(match[1]):
            raise PipelagError(
                f"{where}: '{shortened(str(place))}' is not a layer, a range of layers such as 1-106 or 4-104:4, or an "
                "even spread such as 54/107 (107 layers over 54 stages)"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        _few(len(cuts) + (last + 1 - first) // step, where)
        cuts += range(first, last + 1, step)
    return cuts


def _few(stages: int, where: str) -> None:
    if stages > MOST_STAGES:
        raise PipelagError(f"{where}: cuts that make {stages:,} stages are too many; the limit is {MOST_STAGES:,}")


def evenly(stages: int, layers: int) -> list[int]:
    """The cuts that spread layers evenly over stages (PipeMare, section 4.1)."""
    return [(2 * i * layers + stages) // (2 * stages) for i in range(1, stages)]


def recompute_of(value: bool | int | dict[str, int | str], stages: int, setup: Setup, where: str) -> bool | int:
    """The number of stages per segment. {checkpoints: n} stands for n segments, or as close as equal segments get."""
    if not isinstance(value, dict):
        return value
    count = value.get("checkpoints")
    if isinstance(count, str):
        if count not in setup.checkpoints:
            raise PipelagError(f"{where}: {unknown('name of a number of checkpoints', count, setup.checkpoints)}")
        count = setup.checkpoints[count]
    if len(value) != 1 or not isinstance(count, int) or not 1 <= count <= stages:
        raise PipelagError(
            f"{where}: recompute should be true, a number of stages per segment, or {{checkpoints: 1 to {stages}}}"
        )
    return -(-stages // count)


def _setting(value: Any, steps: int, setup: Setup, where: str) -> Any:
    """A method's setting, with {share: [1, 4]} of the phase's steps and {setup: microbatches} written out."""
    if value == {"setup": "microbatches"}:
        return setup.microbatches
    if isinstance(value, dict) and value.keys() == {"share"}:
        return _share(value["share"], steps, setup, where)
    return value


def _share(share: Any, steps: int, setup: Setup, where: str) -> int:
    """That share of the steps, at least one step; a name stands for one of the setup's shares."""
    if isinstance(share, str):
        if share not in setup.shares:
            raise PipelagError(f"{where}: {unknown('share', share, setup.shares)}")
        share = setup.shares[share]
    try:
        above, below = share
        share = proper((int(above), int(below)))
        if share != (float(above), float(below)):  # 1.5 is no numerator
            raise ValueError
    except (TypeError, ValueError) as error:
        raise PipelagError(
            f"{where}: a share is [numerator, denominator] in whole numbers, above 0 and at most 1, or a name among "
            f"the setup's shares, not {shown(share)}"
        ) from error
    return max(1, steps * share[0] // share[1])


def _number(value: float | str, where: str) -> float:
    """A factor on a stage's rate, which may have been a variable and so be a string."""
    try:
        number = float(value)
    except ValueError as error:
        raise PipelagError(f"{where}: the factor on a stage's rate is '{value}', which is not a number") from error
    return number


def _rounded(rate: float) -> float:
    """The rate to ten digits, so that 0.1 * 0.1 is logged and hashed as 0.01."""
    return float(f"{rate:.10g}")
