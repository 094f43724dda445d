"""Load the drawings and judges of a paper, from this package or a user's plugin, and check that none is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from pipelag.errors import PipelagError, unknown
from pipelag.experiments.schema import Paper
from pipelag.results.drawing import DRAWINGS
from pipelag.results.verdict import JUDGES


def load_results(paper: Paper) -> None:
    """Import `pipelag.results.<id>`, if it exists, and check a paper's drawings and judges. Plugins are loaded before.

    Raises:
        PipelagError: a result has no drawing, or a claim has neither a judge nor a `because`.
    """
    if find_spec(f"pipelag.results.{paper.id}") is not None:
        import_module(f"pipelag.results.{paper.id}")
    drawn = [name for of, name in DRAWINGS if of == paper.id]
    for name, result in paper.results.items():
        if (paper.id, result.draw or name) not in DRAWINGS:
            raise PipelagError(
                f"nothing draws {name} of {paper.id}: write a function with @drawing('{paper.id}', "
                f"'{result.draw or name}') in a plugin or under pipelag.results.{paper.id}"
                + (f" (drawn: {', '.join(sorted(drawn))})" if drawn else "")
            )
        for claim in result.claims:
            if not claim.because and (paper.id, name, claim.id) not in JUDGES:
                judged = [of for of in JUDGES if of[:2] == (paper.id, name)]
                known = unknown(f"claim of {paper.id} {name}", claim.id, [of[2] for of in judged])
                raise PipelagError(
                    f"nothing judges the claim '{claim.id}' of {paper.id} {name}: write a function with "
                    f"@judge('{paper.id}', '{name}', '{claim.id}'), or say `because:`"
                    + (f" ({known})" if judged else "")
                )
