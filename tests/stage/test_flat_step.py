"""A step over flat buffers equals the optimizer's own, bit for bit; where it would not, the optimizer steps itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipelag import methods
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage import by_foreach, flat_step, joined
from pipelag.stage.flat_step import FlatStep
from pipelag.stage.optimizers import LARS, CaffeSGD
from pipelag.stage.phase import Phase

Make = Callable[[Any], torch.optim.Optimizer]
STEPS = 9


def of(kind: type[torch.optim.Optimizer], **options: Any) -> Make:
    return lambda parameters: kind(parameters, **options)  # type: ignore[call-arg]


FLAT = {
    "sgd": of(torch.optim.SGD, lr=0.1),
    "momentum": of(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": of(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "dampened": of(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.3),
    "adam": of(torch.optim.Adam, lr=0.01),
    "adam with L2": of(torch.optim.Adam, lr=0.01, weight_decay=0.01),
    "maximized": of(torch.optim.AdamW, lr=0.01, maximize=True),
    "amsgrad": of(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.01),
    "adamw": of(torch.optim.AdamW, lr=0.01),
    "nadam": of(torch.optim.NAdam, lr=0.01),
    "caffe": of(CaffeSGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "caffe, nesterov": of(CaffeSGD, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
}
OWN = {
    "lars": of(LARS, lr=0.1),
    "rmsprop": of(torch.optim.RMSprop, lr=0.01, momentum=0.9),
    "fused": of(torch.optim.AdamW, lr=0.01, fused=True),
    "eps 0": of(torch.optim.Adam, lr=0.01, eps=0.0, betas=(0.9, 0.999)),
}


def network() -> nn.Sequential:
    """Layers whose sizes are no multiples of a vector register's, and a convolution in channels-last layout."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 7, 3).to(memory_format=torch.channels_last)
    layers = [nn.Sequential(conv, nn.ReLU(), nn.Flatten()), nn.Linear(252, 31), nn.Tanh(), nn.Linear(31, 13)]
    return nn.Sequential(*layers, nn.Linear(13, 5))


def batches(device: str = "cpu") -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(6, 3, 8, 8).to(device), torch.randint(0, 5, (6,)).to(device)) for _ in range(STEPS)]


def training(method: str, make: Make, cuts: tuple[int, ...] = (1, 3), device: str = "cpu") -> SimulatedTraining:
    phases = [Phase(methods.get(method), STEPS, cuts)]
    return SimulatedTraining(network().to(device), phases, make, F.cross_entropy, device=torch.device(device))


def never(flat: FlatStep) -> None:
    """Let the optimizer make its own step from now on."""
    flat.stages = []


def lying(trained: SimulatedTraining) -> list[bool]:
    return [weights.laid is not None and weights.laid.holds() for weights in trained.pipeline.weights]


def ended(trained: SimulatedTraining) -> list[torch.Tensor]:
    assert trained.optimizer is not None
    state = trained.optimizer.state
    numbers = [v for p in trained.model.parameters() for _, v in sorted(state.get(p, {}).items()) if v is not None]
    return [p.detach() for p in trained.model.parameters()] + [torch.as_tensor(v) for v in numbers]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether tensors are equal, NaN included.

    With an epsilon of 0, plain training has NaN, too, where no gradient has come yet.
    """
    pairs = zip(one, other, strict=True)
    return len(one) == len(other) and all(torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


def beside_plain(make: Make, device: str = "cpu") -> tuple[SimulatedTraining, list[torch.Tensor]]:
    """(a training without delays, what plain training ends with: weights and optimizer state)."""
    model = network().to(device)
    optimizer = make(model.parameters())
    trained = training("sequential", make, device=device)
    for x, y in batches(device):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        trained.step(x, y)
    plain = [p.detach() for p in model.parameters()]
    plain += [torch.as_tensor(v) for p in model.parameters() for _, v in sorted(optimizer.state.get(p, {}).items())]
    return trained, plain


@pytest.mark.parametrize("name", [*FLAT, *OWN])
def test_it_is_plain_training_where_nothing_is_late(name: str, device: str) -> None:
    """Without delays weights and optimizer state, with its counts of steps, are those of plain training."""
    trained, plain = beside_plain((FLAT | OWN)[name], device)
    assert same(ended(trained), plain)
    assert any(lying(trained)) == (name in FLAT)


def apart(parameters: Any) -> torch.optim.Optimizer:
    """Adam with two groups: vectors have a rate of their own, and no decay."""
    given = list(parameters)
    groups = given if isinstance(given[0], dict) else [{"params": given}]
    parts = [
        group | {"params": [p for p in group["params"] if (p.dim() > 1) == decays], "weight_decay": 0.1 * decays}
        for group in groups
        for decays in (True, False)
    ]
    return torch.optim.Adam([part | {"lr": 0.01 if part["weight_decay"] else 0.03} for part in parts])


@pytest.mark.parametrize("name", [*FLAT, "apart"])
def test_large_stages_are_stepped_over_and_foreseen_piece_by_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing a large stage into pieces changes neither steps nor predictions.

    The second stage's 7,812 weights fill two pieces with its biases at the end; where vectors are a group of their own,
    they lie in a buffer of their own.
    """
    make = (FLAT | {"apart": apart})[name]
    monkeypatch.setattr(flat_step, "PIECE", 4096)
    trained, plain = beside_plain(make)
    assert same(ended(trained), plain)
    laid = trained.pipeline.weights[1].laid
    assert laid is not None and len(laid.pieces) == (3 if name == "apart" else 2)
    method = "spectrain" if name == "sgd" else "pipeoptim"
    flat, by_parameters = (training(method, make) for _ in range(2))
    never(by_parameters.pipeline.flat_step)
    for x, y in batches():
        assert torch.equal(flat.step(x, y), by_parameters.step(x, y))
    assert same(ended(flat), ended(by_parameters)) and any(lying(flat))


@pytest.mark.parametrize("method", ["pipeoptim", "spectrain", "xpipe", "pipemare", "pipedream"])
@pytest.mark.parametrize("name", ["momentum", "adam", "adamw", "nadam", "caffe"])
def test_predictions_go_by_the_same_state(method: str, name: str, device: str) -> None:
    """Predictions are the same with the optimizer's state in flat buffers and in a tensor per parameter."""
    flat, by_parameters = (training(method, FLAT[name], device=device) for _ in range(2))
    never(by_parameters.pipeline.flat_step)
    for x, y in batches(device):
        assert torch.equal(flat.step(x, y), by_parameters.step(x, y))
    assert same(ended(flat), ended(by_parameters))
    assert any(lying(flat)) and not any(lying(by_parameters))


def test_a_rate_that_changes_is_that_of_the_step() -> None:
    make, rate = FLAT["adamw"], lambda step: 1.0 / (1 + step)
    both = [
        SimulatedTraining(network(), [Phase(methods.get("pipeoptim"), STEPS, (1, 3))], make, F.cross_entropy, rate=rate)
        for _ in range(2)
    ]
    never(both[1].pipeline.flat_step)
    for x, y in batches():
        for each in both:
            each.step(x, y)
    assert same(*[ended(each) for each in both])


@pytest.mark.parametrize("at", [1, 4])
def test_what_is_resumed_goes_on_as_it_would_have(at: int) -> None:
    """A resumed training steps with the state that was loaded, and not with what lay flat before."""
    whole, broken, resumed = (training("pipeoptim", FLAT["adam"]) for _ in range(3))
    for t, (x, y) in enumerate(batches()):
        whole.step(x, y)
        if t < at:
            broken.step(x, y)
            resumed.step(-x, y)  # so that another state is there when the broken one's is loaded
    resumed.load_state_dict(copy.deepcopy(broken.state_dict()))
    for x, y in batches()[at:]:
        resumed.step(x, y)
    assert same(ended(resumed), ended(whole))
    assert any(lying(resumed))


@pytest.mark.parametrize("method", ["sequential", "pipeoptim"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_state_that_is_emptied_begins_anew(method: str, at: int) -> None:
    """`optimizer.state.clear()` starts the optimizer anew, although it leaves no tensors to compare."""
    emptied, plain = training(method, FLAT["momentum"]), training(method, FLAT["momentum"])
    never(plain.pipeline.flat_step)
    for t, (x, y) in enumerate(batches()):
        for each in (emptied, plain):
            assert each.optimizer is not None
            if t == at:
                each.optimizer.state.clear()
            each.step(x, y)
    assert same(ended(emptied), ended(plain))


def test_a_state_put_back_is_not_taken_for_what_lies_flat_since() -> None:
    """A state that is replaced for one step and put back is used, although its tensors are those that were seen last.

    They lie in no flat buffer any more.
    """
    changed, plain = training("pipeoptim", FLAT["momentum"]), training("pipeoptim", FLAT["momentum"])
    never(plain.pipeline.flat_step)
    for t, (x, y) in enumerate(batches()[:-1]):
        for each in (changed, plain):
            assert each.optimizer is not None
            state = each.optimizer.state
            if t == 4:
                before = dict(state)
                for p in before:
                    state[p] = {"momentum_buffer": torch.full_like(p, 0.01)}
                each.step(x, y)
                state.update(before)
            each.step(x, y)
    assert same(ended(changed), ended(plain))


def test_a_hook_is_shown_the_optimizer_itself() -> None:
    """A hook on the optimizer's step that is added during a run is called with the optimizer."""
    hooked, plain, seen = training("pipeoptim", FLAT["adam"]), training("pipeoptim", FLAT["adam"]), []
    never(plain.pipeline.flat_step)
    for t, (x, y) in enumerate(batches()):
        if t == 4:
            assert hooked.optimizer is not None
            hooked.optimizer.register_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
        hooked.step(x, y)
        plain.step(x, y)
    assert seen == [hooked.optimizer] * (STEPS - 4)
    assert same(ended(hooked), ended(plain))


class Sometimes(nn.Module):
    """A layer that does not use its second half in every third call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(5, 5), nn.Linear(5, 5), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.first(x) + (self.second(x) if self.calls % 3 else 0)


def test_a_parameter_may_be_without_a_gradient() -> None:
    """A parameter without a gradient keeps its state, as in the optimizer's own step.

    So its count of steps is its own even in the next phase, which begins when all parameters have gradients.
    """
    both = []
    for flat in (True, False):
        model = nn.Sequential(*network(), Sometimes())
        phases = [Phase(methods.get("pipedream"), steps, (1, 3, 5)) for steps in (3, STEPS - 3)]
        each = SimulatedTraining(model, phases, FLAT["adamw"], F.cross_entropy)
        for x, y in batches():
            if not flat:
                never(each.pipeline.flat_step)
            each.step(x, y)
        both.append(each)
    assert same(ended(both[0]), ended(both[1]))
    assert lying(both[0]) == [True, True, True, False]


@pytest.mark.parametrize(
    "note", [torch.ones(3), {"a": 1}, lambda: None], ids=["a tensor", "a dictionary", "a function"]
)
def test_what_a_group_holds_besides_is_nobodys_business(note: Any) -> None:
    def noted(parameters: Any) -> torch.optim.Optimizer:
        optimizer = FLAT["momentum"](parameters)
        for group in optimizer.param_groups:
            group["note"] = note
        return optimizer

    noticed, plain = training("pipedream", noted), training("pipedream", FLAT["momentum"])
    for x, y in batches():
        assert torch.equal(noticed.step(x, y), plain.step(x, y))
    assert all(lying(noticed)) == all(lying(plain))


def test_stages_with_rates_of_their_own_step_by_them() -> None:
    """Stages with equal rates are one parameter group of the flat step, other stages are groups of their own."""
    rates = {1: 0.01, 2: 0.02, 3: 0.01}
    ends = []
    for flat in (True, False):
        phases = [Phase(methods.get("pipedream"), STEPS, (1, 3), rates)]
        trained = SimulatedTraining(network(), phases, FLAT["momentum"], F.cross_entropy)
        if not flat:
            never(trained.pipeline.flat_step)
        for x, y in batches():
            trained.step(x, y)
        ends.append(ended(trained))
        if flat:
            assert trained.pipeline.flat_step.flat is not None
            assert [len(g["params"]) for g in trained.pipeline.flat_step.flat.param_groups] == [2, 1]
    assert same(*ends)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_setting_that_changes_is_that_of_the_step(foreach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages' groups are joined anew when a setting or the pattern of equal rates changes, and in no other step."""
    made: list[int] = []

    class Noted(joined.Joined):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(len(self.leaders))

    monkeypatch.setattr(flat_step, "Joined", Noted)
    ends = []
    for flat in (True, False):
        phases = [Phase(methods.get("pipedream"), STEPS, (1, 3), {1: 0.1, 2: 0.1, 3: 0.1})]
        trained = SimulatedTraining(
            network(), phases, lambda p: with_options(FLAT["momentum"](p), foreach=foreach), F.cross_entropy
        )
        if not flat:
            never(trained.pipeline.flat_step)
        assert trained.optimizer is not None
        groups = trained.optimizer.param_groups
        for step, (x, y) in enumerate(batches()):
            if step == 3:
                groups[1]["weight_decay"] = 0.1
            if step == 5:
                groups[0]["base_lr"] = 0.05
            if step == 6:
                groups[1]["weight_decay"], groups[2]["momentum"] = 1e-3, 0.5
            trained.step(x, y)
        ends.append(ended(trained))
    assert same(*ends)
    assert made == [1, 2, 3, 3]


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adam with L2", "adamw"])
def test_rates_of_their_own_take_few_calls(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stages have rates of their own, a step equals torch's `foreach` step over each of them, bit for bit.

    It does when rates change, too. What depends on no rate takes one call for all stages.
    """
    rates: list[int] = []

    def noted(sets: Any) -> None:
        rates.append(len({group["lr"] for each in sets for group in each.groups}))
        assert len(sets) == 1
        by_foreach.step(sets)

    monkeypatch.setattr(joined, "by_foreach", SimpleNamespace(step=noted, sets_of=by_foreach.sets_of))
    ends = []
    for flat in (True, False):
        phases = [Phase(methods.get("pipemare", annealing=5), STEPS, (1, 3), {2: 0.02})]

        def make(parameters: Any) -> torch.optim.Optimizer:
            return with_options(FLAT[name](parameters), foreach=True)

        trained = SimulatedTraining(network().to(device), phases, make, F.cross_entropy, device=torch.device(device))
        if not flat:
            never(trained.pipeline.flat_step)
        for x, y in batches(device):
            trained.step(x, y)
        ends.append(ended(trained))
    assert same(*ends)
    assert rates == [3] * 4 + [2] * 4  # after the first step, which makes the state; all rates differ for five steps


def with_options(optimizer: torch.optim.Optimizer, **options: Any) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        group.update(options)
    return optimizer


@pytest.mark.parametrize(
    ("kind", "matrices", "vectors"),
    [
        (torch.optim.SGD, {"momentum": 0.9}, {"momentum": 0.0}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.3}),
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}, {"amsgrad": False}),
    ],
)
def test_groups_of_a_stage_may_keep_states_of_different_kinds(
    kind: Any, matrices: dict[str, Any], vectors: dict[str, Any]
) -> None:
    """As in plain training with the same two groups: one has a momentum, say, and the other has none."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        given = list(parameters)
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        return kind(
            [
                group | {"params": [p for p in group["params"] if (p.dim() > 1) == larger]} | own
                for group in groups
                for larger, own in ((True, matrices), (False, vectors))
            ],
            lr=0.05,
        )

    trained, plain = beside_plain(make, "cpu")
    assert same([p.detach() for p in trained.model.parameters()], plain[: len(list(trained.model.parameters()))])


def test_single_numbers_of_a_stage_are_the_optimizers_own() -> None:
    """A stage whose parameters are single numbers is stepped by the optimizer itself.

    Adam's count of steps has the shape of such a parameter, and could be taken for one of its moments.
    """

    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + self.shift

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 5), Affine(), nn.Linear(5, 3))
    trained = SimulatedTraining(
        copy.deepcopy(model), [Phase(methods.get("sequential"), 4, (1, 2))], FLAT["adam"], F.cross_entropy
    )
    optimizer = FLAT["adam"](model.parameters())
    for _ in range(4):
        x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        trained.step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), trained.model.parameters(), strict=True))


@pytest.mark.parametrize("foreach", [False, True])
def test_momentum_that_is_turned_on_becomes_the_optimizers_state(foreach: bool) -> None:
    flat, own = (training("pipedream", of(torch.optim.SGD, lr=0.05, foreach=foreach)) for _ in range(2))
    never(own.pipeline.flat_step)
    for t, (x, y) in enumerate(batches()):
        for trained in (flat, own):
            assert trained.optimizer is not None
            for group in trained.optimizer.param_groups:
                group["momentum"] = 0.9 if t >= 4 else 0.0
            trained.step(x, y)
    assert same(ended(flat), ended(own)) and all(lying(flat))
    assert flat.optimizer is not None and all("momentum_buffer" in each for each in flat.optimizer.state.values())


def test_an_epsilon_that_is_taken_away_is_noticed() -> None:
    """Without one, the padding between parameters would become NaN."""
    trained = training("pipedream", of(torch.optim.Adam, lr=0.01))
    for t, (x, y) in enumerate(batches()):
        assert trained.optimizer is not None
        for group in trained.optimizer.param_groups:
            group["eps"] = 1e-8 if t < 4 else 0.0
        trained.step(x, y)
        assert all(buffer.isfinite().all() for buffer in trained.pipeline.weights[0].live if t < 5)
    assert not any(lying(trained))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision_are_stepped_as_in_plain_training(dtype: torch.dtype, device: str) -> None:
    """A CPU's vector kernels round a product once, but in a tensor's last elements twice."""
    make = of(torch.optim.SGD, lr=0.03, momentum=0.9, weight_decay=0.01)

    def made() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)).to(device, dtype)

    model, followed = made(), made()
    trained = SimulatedTraining(
        followed,
        [Phase(methods.get("sequential"), STEPS)],
        make,
        lambda output, y: F.cross_entropy(output.float(), y),
        device=torch.device(device),
    )
    optimizer = make(model.parameters())
    for t in range(STEPS):
        generator = torch.Generator().manual_seed(t)
        x, y = torch.randn(8, 16, generator=generator).to(device, dtype), torch.arange(8).to(device)
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        trained.step(x, y)
    assert same(list(followed.parameters()), list(model.parameters()))
