"""`pipelag methods`: the registered methods, or one of them: where it is from, what it does, its settings."""

from __future__ import annotations

import argparse
from inspect import signature

from pipelag.commands.arguments import whole
from pipelag.commands.listing import listed, settings
from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, papers
from pipelag.methods import METHODS, Method, get


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method, to be described (default: list all)")
    parser.add_argument("--stages", type=whole(1, 100), default=4, help="say its delays over so many (default: 4)")


def main(args: argparse.Namespace) -> int:
    """Print the list, or the one."""
    if args.name is None:
        print(listed({name: method.summary for name, method in METHODS.items()}))
    else:
        print(described(get(args.name), args.stages))
    return 0


def described(method: Method, stages: int) -> str:
    """What it is, its source, what its passes read, its settings with their defaults, its delays."""
    lines = [f"{method.name}: {method.summary}", f"  source: {method.source}"]
    lines += [f"  paper: {title}" for title in titles(method.source)]
    if method.random is None:
        lines += [
            f"  forward reads: {reads(method.forward_reads)}",
            f"  backward reads: {reads(method.backward_reads)}",
        ]
    split = "microbatches" in signature(method.build).parameters and not (method.random or method.update)
    lines.append(f"  microbatches: {'any number' if split else '1'}")
    lines += [f"  delays: {delays(method, stages)}"]
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


def reads(what: object) -> str:
    """`live`, `stashed`, or what is made of the live weights, as its class says."""
    return what if isinstance(what, str) else f"made of the live weights: {what!r}"


def delays(method: Method, stages: int) -> str:
    """Updates missed by the passes of each stage, with as few microbatches as it takes; or why it refuses them."""
    if method.random is not None:
        means, most = method.rate_taus(stages), method.random.bound(method.taus(stages))
        return f"drawn at random; over {stages} stages, by stage: {list(means)} updates on average, {most} at most"
    refused = ""
    for microbatches in (1, stages):
        try:
            found = method.delays(stages, microbatches)
        except PipelagError as error:
            refused = refused or str(error)
            continue
        forward, backward = list(found.forward), list(found.backward)
        split = f" with {microbatches} microbatches" if microbatches > 1 else ""
        return f"over {stages} stages{split}, by stage: {forward} updates in forwards, {backward} in backwards"
    return refused
