"""What a command to draw or train has to tell Snakemake beside what config/config.yaml says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from pipelag.experiments.expand import CONFIG, check_workflow, papers
from pipelag.files import read_yaml
from pipelag.plugins import configured, named_plugins


def asked_for() -> list[str]:
    """The papers of config/config.yaml, in its order; all where it is not there."""
    path = CONFIG / "config.yaml"
    return check_workflow(read_yaml(path, "the workflow's config")).papers if path.exists() else papers()


def beyond(shown: Sequence[str]) -> str:
    """What Snakemake has to be told of these papers and of the plugins where config/config.yaml does not say them all.

    What it is told stands in the place of what the config says: so all are named where one is not there.
    """
    pairs = {"plugins": (named_plugins(), configured()), "papers": (list(shown), asked_for())}
    more = {key: names for key, (names, known) in pairs.items() if set(names) - set(known)}
    return " ".join(f"{key}={shlex.quote(json.dumps(names))}" for key, names in more.items())
