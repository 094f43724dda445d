"""`pipelag fetch`: make a data set available, and say what it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelag.data import fetch as fetching


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", help="mnist, cifar10 or cifar100")
    parser.add_argument(
        "--to", type=Path, default=None, help="folder for downloads (default: PIPELAG_DATA or data/downloads)"
    )
    parser.add_argument(
        "--mirror", type=Path, action="append", help="a folder to look into first (default: PIPELAG_MIRROR)"
    )
    parser.add_argument("--stamp", type=Path, default=None, help="write what was found to this file, for the workflow")


def main(args: argparse.Namespace) -> int:
    """Fetch, verify, and print the release and its files."""
    release = fetching.fetch(args.name, args.to, args.mirror)
    kind = "official files" if release.official else "ANOTHER RELEASE than the official one"
    lines = [f"{release.manifest.title or args.name}: {kind}, {release.origin}, layout {release.manifest.layout}"]
    if release.manifest.note:
        lines.append(f"  note: {release.manifest.note}")
    for file in release.manifest.files:
        lines.append(f"  {file.path}: {file.bytes:,} bytes, {file.sum[0]} verified")
    print("\n".join(lines))
    if args.stamp:
        args.stamp.parent.mkdir(parents=True, exist_ok=True)
        args.stamp.write_text("\n".join(lines) + "\n")
    return 0
