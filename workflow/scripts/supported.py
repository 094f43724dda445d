"""Say in one sentence why the locked PyTorch cannot be installed here. Prints nothing where it can."""

from __future__ import annotations

import os
import platform
import sys

GLIBC = (2, 28)  # what PyPI's wheels of the locked torch ask for: manylinux_2_28 and macosx_14_0
MACOS = (14, 0)
OR_ELSE = "or let PIPELAG_TORCH_INDEX name a package index that has PyTorch for it"


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 14.5.1."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def obstacle(system: str, machine: str, version: str) -> str:
    """The sentence; empty where PyPI has the wheels.

    Args:
        system, machine: as Python's `platform` names them.
        version: of macOS, or of glibc; empty with another C library.
    """
    if system == "Darwin" and machine != "arm64":
        return (
            "PyPI has no PyTorch for this Python, which is for Intel Macs: on Apple silicon install a Python for "
            "arm64, and with an Intel Mac work on a Linux machine"
        )
    if system == "Darwin":
        update = f"PyTorch needs macOS {MACOS[0]} or newer, and this is {version}: update it, {OR_ELSE}"
        return update if numbers(version) < MACOS else ""
    if system != "Linux":
        return f"pipelag runs on Linux and macOS, and this is {system}: on Windows work in WSL 2"
    if machine not in ("x86_64", "aarch64"):
        return f"PyPI has no PyTorch for Linux on {machine}: take a machine with x86_64 or aarch64, {OR_ELSE}"
    if not version:
        return f"PyPI has no PyTorch for Linux without glibc, such as Alpine: take Debian or Ubuntu, {OR_ELSE}"
    if numbers(version) < GLIBC:
        needed = ".".join(map(str, GLIBC))
        return f"PyTorch needs glibc {needed} or newer, and this Linux has {version}: take a newer Linux, {OR_ELSE}"
    return ""


def version_here() -> str:
    """The version of macOS, or of glibc; empty where there is neither."""
    if platform.system() == "Darwin":
        return platform.mac_ver()[0]
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):  # musl does not know the name
        return ""
    return version if name == "glibc" else ""


if __name__ == "__main__":
    sys.exit(obstacle(platform.system(), platform.machine(), version_here()) or 0)
