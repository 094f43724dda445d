"""`pipelag advise`: compare all methods for a model on a cluster: throughput, memory, staleness, accuracy."""

from __future__ import annotations

import argparse
import json
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pipelag.catalogue import check_model
from pipelag.commands.arguments import location, number, whole
from pipelag.commands.partition import DRAWN, read_profile
from pipelag.commands.run import read_spec
from pipelag.commands.subject import Subject, options_of, subject
from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, load_scale, papers
from pipelag.experiments.names import models
from pipelag.experiments.schema import USUAL
from pipelag.files import check_writable, write_whole, yaml_of
from pipelag.methods import get
from pipelag.partitioner.cluster import Cluster
from pipelag.results.advice import Ranked, board, ranked, record, verdict
from pipelag.results.evidence import Evidence, gathered
from pipelag.runs.optimizers import OptimizerSpec, factory
from pipelag.runs.spec import DataSpec
from pipelag.timing.by_batch import Profiles
from pipelag.timing.sheets import DEVICES, data_sheet
from pipelag.typed import MOST_BATCH, MOST_STEPS, mistake

if TYPE_CHECKING:
    from pipelag.partitioner.arms import Ground
    from pipelag.timing.layers import Profile

RATES = {"sgd": {"lr": 0.1, "momentum": 0.9}}  # where no rate is given; others, such as Adam, have 0.001
STEPS = 1000
FORMATS = ("md", "csv", "json", "tex")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "profile", help="a profile saved by pipelag (.jsonl), PipeDream's graph.txt, or the name of a registered model"
    )
    parser.add_argument(
        "--cluster", type=location, required=True, help="the cluster as YAML: levels of {workers, bandwidth, latency}"
    )
    parser.add_argument(
        "--batch", type=whole(1, MOST_BATCH), help="samples per minibatch (default for a model: as in the papers)"
    )
    parser.add_argument(
        "--profiled",
        type=whole(1, MOST_BATCH),
        help="samples with which a profile's file was measured (default: --batch)",
    )
    parser.add_argument(
        "--sheet",
        default="v100",
        help=f"device whose data sheet gives a model's times: {', '.join(DEVICES)} (default: v100)",
    )
    parser.add_argument("--options", help="the model's options as YAML or JSON: '{width: 0.5}'")
    parser.add_argument("--data", help="the model's data set, for its inputs and for --config")
    parser.add_argument(
        "--optimizer", default="sgd", help="a name, or as in a run's config: '{name: adamw, lr: 0.001}' (default: sgd)"
    )
    parser.add_argument(
        "--microbatches",
        type=whole(1, 65536),
        help="microbatches of methods that split minibatches (default: one per GPU of the pipeline)",
    )
    parser.add_argument(
        "--memory",
        type=number(above=0),
        help="bytes of memory per GPU (default: of the cluster's file, or else the data sheet)",
    )
    parser.add_argument(
        "--one-minibatch", action="store_true", help="only plans in which every update is of one minibatch"
    )
    parser.add_argument(
        "--accept", type=number(least=0), help="points of accuracy that may be lost (default: any number)"
    )
    parser.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        default=["leaderboard"],
        help="papers whose logs give the loss of accuracy (default: leaderboard)",
    )
    parser.add_argument(
        "--scale",
        nargs="+",
        default=["published", "quick"],
        help="scales whose logs are read (default: published quick)",
    )
    parser.add_argument(
        "--published", default=USUAL, help="device folder of the published scale (default: %(default)s)"
    )
    parser.add_argument("--format", choices=FORMATS, default="md", help="format of the printed table (default: md)")
    parser.add_argument("--plot", type=location, help="draw throughput against memory to this .svg, .pdf or .png file")
    parser.add_argument(
        "--config", type=location, help="write a run's config with the advised method to this .yaml file"
    )
    parser.add_argument("--model", help="the registered model of a profile's file, for --config")
    parser.add_argument("--steps", type=whole(1, MOST_STEPS), help=f"steps of the run in --config (default: {STEPS:,})")


def main(args: argparse.Namespace) -> int:
    """Time all methods, rank them, and print the table and the advice."""
    check(args)
    cluster, optimizer = Cluster.load(args.cluster), optimizer_of(args.optimizer)
    network, model, notes = asked_of(args)
    profiles, batch = profiles_of(args, network, notes)
    ground = ground_of(args, network, cluster, profiles, batch, optimizer)
    evidence, found_notes = evidence_of(args)
    from pipelag.partitioner.advice import best, choices  # here, as they load torch

    timed, without = choices(ground, args.microbatches, args.one_minibatch)
    rows = ranked(best(timed), evidence, args.accept, optimizer.name, model or "")
    advice = verdict(rows, args.accept, ground.memory)
    notes += [*found_notes, *uncounted(rows, ground.profiles.at(batch))]
    content = printed(args, rows, without, notes, advice)
    print(content, end="")  # before files are written, which may fail
    if args.config is not None:
        write_config(args, rows, optimizer, advice)
    if args.plot is not None:
        draw(rows, args.accept, ground.memory, args.plot)
    return 0


def check(args: argparse.Namespace) -> None:
    """Refuse names of files that cannot be written, before anything is computed."""
    if args.plot is not None and args.plot.suffix not in DRAWN:
        raise PipelagError(f"'{args.plot}' cannot be a plot; its name must end in .pdf, .svg or .png")
    if args.config is not None and args.config.suffix not in (".yaml", ".yml"):
        raise PipelagError(f"'{args.config}' cannot be a run's config; its name must end in .yaml")
    if args.config is not None and not args.data:
        raise PipelagError("--config needs a data set; name one with --data, such as --data shapes")
    if args.config is not None and is_file(args.profile) and not args.model:
        raise PipelagError("--config needs the model of the profile; name it with --model")
    if args.config is None and args.steps is not None:
        raise PipelagError("--steps applies to the run in --config, which is not given; leave it out")
    if is_file(args.profile):
        if args.options is not None or (args.data is not None and args.config is None):
            name = "--options" if args.options is not None else "--data"
            raise PipelagError(f"{name} applies to a registered model, and '{args.profile}' is a file; leave it out")
        if args.model is not None:
            check_model(args.model, {}, models())
    elif args.model is not None or args.profiled is not None:
        name = "--model" if args.model is not None else "--profiled"
        raise PipelagError(f"{name} applies to a profile's file, and '{args.profile}' is a model; leave it out")
    check_writable(args.plot)
    check_writable(args.config)


def is_file(text: str) -> bool:
    """Whether the text names a file and not a model."""
    return Path(text).suffix in (".jsonl", ".txt") or "/" in text or Path(text).exists()


def optimizer_of(text: str) -> OptimizerSpec:
    """An optimizer by its name, with a usual rate, or as in a config."""
    content = yaml_of(text, "--optimizer")
    if isinstance(content, str):
        content = {"name": content} | RATES.get(content, {"lr": 0.001})
    try:
        return OptimizerSpec.model_validate(content)
    except ValidationError as error:
        raise mistake(error, content, OptimizerSpec).at("--optimizer is wrong") from error


def asked_of(args: argparse.Namespace) -> tuple[Subject | None, str | None, list[str]]:
    """The model, if the profile is given by one; its name, if known; and notes for the table."""
    data = DataSpec(name=args.data) if args.data is not None else None
    if is_file(args.profile):
        return None, args.model, []
    notes = [f"Times are from the data sheet of {args.sheet}: every operator is as fast as the device allows."]
    return subject(args.profile, options_of(args.options, "--options"), data), args.profile, notes


def profiles_of(args: argparse.Namespace, network: Subject | None, notes: list[str]) -> tuple[Profiles, int]:
    """Profiles for any number of samples, and the samples per minibatch."""
    read = read_profile(Path(args.profile)) if network is None else None  # a missing file is reported first
    batch: int | None = args.batch or args.profiled or (network.batch if network is not None else None)
    if batch is None:
        raise PipelagError("the samples per minibatch are not known; give them with --batch, such as --batch 64")
    if read is None:
        assert network is not None
        return Profiles(network.by_sheet(args.sheet), network.sample_bytes), batch
    profile, merged = read
    of = args.profiled or batch
    notes += [
        *merged,
        f"The profile is taken to be of {of} samples; times and sizes grow in proportion to the samples.",
    ]
    return Profiles(lambda samples: profile.scaled(samples / of), scaled=True), batch


def ground_of(
    args: argparse.Namespace,
    network: Subject | None,
    cluster: Cluster,
    profiles: Profiles,
    batch: int,
    optimizer: OptimizerSpec,
) -> Ground:
    """What all methods share. Copying weights is free, as in `pipelag partition`."""
    from pipelag.partitioner.arms import Ground

    sheet = data_sheet(args.sheet)
    gpu_memory = sheet.memory if network is not None else float("inf")
    memory = args.memory or (cluster.memory if cluster.memory < float("inf") else gpu_memory)
    return Ground(profiles, cluster, sheet, memory, factory(optimizer), batch, "free")


def uncounted(rows: list[Ranked], profile: Profile) -> list[str]:
    """A note on what the memory of these methods leaves out, if the profile does not tell."""
    names = [row.choice.method.name for row in rows if row.choice.splits]
    if not names or all(layer.gradient_bytes is not None for layer in profile.layers):
        return []
    return [
        f"The memory of {', '.join(sorted(names))} leaves out the gradients of outputs that they keep until W, because "
        "not all layers of the profile have gradient_bytes; `pipelag profile --split` measures them."
    ]


def evidence_of(args: argparse.Namespace) -> tuple[list[Evidence], list[str]]:
    """The losses of accuracy in the logs, and a note where there are no logs."""
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
    return logs, [] if logs else [f"There are no logs of {where}; `snakemake leaderboard_table_1` makes some."]


def printed(
    args: argparse.Namespace, rows: list[Ranked], without: dict[str, str], notes: list[str], advice: str
) -> str:
    """The table and the advice, in the format asked for."""
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
    """Draw throughput against memory."""
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
    """Write the advised method as a run's config, and check it as `pipelag run` does."""
    if not rows or not rows[0].accepted(args.accept):
        raise PipelagError(f"there is no method to write a config for: {advice}")
    import yaml

    content = config_of(args, rows[0], optimizer)
    read_spec(json.dumps(content), None)
    text = f"# {advice}\n# pipelag run --config {args.config.name} --out FOLDER\n"
    write_whole(args.config, text + yaml.safe_dump(content, sort_keys=False))
    read_spec(None, args.config)


def config_of(args: argparse.Namespace, row: Ranked, optimizer: OptimizerSpec) -> dict[str, Any]:
    """The config of a run with this choice, on real workers."""
    one, name = row.choice, args.model if is_file(args.profile) else args.profile
    network = subject(name, options_of(args.options, "--options"), DataSpec(name=args.data))
    together = max(one.updates) if one.method.data_parallel else 1  # its replicas divide the minibatch
    steps = args.steps or STEPS
    phase: dict[str, Any] = {"method": one.method.name, "steps": steps, "microbatches": one.microbatches}
    if one.method != get(one.method.name):  # interleaving with another number of stages per worker
        phase["options"] = {"chunks": one.chunks}
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
        "workers": one.workers,
    }
