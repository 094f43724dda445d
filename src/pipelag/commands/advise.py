"""`pipelag advise`: every method for a model on a cluster, timed, with memory, staleness and loss of accuracy."""

from __future__ import annotations

import argparse
import json
from math import lcm
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelag.catalogue import check_model
from pipelag.commands.arguments import number, whole
from pipelag.commands.partition import DRAWN, read_profile
from pipelag.commands.run import read_spec
from pipelag.commands.subject import Subject, options_of, subject
from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, load_scale, papers
from pipelag.experiments.names import models
from pipelag.experiments.schema import USUAL
from pipelag.files import write_whole, yaml_of
from pipelag.partitioner.advice import best, choices
from pipelag.partitioner.arms import Ground
from pipelag.partitioner.cluster import Cluster
from pipelag.results.advice import Ranked, board, ranked, record, verdict
from pipelag.results.evidence import Evidence, gathered
from pipelag.runs.optimizers import OptimizerSpec, factory
from pipelag.runs.spec import DataSpec
from pipelag.timing.by_batch import Profiles
from pipelag.typed import MOST_BATCH, MOST_STEPS, mistake

RATES = {"sgd": {"lr": 0.1, "momentum": 0.9}}  # of a run that is told no rate; those of Adam's kin below
STEPS = 1000
FORMATS = ("md", "csv", "json", "tex")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "profile", help="a profile that pipelag saved (.jsonl), PipeDream's graph.txt, or a registered model by name"
    )
    parser.add_argument(
        "--cluster", type=Path, required=True, help="a YAML file: levels of {workers, bandwidth, latency}"
    )
    parser.add_argument("--batch", type=whole(1, MOST_BATCH), help="samples of a minibatch (of a model: the papers')")
    parser.add_argument("--profiled", type=whole(1, MOST_BATCH), help="samples that a profile's file is of (--batch)")
    parser.add_argument("--sheet", default="v100", help="the device whose data sheet times a model (v100)")
    parser.add_argument("--options", help="the model's options as YAML or JSON: '{width: 0.5}'")
    parser.add_argument("--data", help="the model's data set: for its inputs, and for --config")
    parser.add_argument(
        "--optimizer", default="sgd", help="a name, or as in a run's config: '{name: adamw, lr: 0.001}' (sgd)"
    )
    parser.add_argument("--microbatches", type=whole(1, 65536), help="of methods that split minibatches (the stages)")
    parser.add_argument("--memory", type=number(above=0), help="bytes of a GPU (the cluster's, or the data sheet's)")
    parser.add_argument(
        "--one-minibatch", action="store_true", help="only plans whose every update is of one minibatch"
    )
    parser.add_argument("--accept", type=number(least=0), help="points of accuracy that may be lost (any)")
    parser.add_argument(
        "--from", dest="sources", nargs="+", default=["leaderboard"], help="whose logs say what is lost (leaderboard)"
    )
    parser.add_argument(
        "--scale", nargs="+", default=["published", "quick"], help="scales whose logs are read (published quick)"
    )
    parser.add_argument("--published", default=USUAL, help="the device folder of the published scale")
    parser.add_argument("--format", choices=FORMATS, default="md", help="of what is printed (md)")
    parser.add_argument("--plot", type=Path, help="draw throughput against memory here: .svg, .pdf or .png")
    parser.add_argument("--config", type=Path, help="write the advised method as a run's config here: .yaml")
    parser.add_argument("--model", help="the registered model that a profile's file is of, for --config")
    parser.add_argument("--steps", type=whole(1, MOST_STEPS), help=f"of the run in --config ({STEPS:,})")


def main(args: argparse.Namespace) -> int:
    """Read, time, rank, print."""
    check(args)
    cluster, optimizer = Cluster.load(args.cluster), optimizer_of(args.optimizer)
    network, model, notes = asked_of(args)
    profiles, batch = profiles_of(args, network, notes)
    ground = ground_of(args, network, cluster, profiles, batch, optimizer)
    evidence, found_notes = evidence_of(args)
    timed, without = choices(ground, args.microbatches, args.one_minibatch)
    rows = ranked(best(timed), evidence, args.accept, optimizer.name, model or "")
    advice = verdict(rows, args.accept, ground.memory)
    content = printed(args, rows, without, [*notes, *found_notes], advice)
    print(content, end="")  # first: what took its time is not lost where a file cannot be written
    if args.config is not None:
        write_config(args, rows, optimizer, advice)
    if args.plot is not None:
        draw(rows, args.accept, ground.memory, args.plot)
    return 0


def check(args: argparse.Namespace) -> None:
    """Refuse names of files that cannot be written, before anything is computed."""
    if args.plot is not None and args.plot.suffix not in DRAWN:
        raise PipelagError(f"'{args.plot}' is no file for a plot; its name must end in .pdf, .svg or .png")
    if args.config is not None and args.config.suffix not in (".yaml", ".yml"):
        raise PipelagError(f"'{args.config}' is no file for a run's config; its name must end in .yaml")
    if args.config is not None and not args.data:
        raise PipelagError("a run's config needs a data set; name it by --data, such as --data shapes")
    if args.config is not None and is_file(args.profile) and not args.model:
        raise PipelagError("a run's config needs the model that the profile is of; name it by --model")
    if args.config is None and args.steps is not None:
        raise PipelagError("--steps are of the run in --config, which is not asked for; leave them out")
    if is_file(args.profile):
        if args.options is not None or (args.data is not None and args.config is None):
            name = "--options" if args.options is not None else "--data"
            raise PipelagError(f"{name} is of a registered model, and '{args.profile}' is a file; leave it out")
        if args.model is not None:
            check_model(args.model, {}, models())
    elif args.model is not None:
        raise PipelagError(f"--model is of a profile's file, and '{args.profile}' is a model; leave it out")


def is_file(text: str) -> bool:
    """Whether a profile is named by its file."""
    return Path(text).suffix in (".jsonl", ".txt") or "/" in text or Path(text).exists()


def optimizer_of(text: str) -> OptimizerSpec:
    """By name, with a usual rate, or as in a config."""
    content = yaml_of(text, "--optimizer")
    if isinstance(content, str):
        content = {"name": content} | RATES.get(content, {"lr": 0.001})
    try:
        return OptimizerSpec.model_validate(content)
    except ValidationError as error:
        raise mistake(error, content, OptimizerSpec).at("--optimizer is wrong") from error


def asked_of(args: argparse.Namespace) -> tuple[Subject | None, str | None, list[str]]:
    """The model where one is named by the profile, its name where it is known, and notes for the table."""
    data = DataSpec(name=args.data) if args.data else None
    if is_file(args.profile):
        return None, args.model, []
    notes = [f"Times: the {args.sheet}'s data sheet, every operator as fast as it allows."]
    return subject(args.profile, options_of(args.options, "--options"), data), args.profile, notes


def profiles_of(args: argparse.Namespace, network: Subject | None, notes: list[str]) -> tuple[Profiles, int]:
    """Profiles for passes of any size, and the samples of a minibatch."""
    read = read_profile(Path(args.profile)) if network is None else None  # a file that is not there is told of first
    batch: int | None = args.batch or args.profiled or (network.batch if network is not None else None)
    if batch is None:
        raise PipelagError("how many samples a minibatch has is not given; say --batch, such as --batch 64")
    if read is None:
        assert network is not None
        return Profiles(network.by_sheet(args.sheet), network.sample_bytes), batch
    profile, merged = read
    of = args.profiled or batch
    notes += [*merged, f"The profile is taken to be of {of} samples, and to grow in proportion with them."]
    return Profiles(lambda samples: profile.scaled(samples / of), scaled=True), batch


def ground_of(
    args: argparse.Namespace,
    network: Subject | None,
    cluster: Cluster,
    profiles: Profiles,
    batch: int,
    optimizer: OptimizerSpec,
) -> Ground:
    """What all methods share. Copying weights is free, as `pipelag partition` has it."""
    from pipelag.timing.sheets import data_sheet

    sheet = data_sheet(args.sheet)
    gpu_memory = sheet.memory if network is not None else float("inf")
    memory = args.memory or (cluster.memory if cluster.memory < float("inf") else gpu_memory)
    return Ground(profiles, cluster, sheet, memory, factory(optimizer), batch, "free")


def evidence_of(args: argparse.Namespace) -> tuple[list[Evidence], list[str]]:
    """What the logs say, and a note where there are none to read."""
    try:
        known = papers()
    except PipelagError as error:
        return [], [f"No logs: {error}."]
    if not known:
        return [], ["No logs: this project has no papers."]
    bare = args.published == USUAL and not Path("results/published").exists()  # a copy of the config, without logs
    scales = [
        load_scale(name, args.published if name == "published" else USUAL)
        for name in args.scale
        if not (name == "published" and bare)
    ]
    logs = list(gathered([load_paper(name) for name in args.sources], scales))
    where = f"{' and '.join(args.sources)} at the scales {' and '.join(args.scale)}"
    return logs, [] if logs else [f"There are no logs of {where}: `snakemake leaderboard_table_1` makes some."]


def printed(
    args: argparse.Namespace, rows: list[Ranked], without: dict[str, str], notes: list[str], advice: str
) -> str:
    """What goes to stdout."""
    if args.format == "json":
        content = {
            "advice": advice,
            "accept": args.accept,
            "choices": [record(row) for row in rows],
            "left_out": without,
        }
        return json.dumps(content | {"notes": notes}, indent=1) + "\n"
    table = board(rows, without, notes)
    if args.format == "csv":
        return table.csv()
    if args.format == "tex":
        return table.latex() + f"% {advice}\n"
    return f"{table.markdown()}\n{advice}\n"


def draw(rows: list[Ranked], accept: float | None, memory: float, out: Path) -> None:
    """The plot."""
    from pipelag.report.style import save
    from pipelag.report.tradeoff import Point, tradeoff

    points = [
        Point(
            row.choice.method.name,
            row.choice.fullest.total() / 1e9,
            row.choice.throughput,
            max((*row.choice.staleness, *row.choice.stale_backward)),
            row.choice.usable,
            row is rows[0] and row.accepted(accept),
        )
        for row in rows
    ]
    save(tradeoff(points, memory / 1e9), out.with_suffix(""), (out.suffix,))


def write_config(args: argparse.Namespace, rows: list[Ranked], optimizer: OptimizerSpec, advice: str) -> None:
    """The advised method as a run, read again as `pipelag run` reads it."""
    if not rows or not rows[0].accepted(args.accept):
        raise PipelagError(f"there is no config to write: {advice}")
    import yaml

    content = config_of(args, rows[0], optimizer)
    read_spec(json.dumps(content), None)
    text = f"# {advice}\n# pipelag run --config {args.config.name} --out FOLDER\n"
    write_whole(args.config, text + yaml.safe_dump(content, sort_keys=False))
    read_spec(None, args.config)


def config_of(args: argparse.Namespace, row: Ranked, optimizer: OptimizerSpec) -> dict[str, Any]:
    """The run of a choice, on real workers."""
    one, name = row.choice, args.model if is_file(args.profile) else args.profile
    network = subject(name, options_of(args.options, "--options"), DataSpec(name=args.data))
    together = max(one.updates) if one.method.data_parallel else 1  # its replicas divide the minibatch
    steps = args.steps or STEPS
    phase: dict[str, Any] = {"method": one.method.name, "steps": steps, "microbatches": one.microbatches}
    if not one.method.data_parallel:
        phase |= {"cuts": network.cuts(one.plan.cuts), "recompute": one.recompute}
        replicas = [stage.replicas for stage in one.plan.stages]
        rounds = lcm(*replicas)
        phase |= {"replicas": replicas, "steps": -(-steps // rounds) * rounds} if max(replicas) > 1 else {}
    return {
        "kind": "train",
        "model": network.model.model_dump(),
        "data": {"name": args.data},
        "batch": one.batch * together,
        "optimizer": optimizer.model_dump(exclude_defaults=True),
        "phases": [phase],
        "evaluate_every": max(1, steps // 10),
        "executor": "real",
        "workers": one.plan.workers,
    }
