"""What a method's policy moves and holds: counted from the policy, held against what papers and runtimes say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.timing import rehearsal
from pipelag.timing.rehearsal import Traffic, rehearse
from tests.toy import VIRTUAL, parts_of


def sgdm(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.1)


def of_policy(
    name: str, make: Callable[[Any], torch.optim.Optimizer], parts: int = 1, fused: bool = True
) -> list[float]:
    """Per stage of four, how many times the weights are moved for one minibatch, the optimizer's step left out."""
    per_stage = (rehearse(get(name), make, stage, 4, parts).moved for stage in (1, 2, 3, 4))
    return [
        sum(one.fused if fused else one.separate for kind, one in kinds.items() if kind != "step")
        for kinds in per_stage
    ]


def test_operators_read_what_they_are_given_and_write_what_they_make() -> None:
    a, b = torch.ones(4), torch.ones(4)
    cases: list[tuple[Callable[[], Any], int, int]] = [
        (lambda: a + b, 3 * 16, 2 * 16),  # a sum that nobody keeps: its place is no memory of the policy's
        (lambda: a.add_(b), 3 * 16, 3 * 16),
        (lambda: a.copy_(b), 2 * 16, 2 * 16),
        (lambda: torch._foreach_copy_([a], [b]), 2 * 16, 2 * 16),
        (lambda: torch.add(a, b, out=a), 3 * 16, 3 * 16),
        (lambda: a.copy_(b).sub_(b, alpha=2), 5 * 16, 2 * 16),  # one kernel reads b once, and writes a once
        (lambda: a.sub_((b * 2).sqrt_()), 7 * 16, 3 * 16),
        (lambda: a.zero_(), 16, 16),
        (lambda: a.view(2, 2)[0].detach(), 0, 0),
        (lambda: torch.tensor(1.0).add_(1), 0, 0),  # a number, such as an optimizer's count of steps
    ]
    for operation, separate, fused in cases:
        with Traffic() as traffic:
            operation()
        assert (traffic.separate, traffic.fused) == (separate, fused)


def test_methods_without_versions_move_nothing() -> None:
    for name in ("gpipe", "1f1b", "dualpipe", "sequential", "stale_weights"):
        assert of_policy(name, sgdm) == [0, 0, 0, 0]


def test_stashing_takes_three_copies_where_there_is_something_to_stash() -> None:
    """The live weights are saved, old ones brought in for the backward, the live ones brought back: 6 |W|."""
    assert of_policy("pipedream", sgdm) == of_policy("pipedream", sgdm, fused=False) == [6, 6, 6, 0]


@pytest.mark.parametrize(("make", "state"), [(sgdm, 1), (adam, 2)])
def test_one_prediction_reads_weights_and_state(make: Callable[[Any], torch.optim.Optimizer], state: int) -> None:
    """PipeOptim, algorithm 1: cache (2 |W|), predict in place (read W and the state, write W), restore (2 |W|).

    Here the prediction is made at the update, beside the live weights, and copied in for the forward: 2 |W| more.
    """
    paper = 2 + (1 + state + 1) + 2
    assert of_policy("pipeoptim", make) == [paper + 2, paper + 2, paper + 2, 0]
    assert all(
        a >= b for a, b in zip(of_policy("pipeoptim", make, fused=False), of_policy("pipeoptim", make), strict=True)
    )


def test_the_page_of_plans_says_what_is_counted() -> None:
    def row(label: str, fused: str, separate: str) -> str:
        return f"| {label} | {fused} | {separate} |"

    def of(name: str, make: Callable[[Any], torch.optim.Optimizer], *stages: int, parts: int = 1) -> list[str]:
        """The fused and the separate count of these stages."""
        counts = [of_policy(name, make, parts, fused) for fused in (True, False)]
        return [", ".join(f"{each[stage - 1]:g}" for stage in stages) for each in counts]

    def both(name: str, first: Any, second: Any, *stages: int) -> list[str]:
        """Over one optimizer and, in brackets, over another."""
        return [f"{a} ({b})" for a, b in zip(of(name, first, *stages), of(name, second, *stages), strict=True)]

    steps = [rehearse(get("1f1b"), make, 1, 4).moved["step"] for make in (sgdm, adam)]
    rows = [
        row("PipeDream, all stages but the last", *of("pipedream", sgdm, 1)),
        row("PipeOptim over SGD with momentum (Adam), all but the last", *both("pipeoptim", sgdm, adam, 1)),
        row("SpecTrain on 1F1B, stages 1-2 and 3-4", *of("spectrain_1f1b", sgdm, 1, 3)),
        row("XPipe over Adam (SGD), 1-2 and 3-4", *both("xpipe", adam, sgdm, 1, 3)),
        row("2BW with 4 microbatches, stages 1 to 4", of("pipedream_2bw", sgdm, 1, 2, 3, 4, parts=4)[0], "the same"),
        row(
            "the step of SGD with momentum (Adam)",
            *(f"{a:g} ({b:g})" for a, b in zip(*[(each.fused, each.separate) for each in steps], strict=True)),
        ),
    ]
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    assert [each for each in rows if each not in page] == []


def test_predicting_in_both_passes_costs_more_than_in_one() -> None:
    """s > 0 in the backward of GPUs 2 and 3 (counted from 0): one prediction more there, of W, v and the result."""
    for name, make, more in (("spectrain_1f1b", sgdm, 3), ("xpipe", adam, 3)):
        once, both = of_policy(name, make)[1:3]
        assert both == once + more
    assert of_policy("spectrain_1f1b", sgdm)[0] == of_policy("pipeoptim", sgdm)[0]
    assert of_policy("spectrain_1f1b", sgdm)[3] > 0 == of_policy("pipeoptim", sgdm)[3]


def test_own_moments_are_followed_at_every_update() -> None:
    """XPipe over SGD reads the gradient and its two moments, and writes these, beyond what it moves over Adam."""
    more = [a - b for a, b in zip(of_policy("xpipe", sgdm), of_policy("xpipe", adam), strict=True)]
    assert min(more) >= 4


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.random is None and not m.data_parallel])
@pytest.mark.parametrize("stages", [1, 3])
def test_a_longer_count_gives_the_same(name: str, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of(name)
    stages = 2 * -(-stages // 2) if name in VIRTUAL else stages  # these want an even number
    make = (lambda p: torch.optim.SGD(p, lr=0.1)) if name == "nesterov_async" else sgdm
    short = [rehearse(get(name), make, stage, stages, parts) for stage in range(1, stages + 1)]
    monkeypatch.setattr(rehearsal, "COUNTED", 9)
    assert [rehearse(get(name), make, stage, stages, parts) for stage in range(1, stages + 1)] == short


def test_an_update_moves_what_the_optimizer_holds() -> None:
    """At least the weights, their gradient and the state; the weights and the state are written too."""
    for make, state in ((sgdm, 1), (adam, 2)):
        assert rehearse(get("1f1b"), make, 1, 2).moved["step"].fused == 2 + state + 1 + state


def test_the_state_of_each_optimizer() -> None:
    for make, state in ((sgdm, 1.0), (adam, 2.0), (lambda p: torch.optim.SGD(p, lr=0.1), 0.0)):
        held = rehearse(get("1f1b"), make, 1, 2).held([64, 100, 0])
        assert (held.weights, held.copies, held.remembered) == (64 + 128, 0, 0)
        assert held.optimizer == state * 164 + (4 * 2 if make is adam else 0)  # Adam counts the steps of each tensor


def test_the_executors_hold_one_copy_more_than_the_papers_count() -> None:
    """The live version has a place of its own beside the live weights, wherever anything else is ever shown."""
    for name, parts in (
        ("pipedream", 1),
        ("pipedream_2bw", 4),
        ("pipeoptim", 1),
        ("lwp_v", 1),
        ("dualpipe_stashed", 1),
    ):
        copies = get(name).weight_copies(4, parts)
        for stage, count in enumerate(copies, start=1):
            assert rehearse(get(name), sgdm, stage, 4, parts).copies == (count if count > 1 else 0)


def test_a_stage_without_weights_holds_nothing() -> None:
    assert vars(rehearse(get("pipedream"), adam, 1, 2).held([0, 0])) == dict.fromkeys(
        ("weights", "copies", "remembered", "optimizer"), 0
    )


def test_what_the_optimizer_cannot_do_is_refused() -> None:
    with pytest.raises(PipelagError, match="SGD without momentum keeps no direction"):
        rehearse(get("pipeoptim"), lambda p: torch.optim.SGD(p, lr=0.1), 1, 2)
    with pytest.raises(PipelagError, match="as many as stages are always enough"):
        rehearse(get("pipedream_2bw"), sgdm, 1, 4, 2)
