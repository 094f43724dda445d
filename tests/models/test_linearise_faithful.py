"""What a forward does beside computing with tensors: a row of layers does the same, or is refused in a sentence."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pipelag
from pipelag.errors import PipelagError


class Three(nn.Module):
    """Three linear layers, of which `computed` makes something."""

    def __init__(self, computed: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("seen", torch.zeros(8))
        self.computed = computed

    def forward(self, x: torch.Tensor) -> Any:
        return self.computed(self, x)


def constant_branch(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    with torch.no_grad():
        gate = net.b(h).sigmoid()
    return net.c(h * gate)


def part_overwritten(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    part = h[:, :2]
    other = net.b(x)
    part.mul_(2.0)
    return net.c(h) + other


def whole_overwritten(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    pairs = h.view(-1, 4, 2)
    other = net.b(x)
    h.mul_(3.0)
    return net.c(pairs.flatten(1)) + other


def overwritten_by_position(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    other = net.b(x)
    return net.c(F.relu(h, True)) + other + h


def assigned_by_name(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    same = h
    rows = count = x.shape[0]
    other = net.b(x)
    same += other
    count += 1
    return net.c(h) * rows + count


def part_assigned(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    part = h[:, :2]
    part *= 2.0
    return net.c(h) + net.b(x)


def counting(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.seen += 1
    return net.b(net.a(x)) * net.seen


def remembering(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.last = net.a(x)
    net.a.last = net.last
    return net.b(net.last)


def drawing(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    return net.b(h + torch.randn_like(h))


def results(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, gradients and buffers after two passes, by their names in the original."""
    torch.manual_seed(1)
    model.zero_grad()
    model(x)
    output = model(x)
    output.square().sum().backward()
    named = {n.rpartition("original.")[2]: p.grad for n, p in model.named_parameters() if p.grad is not None}
    named |= {n.rpartition("original.")[2]: b for n, b in model.named_buffers()}
    return [output.detach(), *(value.clone() for _, value in sorted(named.items()))]


@pytest.mark.parametrize("inputs", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize(
    "computed",
    [constant_branch, overwritten_by_position, counting, remembering, drawing],
)
def test_a_row_does_what_the_forward_does(computed: Any, inputs: bool) -> None:
    model, x = Three(computed), torch.randn(4, 8)
    row_of = copy.deepcopy(model)
    row = pipelag.linearise(row_of, **({"inputs": {"x": x}} if inputs else {}))
    copy.deepcopy(row_of)  # nothing of the trace is left behind
    assert torch.equal(row_of.seen, model.seen) and len(row) > 1
    uses_buffer = computed is counting
    expected = results(model, x)[: None if uses_buffer else -1]
    torch.testing.assert_close(results(row, x)[: len(expected)], expected)


@pytest.mark.parametrize(
    "computed", [part_overwritten, whole_overwritten, overwritten_by_position, assigned_by_name, part_assigned]
)
@pytest.mark.parametrize("layers", ["weights", "operators"])
def test_what_is_overwritten_is_so_for_all_who_see_it(computed: Any, layers: str) -> None:
    model, x = Three(computed), torch.randn(4, 8)
    row = pipelag.linearise(model, layers=layers)
    torch.testing.assert_close(row(x), model(x))
    value: Any = x
    for layer in row:  # each alone, as workers run it
        received = tuple(t.detach().requires_grad_() for t in (value if isinstance(value, tuple) else (value,)))
        value = layer(received if len(received) > 1 else received[0])
    torch.testing.assert_close(value, model(x))


@pytest.mark.parametrize("inputs", [False, True], ids=["fx", "export"])
def test_a_frozen_part_stays_frozen_where_it_asks_for_its_mode(inputs: bool) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(self.norm(self.inner(x)), 0.5, self.training)

    model, x = nn.Sequential(Dropped(), nn.Linear(8, 8)), torch.randn(4, 8)
    model[0].eval()
    row = pipelag.linearise(model, **({"inputs": {"input": x}} if inputs else {}))
    torch.testing.assert_close(row(x), model(x))
    assert model[0].norm.num_batches_tracked == 0


def largest(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    best, least = h.max(dim=1), torch.min(h, 1)
    other = net.b(x)
    return net.c(other * best[0][:, None]) + least.values[:, None] + h.max()


@pytest.mark.parametrize("layers", ["weights", "operators"])
def test_the_values_of_an_operator_that_gives_several_travel_apart(layers: str) -> None:
    model, x = Three(largest), torch.randn(4, 8)
    row = pipelag.linearise(model, layers=layers)
    torch.testing.assert_close(row(x), model(x))
    assert len(row) >= 3


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU()), False, "'0.weight' of Sequential has no size yet"),
        (
            lambda: torch.jit.trace(nn.Linear(8, 8), torch.randn(4, 8)),
            False,
            "is compiled and .* give the model as it was before",
        ),
        (lambda: nn.DataParallel(nn.Linear(8, 8)), False, "DataParallel wraps the model; give the model itself"),
        (lambda: torch.compile(nn.Linear(8, 8)), False, "OptimizedModule wraps the model; give the model itself"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), True, "only if it is frozen"),
    ],
)
def test_models_of_a_form_that_cannot_be_traced_are_refused(model: Any, inputs: bool, sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        pipelag.linearise(model(), **({"inputs": {"input": torch.randn(4, 8)}} if inputs else {}))


def test_one_of_several_values_by_name_is_kept_with_or_without_examples() -> None:
    """As torchvision's segmentation networks give them."""
    model, x = Three(lambda net, x: {"out": net.b(net.a(x)), "aux": net.c(x)}), torch.randn(4, 8)
    for inputs in ({}, {"inputs": {"x": x}}):
        row = pipelag.linearise(model, output="out", **inputs)  # type: ignore[arg-type]
        torch.testing.assert_close(row(x), model(x)["out"])
        with pytest.raises(PipelagError, match="unknown output 'oat' of Three; did you mean 'out'"):
            pipelag.linearise(model, output="oat", **inputs)  # type: ignore[arg-type]
        with pytest.raises(
            PipelagError, match="Three does not return values by name, so none can be chosen; leave out output"
        ):
            pipelag.linearise(Three(largest), output="out", **inputs)  # type: ignore[arg-type]


def mixed(net: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = net.a(x)
    return net.b(h.float())


def assigning(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x)
    net.seen = 0.9 * net.seen + 0.1 * h.detach().mean(0)
    return net.b(h - net.seen)


def nested(net: Any, x: torch.Tensor) -> Any:
    h = net.a(x)
    return h, [net.b(h)]


def with_none(net: Any, x: torch.Tensor) -> Any:
    return net.a(x), None


@pytest.mark.parametrize("inputs", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize(
    ("computed", "sentence"),
    [
        (mixed, "Three uses autocast in its forward"),
        (assigning, r"Three assigns a new tensor to its buffer 'seen' in its forward.* in place \(copy_\)"),
        (nested, "Three returns a tuple that holds something other than tensors; .* a tuple of tensors"),
        (with_none, "Three returns a tuple that holds something other than tensors; .* a tuple of tensors"),
    ],
)
def test_what_a_row_would_leave_out_is_refused(computed: Any, sentence: str, inputs: bool) -> None:
    model, x = Three(computed), torch.randn(4, 8)
    with pytest.raises(PipelagError, match=sentence):
        pipelag.linearise(model, **({"inputs": {"x": x}} if inputs else {}))
    assert type(model.seen) is torch.Tensor


def by_calls(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.calls += 1
    return net.b(net.a(x)) * net.calls


def counted_alone(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.more = getattr(net, "more", 0) + 1
    return net.b(net.a(x))


def at_first(net: Any, x: torch.Tensor) -> torch.Tensor:
    h = net.a(x) if net.fresh else net.c(x)
    net.fresh = False
    return net.b(h)


def scaled_at_first(net: Any, x: torch.Tensor) -> torch.Tensor:
    h, net.scale = net.a(x) * net.scale, 1.0
    return net.b(h)


def remembered(net: Any, x: torch.Tensor) -> torch.Tensor:
    """What the first call has found out, the next ones find again."""
    net.width = x.shape[-1] if net.width is None else net.width
    net.last, net.rows = net.a(x), x.shape[0]
    return net.b(net.last) / 8**0.5


class Holding(Three):
    """Holds plain values."""

    def __init__(self, computed: Callable[[Any, Any], Any]) -> None:
        super().__init__(computed)
        self.calls, self.fresh, self.scale, self.width, self.rows = 0, True, 0.5, None, 0
        self.nothing = math.nan


@pytest.mark.parametrize("inputs", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize(
    ("computed", "name"),
    [(by_calls, "calls"), (counted_alone, "more"), (at_first, "fresh"), (scaled_at_first, "scale")],
)
def test_a_forward_that_changes_what_its_next_call_does_is_refused(computed: Any, name: str, inputs: bool) -> None:
    model, x = nn.Sequential(Holding(computed), nn.Linear(8, 8)), torch.randn(4, 8)
    with pytest.raises(PipelagError, match=f"Sequential changes '0.{name}' in its forward, .* in a buffer"):
        pipelag.linearise(model, **({"inputs": {"input": x}} if inputs else {}))
    held: Any = model[0]
    assert (held.calls, held.fresh, held.scale) == (0, True, 0.5) and not hasattr(held, "more")


@pytest.mark.parametrize("inputs", [False, True], ids=["fx", "export"])
def test_what_a_forward_remembers_without_another_outcome_is_left_out(inputs: bool) -> None:
    model, x = Holding(remembered), torch.randn(4, 8)
    held = {**vars(model)}
    row = pipelag.linearise(model, **({"inputs": {"x": x}} if inputs else {}))
    assert vars(model) == held
    torch.testing.assert_close(row(x), model(x))


def test_hooks_that_a_row_would_leave_out_are_refused() -> None:
    def double(module: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
        return 2 * output

    def double_back(module: nn.Module, given: Any, output: Any) -> Any:
        return tuple(2 * each for each in given)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Three(counting)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model, x = Outer(), torch.randn(4, 8)
    handle = model.register_forward_hook(double)
    with pytest.raises(PipelagError, match="Outer has hooks on the whole"):
        pipelag.linearise(model)
    handle.remove()
    model.inner.register_full_backward_hook(double_back)
    with pytest.raises(PipelagError, match="'inner' has backward hooks"):
        pipelag.linearise(model)
    with pytest.raises(PipelagError, match=r"Outer has backward hooks \('inner'\)"):
        pipelag.linearise(model, inputs={"x": x})
