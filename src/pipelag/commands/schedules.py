"""`pipelag schedules`: list the registered schedules, or describe one with its options."""

from __future__ import annotations

import argparse

from pipelag.commands.listing import first_sentence, listed, settings
from pipelag.errors import unknown
from pipelag.schedules import SCHEDULES
from pipelag.typed import signature_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a schedule to describe (default: list all)")


def main(args: argparse.Namespace) -> int:
    """Print the list, or the one."""
    if args.name is None:
        print(listed({name: sentence(name) for name in SCHEDULES}))
        return 0
    if args.name not in SCHEDULES:
        raise unknown("schedule", args.name, SCHEDULES)
    build = SCHEDULES[args.name]
    options = settings(signature_of(build))[2:]  # after stages and minibatches
    replicas = " --replicas 2,1" if "replicas" in signature_of(build).parameters else ""
    print(f"{args.name}: {sentence(args.name)}\n  options: {', '.join(options) or 'none'}")
    print(f"  draw it: pipelag timeline {args.name}{replicas} --out {args.name}.svg")
    return 0


def sentence(name: str) -> str:
    """What a schedule is, or for a second name, which schedule it names."""
    build = SCHEDULES[name]
    first = next(other for other, function in SCHEDULES.items() if function is build)
    return first_sentence(build.__doc__) if first == name else f"another name of `{first}`"
