"""Expand a paper's results at a scale into runs. No arm is named here: everything is read from config/."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipelag.compat import lacking
from pipelag.data import absent
from pipelag.errors import PipelagError, unknown
from pipelag.experiments.schema import USUAL, LeaveOut, Paper, Result, Runs, Scale, Setup, Workflow, read, validate
from pipelag.experiments.specs import spec_of
from pipelag.files import read_yaml
from pipelag.runs.spec import RunSpec

CONFIG = Path("config")


@dataclass(frozen=True)
class Arm:
    """One run of a result.

    labels: what tells it from the result's other runs, `arm` among them.
    left_out: why this scale does not make the run; empty if it does.
    note: the notes of its entry and its setup.
    """

    labels: Mapping[str, str]
    seed: int
    spec: RunSpec
    left_out: str = ""
    note: str = ""


def check_workflow(content: Mapping[str, Any]) -> Workflow:
    """The workflow's config, checked. The file is checked too, as Snakemake's reader accepts more than it should.

    Raises:
        PipelagError: a key is unknown or given twice, or a value is not allowed.
    """
    if (CONFIG / "config.yaml").exists():
        read_yaml(CONFIG / "config.yaml", "the workflow's config")
    asked = validate(Workflow, content, "the config (config/config.yaml, or --config)")
    for paper in asked.papers:
        if paper not in papers():
            raise unknown("paper", paper, papers())
    return asked


def papers() -> list[str]:
    """The papers that have a config file."""
    return _files("papers")


def scales() -> list[str]:
    """The scales that have a config file."""
    return _files("scales")


def _files(kind: str) -> list[str]:
    if not (CONFIG / kind).is_dir():
        raise PipelagError(f"there is no folder '{CONFIG / kind}' here; change to the project's folder")
    return sorted(path.stem for path in (CONFIG / kind).glob("*.yaml"))


def load_paper(name: str) -> Paper:
    """Read config/papers/<name>.yaml; raises `PipelagError` with the nearest known name or key for a wrong one."""
    if name not in papers():
        raise unknown("paper", name, papers())
    paper: Paper = read(Paper, CONFIG / "papers" / f"{name}.yaml")
    _check_named("papers", name, "id", paper.id)
    for key, result in paper.results.items():
        for runs in result.runs:
            if runs.use and runs.use not in paper.results:
                raise PipelagError(f"{name}, results.{key}: {unknown('result to use', runs.use, paper.results)}")
            if runs.setup and "{" not in runs.setup and runs.setup not in paper.setups:
                raise PipelagError(f"{name}, results.{key}: {unknown('setup', runs.setup, paper.setups)}")
    return paper


def _check_named(kind: str, file: str, key: str, name: str) -> None:
    """Refuse a file that does not state its own name: scales, figures and folders use the name inside the file."""
    if name != file:
        raise PipelagError(f"{CONFIG / kind / file}.yaml says {key}: {name}; change this to {file}, or rename the file")


def result_of(paper: Paper, name: str) -> Result:
    """A result by its id; raises `PipelagError` with the nearest known id for an unknown one."""
    if name not in paper.results:
        raise unknown(f"result of {paper.id}", name, paper.results)
    return paper.results[name]


def load_scale(name: str, published: str = USUAL, above: tuple[str, ...] = ()) -> Scale:
    """Read config/scales/<name>.yaml, merged over the scale that it extends.

    Args:
        published: the folder of results/published whose `scale.yaml` completes the scale `published`.
        above: the scales that extend this one, to find a cycle.

    Raises:
        PipelagError: an unknown scale, paper or folder, a wrong key, or a scale that extends itself.
    """
    if name in above:
        raise PipelagError(
            f"the scale '{name}' extends itself: {' extends '.join((*above, name))}; remove one of these extends"
        )
    if name not in scales():
        raise unknown("scale", name, scales())
    scale = read(Scale, CONFIG / "scales" / f"{name}.yaml")
    _check_named("scales", name, "name", scale.name)
    if name == "published":
        home = Path("results/published")
        folder = home / published
        if not os.path.isfile(folder / "scale.yaml"):  # false of too long a name, too
            known = [path.parent.name for path in home.glob("*/scale.yaml")]
            raise unknown("published device", published, known)
        of_device = read(Scale, folder / "scale.yaml")
        if of_device.folder:
            raise PipelagError(f"{folder / 'scale.yaml'}: the logs of this scale lie beside the file; leave out folder")
        scale = of_device.model_copy(update={"name": scale.name, "frozen": scale.frozen, "folder": str(folder)})
    if published != USUAL and not scale.extends and "published" not in (*above, name):
        raise PipelagError(
            f"the scale '{(*above, name)[0]}' has no logs by device, such as '{published}'; only the scale 'published' "
            "has them"
        )
    if scale.extends:
        base = load_scale(scale.extends, published, (*above, name))
        merged = merge(base.setups, scale.setups, keep=True)
        over = {"setups": merged, "leave_out": [*base.leave_out, *scale.leave_out]}
        over["least_seeds"] = base.least_seeds | scale.least_seeds
        over |= {} if "seeds" in scale.model_fields_set else {"seeds": base.seeds}
        scale = scale.model_copy(update=over)
    for paper in [*scale.setups, *(each.paper for each in scale.leave_out), *scale.least_seeds, *scale.hours]:
        if paper not in papers():
            raise PipelagError(f"scale '{name}': {unknown('paper', paper, papers())}")
    return scale


def merge(base: Mapping[str, Any], over: Mapping[str, Any], keep: bool = False) -> dict[str, Any]:
    """Deep merge of dictionaries: other values in `over` replace those in `base`, and null removes a key.

    Where `over` names another data set or model, the options of the old one are dropped. keep: nulls stay in the
    result, so that they remove the keys from what the result is merged into later.
    """
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
            if keep:
                merged[key] = None
            continue
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        renamed = nested and "name" in value and value["name"] != merged[key].get("name") and key in ("data", "model")
        merged[key] = merge(merged[key], value, keep) if nested and not renamed else value
    return merged


def run_dir(scale: Scale, run_id: str) -> Path:
    """A run's folder."""
    return Path(scale.folder or f"results/{scale.name}") / "runs" / run_id


def arms(paper: Paper, result: str, scale: Scale) -> list[Arm]:
    """All runs of a result at a scale, in the order of the config.

    Raises:
        PipelagError: an unknown result, or a name or value in the config that no run can have.
    """
    _check_scale(paper, scale)
    return _arms(paper, result, scale, {})


def all_arms(paper: Paper, scale: Scale) -> dict[str, list[Arm]]:
    """`arms` of every result of a paper. A result that several others use is expanded once."""
    _check_scale(paper, scale)
    by_result: ByResult = {}
    return {result: _arms(paper, result, scale, by_result) for result in paper.results}


def _check_scale(paper: Paper, scale: Scale) -> None:
    """Refuse a scale that names setups, results or labels that the paper does not have."""
    for key in scale.setups.get(paper.id, {}):
        if key not in paper.setups:
            raise PipelagError(f"scale '{scale.name}': {unknown(f'setup of {paper.id}', key, paper.setups)}")
    for left in scale.leave_out:
        if left.paper == paper.id:
            _check_left_out(left, paper, scale)


def _check_left_out(left: LeaveOut, paper: Paper, scale: Scale) -> None:
    where = f"scale '{scale.name}'"
    if not left.result and not left.setups:
        raise PipelagError(f"{where}: an entry of leave_out for {paper.id} names neither a result nor setups")
    if left.result and left.result not in paper.results:
        raise PipelagError(f"{where}: {unknown(f'result of {paper.id}', left.result, paper.results)}")
    for name in left.setups:
        if name not in paper.setups:
            raise PipelagError(f"{where}: {unknown(f'setup of {paper.id}', name, paper.setups)}")
    labels = _labels(paper.id, paper.model_dump_json())
    for key, values in left.where.items():
        if key not in labels:
            raise PipelagError(f"{where}, leave_out: {unknown(f'label of {paper.id}', key, labels)}")
        for value in [values] if isinstance(values, str) else values:
            if value not in labels[key]:
                raise PipelagError(f"{where}, leave_out: {unknown(f'{key} of {paper.id}', value, labels[key])}")


@lru_cache(maxsize=64)
def _labels(name: str, content: str) -> dict[str, set[str]]:
    """All labels of a paper's runs, with the values that they take. `content`: the paper as JSON."""
    labels: dict[str, set[str]] = {"arm": set()}
    for result in Paper.model_validate_json(content).results.values():
        for runs in result.runs:
            for variables in runs.each or [{}]:
                for key, value in substitute({**runs.labels}, variables).items():
                    labels.setdefault(key, set()).add(str(value))
                labels["arm"] |= {str(substitute(label, variables)) for label in runs.arms}
    return labels


ByResult = dict[str, list[Arm] | None]


def _arms(paper: Paper, result: str, scale: Scale, by_result: ByResult) -> list[Arm]:
    """As `arms`. `by_result`: the runs of the results expanded so far, which others may use; None during expansion."""
    if result not in by_result:
        by_result[result] = None
        by_result[result] = [
            arm for runs in result_of(paper, result).runs for arm in _of(runs, paper, result, scale, by_result)
        ]
    arms = by_result[result]
    if arms is None:
        raise PipelagError(
            f"{paper.id}: results.{result} uses its own runs through the results that it uses; remove one of these uses"
        )
    return arms


def _of(runs: Runs, paper: Paper, result: str, scale: Scale, by_result: ByResult) -> Iterator[Arm]:
    """The runs that one entry of a result's `runs` stands for."""
    if runs.use:
        yield from _used(runs, paper, result, scale, by_result)
        return
    for variables in runs.each or [{}]:
        one: Runs = validate(Runs, substitute(runs.model_dump(exclude={"each"}), variables), f"{paper.id}.{result}")
        setup = setup_of(paper, one.setup, scale)
        seeds = one.seeds or setup.seeds or scale.seeds
        note = " ".join(filter(None, (one.note, setup.note)))
        for label, arm_config in one.arms.items():
            labels = {**one.labels, "arm": label}
            spec = spec_of(setup, arm_config, seeds[0], f"{paper.id}.{result}.{label}")
            for seed in seeds:
                why = _left_out(scale, paper.id, result, one.setup, labels, seed) or missing(spec)
                yield Arm(labels, seed, spec.model_copy(update={"seed": seed}), why, note)


def _used(runs: Runs, paper: Paper, result: str, scale: Scale, by_result: ByResult) -> Iterator[Arm]:
    """The runs of another result that have the entry's labels (`where`) and seeds."""
    used = [arm for arm in _arms(paper, runs.use, scale, by_result) if matches(arm.labels, runs.where)]
    if not used:
        raise PipelagError(f"{paper.id}, results.{result}: no run of {runs.use} has the labels {runs.where}")
    taken = [arm for arm in used if not runs.seeds or arm.seed in runs.seeds]
    if not taken:
        seeds = [", ".join(map(str, sorted(set(some)))) for some in (runs.seeds or (), (arm.seed for arm in used))]
        raise PipelagError(
            f"{paper.id}, results.{result}: no run of {runs.use} has the seeds {seeds[0]}; they have {seeds[1]}"
        )
    yield from (replace(arm, labels={**arm.labels, **runs.labels}) for arm in taken)


def _left_out(scale: Scale, paper: str, result: str, setup: str, labels: Mapping[str, str], seed: int) -> str:
    """Why a scale does not make a run, by the first `leave_out` entry that covers it; empty if none does."""
    for entry in scale.leave_out:
        of_result = entry.paper == paper and entry.result in ("", result)
        of_setup = not entry.setups or setup in entry.setups
        if of_result and of_setup and matches(labels, entry.where) and (not entry.seeds or seed in entry.seeds):
            return entry.why
    return ""


def missing(spec: RunSpec) -> str:
    """Why a run cannot be made here, such as a library that is not installed; empty if it can be made."""
    if spec.data is not None and spec.kind == "train" and (why := absent(spec.data.name)):
        return why
    return lacking(spec.model.name, spec.options) if spec.model is not None else ""


def matches(labels: Mapping[str, str], where: Mapping[str, str | list[str]]) -> bool:
    """Whether the labels have the values asked for."""
    return all(labels.get(k) in ([v] if isinstance(v, str) else v) for k, v in where.items())


def substitute(value: Any, variables: Mapping[str, Any]) -> Any:
    """Replace `{name}` in strings by the variable's value; a string that is just one `{name}` becomes the value."""
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
