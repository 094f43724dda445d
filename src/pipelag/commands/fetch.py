"""`pipelag fetch`: make a data set's files available, and print which release they are."""

from __future__ import annotations

import argparse

from pipelag.commands.arguments import location
from pipelag.data import DATASETS, USERS_OWN
from pipelag.data.files import manifest
from pipelag.data.files.fetch import Release, data_folder, fetch
from pipelag.errors import PipelagError
from pipelag.files import check_writable, write_whole


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help="one of: " + ", ".join(manifest.names()))
    home = data_folder()
    parser.add_argument(
        "--to", metavar="DIR", type=location, default=home, help="download to DIR/NAME (default: %(default)s)"
    )
    parser.add_argument(
        "--mirror",
        metavar="DIR",
        type=location,
        action="append",
        default=[],
        help="a mirror to look in before those of PIPELAG_MIRROR",
    )
    parser.add_argument(
        "--stamp", metavar="FILE", type=location, help="also write what is printed to FILE; the workflow uses it"
    )


def main(args: argparse.Namespace) -> int:
    """Fetch and verify the files, and print what they are."""
    if args.name in USERS_OWN:
        raise PipelagError(f"'{args.name}' is not fetched: {USERS_OWN[args.name]}")
    if args.name in DATASETS and args.name not in manifest.names():
        raise PipelagError(
            f"'{args.name}' has no files to fetch: it is generated, or read by its plugin, when a run needs it"
        )
    check_writable(args.stamp)  # a download may take hours
    text = describe(fetch(args.name, args.to, args.mirror))
    print(text, end="")
    if args.stamp is not None:
        write_whole(args.stamp, text)
    return 0


def describe(release: Release) -> str:
    """Release, licence, note, and each file with its checksum, one line each."""
    kind = "the official files" if release.official else f"not the official files but another release ({release})"
    if not release.verified:
        kind = f"the publisher's files as they were first seen ({release})"
    lines = [
        f"{release.title}: {kind}, layout {release.layout}, in {release.origin}",
        f"  licence: {manifest.official(release.dataset).licence}",
    ]
    if release.note:
        lines.append(f"  note: {release.note}")
    seen = "verified" if release.verified else "as recorded"
    for path, sums in release.files:
        algorithm, value = next(iter(sums.stated.items()))
        lines.append(f"  {path.name}: {sums.bytes:,} bytes, {algorithm} {value} {seen}")
    return "\n".join(lines) + "\n"
