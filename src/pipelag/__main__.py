"""`python -m pipelag COMMAND`: a thin dispatcher; each command lives beside what it does."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from pipelag.errors import PipelagError
from pipelag.plugins import load_plugins

# command: (module with `configure(parser)` and `main(args) -> int`, one line of help)
COMMANDS = {
    "run": ("pipelag.commands.run", "carry out one run: train, time, profile or count, and leave its log"),
    "fetch": ("pipelag.commands.fetch", "fetch a data set from the mirrors or the network, and verify it"),
    "list": ("pipelag.commands.list", "list the runs that a paper, a result or a scale asks for"),
    "result": ("pipelag.commands.result", "draw one table or figure from the logs, and judge its claims"),
    "partition": (
        "pipelag.commands.partition",
        "plan stages and replicas for a profile on a cluster, as PipeDream does",
    ),
    "timeline": ("pipelag.commands.timeline", "draw a schedule, or what a run did, as a figure or a Perfetto trace"),
    "digest": ("pipelag.commands.digest", "write what a scale's logs say into a document, such as the README"),
    "report": ("pipelag.commands.report", "gather all results of a scale in one page"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load the one module the command needs, run it; bad input ends with one sentence and exit status 2."""
    parser = argparse.ArgumentParser(prog="pipelag", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    argv = list(sys.argv[1:] if argv is None else argv)
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text)
        if argv[:1] == [name]:  # only the chosen command's module is imported: `--help` stays quick
            importlib.import_module(module).configure(sub)
    args = parser.parse_args(argv)
    try:
        load_plugins()
        return importlib.import_module(COMMANDS[args.command][0]).main(args)
    except PipelagError as error:
        print(f"pipelag {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"pipelag {args.command}: stopped by the keyboard; what was done is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
