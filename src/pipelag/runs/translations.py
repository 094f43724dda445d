"""What a network wrote at each evaluation, kept so that its BLEU can be computed again, by any program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipelag.runs.text_metrics import TranslationTest


@dataclass
class Translations:
    """The translations of a test set by step.

    by_step: by the number of steps before the evaluation, a translation of each sentence.
    """

    test: TranslationTest
    by_step: dict[int, list[str]] = field(default_factory=dict)

    def keep(self, step: int) -> None:
        """Keep the translations that the test measured last."""
        self.by_step[step] = self.test.written

    def table(self) -> str:
        """Tab-separated: a line per test sentence, with the reference and each evaluation's translation."""
        columns: dict[str, Sequence[str]] = {"reference": self.test.data.references}
        return separated(columns | {f"step {step}": self.by_step[step] for step in sorted(self.by_step)})


def separated(columns: Mapping[str, Sequence[str]]) -> str:
    """Tab-separated columns under their names.

    White space within a sentence becomes single spaces, which leaves its words, and so its BLEU, as they are.
    """
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
