"""What users bring and few test sets have: data that draw, unused outputs, state in unusual places."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from tests.toy import equal

pytestmark = pytest.mark.real
X = [(x, (x.sum(1) > 0).long()) for x in torch.randn(20, 8, 4, generator=torch.Generator().manual_seed(0))]
DECAYING = {"name": "sgd", "lr": 0.1, "weight_decay": 0.1}


class Broken(Exception):
    """Ends a training from outside."""


def plain(start: int = 0) -> list[nn.Module]:
    """Another start than before for what goes on, which has the weights of its checkpoint."""
    torch.manual_seed(start)
    return [nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)]


def alike(one: pipelag.TrainedRun, other: pipelag.TrainedRun) -> bool:
    return equal(one.model.state_dict(), other.model.state_dict()) and one.metrics == other.metrics


# Data that draw ---------------------------------------------------------------------------------------------------


class Chunks:
    """Rows drawn anew at every look, from all three generators; the target tells which."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(0, 99, (8, 4)) + random.randrange(9) + numpy.random.randint(9)
        x = rows / 100
        return x, x.sum(1, keepdim=True)


def masked(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As masked language modelling: the target says what was masked."""
    visible = (torch.rand(8, 1) > 0.5).float()
    return row * visible, visible


def regress(batches: Any, start: int = 2, **how: Any) -> pipelag.TrainedRun:
    torch.manual_seed(start)
    model = [nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)]
    torch.manual_seed(3)
    return pipelag.train(model, batches, loss=nn.functional.mse_loss, optimizer="sgd", lr=0.05, **how)


@pytest.mark.parametrize("how", [{}, {"unpack": masked}], ids=["by number", "by unpack"])
def test_inputs_and_targets_are_of_one_look_wherever_they_are_wanted(how: dict[str, Any]) -> None:
    batches = [torch.rand(8, 4) for _ in range(12)] if how else Chunks()
    before = random.getstate(), numpy.random.get_state()[1].tolist()  # type: ignore[union-attr]
    simulated = regress(batches, method="pipedream", cuts=(2,), **how)
    assert alike(regress(batches, method="pipedream", cuts=(2,), executor="real", **how), simulated)
    other = regress(batches, method="pipedream", cuts=(2,), seed=1, **how)
    assert not alike(other, simulated)
    drawn, after = torch.rand(3), (random.getstate(), numpy.random.get_state()[1].tolist())  # type: ignore[union-attr]
    torch.manual_seed(3)  # as `regress` does before it trains
    assert after == before and torch.equal(drawn, torch.rand(3))


def test_a_replica_looks_a_minibatch_up_once() -> None:
    class Counting:
        looks = 0

        def __len__(self) -> int:
            return 6

        def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
            Counting.looks += 1
            x = torch.full((8, 4), float(Counting.looks))
            return x, x.sum(1, keepdim=True) - 4 * Counting.looks  # 0 where both are of one look

    def exact(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output * 0 + target.square()).mean()

    run = pipelag.train(
        [nn.Linear(4, 1)], Counting(), loss=exact, method="bsp", workers=2, executor="real", optimizer="sgd", lr=0.1
    )
    assert [row["loss"] for row in run.metrics] == [0.0] * 6


def test_unpack_draws_on_where_a_training_over_an_iterable_goes_on(tmp_path: Path) -> None:
    class Rows:
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from torch.rand(12, 8, 4, generator=torch.Generator().manual_seed(1))

    def broken(step: int, loss: float) -> None:
        if step == 8:
            raise Broken

    whole = regress(Rows(), unpack=masked, steps=12, cuts=(2,))
    with pytest.raises(Broken):
        regress(Rows(), unpack=masked, steps=12, cuts=(2,), checkpoints=tmp_path, checkpoint_every=3, on_step=broken)
    assert alike(regress(Rows(), start=1, unpack=masked, steps=12, cuts=(2,), checkpoints=tmp_path), whole)


# What has no gradient ---------------------------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x), self.b(x)


class First(nn.Module):
    """Uses the first of two, or by chance both."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.layer, self.chance = nn.Linear(8, 2), chance

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        both = self.chance > 0 and float(torch.rand(())) < self.chance
        return self.layer(pair[0] + pair[1] if both else pair[0])


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def partly(first: Callable[[], nn.Module], last: Callable[[], nn.Module], **how: Any) -> pipelag.TrainedRun:
    torch.manual_seed(0)
    return pipelag.train([first(), last()], X, optimizer=DECAYING, **how)


@pytest.mark.parametrize(
    "chance, how",
    [
        (0.0, {"recompute": True}),
        (0.5, {"recompute": True}),
        (0.0, {"executor": "real"}),
        (0.5, {"executor": "real", "uneven": True}),
    ],
)
def test_an_output_that_nobody_uses_has_no_gradient_anywhere(chance: float, how: dict[str, Any]) -> None:
    """A zero for one would let weights decay and momentum push."""
    usual = {"method": "pipedream", "cuts": (1,)}
    plainly = partly(Two, lambda: First(chance), **usual)
    assert alike(partly(Two, lambda: First(chance), **usual, **how), plainly)


def test_a_weight_that_no_replica_uses_does_not_decay() -> None:
    usual: dict[str, Any] = {"method": "pipedream", "cuts": (1,), "replicas": (2, 1)}
    simulated = partly(Unused, lambda: nn.Linear(8, 2), **usual)
    assert alike(partly(Unused, lambda: nn.Linear(8, 2), executor="real", **usual), simulated)
    torch.manual_seed(0)
    assert torch.equal(simulated.model[0].b.weight, Unused().b.weight)


def test_asynchronous_data_parallelism_with_one_worker_is_plain_training() -> None:
    asp = partly(Unused, lambda: nn.Linear(8, 2), method="asp", workers=1, executor="real")
    assert alike(asp, partly(Unused, lambda: nn.Linear(8, 2), method="sequential"))


def test_data_parallelism_refuses_a_weight_without_a_gradient() -> None:
    with pytest.raises(PipelagError, match=r"'0.b.weight' gets no gradient in step 0.*freeze it"):
        partly(Unused, lambda: nn.Linear(8, 2), method="bsp", workers=2, executor="real")


class Dropped(nn.Module):
    """Left out by chance, with all its weights."""

    def __init__(self, layer: nn.Module, chance: float) -> None:
        super().__init__()
        self.layer, self.chance = layer, chance

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training and float(torch.rand(())) < self.chance else x + self.layer(x)


def test_an_output_that_has_a_gradient_by_chance_is_refused_by_real_workers() -> None:
    with pytest.raises(PipelagError, match="has (a|no) gradient, but in the first message it had"):
        partly(
            lambda: Dropped(nn.Linear(4, 4), 0.4),
            lambda: nn.Linear(4, 2),
            method="pipedream",
            cuts=(1,),
            executor="real",
        )


@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_draws_in_its_own_way_is_found_where_microbatches_share_passes(seed: int) -> None:
    """Also where the first minibatch drops nothing, as it mostly does."""

    def run(**how: Any) -> pipelag.TrainedRun:
        torch.manual_seed(0)
        model = [nn.Linear(4, 16), Dropped(nn.Linear(16, 16), 0.1), nn.Linear(16, 2)]
        return pipelag.train(model, X, method="gpipe", cuts=(1,), microbatches=4, seed=seed, **how)

    assert alike(run(grouped=True), run())


# State in unusual places ------------------------------------------------------------------------------------------


class Counting(torch.optim.Optimizer):
    """As schedule-free ones: what it counts stands in its groups."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / group["k"] ** 0.5)


class Full(torch.optim.Optimizer):
    """Momentum and masters in float32, whatever the type of the weights."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["full"] = parameter.float().clone()
                    state["momentum"], state["steps"] = (
                        torch.zeros_like(state["full"]),
                        torch.zeros(3, dtype=torch.int64),
                    )
                state["momentum"].mul_(0.9).add_(parameter.grad.float())
                state["steps"] += 1
                state["full"].sub_(state["momentum"], alpha=group["lr"])
                parameter.copy_(state["full"])


class Mean(nn.Module):
    """A running mean that the module's state leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean


class Both(Full):
    """That, and what it counts stands in its groups."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] /= group["k"] ** 0.5
        super().step()
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


UNUSUAL: dict[str, dict[str, Any]] = {
    "counts in groups": {"optimizer": Counting},
    "float32 state of bfloat16 weights": {"optimizer": Full, "dtype": torch.bfloat16},
    "a buffer that the state leaves out": {"first": Mean},
    "all of these": {"optimizer": Both, "dtype": torch.bfloat16, "first": Mean},
}


@pytest.mark.parametrize("name, executor", [*((name, "simulated") for name in UNUSUAL), ("all of these", "real")])
def test_unusual_state_goes_on_after_a_break(name: str, executor: str, tmp_path: Path) -> None:
    case = UNUSUAL[name]
    dtype = case.get("dtype", torch.float32)
    data = [((x + 2).to(dtype), y) for x, y in X]

    def broken(step: int, loss: float) -> None:
        if step == 11:
            raise Broken

    def run(start: int = 0, **how: Any) -> pipelag.TrainedRun:
        model = nn.Sequential(*([case["first"]()] if "first" in case else []), *plain(start)).to(dtype)
        usual: dict[str, Any] = {"method": "pipedream", "cuts": (2,), "validation": data[:3], "evaluate_every": 5}
        return pipelag.train(model, data, optimizer=case.get("optimizer", "sgd"), **SGD.get(name, {}), **usual, **how)

    whole = run(executor=executor)
    with pytest.raises(Broken):
        run(executor=executor, checkpoints=tmp_path, on_step=broken)
    for _ in range(2):  # the second finds that nothing is left
        resumed = run(start=1, executor=executor, checkpoints=tmp_path)
        assert alike(resumed, whole) and resumed.evaluations == whole.evaluations
        assert equal(dict(resumed.model.named_buffers()), dict(whole.model.named_buffers()))
    if executor == "real":
        simulated = run()
        assert alike(simulated, whole) and simulated.evaluations == whole.evaluations


SGD: dict[str, dict[str, Any]] = {"a buffer that the state leaves out": {"lr": 0.05}}


@pytest.mark.parametrize("method", ["pipedream", "pipemare"])
def test_a_real_training_that_is_made_longer_is_the_unbroken_one(method: str, tmp_path: Path) -> None:
    def run(steps: int, start: int = 0, **how: Any) -> pipelag.TrainedRun:
        return pipelag.train(plain(start), X, steps=steps, method=method, cuts=(1, 2), lr=0.2, executor="real", **how)

    run(9, checkpoints=tmp_path)
    assert alike(run(20, start=1, checkpoints=tmp_path), run(20))


# What is refused --------------------------------------------------------------------------------------------------


def test_a_stages_own_rate_counts_for_replicas() -> None:
    def run(**how: Any) -> pipelag.TrainedRun:
        return pipelag.train(plain(), X, optimizer="sgd", lr=0.1, method="bsp", workers=2, executor="real", **how)

    assert not alike(run(stage_lr={1: 0.001}), run())


def test_a_loss_over_the_models_weights_is_refused_by_real_workers() -> None:
    model = nn.Sequential(*plain())

    def decaying(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target) + 0.1 * sum(p.square().sum() for p in model.parameters())

    with pytest.raises(PipelagError, match="the loss uses weights that are not the last stage's"):
        pipelag.train(model, X, loss=decaying, method="pipedream", cuts=(2,), executor="real")


def test_a_loss_with_weights_of_its_own_is_refused() -> None:
    class Weighing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.ones(2))

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output * self.weights, target)

    with pytest.raises(PipelagError, match="loss has weights of its own, which would not be trained"):
        pipelag.train(plain(), X, loss=Weighing())


def test_statistics_in_two_stages_are_refused() -> None:
    norm = nn.BatchNorm1d(16, affine=False)
    with pytest.raises(PipelagError, match="stages 1 and 2 share a buffer"):
        pipelag.train([nn.Linear(4, 16), norm, nn.Linear(16, 16), norm, nn.Linear(16, 2)], X, cuts=(2,))


def test_a_default_type_does_not_reach_real_workers() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(
            PipelagError, match="default dtype is set to torch.float64, which has no effect on real workers"
        ):
            pipelag.train(plain(), [(x.double(), y) for x, y in X], cuts=(1,), executor="real")
        pipelag.train(plain(), [(x.double(), y) for x, y in X], cuts=(1,))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_table_that_nobody_changes_may_be_shared_by_stages() -> None:
    """As rotary angles are."""

    class Turned(nn.Module):
        def __init__(self, angles: nn.Module) -> None:
            super().__init__()
            self.layer, self.angles = nn.Linear(4, 4), angles

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.angles.table

    angles = nn.Module()
    angles.register_buffer("table", torch.linspace(0.5, 1.0, 4))
    torch.manual_seed(0)
    usual: dict[str, Any] = {"method": "pipedream", "cuts": (1,)}
    model = [Turned(angles), Turned(angles), nn.Linear(4, 2)]
    simulated = pipelag.train([*map(copy.deepcopy, model)], X, **usual)
    assert alike(pipelag.train(model, X, executor="real", **usual), simulated)


# Threads ----------------------------------------------------------------------------------------------------------


def test_trainings_in_several_threads_draw_as_each_alone() -> None:
    """A sweep by threads: torch's generator is one for all of them, and dropout of each is by its seed all the same."""

    model = nn.Sequential(*plain()[:2], nn.Dropout(0.5), nn.Linear(16, 2))

    def dropping(seed: int) -> pipelag.TrainedRun:
        how: dict[str, Any] = {"cuts": (1,), "epochs": 5, "evaluate_every": 7, "validation": X[:2], "lr": 0.1}
        return pipelag.train(copy.deepcopy(model), X, method="stale_weights", seed=seed, **how)

    torch.manual_seed(5)
    alone, after = [dropping(seed) for seed in range(3)], torch.get_rng_state()
    torch.manual_seed(5)
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(dropping, range(3)))
    assert all(map(alike, alone, together)) and torch.equal(torch.get_rng_state(), after)
