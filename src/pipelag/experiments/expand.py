"""From a paper's results and a scale to runs. Nothing here names an arm: all of it is read from config/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelag.compat import lacking
from pipelag.data import absent
from pipelag.errors import PipelagError, unknown
from pipelag.experiments.names import check_names
from pipelag.experiments.schema import ArmConfig, LeaveOut, Paper, Result, Runs, Scale, Setup, load_yaml, read, validate
from pipelag.runs.spec import RunSpec

CONFIG = Path("config")


@dataclass(frozen=True)
class Arm:
    """One run of a result. `left_out`: why this scale does not make it, empty where it does."""

    labels: Mapping[str, str]
    seed: int
    spec: RunSpec
    left_out: str = ""


def papers() -> list[str]:
    """The papers that have a config file."""
    return _files("papers")


def scales() -> list[str]:
    """The scales that have a config file."""
    return _files("scales")


def _files(kind: str) -> list[str]:
    if not (CONFIG / kind).is_dir():
        raise PipelagError(f"there is no folder '{CONFIG / kind}' here; go to the project's folder, which holds it")
    return sorted(path.stem for path in (CONFIG / kind).glob("*.yaml"))


@lru_cache
def load_paper(name: str) -> Paper:
    """Read config/papers/<name>.yaml; unknown names and wrong keys are refused with the nearest."""
    if name not in papers():
        raise unknown("paper", name, papers())
    paper: Paper = read(Paper, CONFIG / "papers" / f"{name}.yaml")
    for key, result in paper.results.items():
        for runs in result.runs:
            if runs.use and runs.use not in paper.results:
                raise PipelagError(f"{name}, results.{key}: {unknown('result to use', runs.use, paper.results)}")
            if runs.setup and "{" not in runs.setup and runs.setup not in paper.setups:
                raise PipelagError(f"{name}, results.{key}: {unknown('setup', runs.setup, paper.setups)}")
    return paper


def result_of(paper: Paper, name: str) -> Result:
    """A result by id; unknown ones are refused with the nearest."""
    if name not in paper.results:
        raise unknown(f"result of {paper.id}", name, paper.results)
    return paper.results[name]


@lru_cache
def load_scale(name: str, published: str = "cpu") -> Scale:
    """Read config/scales/<name>.yaml, over what it extends.

    `published` names the folder of results/published whose `scale.yaml` completes the scale of that name.
    """
    if name not in scales():
        raise unknown("scale", name, scales())
    content = load_yaml((CONFIG / "scales" / f"{name}.yaml").read_text())
    scale: Scale = validate(Scale, content, f"config/scales/{name}.yaml")
    if name == "published":
        folder = Path("results/published") / published
        if not (folder / "scale.yaml").is_file():
            known = [path.parent.name for path in folder.parent.glob("*/scale.yaml")]
            raise unknown("published device", published, known)
        own = read(Scale, folder / "scale.yaml")
        scale = own.model_copy(update={"name": scale.name, "frozen": scale.frozen, "folder": str(folder)})
    if scale.extends:
        base = load_scale(scale.extends)
        merged = merge(base.setups, scale.setups, keep=True)
        scale = scale.model_copy(update={"setups": merged, "leave_out": [*base.leave_out, *scale.leave_out]})
    for paper in [*scale.setups, *(each.paper for each in scale.leave_out)]:
        if paper not in papers():
            raise PipelagError(f"scale '{name}': {unknown('paper', paper, papers())}")
    return scale


def merge(base: Mapping[str, Any], over: Mapping[str, Any], keep: bool = False) -> dict[str, Any]:
    """Deep merge of dictionaries; other values of `over` replace those of `base`, and null takes a key away.

    Where `over` names another data set or model, the old one's options go. keep: a null stays, to take the key away
    from what the merged one is merged into later.
    """
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
            if keep:
                merged[key] = None
            continue
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        renamed = both and "name" in value and value["name"] != merged[key].get("name") and key in ("data", "model")
        merged[key] = merge(merged[key], value, keep) if both and not renamed else value
    return merged


def run_dir(scale: Scale, run_id: str) -> Path:
    """A run's folder."""
    return Path(scale.folder or f"results/{scale.name}") / "runs" / run_id


def arms(paper: Paper, result: str, scale: Scale) -> list[Arm]:
    """All runs of a result at a scale, in the order of the config.

    Raises:
        PipelagError: an unknown result, or a name or value in the config that no run can have.
    """
    for key in scale.setups.get(paper.id, {}):
        if key not in paper.setups:
            raise PipelagError(f"scale '{scale.name}': {unknown(f'setup of {paper.id}', key, paper.setups)}")
    for left in scale.leave_out:
        if left.paper == paper.id:
            _check_left_out(left, paper, scale)
    return list(_arms(paper, result, scale))


def _check_left_out(left: LeaveOut, paper: Paper, scale: Scale) -> None:
    where = f"scale '{scale.name}'"
    if not left.result and not left.setups:
        raise PipelagError(f"{where}: an entry of leave_out for {paper.id} names neither a result nor setups")
    if left.result and left.result not in paper.results:
        raise PipelagError(f"{where}: {unknown(f'result of {paper.id}', left.result, paper.results)}")
    for name in left.setups:
        if name not in paper.setups:
            raise PipelagError(f"{where}: {unknown(f'setup of {paper.id}', name, paper.setups)}")


def _arms(paper: Paper, result: str, scale: Scale) -> Iterator[Arm]:
    left_out = [each for each in scale.leave_out if each.paper == paper.id and each.result in ("", result)]
    for runs in result_of(paper, result).runs:
        if runs.use:
            used = [arm for arm in _arms(paper, runs.use, scale) if matches(arm.labels, runs.where)]
            if not used:
                raise PipelagError(f"{paper.id}, results.{result}: no run of {runs.use} has the labels {runs.where}")
            yield from (Arm({**arm.labels, **runs.labels}, arm.seed, arm.spec, arm.left_out) for arm in used)
            continue
        for variables in runs.each or [{}]:
            one: Runs = validate(Runs, substitute(runs.model_dump(exclude={"each"}), variables), f"{paper.id}.{result}")
            setup = setup_of(paper, one.setup, scale)
            for label, arm_config in one.arms.items():
                labels = {**one.labels, "arm": label}
                fitting = (o for o in left_out if not o.setups or one.setup in o.setups)
                why = next((o.why for o in fitting if matches(labels, o.where)), "")
                for seed in one.seeds or scale.seeds:
                    spec = spec_of(setup, arm_config, seed, f"{paper.id}.{result}.{label}")
                    yield Arm(labels, seed, spec, why or missing(spec))


def missing(spec: RunSpec) -> str:
    """Why a run cannot be made here: data that nobody may pass on, a library not installed; empty where it can."""
    if spec.data is not None and spec.kind == "train" and absent(spec.data.name):
        return absent(spec.data.name)
    return lacking(spec.model.name, spec.options) if spec.model is not None else ""


def matches(labels: Mapping[str, str], where: Mapping[str, str | list[str]]) -> bool:
    """Whether the labels have the values asked for."""
    return all(labels.get(k) in ([v] if isinstance(v, str) else v) for k, v in where.items())


def substitute(value: Any, variables: Mapping[str, Any]) -> Any:
    """Fill `{name}` in strings; a string that is one variable only becomes its value."""
    if isinstance(value, str):
        for name, content in variables.items():
            if value == f"{{{name}}}":
                return content
            value = value.replace(f"{{{name}}}", str(content))
        return value
    if isinstance(value, dict):
        return {substitute(key, variables): substitute(item, variables) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [substitute(item, variables) for item in value]
    return value


def setup_of(paper: Paper, name: str, scale: Scale) -> Setup:
    """A setup with the scale's overrides."""
    if name not in paper.setups:
        raise unknown(f"setup of {paper.id}", name, paper.setups)
    base = paper.setups[name].model_dump(exclude_unset=True)
    over = scale.setups.get(paper.id, {}).get(name) or {}
    setup: Setup = validate(Setup, merge(base, over), f"scale '{scale.name}', setups.{paper.id}.{name}")
    return setup


def spec_of(setup: Setup, arm: ArmConfig, seed: int, where: str) -> RunSpec:
    """The run of an arm over a setup."""
    optimizer = setup.optimizer
    if optimizer is not None and arm.lr_times != 1.0:
        optimizer = optimizer.model_copy(update={"lr": _rounded(optimizer.lr * arm.lr_times)})
    phases: list[dict[str, Any]] = []
    for phase in arm.phases or ([arm] if arm.method else []):
        base = optimizer.lr if optimizer is not None else 0.0
        everywhere = phase.lr_times if arm.phases else 1.0  # an arm of one phase has its factor in the optimizer
        cuts = cuts_of(phase.cuts or setup.cuts, where)
        factors = {stage: everywhere for stage in range(1, len(cuts) + 2)}
        factors |= {stage: everywhere * float(times) for stage, times in phase.stage_lr_times.items()}
        rates = {stage: _rounded(base * times) for stage, times in factors.items() if times != 1.0}
        rest = setup.steps - sum(before["steps"] for before in phases)
        steps = rest if phase.share == "rest" else _share(phase.share, setup.steps, setup, where)
        settings = {key: _setting(value, steps, setup, where) for key, value in phase.settings.items()}
        own: dict[str, Any] = {"method": phase.method, "options": settings}
        own |= {"microbatches": phase.microbatches or setup.microbatches, "replicas": phase.replicas or setup.replicas}
        own |= {"recompute": recompute_of(phase.recompute, len(cuts) + 1, setup, where)}
        phases.append({**own, "steps": steps, "cuts": cuts, "stage_lr": rates})
    schedule = setup.lr_schedule
    if schedule.milestones and schedule.horizon is None:
        schedule = schedule.model_copy(update={"horizon": setup.steps})
    content = setup.model_dump(exclude={"steps", "cuts", "replicas", "microbatches", "shares", "checkpoints"}) | {
        "optimizer": optimizer and optimizer.model_dump(),
        "lr_schedule": schedule.model_dump(),
        "phases": phases,
        "seed": seed,
        "options": {**setup.options, **arm.options},
    }
    try:
        spec = RunSpec.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place, said = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise PipelagError(f"{where}: {place or 'the run'}: {said}") from error
    check_names(spec, where)
    return spec


def cuts_of(places: Sequence[int | str] | str, where: str) -> list[int]:
    """Layers to cut after, ranges ("1-106", "4-104:4") and even spreads ("54/107") written out."""
    cuts: list[int] = []
    for place in [places] if isinstance(places, str) else places:
        even = re.fullmatch(r"(\d+)/(\d+)", str(place))
        if even is not None and 1 <= int(even[1]) <= int(even[2]):
            cuts += evenly(int(even[1]), int(even[2]))
            continue
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", str(place))
        if found is None or found[3] == "0":
            raise PipelagError(
                f"{where}: '{place}' is no layer, no range of layers such as 1-106 or 4-104:4, and no even spread such "
                "as 54/107, 107 layers over 54 stages"
            )
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        cuts += range(first, last + 1, step)
    return cuts


def evenly(stages: int, layers: int) -> list[int]:
    """The cuts that spread layers evenly, in their order, over stages (PipeMare section 4.1)."""
    return [(2 * i * layers + stages) // (2 * stages) for i in range(1, stages)]


def recompute_of(value: bool | int | dict[str, int | str], stages: int, setup: Setup, where: str) -> bool | int:
    """Stages per segment; {checkpoints: n} makes n segments as nearly as segments of one length can."""
    if not isinstance(value, dict):
        return value
    count = value.get("checkpoints")
    if isinstance(count, str):
        if count not in setup.checkpoints:
            raise unknown(f"{where}: number of checkpoints", count, setup.checkpoints)
        count = setup.checkpoints[count]
    if len(value) != 1 or not isinstance(count, int) or not 1 <= count <= stages:
        raise PipelagError(f"{where}: recompute takes true, stages per segment, or {{checkpoints: 1 to {stages}}}")
    return -(-stages // count)


def _setting(value: Any, steps: int, setup: Setup, where: str) -> Any:
    """A method's setting: a share of the phase's steps, {share: [1, 4]}, or the setup's own, {setup: microbatches}."""
    if value == {"setup": "microbatches"}:
        return setup.microbatches
    if isinstance(value, dict) and value.keys() == {"share"}:
        return _share(value["share"], steps, setup, where)
    return value


def _share(share: Any, steps: int, setup: Setup, where: str) -> int:
    """So many of the steps, at least one; a name stands for one of the setup's shares."""
    if isinstance(share, str):
        if share not in setup.shares:
            raise unknown(f"{where}: share", share, setup.shares)
        share = setup.shares[share]
    return max(1, steps * share[0] // share[1])


def _rounded(rate: float) -> float:
    """0.1 * 0.1 is to read 0.01 in logs and to hash as that."""
    return float(f"{rate:.10g}")
