"""The papers that pipelag reproduces: those of config/papers with a citation. The others are studies of our own.

Tests that are about each paper take their names from here, so that a new paper is tested as soon as its file is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag.files import read_yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIGS: dict[str, dict[str, Any]] = {
    path.stem: config
    for path in sorted((ROOT / "config/papers").glob("*.yaml"))
    if (config := read_yaml(path, "a paper")).get("citation")
}
REPRODUCED = tuple(CONFIGS)
