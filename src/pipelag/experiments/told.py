"""The `--config` values that a command line for Snakemake needs where config/config.yaml does not have them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from pipelag.experiments.expand import CONFIG, check_workflow, papers
from pipelag.files import read_yaml
from pipelag.plugins import configured, named_plugins


def asked_for() -> list[str]:
    """The papers in config/config.yaml, in its order; all papers if there is no such file."""
    path = CONFIG / "config.yaml"
    return check_workflow(read_yaml(path, "the workflow's config")).papers if path.exists() else papers()


def beyond(shown: Sequence[str]) -> str:
    """The `papers=` and `plugins=` that Snakemake needs where config/config.yaml lacks one of these papers or plugins.

    `--config` replaces the file's list, so the whole list is given even if only one name is missing.
    """
    pairs = {"plugins": (named_plugins(), configured()), "papers": (list(shown), asked_for())}
    more = {key: names for key, (names, known) in pairs.items() if set(names) - set(known)}
    return " ".join(f"{key}={shlex.quote(json.dumps(names))}" for key, names in more.items())
