"""`pipelag profile`: save the times and sizes of a model's layers, measured here or from a data sheet."""

from __future__ import annotations

import argparse

from pipelag.commands.arguments import location, whole
from pipelag.commands.subject import Subject, options_of, subject
from pipelag.errors import PipelagError
from pipelag.files import check_writable
from pipelag.runs.spec import DataSpec
from pipelag.timing.layers import Profile
from pipelag.timing.sheets import DEVICES, data_sheet
from pipelag.typed import MOST_BATCH, MOST_WORKERS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", help="a registered model (`pipelag models`)")
    parser.add_argument("--out", type=location, required=True, help="the file to write (.jsonl, one layer per line)")
    parser.add_argument("--options", help="the model's options as YAML or JSON: '{width: 0.5}'")
    parser.add_argument("--data", help="take this data set's inputs (default: those of the papers' plans)")
    parser.add_argument("--batch", type=whole(1, MOST_BATCH), help="samples per minibatch (default: as in the papers)")
    parser.add_argument(
        "--sheet", help=f"estimate from a device's data sheet instead of measuring: {', '.join(DEVICES)}"
    )
    parser.add_argument("--device", default="auto", help="where to measure: auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--repeats", type=whole(1, 10_000), default=10, help="timing rounds; the median counts (default: 10)"
    )
    parser.add_argument(
        "--split", action="store_true", help="also measure the gradients of weights apart, for zero-bubble schedules"
    )
    parser.add_argument("--threads", type=whole(1, MOST_WORKERS), help="CPU threads to use (default: all cores)")


def main(args: argparse.Namespace) -> int:
    """Profile the model, save the profile, and print a summary."""
    if args.out.suffix != ".jsonl":
        raise PipelagError(f"'{args.out}' cannot be a profile; its name must end in .jsonl")
    if args.sheet is not None:
        data_sheet(args.sheet)
        for name, usual in (("device", "auto"), ("repeats", 10), ("threads", None), ("split", False)):
            if getattr(args, name) != usual:
                raise PipelagError(f"--{name} applies to measuring, and a data sheet is not measured; leave it out")
    check_writable(args.out)
    data = DataSpec(name=args.data) if args.data is not None else None
    asked = subject(args.model, options_of(args.options, "--options"), data)
    batch = args.batch or asked.batch
    if batch is None:
        raise PipelagError("the samples per minibatch are not known; give them with --batch, such as --batch 64")
    profile = asked.by_sheet(args.sheet)(batch) if args.sheet is not None else measured(asked, args, batch)
    profile.save(args.out)
    total = sum(layer.total_ms for layer in profile.layers)
    how = f"from the data sheet of {args.sheet}" if args.sheet is not None else "measured here"
    print(f"{args.out}: {len(profile.layers)} layers, {total:.2f} ms for a minibatch of {batch}, {how}")
    return 0


def measured(asked: Subject, args: argparse.Namespace, batch: int) -> Profile:
    """The profile as measured on this machine."""
    import torch

    from pipelag.asked import check_device

    device = check_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    return asked.measured(batch, str(device), args.repeats, args.split)
