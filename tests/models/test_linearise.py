"""Branching models as rows of layers: the same outputs, gradients and statistics, and everything that takes layers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest
import torch
import torchvision.models as tv
from torch import nn
from torch.nn import functional

import pipelag
from pipelag.errors import PipelagError
from pipelag.models import build
from pipelag.models.cut import stages
from pipelag.tensors import as_tuple

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "googlenet": {"aux_logits": False, "init_weights": False},
    "densenet121": {"drop_rate": 0.2},  # functional dropout; 25 tensors cross inside a block
    "mobilenet_v3_small": {},
    "shufflenet_v2_x0_5": {},  # asks for sizes, takes chunks
    "swin_v2_t": {},  # calculates with buffers
}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return tv.get_model(name, weights=None, num_classes=10, **NETWORKS[name])


def learned(model: nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs in training and evaluation; every gradient and statistic by its name in the original."""
    torch.manual_seed(1)
    output = model.train()(x.clone())
    output.square().sum().backward()
    state = {n: p.grad for n, p in model.named_parameters()} | dict(model.named_buffers())
    named = {name.rpartition("original.")[2]: value for name, value in state.items() if value is not None}
    with torch.no_grad():
        return [output, model.eval()(x)], [named[name] for name in sorted(named)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("how", [{}, {"crossing": 1}, {"layers": "operators"}], ids=["weights", "one", "operators"])
def test_it_computes_exactly_what_the_model_does(name: str, how: dict[str, Any]) -> None:
    model = network(name)
    row = pipelag.linearise(copy.deepcopy(model), **how)
    x = torch.randn(2, 3, 64, 64)
    outputs, state = learned(row, x)
    expected, expected_state = learned(model, x)
    assert all(map(torch.equal, outputs, expected))
    assert len(state) == len(expected_state) and all(map(torch.equal, state, expected_state))


@pytest.mark.parametrize("how", [{}, {"layers": "operators"}], ids=["weights", "operators"])
def test_every_boundary_can_be_a_stage_boundary(how: dict[str, Any]) -> None:
    """Each layer alone, on what it received detached, as a worker runs it: nothing is overwritten that was received."""
    model = network("resnet18").train()
    row = pipelag.linearise(model, **how)
    value: Any = torch.randn(2, 3, 32, 32)
    expected = model(value)
    for layer in cloudpickle.loads(cloudpickle.dumps(row)):
        received = tuple(t.detach().requires_grad_() for t in as_tuple(value))
        before = [t.detach().clone() for t in received]
        assert len(received) == layer.takes
        value = layer(received if len(received) > 1 else received[0])
        assert all(map(torch.equal, received, before)) and len(as_tuple(value)) == layer.gives
    assert torch.equal(value, expected)


def test_the_report_says_what_each_layer_holds() -> None:
    row = pipelag.linearise(tv.resnet18())
    assert len(row) == 21 and [layer.gives for layer in row][:4] == [1, 2, 1, 2]
    assert row[2].label == "layer1.0.conv2"
    assert row[2].merged == ("layer1.0.conv2", "layer1.0.bn2", "add", "layer1.0.relu")
    assert "\n    3       1  layer1.0.conv2, layer1.0.bn2, add, layer1.0.relu\n" in row.report()
    called = [name for layer in row for name in layer.merged if "." in name and "relu" not in name]
    assert sorted(called) == sorted(
        n for n, m in tv.resnet18().named_modules() if "." in n and not list(m.children()) and "relu" not in n
    )


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_tensors_cross_than_asked_for(most: int) -> None:
    row = pipelag.linearise(network("googlenet"), crossing=most)
    assert max(layer.gives for layer in row) == most
    assert len(row) < len(pipelag.linearise(network("googlenet")))


class Tied(nn.Module):
    """The output layer's weights are the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return functional.linear(self.inner(self.words(x)) * scale, self.words.weight)


def test_a_shared_parameter_stays_one_and_is_not_cut_apart() -> None:
    model = Tied()
    row = pipelag.linearise(model)
    assert {id(p) for p in row.parameters()} == {id(p) for p in model.parameters()}
    copied = copy.deepcopy(row)
    assert len(list(copied.parameters())) == len(list(model.parameters()))
    with pytest.raises(PipelagError, match="stages 1 and 2 share a parameter"):
        stages(row, (1,))


class Two(nn.Module):
    """Two inputs, two outputs, a recurrent layer in between; a batch size that is needed late."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.lstm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, mask: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        if mask is not None:
            x = x * mask
        rows = x.shape[0]
        h, (last, _) = self.lstm(self.a(x))
        return self.b(h).reshape(rows, -1) + y, last


def test_several_inputs_and_outputs_travel_as_tuples() -> None:
    model, x, y = Two(), torch.randn(3, 4), torch.randn(3, 4)
    row = pipelag.linearise(model, layers="operators")
    assert all(map(torch.equal, row((x, y)), model(x, y)))
    assert [layer.merged for layer in row] == [
        ("getattr", "getitem", "a", "lstm", "getitem", "getitem", "getitem", "b", "reshape"),
        ("add",),
    ]


def test_an_optional_input_is_kept_by_its_name() -> None:
    model, x, y, mask = Two(), torch.randn(3, 4), torch.randn(3, 4), torch.tensor([[1.0], [0.0], [1.0]])
    row = pipelag.linearise(model, inputs=["mask"])
    assert all(map(torch.equal, row((x, y, mask)), model(x, y, mask)))
    assert all(map(torch.equal, row({"mask": mask, "x": x, "y": y}), model(x, y, mask)))
    with pytest.raises(PipelagError, match=r"for 2 inputs \('x', 'y'\), but is given 3; name optional ones .* masks"):
        pipelag.linearise(model)((x, y, mask))
    with pytest.raises(PipelagError, match="unknown input 'maske' of Two; did you mean 'mask'"):
        pipelag.linearise(model, inputs=["maske"])


class ByData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)


class Named(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x}


class Silent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise TypeError
        return 2 * x


class Any_(nn.Module):
    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return x[0]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 3), ByData()),
            r"Sequential cannot be traced by torch.fx: '1' \(ByData\) fails at 'return x if x.sum\(\) > 0 else -x' "
            r"\(test_linearise.py, line \d+\): its control flow depends on the data; name the module in whole=",
        ),
        (ByData, "ByData cannot be traced by torch.fx: its forward fails"),
        (
            lambda: tv.googlenet(init_weights=False),
            r"GoogLeNet computes something else in training .* \(aux_logits=False\)",
        ),
        (lambda: tv.inception_v3(init_weights=False), r"Inception3 computes something else .* \(aux_logits=False\)"),
        (Noisy, "draw random numbers"),
        (Silent, r"its forward fails at 'raise TypeError' \(.*\): TypeError; name the module"),
        (
            Named,
            "Named returns a dict; it should return a tensor or a tuple of tensors; choose one of its values: "
            "output='x'",
        ),
        (Any_, "Any_ takes any number of inputs"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(model: Any, sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        pipelag.linearise(model())


def test_a_module_can_be_taken_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 3), ByData(), nn.Linear(3, 3))
    for whole in (("1",), (ByData,)):
        assert [layer.merged for layer in pipelag.linearise(model, whole=whole)] == [("0", "1"), ("2",)]
    with pytest.raises(PipelagError, match="has no module '7'"):
        pipelag.linearise(model, whole=("7",))


def test_a_frozen_module_stays_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[1].eval()
    row = pipelag.linearise(model)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(layer.training for layer in row) and not any(layer.training for layer in pipelag.linearise(model.eval()))


def test_torchvisions_networks_go_by_name() -> None:
    row = build("torchvision", seed=0, network="mnasnet0_5", classes=10, crossing=1)
    assert row.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    with pytest.raises(PipelagError, match="did you mean 'resnet18'"):
        build("torchvision", network="resnet_18")


class Optional(nn.Module):
    """All its inputs have defaults, as those of many models of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any = None, mask: Any = None) -> torch.Tensor:
        return self.inner(torch.zeros(1, 4) if x is None else x)


def test_a_model_without_a_needed_input_says_which_are_inputs() -> None:
    with pytest.raises(PipelagError, match=r"Optional has no input without a default; .* inputs=\['x'\]"):
        pipelag.linearise(Optional())
    model, x = Optional(), torch.randn(2, 4)
    assert torch.equal(pipelag.linearise(model, inputs=["x"])(x), model(x))


@dataclass
class Output:
    logits: torch.Tensor


class InDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, input_ids: torch.Tensor, mask: Any = None) -> Output:
        return Output(self.inner(input_ids))


def test_examples_that_do_not_fit_are_refused() -> None:
    x = torch.randn(2, 4)
    for inputs, sentence in (
        ({"input_ids": x}, "InDataclass returns an Output; it should return a tensor, a tuple of tensors, or a dict"),
        ({"input_idz": x}, "unknown input 'input_idz' of InDataclass; did you mean 'input_ids'"),
        ({"mask": x}, "InDataclass needs the input 'input_ids'; give an example of it"),
    ):
        with pytest.raises(PipelagError, match=sentence):
            pipelag.linearise(InDataclass(), inputs=inputs)


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(PipelagError, match="did you mean 'weights'"):
        pipelag.linearise(nn.Linear(2, 2), layers="weight")
    with pytest.raises(PipelagError, match="crossing is 0; it should be"):
        pipelag.linearise(nn.Linear(2, 2), crossing=0)
    for whole in ("inner", [3]):
        with pytest.raises(PipelagError, match="whole is .*; it should be a list of modules by path or class"):
            pipelag.linearise(nn.Linear(2, 2), whole=whole)  # type: ignore[arg-type]


def small() -> nn.Module:
    """A residual network of two blocks, one with a projection."""
    torch.manual_seed(0)
    model = tv.ResNet(tv.resnet.BasicBlock, [1, 1, 0, 0], num_classes=2)
    model.layer3, model.layer4, model.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 2)
    return model


def pairs(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(4, 3, 16, 16, generator=generator), torch.tensor([0, 1, 1, 0])) for _ in range(count)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def test_without_delay_it_learns_bit_for_bit_what_plain_training_does() -> None:
    plain, model = small().train(), small()
    optimizer = sgd(plain.parameters())
    for x, y in pairs(4):
        optimizer.zero_grad()
        functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    pipelag.train(pipelag.linearise(model), pairs(4), method="sequential", optimizer=sgd)
    # the layers hold the model's own modules, so the model itself has been trained
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.real
def test_real_workers_learn_what_the_simulation_does() -> None:
    """Cut inside a residual block: two tensors cross."""
    ways = {}
    for executor in ("simulated", "real"):
        row = pipelag.linearise(small())
        assert row[3].gives == 2
        pipelag.train(row, pairs(5), cuts=(4,), method="pipedream", optimizer=sgd, executor=executor)
        ways[executor] = row.state_dict()
    for name, value in ways["simulated"].items():
        assert torch.equal(value, ways["real"][name]), name


def test_it_can_be_profiled_and_partitioned() -> None:
    row = pipelag.linearise(small())
    profile = pipelag.profile(row, pairs(1)[0][0], repeats=1, warmup=0)
    assert [layer.name for layer in profile.layers] == [layer.label for layer in row]
    first, inside = profile.layers[0].output_bytes, profile.layers[1].output_bytes
    assert inside == 2 * first  # branch and skip
    assert sum(layer.weight_bytes for layer in profile.layers) == 4 * sum(p.numel() for p in small().parameters())
    plan = pipelag.partition(
        profile, pipelag.Cluster.of({"levels": [{"workers": 2, "bandwidth": 1e12}]}), straight=True
    )
    assert len(plan.stages) == 2
