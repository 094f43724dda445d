"""What PipeOptim's claims and notes rest on: ties, minibatches, gains over models whose seeds differ."""

from __future__ import annotations

import pytest

from pipelag.results.pipeoptim.throughput import mostly_above
from pipelag.results.verdict import JUDGES
from tests.results.cases.pipeoptim import planned

pytestmark = pytest.mark.usefixtures("in_project")


@pytest.mark.parametrize(
    ("percents", "holds"),
    [
        ((1.0, 1.0, 1.0, 0.0), True),
        ((1.0, 1.0, 0.0, -0.05), None),  # half of them are ahead, and ties are no support
        ((0.0, 0.0, 0.0, 0.05), None),
        ((1.0, 1.0, -1.0, -1.0), False),
        ((1.0, -1.0, -1.0, 0.0), False),
    ],
)
def test_ties_are_no_support_for_most(percents: tuple[float, ...], holds: bool | None) -> None:
    assert mostly_above({f"model {number}": value for number, value in enumerate(percents)})[0] is holds


def test_an_order_with_a_tie_in_it_is_not_told() -> None:
    level, _ = planned("figure_8", {"PipeDream": 150.5, "PipeOptim": 152.95}, {})
    finding = JUDGES["pipeoptim", "figure_8", "order"](level)
    assert finding.holds is None, finding.why
