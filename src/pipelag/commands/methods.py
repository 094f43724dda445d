"""`pipelag methods`: list the registered methods, or describe one: its source, what it reads, its settings."""

from __future__ import annotations

import argparse
from bisect import bisect_left
from functools import partial
from inspect import signature
from itertools import islice

from pipelag.commands.arguments import whole
from pipelag.commands.listing import listed, settings
from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, papers
from pipelag.methods import METHODS, Method, get
from pipelag.typed import signature_of

HELD = "an older version that the stage keeps (its age is in the delays)"
MOST_FACTOR = 3  # up to so many microbatches per stage are tried


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method to describe (default: list all)")
    parser.add_argument("--stages", type=whole(1, 100), help="show its delays with this many stages (default: 4)")


def main(args: argparse.Namespace) -> int:
    """Print the list, or the one."""
    if args.name is None and args.stages is not None:
        raise PipelagError("--stages is for one method's delays; name the method, such as: pipelag methods pipedream")
    if args.name is None:
        print(listed({name: method.summary for name, method in METHODS.items()}))
    else:
        print(described(get(args.name), args.stages or 4))
    return 0


def described(method: Method, stages: int) -> str:
    """Its summary, source, what its passes read, the microbatches it takes, its delays, its settings with defaults."""
    lines = [f"{method.name}: {method.summary}", f"  source: {method.source}"]
    lines += [f"  paper: {title}" for title in titles(method.source)]
    if method.random is None:
        lines += [
            f"  forward reads: {reads(method.forward_reads, HELD if method.held is not None else 'live')}",
            f"  backward reads: {reads(method.backward_reads)}",
        ]
    lines += [f"  microbatches: {microbatches(method, stages)}", f"  delays: {delays(method, stages)}"]
    asked = settings(signature(method.options, eval_str=True)) if method.options is not None else []
    return "\n".join([*lines, f"  settings: {', '.join(asked) or 'none'}"])


def titles(source: str) -> list[str]:
    """Title and year of the papers that a source begins with or names after a semicolon; none outside a project."""
    try:
        known = set(papers())
    except PipelagError:
        return []
    named = [part.split()[0] for part in source.split(";") if part.split() and part.split()[0] in known]
    return [f"{load_paper(name).title} ({load_paper(name).year})" for name in named]


def reads(what: object, live: str = "live") -> str:
    """`live`, `stashed`, or the class that is computed from the live weights. live: the words for `live`."""
    if isinstance(what, str):
        return live if what == "live" else what
    return f"computed from {'the live weights' if live == 'live' else live}: {what!r}"


def microbatches(method: Method, stages: int) -> str:
    """How many microbatches a minibatch may have: any number, 1, or the three smallest numbers that fit."""
    if "microbatches" not in signature_of(method.build).parameters or method.random or method.update:
        return "1"
    numbers = fewest(method, stages)
    if numbers == [1, 2, 3]:
        return "any number"
    return f"with {stages} stages: {', '.join(map(str, numbers))}, ..." if numbers else f"none with {stages} stages"


def fewest(method: Method, stages: int) -> list[int]:
    """The three smallest numbers of microbatches that a method takes, among those that are tried."""
    counts, takes = range(1, MOST_FACTOR * stages + 1), partial(_fits, method, stages)
    if method.held is not None:  # live weights are newer with more microbatches: if some number fits, larger ones do
        first = bisect_left(counts, True, key=takes)
        numbers = list(filter(takes, counts[first : first + 3]))
        if len(numbers) == 3:
            return numbers
    return list(islice(filter(takes, counts), 3))


def _fits(method: Method, stages: int, count: int) -> bool:
    """Whether the schedule takes `count` microbatches and, if versions are kept, they are old enough for that."""
    try:
        _ = method.schedule(stages, 1, count) if method.held is None else method.delays(stages, count)
    except PipelagError:
        return False
    return True


def delays(method: Method, stages: int) -> str:
    """Updates missed by the passes of each stage, with one microbatch or one per stage; or why neither is possible."""
    if method.random is not None:
        means, most = method.rate_taus(stages), method.random.bound(method.taus(stages))
        return (
            f"drawn at random; with {stages} stages, updates missed per stage: {list(means)} on average, at most {most}"
        )
    refused = ""
    for count in (1, stages):
        try:
            lags = method.delays(stages, count)
        except PipelagError as error:
            refused = refused or str(error)
            continue
        forward, backward = list(lags.forward), list(lags.backward)
        split = f" and {count} microbatches" if count > 1 else ""
        over = f"with {stages} stages{split}, updates missed per stage"
        return f"{over}: {forward} in the forward, {backward} in the backward"
    return refused
