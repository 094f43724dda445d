"""A user's data: several epochs, loaders, dicts; and optimizers in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pipelag
from pipelag.library.supply import Supply, to
from pipelag.stage.optimizers import CaffeSGD
from tests.toy import equal

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
PAIRS = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 20, 4)]


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def trained(batches: Any = PAIRS, model: nn.Sequential | None = None, **how: Any) -> pipelag.TrainedRun:
    return pipelag.train(model or layers(), batches, **({"method": "pipedream", "cuts": (1,)} | how))


def same(one: pipelag.TrainedRun, other: pipelag.TrainedRun) -> bool:
    return equal(one.model.state_dict(), other.model.state_dict()) and one.metrics == other.metrics


def loader() -> DataLoader[Any]:
    torch.manual_seed(7)
    return DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)


def test_epochs_go_through_a_list_again() -> None:
    assert same(trained(epochs=3), trained(PAIRS * 3)) and len(trained(epochs=3).metrics) == 15
    with pytest.raises(pipelag.PipelagError, match="epochs=... needs batches with a length, and these have none"):
        trained(iter(PAIRS), epochs=2)


@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("start", [0, 2])
def test_the_first_minibatch_may_be_looked_at_and_each_comes_once(kind: Callable[[Any], Any], start: int) -> None:
    looked: list[Any] = []
    taken = list(Supply(kind(PAIRS)).first(4, start, looked.append))
    assert [pair[0] is PAIRS[0][0] for pair in looked] == [True]
    assert [inputs for inputs, _ in taken] == [PAIRS[step][0] for step in range(start, 4)]


def test_a_loader_shuffles_anew_in_every_epoch_as_in_a_loop_of_ones_own() -> None:
    drawn = loader()
    by_hand = [pair for _ in range(3) for pair in drawn]
    model, shuffled = layers(), loader()
    run = trained(shuffled, model, epochs=3)
    assert same(run, trained([(x, y) for x, y in by_hand]))
    assert not torch.equal(by_hand[0][0], by_hand[5][0]) and len(run.metrics) == 15


def test_phases_may_go_through_the_data_several_times() -> None:
    phases = [pipelag.Phase(pipelag.methods.get(name), 6) for name in ("pipedream", "sequential")]
    assert len(pipelag.train(layers(), loader(), phases=phases, epochs=3).metrics) == 12
    steps: list[int] = []
    with pytest.raises(pipelag.PipelagError, match="12 steps need 12 minibatches, and there are 10.*epochs="):
        pipelag.train(layers(), loader(), phases=phases, epochs=2, on_step=lambda step, loss: steps.append(step))
    assert steps == []  # it says so at once, since a loader has a length


def test_pipelags_own_minibatches_make_new_epochs_themselves() -> None:
    class Counting(list[Any]):
        def epoch(self, t: int) -> float:
            return t / 5

        def __getitem__(self, t: Any) -> Any:
            asked.append(t)
            return PAIRS[t % 5]

    asked: list[int] = []
    assert [pair[0].shape for pair in Supply(Counting(PAIRS), 2).first(10)] and asked == list(range(10))


def test_what_unpack_draws_goes_by_the_seed_and_the_number_and_disturbs_nobody() -> None:
    """So that a stage of real workers that looks up targets alone has the minibatch of those that take the inputs."""

    def noisy(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return pair[0] + torch.randn(pair[0].shape), pair[1]

    one, other = (Supply([PAIRS[0]] * 3, unpack=noisy, seed=seed) for seed in (1, 2))
    torch.manual_seed(0)
    left = torch.rand(1)
    torch.manual_seed(0)
    first, again, second = one[0][0], one[0][0], one[1][0]
    assert torch.equal(torch.rand(1), left)
    assert torch.equal(first, again) and not torch.equal(first, second) and not torch.equal(first, other[0][0])


def test_what_is_gone_through_already_is_not_asked_again_for_every_epoch() -> None:
    class Once:
        asked = 0

        def __iter__(self) -> Any:
            self.asked += 1
            yield from PAIRS if self.asked == 1 else ()

    batches = Once()
    with pytest.raises(pipelag.PipelagError, match="10 steps need 10 minibatches, and there were only 5"):
        list(Supply(batches, epochs=1000).first(10))
    assert batches.asked == 2


class Scaled(nn.Module):
    """Takes a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers()[0]

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.inner(inputs["x"]) * inputs["scale"][:, None]


def dicts() -> list[dict[str, torch.Tensor]]:
    return [{"x": x, "scale": x[:, 0].exp(), "y": y} for x, y in PAIRS]


def of_dict(batch: dict[str, torch.Tensor]) -> tuple[Any, torch.Tensor]:
    return {"x": batch["x"], "scale": batch["scale"]}, batch["y"]


def taking_dicts() -> nn.Sequential:
    return nn.Sequential(Scaled(), *layers()[1:])


def test_a_dict_is_taken_apart_by_the_users_function() -> None:
    run = trained(dicts(), unpack=lambda batch: (batch["x"], batch["y"]), epochs=2)
    assert same(run, trained(epochs=2))
    with pytest.raises(pipelag.PipelagError, match="minibatch 0 is a dict of 3 items.*or unpack=..., a function"):
        trained(dicts())
    with pytest.raises(pipelag.PipelagError, match="what unpack returns for minibatch 0 is a Tensor"):
        trained(dicts(), unpack=lambda batch: batch["x"])


@pytest.mark.parametrize("how", [{"microbatches": 2}, {"recompute": True}, {"epochs": 2}, {"method": "pipemare"}])
def test_the_first_stage_may_take_a_dict(how: dict[str, Any]) -> None:
    """Against a first layer that takes the same as a tuple."""

    class Tupled(Scaled):
        def forward(self, inputs: Any) -> torch.Tensor:
            return super().forward({"x": inputs[0], "scale": inputs[1]})

    tupled = nn.Sequential(Tupled(), *layers()[1:])
    run = trained(dicts(), taking_dicts(), unpack=of_dict, **how)
    assert same(run, trained([((d["x"], d["scale"]), d["y"]) for d in dicts()], tupled, **how))


@pytest.mark.real
@pytest.mark.parametrize("how", [{"microbatches": 2}, {"recompute": True}])
def test_dicts_and_epochs_reach_real_workers(how: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"unpack": of_dict, "epochs": 2} | how
    real = trained(dicts(), taking_dicts(), executor="real", **arguments)
    assert same(real, trained(dicts(), taking_dicts(), **arguments))


@pytest.mark.real
def test_dicts_and_epochs_reach_replicas_of_the_whole_model() -> None:
    """Each takes its half: as so many microbatches, but that their sums are rounded otherwise."""
    how: dict[str, Any] = {"unpack": of_dict, "epochs": 2, "method": "bsp", "cuts": ()}
    real = trained(dicts(), taking_dicts(), executor="real", workers=2, **how)
    simulated = trained(dicts(), taking_dicts(), microbatches=2, **how)
    losses = [[row["loss"] for row in run.metrics] for run in (real, simulated)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 10
    for name, value in simulated.model.state_dict().items():
        torch.testing.assert_close(real.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.8, 0.9), weight_decay=0.01)


FORMS: list[tuple[Callable[[nn.Module], dict[str, Any]], Callable[[Any], torch.optim.Optimizer]]] = [
    (lambda model: {"optimizer": torch.optim.Adam}, torch.optim.Adam),
    (lambda model: {"optimizer": torch.optim.SGD, "lr": 0.3}, lambda p: torch.optim.SGD(p, lr=0.3)),
    (lambda model: {"lr": 0.3}, lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
    (lambda model: {"optimizer": "adamw", "lr": 0.02}, lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0)),
    (
        lambda model: {"optimizer": {"name": "caffe_sgd", "lr": 0.1, "momentum": 0.5}},
        lambda p: CaffeSGD(p, lr=0.1, momentum=0.5),
    ),
    (
        lambda model: {"optimizer": adam(model)},
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.9), weight_decay=0.01),
    ),
    (
        lambda model: {"optimizer": torch.optim.SGD([{"params": [*model.parameters()], "lr": 0.3}], lr=0.1)},
        lambda p: torch.optim.SGD(p, lr=0.3),
    ),
    (
        lambda model: {"optimizer": torch.optim.AdamW(model.parameters(), lr=0.02)},
        lambda p: torch.optim.AdamW(p, lr=0.02),
    ),
]


def in_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Matrices with weight decay and a rate of their own; momentum for all."""
    matrices, vectors = ([n for n in model.named_parameters() if (n[1].dim() > 1) == large] for large in (True, False))
    groups = [{"params": vectors, "lr": 0.3}, {"params": matrices, "weight_decay": 0.1, "name": "decayed"}]
    return torch.optim.SGD(groups, lr=0.02, momentum=0.5)


def of_groups(groups: Any) -> torch.optim.Optimizer:
    parts = [
        group | {"params": [p for p in group["params"] if (p.dim() > 1) == large]} | changes
        for group in groups
        for large, changes in ((False, {"lr": 0.3}), (True, {"weight_decay": 0.1}))
    ]
    return torch.optim.SGD(parts, lr=0.02, momentum=0.5)


FORMS.append((lambda model: {"optimizer": in_groups(model)}, of_groups))


@pytest.mark.real
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", ["stale_weights", "spectrain_1f1b"])
def test_an_instance_keeps_its_groups_where_other_tensors_stand_for_its_own(method: str, precision: str) -> None:
    """Frozen parameters are in no group, or in one."""
    how: dict[str, Any] = {"method": method, "precision": precision}
    for left_out in (True, False):
        runs = []
        for executor in ("simulated", "real"):
            model = layers()
            optimizer = in_groups(model)
            frozen = next(model.parameters())
            frozen.requires_grad_(False)
            if left_out:
                for group in optimizer.param_groups:
                    group["params"] = [p for p in group["params"] if p is not frozen]
            runs.append(trained(model=model, optimizer=optimizer, executor=executor, **how))
            assert len(optimizer.param_groups) == 2 and not optimizer.state
        assert same(*runs)


@pytest.mark.parametrize(("form", "factory"), FORMS)
def test_every_form_of_an_optimizer_trains_as_its_factory(form: Any, factory: Any) -> None:
    model = layers()
    assert same(trained(model=model, **form(model)), trained(optimizer=factory))


def test_a_stages_own_rate_is_that_of_all_its_groups_of_an_instance() -> None:
    def staged(groups: Any) -> torch.optim.Optimizer:
        parts = of_groups(list(groups)).param_groups
        return torch.optim.SGD([part | ({"lr": 0.5} if part["stage"] == 1 else {}) for part in parts], lr=0.02)

    model = layers()
    assert same(trained(model=model, optimizer=in_groups(model), stage_lr={1: 0.5}), trained(optimizer=staged))


class Odd(torch.optim.SGD):
    def __init__(self, params: Any, hidden: float) -> None:
        super().__init__(params, lr=hidden)


def test_an_instance_whose_settings_would_be_lost_is_refused() -> None:
    model = layers()
    first = list(model.parameters())[:2]
    stepped = adam(model)
    model(X).sum().backward()
    stepped.step()
    scheduled = adam(model)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    for optimizer, sentence in (
        (stepped, "has already taken steps"),
        (scheduled, "the learning-rate scheduler attached"),
        (Odd(model.parameters(), 0.1), "the Odd optimizer does not show which hidden it was built with"),
        (torch.optim.SGD(first, lr=0.1), "over other parameters than the model's"),
        (torch.optim.SGD([*model.parameters(), nn.Parameter(X[0])], lr=0.1), "over other parameters than the model's"),
    ):
        with pytest.raises(pipelag.PipelagError, match=sentence):
            pipelag.train(model, PAIRS, optimizer=optimizer)


def test_a_scheduler_whose_rates_would_be_set_over_is_refused() -> None:
    def scheduled(groups: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(groups, lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return optimizer

    with pytest.raises(
        pipelag.PipelagError, match="the learning-rate scheduler attached to the SGD would be ignored; give rate="
    ):
        trained(optimizer=scheduled)


def test_nobody_waits_for_minibatches_on_their_way_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that waits is one after all that was launched before it: each step would wait for the one before."""
    taken: list[torch.Tensor] = []
    monkeypatch.setattr("pipelag.library.supply.sent", lambda tensor, device: taken.append(tensor) or tensor)
    pair = (torch.ones(2), {"a": torch.zeros(3), "b": 7})
    assert to(pair, torch.device("cuda"))[1]["b"] == 7
    assert taken[0] is pair[0] and taken[1] is pair[1]["a"] and len(taken) == 2
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    to(pair[0], torch.device("cuda"))
    assert taken[2] is not pair[0] and torch.equal(taken[2], pair[0])
    assert to(pair[0], torch.device("cpu")) is pair[0] and len(taken) == 3


class Damaged(list[Any]):
    """Minibatches of which one cannot be read."""

    def __getitem__(self, step: Any) -> Any:
        if step == 3:
            raise OSError("a file is damaged")
        return super().__getitem__(step)


@pytest.mark.parametrize(
    "batches", [Damaged(PAIRS), (Damaged(PAIRS)[step] for step in range(5))], ids=["list", "order"]
)
def test_what_the_data_raise_has_a_note_of_the_step(batches: Any) -> None:
    with pytest.raises(OSError, match="a file is damaged") as raised:
        trained(batches, steps=5)
    assert raised.value.__notes__ == ["in the data, for step 3"]


def test_the_device_may_be_found() -> None:
    run = trained(device="auto")
    assert next(run.model.parameters()).device.type == ("cuda" if torch.cuda.is_available() else "cpu")
