"""`pipelag models`: the registered models, or one of them with its options. No torch, but for those of plugins."""

from __future__ import annotations

import argparse
import sys
from inspect import signature

from pipelag.catalogue import GIVEN, HOMES, function_of
from pipelag.commands.listing import first_sentence, listed, settings, settings_of
from pipelag.errors import unknown
from pipelag.experiments.names import models


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a model, to be described (default: list all)")


def main(args: argparse.Namespace) -> int:
    """Print the list, or the one."""
    known = models()
    if args.name is None:
        print(listed({name: described(name)[0] for name in sorted(known)}))
        return 0
    if args.name not in known:
        raise unknown("model", args.name, known)
    sentence, options = described(args.name)
    print(f"{args.name}: {sentence}\n  options: {', '.join(options) or 'none'}")
    return 0


def described(name: str) -> tuple[str, list[str]]:
    """What a model is, and its options: of ours from the source, of a plugin's from the function that it registered."""
    if name in HOMES:
        import ast

        function = function_of(f"models.{HOMES[name]}")
        return first_sentence(ast.get_docstring(function)), settings_of(function, GIVEN.get(HOMES[name], ()))
    build = sys.modules["pipelag.models"].MODELS[name]  # whoever registered it has loaded this
    return first_sentence(build.__doc__), settings(signature(build))
