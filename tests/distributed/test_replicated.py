"""Replicated stages (1F1B-RR): what replicas read, simulated against real, against plain training, refusals."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.schedules import delays
from pipelag.schedules.check import check
from pipelag.schedules.replicated import Replicated, one_f_one_b_rounds
from pipelag.stage.phase import Phase
from tests.toy import VIRTUAL, Noise, convolutional


def trained(
    replicas: Sequence[int],
    cuts: tuple[int, ...],
    executor: str = "simulated",
    steps: int = 24,
    model: nn.Sequential | None = None,
    device: str = "cpu",
) -> pipelag.TrainedRun:
    return pipelag.train(
        model or convolutional(),
        Noise(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
        method="pipedream",
        cuts=cuts,
        replicas=replicas,
        steps=steps,
        executor=executor,
        rate=lambda step: 1.0 if step < 12 else 0.5,
        device=device,
    )


@pytest.mark.real
@pytest.mark.parametrize(
    ("replicas", "cuts"), [((2, 1), (2,)), ((2, 1, 1), (1, 4)), ((1, 2), (3,)), ((2, 2), (2,))], ids=str
)
def test_real_equals_simulated_bit_for_bit(replicas: tuple[int, ...], cuts: tuple[int, ...], place: str) -> None:
    real, simulated = trained(replicas, cuts, "real", device=place), trained(replicas, cuts, device=place)
    for name, value in simulated.model.cpu().state_dict().items():
        assert torch.equal(value, real.model.cpu().state_dict()[name]), name
    assert [row["loss"] for row in real.metrics] == [row["loss"] for row in simulated.metrics]


@pytest.mark.real
def test_what_is_frozen_stays_as_it_is() -> None:
    runs = []
    for executor in ("real", "simulated"):
        model = convolutional()
        model[0].requires_grad_(False)
        runs.append(trained((2, 1), (2,), executor, model=model).model.state_dict())
    assert torch.equal(runs[0]["0.0.weight"], convolutional().state_dict()["0.0.weight"])
    assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())


class Centred(nn.Module):
    """Takes off a running mean, of which each pass makes a new one."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 2, 3))
        return torch.tanh(x - self.mean[:, None, None])


def centred(start: int = 0) -> nn.Sequential:
    model = convolutional(start)
    return nn.Sequential(model[0], Centred(), *model[1:])


@pytest.mark.real
@pytest.mark.parametrize("method, replicas", [("pipedream", (2, 1)), ("bidirectional", ())])
def test_each_replica_reads_buffers_of_its_own(method: str, replicas: tuple[int, ...]) -> None:
    """In both executors; what it reads is of its own minibatches, of what is left of the model the first one's."""
    how: dict[str, Any] = {
        "method": method,
        "cuts": (3,),
        "replicas": replicas,
        "microbatches": 2,
        "recompute": True,
        "steps": 8,
    }
    runs = [pipelag.train(centred(), Noise(), executor=kind, **how) for kind in ("simulated", "real")]
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    losses = [[row["loss"] for row in run.metrics] for run in runs]
    assert losses[0] == (pytest.approx(losses[1], rel=1e-6) if method == "bidirectional" else losses[1])


def test_they_go_on_where_a_simulated_run_does(tmp_path: Path) -> None:
    how: dict[str, Any] = {"method": "pipedream", "cuts": (3,), "replicas": (2, 1), "steps": 12}
    whole = pipelag.train(centred(), Noise(), **how)

    def broken(step: int, loss: float) -> None:
        if step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipelag.train(centred(), Noise(), checkpoints=tmp_path, checkpoint_every=3, on_step=broken, **how)
    resumed = pipelag.train(centred(1), Noise(), checkpoints=tmp_path, **how)
    assert all(torch.equal(value, resumed.model.state_dict()[name]) for name, value in whole.model.state_dict().items())


@pytest.mark.real
def test_three_replicas_agree_within_rounding() -> None:
    """Three gradients are summed in another order by the real all-reduce."""
    real, simulated = trained((3, 1), (3,), "real"), trained((3, 1), (3,))
    for name, value in simulated.model.state_dict().items():
        torch.testing.assert_close(value, real.model.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


def test_one_replica_each_is_plain_pipedream() -> None:
    plain = pipelag.train(
        convolutional(),
        Noise(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
        method="pipedream",
        cuts=(2, 4),
        steps=24,
        rate=lambda step: 1.0 if step < 12 else 0.5,
    )
    for name, value in trained((1, 1, 1), (2, 4)).model.state_dict().items():
        assert torch.equal(value, plain.model.state_dict()[name]), name


def test_one_replicated_stage_is_data_parallelism() -> None:
    """Two minibatches, each with the same weights, make one update by their mean gradient."""

    def linear() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))

    ours = trained((2,), (), model=linear()).model
    model, noise = linear(), Noise()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for step in range(0, 24, 2):
        losses = [nn.functional.cross_entropy(model(noise.inputs(m)), noise.targets(m)) for m in (step, step + 1)]
        optimizer.param_groups[0]["lr"] = 0.05 * (1.0 if step + 1 < 12 else 0.5)
        optimizer.zero_grad()
        (sum(losses) / 2).backward()
        optimizer.step()
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("replicas", [(2, 1), (2, 1, 1), (3, 2, 1), (4, 2), (1, 3)])
def test_versions_follow_the_replicas_own_order(replicas: tuple[int, ...]) -> None:
    schedule = one_f_one_b_rounds(len(replicas), 48, replicas)
    check(schedule)
    read = delays(schedule).forward_versions
    for stage, count in enumerate(replicas):
        for m, version in enumerate(read[stage]):
            assert version <= m // count  # no update that needs this minibatch's own gradient
            assert version >= read[stage][max(0, m - count)]  # a replica's weights grow no older
        updates = [a.number for row in schedule.workers for a in row if (a.kind, a.stage) == ("U", stage + 1)]
        assert sorted(updates) == sorted(list(range(48 // count)) * count)  # every replica makes every update
    assert delays(schedule).forward[-1] == 0  # the last stage runs a backward right after its forward


def test_figure_8s_two_stages_are_one_round_stale() -> None:
    """2-1: two minibatches per replica of stage 1 are under way (NOAM), so its forwards miss one round."""
    assert get("pipedream").delays(2, 1, (2, 1)).forward_lags == ((1, 1), (0,))
    assert get("pipedream").delays(3, 1, (2, 1, 1)).forward_lags == ((1, 1), (1,), (0,))
    assert get("pipedream").delays(3, 1, (2, 1, 1)).places == ((0, 1), (0,), (0,))


@pytest.mark.parametrize(
    "name", ["stale_weights", "pipemare", "gpipe", "1f1b_flush", "zb_h1", "pipedream_2bw", "spectrain"]
)
@pytest.mark.parametrize("replicas", [(2, 1), (1, 2), (2, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_any_schedule_can_be_dealt_to_replicas(name: str, replicas: tuple[int, ...], microbatches: int) -> None:
    if name == "pipedream_2bw" and microbatches == 1:
        return
    build = Replicated(get(name).build, replicas)
    schedule = build(2, 6 * build.rounds, microbatches)
    check(schedule)
    assert [len(ranks) for ranks in schedule.replicas] == list(replicas)
    assert schedule.periods == tuple(microbatches * count for count in replicas)
    assert get(name).delays(2, microbatches, replicas).periods == schedule.periods


def test_replicas_of_pipemare_are_stale_by_their_rounds() -> None:
    """Stage 1 of 2 lags 3 updates alone; two replicas make one update of two minibatches: ceil((3 - place)/2)."""
    assert get("pipemare_naive").delays(2, 1, (2, 1)).forward_lags == ((2, 1), (1,))


REPLICABLE = [
    name
    for name, method in METHODS.items()
    if method.random is None and method.workers == "stages" and name not in ("sequential", *VIRTUAL)
]


def replicated_run(name: str, executor: str) -> dict[str, torch.Tensor]:
    """Two replicas of the first stage, one of the second, in the method's own schedule."""
    microbatches = {"pipedream_2bw": 2, "zb_h1": 4}.get(name, 1)
    momentum = 0.0 if name == "nesterov_async" else 0.9
    # Vertical sync gives all stages one version, so they need rounds of one length.
    replicas = (2, 2) if name in ("pipedream_vertical_sync",) else (2, 1)
    model = convolutional()
    pipelag.train(
        model,
        Noise(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.02, momentum=momentum, weight_decay=1e-3),
        phases=[Phase(get(name), 12, (3,), microbatches=microbatches, replicas=replicas)],
        executor=executor,
        rate=lambda step: 1.0 if step < 6 else 0.5,
    )
    return model.state_dict()


@pytest.mark.real
@pytest.mark.parametrize(
    "name", ["stale_weights", "pipemare", "pipeoptim", "spectrain", "pipedream_2bw", "dc_asgd", "zb_h1"]
)
def test_any_method_with_replicas_is_the_same_real_and_simulated(name: str) -> None:
    real, simulated = replicated_run(name, "real"), replicated_run(name, "simulated")
    assert all(torch.equal(value, real[key]) for key, value in simulated.items()), name


@pytest.mark.parametrize("name", REPLICABLE)
def test_any_method_trains_with_replicas(name: str) -> None:
    """Every weight of every stage, and every statistic."""
    trained, before = replicated_run(name, "simulated"), convolutional().state_dict()
    assert all(torch.isfinite(value).all() and not torch.equal(value, before[key]) for key, value in trained.items())


PLAIN = [  # whose passes read versions as they are
    name
    for name in REPLICABLE
    if isinstance(METHODS[name].forward_reads, str)
    and isinstance(METHODS[name].backward_reads, str)
    and METHODS[name].learning_rate is METHODS[name].update is None
]


@pytest.mark.parametrize("name", PLAIN)
def test_one_replicated_stage_of_any_method_is_data_parallelism_as_late_as_its_schedule_says(name: str) -> None:
    """The gradient of a single linear layer is that of the weights which its forward read."""

    def linear() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))

    parts, noise = 2 if name == "pipedream_2bw" else 1, Noise()
    phase = Phase(get(name), 12, (), microbatches=parts, replicas=(2,))
    ours, model = linear(), linear()
    pipelag.train(ours, noise, phases=[phase], optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9))
    (lags,) = phase.delays.forward_lags
    assert len(lags) == 2 * parts
    optimizer, versions = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), [linear()]
    for number in range(6):
        losses = []
        for place, lag in enumerate(lags):
            images, targets = (each.chunk(parts)[place % parts] for each in noise[2 * number + place // parts])
            losses.append(nn.functional.cross_entropy(versions[max(0, number - lag)](images), targets))
        read = [parameter for version in versions for parameter in version.parameters()]
        gradients = torch.autograd.grad(sum(losses) / len(losses), read, allow_unused=True, materialize_grads=True)
        for place, parameter in enumerate(model.parameters()):
            parameter.grad = sum(gradients[place::2])
        optimizer.step()
        versions.append(copy.deepcopy(model))
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PipelagError, match=r"25 minibatches do not make whole rounds .* train 24 or 26"):
        trained((2, 1), (2,), steps=25)
    with pytest.raises(PipelagError, match="should give each of the 2 stages"):
        trained((2, 1, 1), (2,))
    with pytest.raises(PipelagError, match="method 'asp' has no stages of its own to replicate"):
        pipelag.train(convolutional(), Noise(), method="asp", cuts=(2,), replicas=(2, 1), steps=4)
    with pytest.raises(PipelagError, match="give all stages the same number of replicas"):
        pipelag.train(convolutional(), Noise(), method="pipedream_vertical_sync", cuts=(2,), replicas=(2, 1), steps=4)
    with pytest.raises(PipelagError, match="cannot be recomputed in segments"):
        pipelag.train(convolutional(), Noise(), method="pipemare", cuts=(2,), replicas=(2, 1), steps=4, recompute=2)
    with pytest.raises(PipelagError, match="need 3 workers, not 2"):
        pipelag.train(
            convolutional(),
            Noise(),
            method="pipedream",
            cuts=(2,),
            replicas=(2, 1),
            steps=4,
            executor="real",
            workers=2,
        )


def test_a_resumed_run_equals_an_unbroken_one() -> None:
    import copy

    from pipelag.simulate.training import SimulatedTraining

    def training() -> SimulatedTraining:
        phases = [Phase(get("pipedream"), 24, (2,), replicas=(2, 1)), Phase(get("sequential"), 4)]
        make = lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9)  # noqa: E731
        return SimulatedTraining(convolutional(), phases, make, nn.functional.cross_entropy)

    noise, whole, first = Noise(), training(), training()
    for step in range(28):
        whole.step(*noise[step])
    for step in range(11):  # in the middle of a round
        first.step(*noise[step])
    state, resumed = copy.deepcopy(first.state_dict()), training()
    resumed.load_state_dict(state)
    for step in range(11, 28):
        resumed.step(*noise[step])
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
