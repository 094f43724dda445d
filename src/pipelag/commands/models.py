"""`pipelag models`: list the registered models, or describe one. Loads torch for models of plugins only."""

from __future__ import annotations

import argparse
import sys

from pipelag.catalogue import GIVEN, HOMES, check_model, function_of
from pipelag.commands.listing import first_sentence, listed, settings, settings_of
from pipelag.experiments.names import models
from pipelag.typed import signature_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a model to describe (default: list all)")


def main(args: argparse.Namespace) -> int:
    """Print the list, or the one."""
    known = models()
    if args.name is None:
        print(listed({name: described(name)[0] for name in sorted(known)}))
        return 0
    if args.name not in known:
        check_model(args.name, {}, known)  # a CIFAR ResNet of another depth is built by its name as well
    sentence, options = described(args.name)
    print(f"{args.name}: {sentence}\n  options: {', '.join(options) or 'none'}")
    return 0


def described(name: str) -> tuple[str, list[str]]:
    """What a model is, and its options: of ours from the source, of a plugin's from the function that it registered."""
    if name in HOMES or name not in models():
        import ast

        home = HOMES.get(name, "resnet:resnet")
        function = function_of(f"models.{home}")
        return first_sentence(ast.get_docstring(function)), settings_of(function, GIVEN.get(home, ()))
    build = sys.modules["pipelag.models"].MODELS[name]  # whoever registered it has loaded this
    return first_sentence(build.__doc__), settings(signature_of(build))
