"""A user's own model, optimizer and surroundings: the same in both executors, or refused before it differs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pipelag
from pipelag.errors import PipelagError
from pipelag.library import real
from pipelag.library.sizes import check_sizes
from pipelag.methods import get
from pipelag.stage.phase import Phase

INPUTS = torch.randn(110, 6, 8, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS.sum((1, 2)) > 0).long()
BATCHES = list(zip(INPUTS[:100].split(10), TARGETS[:100].split(10), strict=True))


class Recurrent(nn.Module):
    """A GRU whose output is not laid out as it looks: `batch_first` turns it around."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0].transpose(1, 2).contiguous().transpose(1, 2)  # type: ignore[no-any-return]


class Twice(nn.Module):
    """The same in a tuple."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.transpose(1, 2)


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Dropout(0.3), nn.Dropout(0.5)

    def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.one(x[0]) + self.two(x[1]).transpose(1, 2)


class Clipped(torch.optim.SGD):
    """As docs/guide.md has it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 0.05)
        return super().step(closure)


def recurrent() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [Recurrent(), nn.Dropout(0.4), Twice(), Joined(), nn.Flatten(), nn.Linear(48, 2)]
    return nn.Sequential(*layers)


def train(batches: Any = BATCHES, **how: Any) -> tuple[nn.Sequential, Any]:
    network = recurrent()
    run = pipelag.train(network, batches, **{"method": "pipedream", "cuts": (1, 3), "progress": False} | how)
    return network, run.metrics


@pytest.mark.real
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"recompute": True},
        {"method": "pipemare", "microbatches": 5, "recompute": 2},
        {"optimizer": Clipped, "lr": 0.5},
    ],
    ids=["as it is", "recomputed", "by segments", "clipped stage by stage"],
)
def test_real_workers_learn_the_same(how: dict[str, Any]) -> None:
    (simulated, metrics), (real, metrics_of_workers) = train(**how), train(executor="real", **how)
    assert metrics == metrics_of_workers
    assert all(torch.equal(a, b) for a, b in zip(simulated.parameters(), real.parameters(), strict=True))


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_do_not_travel(hook: str) -> None:
    network = recurrent()
    getattr(network[5].weight, hook)(lambda tensor: None)
    with pytest.raises(PipelagError, match="'5.weight' has a hook on its gradient"):
        pipelag.train(network, BATCHES, cuts=(1, 3), executor="real")
    pipelag.train(network, BATCHES, cuts=(1, 3), progress=False)


def test_autocast_around_a_training_does_not_travel() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(PipelagError, match="give precision='bf16'"):
        train(executor="real")


def test_a_lists_smaller_minibatch_is_foreseen() -> None:
    batches = [(INPUTS[:20], TARGETS[:20])] * 2 + [(INPUTS[:10], TARGETS[:10])]
    with pytest.raises(
        PipelagError, match="minibatch 2 has 10 samples and those before it have 20, but real workers expect"
    ):
        train(batches, executor="real")


def test_a_lists_smaller_minibatch_that_is_not_trained_on_does_no_harm() -> None:
    batches = [(INPUTS[:size], TARGETS[:size]) for size in (20, 20, 10)]
    two, three = (Phase(get("pipedream"), steps, (1,)) for steps in (2, 3))
    check_sizes(batches, [two], even=True)
    check_sizes(batches, [three], even=False)
    with pytest.raises(PipelagError, match="^minibatch 2 has 10 samples and those before it have 20"):
        check_sizes(batches, [three], even=True)


@pytest.mark.parametrize(
    ("later", "how", "sentence"),
    [
        (
            Phase(get("gpipe"), 4, (1,), microbatches=4),
            {},
            "^minibatch 4 has 10 samples, which cannot .* 4 equal micro",
        ),
        (
            Phase(get("bsp"), 4),
            {"executor": "real", "workers": 4},
            "^minibatch 4 has .* 4 equal shares, one for each work",
        ),
        (Phase(get("gpipe"), 4, (1,), microbatches=5), {}, ""),
    ],
)
def test_minibatches_that_a_later_phase_cannot_split_are_foreseen(
    later: Phase, how: dict[str, Any], sentence: str
) -> None:
    batches = [(INPUTS[:size], TARGETS[:size]) for size in (10, 10, 20, 20, 10, 10)]
    first = Phase(get("pipedream"), 3, (1, 2, 3))
    if not sentence:
        check_sizes(batches, [first, later], even=False)
        return
    steps: list[int] = []
    with pytest.raises(PipelagError, match=sentence):
        pipelag.train(
            recurrent(),
            batches,
            phases=[first, later],
            epochs=2,
            uneven=True,
            on_step=lambda n, _: steps.append(n),
            **how,
        )
    assert not steps


def test_the_first_minibatch_is_split_as_a_later_phase_will_before_workers_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(real, "launch", lambda *args, **more: pytest.fail("workers were started"))
    phases = [Phase(get("pipedream"), 3, (1, 3)), Phase(get("bsp"), 3)]
    with pytest.raises(PipelagError, match="^a minibatch of 10 cannot be split into 3 equal shares, one for each work"):
        pipelag.train(recurrent(), iter(BATCHES), phases=phases, executor="real", workers=3)


def test_checkpoints_inside_a_round_of_a_later_phase_are_refused_before_workers_start(tmp_path: Path) -> None:
    phases = [Phase(get("pipedream"), 3, (1, 3)), Phase(get("pipedream"), 4, (1,), replicas=(2, 1))]
    with pytest.raises(PipelagError, match="after 1 steps of phase 2 falls inside a round .* a multiple of 2 steps$"):
        pipelag.train(recurrent(), BATCHES, phases=phases, executor="real", checkpoints=tmp_path, checkpoint_every=4)
    assert not any(tmp_path.iterdir())


@pytest.mark.real
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"method": "bsp", "executor": "real", "workers": 4, "cuts": ()}, "which cannot be split into 4 equal shares"),
        (
            {"method": "gpipe", "microbatches": 4},
            "has 10 samples instead of 20, which cannot be split into 4 equal microbatches",
        ),
        ({"executor": "real"}, "has 10 samples instead of 20, which real workers take only with uneven=True"),
        ({"method": "gpipe", "microbatches": 5}, ""),
        ({"executor": "real", "steps": 5}, ""),
    ],
)
def test_a_loaders_partial_minibatch_is_foreseen(how: dict[str, Any], sentence: str) -> None:
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=20)
    if not sentence:
        train(loader, **how)
        return
    before = recurrent().state_dict()
    network = recurrent()
    with pytest.raises(PipelagError, match=sentence):
        pipelag.train(network, loader, **{"method": "pipedream", "cuts": (1, 3)} | how)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def undecayed(groups: Any) -> torch.optim.Optimizer:
    """As docs/guide.md has it, but with a momentum of its own, too."""
    parts = [
        {"params": [p for p in group["params"] if (p.dim() > 1) == decayed], "weight_decay": 0.3 * decayed}
        | ({} if decayed else {"betas": (0.5, 0.9)})
        for group in groups
        for decayed in (True, False)
    ]
    return torch.optim.AdamW(parts, lr=0.02)


@pytest.mark.real
@pytest.mark.parametrize(
    "how",
    [
        {"method": "pipedream"},
        {"method": "xpipe"},
        {"method": "pipemare", "microbatches": 5},
        {"method": "pipeoptim", "precision": "bf16"},
    ],
    ids=lambda how: how["method"],
)
def test_groups_within_a_stage(how: dict[str, Any]) -> None:
    how = {"optimizer": undecayed} | how
    (simulated, metrics), (real, metrics_of_workers) = train(**how), train(executor="real", **how)
    assert metrics == metrics_of_workers
    assert all(torch.equal(a, b) for a, b in zip(simulated.parameters(), real.parameters(), strict=True))


def test_vectors_without_decay_are_so_as_in_plain_training() -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 2))

    def parted(network: nn.Module) -> torch.optim.Optimizer:
        weights = [[p for p in network.parameters() if (p.dim() > 1) == decayed] for decayed in (True, False)]
        return torch.optim.AdamW([{"params": weights[0]}, {"params": weights[1], "weight_decay": 0.0}], **settings)

    settings = {"lr": 0.02, "weight_decay": 0.3}
    plain, one, cut, decayed = layers(), layers(), layers(), layers()
    optimizer = parted(plain)
    for inputs, targets in BATCHES:
        nn.functional.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    named = {"name": "adamw", **settings}
    apart = named | {"options": {"decay_vectors": False}}
    pipelag.train(one, BATCHES, method="sequential", optimizer=apart, progress=False)
    pipelag.train(cut, BATCHES, method="1f1b_flush", microbatches=1, cuts=(2, 3), optimizer=apart, progress=False)
    pipelag.train(decayed, BATCHES, method="sequential", optimizer=named, progress=False)
    for network in (one, cut):
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), network.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(plain.parameters(), decayed.parameters(), strict=True))


@pytest.mark.parametrize("method", ["xpipe", "spectrain_smoothed"])
def test_a_stage_that_is_frozen_needs_no_gradients(method: str) -> None:
    """Nor does a group of which no tensor has one."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2))
    network[3].requires_grad_(False)
    network[5].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    decaying = {"name": "sgd", "lr": 0.1, "weight_decay": 0.01, "options": {"decay_vectors": method == "xpipe"}}
    pipelag.train(network, BATCHES, method=method, cuts=(3, 5), optimizer=decaying, progress=False)
    unchanged = {name for name, value in network.state_dict().items() if torch.equal(value, before[name])}
    assert unchanged == {"3.weight", "3.bias", "5.bias"}


def test_a_group_is_of_one_stage() -> None:
    def joined(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for group in groups for p in group["params"]], lr=0.1)

    with pytest.raises(PipelagError, match="AdamW has one parameter group over the stages 1 to 3, but each stage"):
        train(optimizer=joined, cuts=(1, 5))
    with pytest.raises(PipelagError, match="AdamW is over other parameters than it was given"):
        train(optimizer=lambda groups: torch.optim.AdamW([g | {"params": g["params"][:1]} for g in groups], lr=0.1))


def test_a_pipeline_without_cuts_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="no cuts are given, so the method 'pipedream' trains one stage"):
        train(cuts=())
    for how in ({"cuts": (1,)}, {"cuts": (), "method": "sequential"}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(**how)
        assert not [each for each in caught if "no cuts" in str(each.message)]


def by_marks(groups: Any) -> torch.optim.Optimizer:
    """What its user has marked is faster; what is frozen is left out."""
    parts = [
        group | {"params": [p for p in group["params"] if p.requires_grad and hasattr(p, "fast") == fast]}
        for group in groups
        for fast in (True, False)
    ]
    return torch.optim.SGD(
        [part | {"lr": 0.3 if hasattr(part["params"][0], "fast") else 0.01} for part in parts if part["params"]]
    )


@pytest.mark.real
def test_parameters_are_told_by_their_marks_in_every_executor() -> None:
    """In bf16 and on real workers the optimizer has other tensors than the model's own."""

    def trained(mark: bool = True, **how: Any) -> nn.Sequential:
        network = recurrent()
        network[0].gru.bias_ih_l0.requires_grad_(False)
        for parameter in network[5].parameters() if mark else ():
            parameter.fast = True
        pipelag.train(network, BATCHES, method="pipedream", cuts=(1, 3), optimizer=by_marks, progress=False, **how)
        return network

    def same(one: nn.Module, other: nn.Module) -> bool:
        return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

    simulated, rounded = trained(), trained(precision="bf16")
    assert same(simulated, trained(executor="real"))
    assert same(rounded, trained(executor="real", precision="bf16"))
    assert torch.allclose(simulated[5].weight, rounded[5].weight, atol=0.02)
    assert not torch.allclose(simulated[5].weight, trained(mark=False)[5].weight, atol=0.02)


def test_a_stages_own_rate_needs_what_its_group_says() -> None:
    bare = lambda groups: torch.optim.SGD([{"params": group["params"]} for group in groups], lr=0.1)  # noqa: E731
    train(optimizer=bare)
    with pytest.raises(
        PipelagError, match="stage 1 has a learning rate of its own, but the function of the SGD drops the"
    ):
        train(optimizer=bare, stage_lr={1: 0.5})


class Versioned(nn.Dropout):
    """State that is no tensor, as layers of quantisation libraries have."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return super().forward(x)

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "scale": torch.ones(2)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@pytest.mark.real
@pytest.mark.parametrize("checkpointed", [False, True])
def test_state_that_is_no_tensor_comes_back(checkpointed: bool, tmp_path: Path) -> None:
    def trained(**how: Any) -> nn.Sequential:
        network = recurrent()
        network[1] = Versioned(0.4)
        run = pipelag.train(network, BATCHES, method="pipedream", cuts=(1, 3), progress=False, **how)
        return run.model

    how: dict[str, Any] = {"executor": "real"} | (
        {"checkpoints": tmp_path, "checkpoint_every": 4} if checkpointed else {}
    )
    one, other = trained(), trained(**how)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one[1].steps == other[1].steps == len(BATCHES)
