"""`python -m pipelag COMMAND`: a thin dispatcher; each command is a module of `pipelag.commands`."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipelag.errors import PipelagError, shortened
from pipelag.job import open_streams
from pipelag.plugins import load_plugins

# title of a group: {command: (module with `configure(parser)` and `main(args) -> int`, one line of help)}
GROUPS = {
    "Look up": {
        "list": ("pipelag.commands.list", "list the runs of a paper, a result or a scale, and which of them are done"),
        "methods": (
            "pipelag.commands.methods",
            "list the training methods; `methods NAME` shows its source, settings and delays",
        ),
        "models": ("pipelag.commands.models", "list the models; `models NAME` shows its options"),
        "schedules": ("pipelag.commands.schedules", "list the pipeline schedules; `schedules NAME` shows its options"),
        "timeline": (
            "pipelag.commands.timeline",
            "draw a schedule, or the trace of a run, as a figure or for Perfetto",
        ),
    },
    "Plan for a cluster": {
        "profile": (
            "pipelag.commands.profile",
            "measure a model's layers, or estimate them from a data sheet, and save a profile",
        ),
        "partition": (
            "pipelag.commands.partition",
            "plan stages and replicas for a profile on a cluster, with PipeDream's partitioner",
        ),
        "advise": (
            "pipelag.commands.advise",
            "compare all methods for a model on a cluster (throughput, memory, staleness, accuracy), and advise one",
        ),
    },
    "Run": {
        "fetch": ("pipelag.commands.fetch", "find a data set in a mirror or download it, and verify it"),
        "run": (
            "pipelag.commands.run",
            "carry out a run (training, timing, profiling, counting, ...) and write its log",
        ),
    },
    "Show results (the workflow calls these)": {
        "result": ("pipelag.commands.result", "draw one table or figure from its logs, and judge its claims"),
        "report": ("pipelag.commands.report", "make the site of a scale's results, or the typeset reports"),
        "digest": ("pipelag.commands.digest", "write numbers and verdicts from the logs into a Markdown document"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
ABOUT = """Asynchronous pipeline-parallel training: what stale weights cost, and what remedies win back.
`snakemake --cores all` in the project's folder makes all results of the papers. To train a model of your own in Python,
start with docs/guide.md."""
# What torch and, with nothing after it, the loader of libraries say under `ulimit -v`
NO_MEMORY = re.compile(r"can't allocate memory|out of memory|failed to map segment from shared object$")


class Version(argparse.Action):
    """Prints the version, which is looked up only when the user asks for it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        import pipelag

        print(f"pipelag {pipelag.__version__}")
        parser.exit()


def overview() -> str:
    """One line per command, in the order in which users need them."""
    width = max(map(len, COMMANDS))
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:{width}}  {text}" for name, (_, text) in group.items())]
    return "\n".join([*lines, "", "`pipelag COMMAND --help` shows the options of a command."])


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, load the command's module and run it; returns the exit status.

    Bad input and a full disk end with one sentence and exit status 2. An unexpected error ends with one sentence, which
    names the file that holds the traceback, and exit status 1.
    """
    open_streams()
    argv = list(sys.argv[1:] if argv is None else argv)
    named = argv[0] if argv and argv[0] in COMMANDS else ""
    debug = "--debug" in argv
    try:
        return written_out(argv, named)
    except PipelagError as error:
        print(f"pipelag {named}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"pipelag {named}: interrupted; finished work is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        with suppress(OSError):
            write_out()
        return 1
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full and not debug:
            where = getattr(error, "filename", None) or "a file"
            sentence = f"{where} could not be written (No space left on device); free some space and start again"
            print(f"pipelag {named}: {sentence}", file=sys.stderr)
            return 2
        print(f"pipelag {named}: {unforeseen(error, debug)}", file=sys.stderr)
        return 1


def written_out(argv: Sequence[str], named: str) -> int:
    """What `carried_out` returns. Its output is written here: at Python's exit a failure to do so may not be told.

    Raises:
        OSError: the output cannot be written.
    """
    try:
        status = carried_out(argv, named)
    except SystemExit:  # argparse's own, after `--help`
        write_out()
        raise
    write_out()
    return status


def write_out() -> None:
    """Write what Python holds for standard output; after a failure it goes nowhere."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error.filename = "standard output"
        raise


def carried_out(argv: Sequence[str], named: str) -> int:
    """The exit status of the command. named: the command, or empty if the first word is none."""
    parser = argparse.ArgumentParser(
        prog="pipelag",
        usage="pipelag [--version] COMMAND ...",
        description=f"{ABOUT}\n{overview()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", nargs=0, action=Version, help="print the version and exit")
    commands = parser.add_subparsers(
        prog="pipelag", dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, description=text[:1].upper() + text[1:] + ".")
        sub.add_argument("--debug", action="store_true", help="print the traceback of an unexpected error")
        if name == named:  # only the chosen command's module is imported: `--help` stays quick
            importlib.import_module(module).configure(sub)
    args = parser.parse_args(argv)
    load_plugins()
    return int(importlib.import_module(COMMANDS[args.command][0]).main(args))


def unforeseen(error: Exception, debug: bool) -> str:
    """The sentence for an unexpected error; its traceback goes to a file or, with `debug`, to standard error."""
    words = " ".join(str(error).split())
    notes = [" ".join(str(note).split()) for note in getattr(error, "__notes__", ())]
    what = ": ".join(filter(None, (type(error).__name__, shortened(words, 300)))) + "".join(
        f" ({n})" for n in notes[:3]
    )
    if (place := own_place(error)) and place not in what:
        what += f" at {place}"
    if isinstance(error, MemoryError) or NO_MEMORY.search(words):
        what = f"there is not enough memory ({what})"
    trace = "".join(traceback.format_exception(error))
    if debug:
        print(trace, file=sys.stderr)
        return what
    try:
        handle, path = tempfile.mkstemp(prefix="pipelag-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(trace)
    except OSError:  # a full disk
        return f"{what}; --debug prints the traceback"
    return f"{what}; the traceback is in {path} (--debug prints it)"


def own_place(error: BaseException) -> str:
    """The innermost line of the user's own code in an error's traceback, as "mine.py:146"; empty if there is none."""
    ours = Path(__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.isfile(frame.filename)]
    libraries = (*map(Path, {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}), ours)
    theirs = [f for f in frames if not any(folder in Path(f.filename).resolve().parents for folder in libraries)]
    return f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""


if __name__ == "__main__":
    sys.exit(main())
