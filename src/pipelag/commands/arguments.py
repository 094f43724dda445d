"""Types of arguments for argparse, which refuse values out of range and name the range."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf, isfinite
from pathlib import Path


def add_scale(parser: argparse.ArgumentParser, default: str = "quick") -> None:
    """Declare `--scale` and `--published`, by which commands choose a scale of experiments."""
    from pipelag.experiments.schema import USUAL  # here, as commands without a scale need no schema

    parser.add_argument(
        "--scale", default=default, help="a scale: quick, standard, paper or published (default: %(default)s)"
    )
    parser.add_argument(
        "--published", default=USUAL, help="device folder of the published scale (default: %(default)s)"
    )


def location(text: str) -> Path:
    """A path. An empty one, as of a shell's variable that is not set, would be the working directory; it is refused."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a path")
    return Path(text)


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number in a range."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number") from error
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]} is out of range; give {least} to {most:,}")
        return value

    return read


def wholes(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Whole numbers in a range, separated by commas."""
    one = whole(least, most)
    return lambda text: tuple(map(one, text.split(",")))


def number(above: float = -inf, least: float = -inf) -> Callable[[str], float]:
    """A finite number that is above `above` and at least `least`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number") from error
        if not isfinite(value) or value <= above or value < least or abs(value) > 1e12:
            bound = f"above {above:g}" if above > -inf else f"from {least:g} on"
            raise argparse.ArgumentTypeError(f"{text[:40]} is out of range; give a number {bound}, at most 1e12")
        return value

    return read
