"""`pipelag.train` checks what it is given before the first step; what a user's own code raises says where."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

import pipelag
from pipelag import Phase, methods
from pipelag.models.cut import stages

PAIRS = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])) for _ in range(4)]


def layers() -> list[nn.Module]:
    return [nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)]


class Own(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Beside(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*layers())
        self.scale = nn.Parameter(torch.ones(1))


def hooked() -> nn.Sequential:
    model = nn.Sequential(*layers())
    model.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def frozen() -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in layers()]


def over_one_memory() -> list[nn.Module]:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight.data = first.weight.data
    return [first, second]


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.randn(2), 1


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(PAIRS)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (list, "the model has no layers"),
        (nn.Sequential, "the model has no layers"),
        (lambda: [nn.ReLU()], "the model has nothing to train: it has no parameters"),
        (frozen, "all its parameters are frozen"),
        (lambda: [nn.LazyLinear(2)], "belongs to a lazy module and has no shape yet"),
        (lambda: [nn.Linear(2, 2, device="meta")], "on the device 'meta'"),
        (torch.inference_mode()(lambda: [nn.Linear(2, 2)]), "'0.weight' was created under torch.inference_mode"),
        (lambda: [nn.Linear(2, 2), len], "layer 2 of the model is"),
        (lambda: [nn.Linear], "layer 1 of the model is"),
        (lambda: Own(*layers()), "the Own has a forward of its own"),
        (hooked, "the Sequential has hooks on the whole"),
        (Beside, "the Beside has parameters or buffers outside its layers"),
        (over_one_memory, "share memory"),
        (lambda: "model", "a str cannot be cut"),
        (lambda: 5, "an int cannot be cut"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(pipelag.PipelagError, match=sentence):
        pipelag.train(model(), PAIRS)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_training_where_torch_notes_no_gradients_is_refused(without: Callable[[], Any]) -> None:
    model = nn.Sequential(*layers())
    with without(), pytest.raises(pipelag.PipelagError, match=r"^train is called under torch.no_grad\(\) or"):
        pipelag.train(model, PAIRS)


def test_tied_weights_are_refused_over_stages_and_work_within_one() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    assert len(pipelag.train([first, second], PAIRS).metrics) == 4
    assert second.weight is first.weight
    for tied in ([first, second], over_one_memory()):
        with pytest.raises(pipelag.PipelagError, match=r"share a parameter|share memory"):
            pipelag.train(tied, PAIRS, cuts=(1,))
    model = nn.Sequential(*layers())
    pipelag.train(model, PAIRS)  # now its parameters lie side by side in one buffer
    assert len(stages(model, (1, 2))) == 3
    assert len(pipelag.train(model, PAIRS, cuts=(1, 2)).metrics) == 4


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    *(
        (
            {"cuts": cuts},
            rf"^cuts is {re.escape(repr(cuts))}; it should be a sequence of whole numbers, such as \(2, 5\)$",
        )
        for cuts in (0, "1", None, {1: 2})
    ),
    *(
        ({"cuts": (cut,)}, f"^each of cuts is {cut!r}; it should be a whole number from 1 to 1,000,000$")
        for cut in (0, 1.0, "1", True)
    ),
    ({"cuts": (2, 1)}, r"^the cuts \[2, 1\] must increase strictly, but 1 follows 2$"),
    ({"cuts": (1, 1)}, r"^the cuts \[1, 1\] must increase strictly, but 1 follows 1$"),
    (
        {"cuts": (3,)},
        "^a cut after layer 3 leaves an empty stage: the model has 3 layers, so cuts lie between 1 and 2$",
    ),
    *(({"steps": steps}, "steps is .*it should be a whole number from 1") for steps in (0, -1, 1.0, "3", True, 10**30)),
    *(
        ({"microbatches": count}, "^microbatches is .*; it should be a whole number from 1")
        for count in (0, -1, 2.0, "2", None, True)
    ),
    ({"microbatches": 3}, "^minibatch 0 has 4 samples, which cannot be split into 3 equal microbatches; choose"),
    ({"microbatches": 2, "method": "hogwild"}, "cannot split a minibatch"),
    ({"microbatches": 2, "method": "bsp", "executor": "real", "cuts": (), "workers": 2}, "do not split their share"),
    ({"method": "bsp", "executor": "real", "cuts": ()}, "pass their number, such as workers=2"),
    ({"optimizer": None}, "optimizer is None; it should be a function"),
    ({"optimizer": "sgd"}, "the optimizer 'sgd' has no learning rate; give one too, such as lr=0.1"),
    ({"optimizer": "sdg", "lr": 0.1}, "unknown optimizer 'sdg'; did you mean 'sgd'"),
    ({"optimizer": "adamm"}, "unknown optimizer 'adamm'; did you mean 'adam'"),
    ({"optimizer": {"name": "sgd", "lr": 0.1, "momenta": 0.9}}, "unknown setting 'momenta' of the optimizer"),
    ({"optimizer": {"name": "sgd", "lr": 0.1}, "lr": 0.1}, "lr is given, but the optimizer has its own"),
    ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "lr": 0.1}, "lr is given, but the optimizer"),
    *(
        ({"optimizer": torch.optim.SGD, "lr": lr}, "lr is .* it should be a finite number above 0")
        for lr in (0, True, "0.1", numpy.bool_(True), numpy.float32("nan"))
    ),
    ({"lr": 1e300}, r"lr is 1e\+300; it should be a finite number above 0, and 1e\+38 at most"),
    ({"stage_lr": {1: 1e39}}, r"the rate of stage 1 is 1e\+39; it should be .* 1e\+38 at most"),
    ({"optimizer": lambda p: torch.optim.SGD(p, lr=1e39)}, r"SGD has the learning rate 1e\+39; .* 1e\+38 at most"),
    ({"rate": lambda step: 1e300}, r"stage 1 has the learning rate 1e\+299; it should be 1e\+38 at most"),
    ({"steps": 2, "epochs": 2}, "steps and epochs are both given"),
    *(({"epochs": epochs}, "epochs is .*it should be a whole number from 1") for epochs in (0, -1, 1.5, "2", True)),
    ({"unpack": 5}, "unpack is 5; it should be a function"),
    ({"metrics": ["accuracy"]}, "metrics are given, but there is no data to measure them on"),
    ({"metrics": 5}, "metrics is 5"),
    ({"metrics": ["accurate"], "validation": PAIRS}, "unknown metric 'accurate'; did you mean 'accuracy'"),
    ({"metrics": [lambda o, y: 0.0], "validation": PAIRS}, "has no name of its own; give {'its name': function}"),
    ({"metrics": ["accuracy", "accuracy"], "validation": PAIRS}, "has no name of its own"),
    ({"metrics": {"loss": len}, "validation": PAIRS}, "a metric cannot be named 'loss'"),
    ({"metrics": {"mine": 5}, "validation": PAIRS}, "the metric 'mine' is 5"),
    ({"metrics": {"share": "accuracy"}, "validation": PAIRS}, "names go into a list, metrics=\\['accuracy'\\]"),
    (
        {"metrics": {"mine": lambda o, y: o[:3]}, "validation": PAIRS},
        "the metric 'mine' returns numbers of shape .3, 2.",
    ),
    ({"validation": iter(PAIRS)}, "validation is an iterator, which can be read only once"),
    ({"validation": []}, "there are no minibatches to validate on"),
    ({"validation": torch.ones(4, 2)}, "validation is a Tensor"),
    ({"evaluate_every": -1}, "evaluate_every is -1"),
    ({"on_step": 5}, "on_step is 5; it should be a function"),
    ({"on_checkpoint": print}, "no checkpoints are written; give checkpoints=..."),
    ({"checkpoint_every": 5}, "checkpoint_every is given, but no checkpoints are written; give checkpoints=..."),
    ({"uneven": "x"}, "uneven is 'x'; it should be True or False"),
    ({"patience": "x"}, "patience is 'x'; it should be a number of seconds, or None"),
    ({"progress": "no"}, "progress is 'no'"),
    *(
        ({name: 5}, f"{name} is 5; it should be the path of a folder")
        for name in ("folder", "tensorboard", "checkpoints")
    ),
    ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)}, "over other parameters than the model"),
    ({"optimizer": lambda params: None}, "returns NoneType"),
    ({"optimizer": torch.optim.LBFGS}, "computes the loss again within its step"),
    ({"optimizer": torch.optim.LBFGS, "cuts": (1,)}, "takes no parameter groups"),
    ({"optimizer": torch.optim.SparseAdam}, "SparseAdam takes only sparse gradients"),
    ({"optimizer": lambda p: torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)}, "over other parameters"),
    ({"optimizer": lambda p: torch.optim.SGD(p[:1], lr=0.1), "cuts": (1,)}, "over other parameters"),
    ({"optimizer": lambda p: torch.optim.SGD(p, lr=float("nan"))}, "the learning rate nan"),
    ({"loss": None}, "loss is None; it should be a function"),
    ({"loss": nn.CrossEntropyLoss}, "loss is <class"),
    ({"loss": lambda o, y: o.detach().mean()}, "the loss has no gradient"),
    ({"loss": lambda o, y: nn.functional.cross_entropy(o, y, reduction="none")}, "returns a tensor of shape .4."),
    ({"loss": lambda o, y: 1.0}, "the loss returns a float"),
    ({"phases": []}, "phases is empty"),
    ({"phases": "stale_weights"}, "phases is 'stale_weights'; it should be a list"),
    ({"phases": ["stale_weights"]}, "phase 1 is 'stale_weights'"),
    ({"phases": [Phase("stale_weights", 2)]}, "the method of phase 1 is 'stale_weights'"),  # type: ignore[arg-type]
    ({"phases": [Phase(methods.get("sequential"), 0)]}, "steps is 0"),
    ({"phases": [Phase(methods.get("sequential"), numpy.int64(0))]}, "steps is .*0"),  # type: ignore[arg-type]
    ({"phases": [Phase(methods.get("sequential"), 2, cuts=("1",))]}, "cuts of phase 1"),  # type: ignore[arg-type]
    ({"phases": [Phase(methods.get("sequential"), 2)], "steps": 2}, "steps and phases are both given"),
    ({"phases": [Phase(methods.get("sequential"), 2)], "method": "gpipe"}, "method and phases are both given"),
    *(
        ({"device": device}, rf"^the device '{device}' is not available; this machine has cpu(, cuda:\d+)*$")
        for device in ("cuda:99", "meta", 10**9)
    ),
    *(
        ({"device": device}, f"^unknown device '{device}'; (did you mean|it should be) ")
        for device in ("gpu", "", None)
    ),
    *(({"seed": seed}, "^seed is .*; it should be a whole number from 0 to ") for seed in (-1, "a", 2**70)),
    ({"threads": 0}, "threads is 0"),
    ({"workers": 0}, "workers is 0"),
    ({"workers": 3}, "the simulated executor has no workers"),
    ({"workers": 3, "method": "asp"}, "the cuts set the number of stages, or of replicas for bsp and asp"),
    ({"rate": 0.1}, "^rate is 0.1; it should be a function, such as lambda step: "),
    *(
        ({"stage_lr": {1: rate}}, f"^the rate of stage 1 is {rate!r}; it should be a finite number above 0")
        for rate in (float("nan"), "a")
    ),
    ({"stage_lr": {9: 0.1}}, r"^a learning rate is given for stage 9, but the cuts \[\] make stages 1 to 1$"),
    ({"stage_lr": {"1": 0.1}}, "^a stage in stage_lr is '1'; it should be a whole number from 1"),
    ({"stage_lr": [0.1]}, "^stage_lr is .0.1.; it should map stages to rates, such as {1: 0.01}$"),
    ({"replicas": 3}, "^replicas is 3; it should be a sequence of whole numbers"),
    *(({"replicas": (one,)}, f"^each of replicas is {one!r}; it should be a whole number from 1") for one in (0, "a")),
    *(({"recompute": recompute}, "^recompute is .*; it should be a whole number from 0") for recompute in ("x", -1)),
    *(({"graphs": graphs}, "^graphs is .*; it should be True or False") for graphs in ("auto", 1, None)),
    ({"graphs": True, "executor": "real"}, "real workers use no CUDA graphs"),
    ({"grouped": "auto"}, "^grouped is 'auto'; it should be True or False"),
    ({"grouped": True, "executor": "real"}, "real workers take microbatches one at a time"),
    *(({"executor": executor}, "unknown executor") for executor in (None, "rael")),
    *(({"method": method}, "unknown method") for method in (5, "stale_weight")),
]


@pytest.mark.parametrize(("arguments", "sentence"), ARGUMENTS)
def test_an_argument_that_does_not_fit_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    model = nn.Sequential(*layers())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(pipelag.PipelagError, match=sentence):
        pipelag.train(model, PAIRS, **arguments)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        (None, "batches is None"),
        (5, "batches is an int"),
        ("abc", "batches is a str"),
        ({0: PAIRS[0]}, "batches is a dict"),
        (torch.randn(4, 4, 2), "batches is a Tensor"),
        (numpy.ones((4, 2)), "batches is a ndarray"),
        ([], "there are no minibatches"),
        ([1, 2], "minibatch 0 is an int"),
        ([(1, 2, 3)], "minibatch 0 is a tuple of 3 items"),
        ([{"x": 1}], "minibatch 0 is a dict"),
        ([(numpy.ones((4, 2)), numpy.ones(4))], "torch.from_numpy"),
        ([([[1.0, 2.0]], [1])], "the inputs of minibatch 0 are a list"),
        ([(torch.ones(4, 2), None)], "the targets of minibatch 0 are None"),
        ([(torch.ones(2), torch.tensor(1))], "this is a sample, not a minibatch"),
        (
            [(torch.ones(0, 2), torch.zeros(0))],
            "the inputs of minibatch 0 have no samples; leave out empty minibatches",
        ),
        (Samples(), "collect samples with torch.utils.data.DataLoader"),
        (Stream(), "how long to train is not given"),
        (iter(PAIRS), "how long to train is not given"),
    ],
)
def test_batches_that_are_no_pairs_of_tensors_are_refused(batches: Any, sentence: str) -> None:
    with pytest.raises(pipelag.PipelagError, match=sentence):
        pipelag.train(layers(), batches)


def test_what_fits_is_taken() -> None:
    for batches in (DataLoader(Samples(), batch_size=2), [list(pair) for pair in PAIRS]):
        assert pipelag.train(layers(), batches).metrics
    assert len(pipelag.train(layers(), Stream(), steps=2).metrics) == 2
    assert pipelag.train(layers(), PAIRS, cuts=(numpy.int64(1),), steps=numpy.int64(2)).delays.forward == (2, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("samples", "fits"), [(2, True), (3, False), (6, True)])
def test_a_loaders_last_minibatch_follows_from_what_its_sampler_draws(samples: int, fits: bool) -> None:
    """The data set has four samples, of which a sampler may draw some, or some twice."""
    loader = DataLoader(Samples(), batch_size=2, sampler=RandomSampler(Samples(), True, samples))
    how: dict[str, Any] = {"method": "gpipe", "cuts": (1,), "microbatches": 2}
    if fits:
        assert len(pipelag.train(layers(), loader, **how).metrics) == samples // 2
        return
    with pytest.raises(pipelag.PipelagError, match="the loader's last minibatch has 1 samples instead of 2"):
        pipelag.train(layers(), loader, **how)


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    steps, cut, rate, lr = numpy.int64(4), numpy.int64(1), numpy.float32(0.5), numpy.float32(0.25)
    of_numpy: Any = Phase(methods.get("1f1b"), steps, (cut,), {numpy.int64(2): rate})  # type: ignore[arg-type, dict-item]
    cases: list[tuple[Phase, Any]] = [(of_numpy, lr), (Phase(methods.get("1f1b"), 4, (1,), {2: 0.5}), 0.25)]
    for optimizer in (torch.optim.SGD, "sgd"):
        losses = []
        for phase, base in cases:
            torch.manual_seed(0)
            folder = tmp_path / f"{optimizer} {type(base)}"
            run = pipelag.train(layers(), PAIRS, phases=[phase], optimizer=optimizer, lr=base, checkpoints=folder)
            losses.append([row["loss"] for row in run.metrics])
        assert losses[0] == losses[1] and len(losses[0]) == 4


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")


def test_what_the_users_own_code_raises_says_where() -> None:
    with pytest.raises(KeyError, match="mine") as raised:
        pipelag.train([*layers(), Broken()], PAIRS, cuts=(1,))
    assert raised.value.__notes__ == ["in step 0: stage 2, layer 4 (Broken), input [4, 2]"]
    with pytest.raises(RuntimeError) as raised:  # type: ignore[assignment]
        pipelag.train(layers(), PAIRS, loss=lambda output, target: (output + torch.ones(7)).mean())
    assert raised.value.__notes__ == ["in step 0: the loss, output [4, 2], targets [4]"]
    with pytest.raises(ZeroDivisionError) as raised:  # type: ignore[assignment]
        pipelag.train(layers(), PAIRS, cuts=(1,), optimizer=lambda params: 1 / 0)  # type: ignore[arg-type, return-value]


def fails(*arguments: Any) -> Any:
    raise KeyError("mine")


WIDER = [(torch.randn(4, 3), PAIRS[0][1])]
LATE = [PAIRS[0], (PAIRS[1][0], torch.full((4,), 7))]


class Torn:
    """Two minibatches, of which the second cannot be read."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        return PAIRS[0] if number == 0 else fails()


@pytest.mark.parametrize(
    ("arguments", "kind", "note"),
    [
        ({"validation": WIDER}, RuntimeError, "while validating, minibatch 0: layer 1 (Linear), input [4, 3]"),
        ({"validation": LATE}, IndexError, "while validating, minibatch 1: in the loss, output [4, 2], targets [4]"),
        ({"validation": Torn()}, KeyError, "while validating, minibatch 1: in the data"),
        (
            {"validation": PAIRS, "metrics": {"m": fails}},
            KeyError,
            "while validating, minibatch 0: in metric 'm', output [4, 2], targets [4]",
        ),
        ({"on_step": fails}, KeyError, "in on_step"),
        ({"on_step": lambda step: None}, TypeError, "in on_step"),
        ({"on_evaluation": fails}, KeyError, "in on_evaluation"),
    ],
)
def test_what_is_raised_beside_the_training_says_where(
    arguments: dict[str, Any], kind: type[Exception], note: str
) -> None:
    with pytest.raises(kind) as raised:
        pipelag.train(layers(), PAIRS, cuts=(1,), **arguments)
    assert raised.value.__notes__ == [note]


def test_a_refusal_beside_the_training_has_no_note() -> None:
    def refuses(step: int, loss: float) -> None:
        raise pipelag.PipelagError("enough")

    with pytest.raises(pipelag.PipelagError, match="^enough$") as raised:
        pipelag.train(layers(), PAIRS, cuts=(1,), on_step=refuses)
    assert not hasattr(raised.value, "__notes__")
