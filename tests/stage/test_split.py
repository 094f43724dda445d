"""A backward in two parts against an ordinary one, bit for bit: any layers, each weight's hooks once, nothing twice."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from pipelag.errors import PipelagError
from pipelag.stage.recompute import backward_through
from pipelag.stage.split import backward_to_inputs
from pipelag.tensors import as_tuple, entering, kept_for_backward
from tests.toy import Join, convolutional

Make = Callable[[], nn.Module]


class Of(nn.Module):
    """A layer from a function of its parts and its input."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Product(torch.autograd.Function):
    """x w; says how often its backward ran."""

    ran: list[str] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        Product.ran.append("product")
        return gradient @ w.t(), x.t() @ gradient


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / 2)


def changed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y = layer.a(x)
    y[:, :2] += layer.w
    return torch.relu_(y)


def stepping(layer: Any, x: torch.Tensor) -> torch.Tensor:
    state = (torch.zeros(len(x), 4), torch.zeros(len(x), 4))
    for step in x.split(2, dim=1):
        state = layer.cell(step, state)
    return state[0]


def tied_weights() -> nn.Module:
    layer = parametrizations.weight_norm(nn.Linear(6, 6, bias=False))
    return Of(lambda s, x: s.a(torch.tanh(s.a(x))) @ torch.tanh(s.w) @ s.w.t(), a=layer, w=weight(6, 6))


def twice_normed() -> nn.Module:
    norm = parametrizations.weight_norm(nn.Linear(6, 6))
    return nn.Sequential(norm, nn.Tanh(), parametrizations.spectral_norm(nn.Linear(6, 6)))


def looked_up() -> nn.Module:
    table = nn.Embedding(9, 6, sparse=True)
    return Of(lambda s, x: torch.tanh(x + s.table(torch.tensor([1, 1, 4, 0]))) @ s.w, table=table, w=weight(6, 6))


def with_checkpoint() -> nn.Module:
    inner = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 6))
    return Of(lambda s, x: s.b(checkpoint(s.inner, s.a(x), use_reentrant=False)),
              a=nn.Linear(6, 6), inner=inner, b=nn.Linear(6, 6))  # fmt: skip


def frozen() -> nn.Module:
    layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 6))
    layers[0].weight.requires_grad_(False)
    layers[2].requires_grad_(False)
    return layers


def recurrent(kind: type[nn.RNNBase], **how: Any) -> Make:
    return lambda: Of(lambda s, x: s.a(x.view(4, 3, 2))[0], a=kind(2, 5, batch_first=True, **how))


LAYERS: dict[str, Make] = {
    "linear": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "one weight in several operators": tied_weights,
    "one weight twice in an operator": lambda: Of(lambda s, x: x @ (s.w @ s.w), w=weight(6, 6)),
    "weights of computed weights": twice_normed,
    "a frozen weight": frozen,
    "sparse gradients": looked_up,
    "the user's functions": lambda: Of(
        lambda s, x: Product.apply(Product.apply(s.a(x), s.w), Product.apply(s.v, s.v)),
        a=nn.Linear(6, 6), w=weight(6, 6), v=weight(6, 6),
    ),
    "in-place changes": lambda: Of(changed, a=nn.Linear(6, 6), w=weight(2)),
    "norms": lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.PReLU(6), nn.Unflatten(1, (2, 3)),
                                   nn.GroupNorm(2, 2), nn.BatchNorm1d(2), nn.InstanceNorm1d(2, affine=True)),
    "attention": lambda: nn.Sequential(nn.Unflatten(1, (3, 2)), nn.TransformerEncoderLayer(2, 1, 8, 0.3)),
    "lstm": recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": recurrent(nn.GRU),
    "rnn": recurrent(nn.RNN),
    "a cell step by step": lambda: Of(stepping, cell=nn.LSTMCell(2, 4)),
    "a checkpoint inside": with_checkpoint,
    "a sum in a checkpoint": lambda: Of(
        lambda s, x: checkpoint(lambda y: torch.sin(y) + torch.tanh(s.w), s.a(x), use_reentrant=False),
        a=nn.Linear(6, 6), w=weight(6),
    ),
    "a sum over the input": lambda: Of(lambda s, x: s.w * x.sum(0), w=weight(6)),
    "an operator of several outputs": lambda: Of(
        lambda s, x: tuple(torch._foreach_mul([torch.sin(x), torch.cos(x)], [s.w, s.v])), w=weight(6), v=weight(6)
    ),
    "nothing to train": nn.Tanh,
    "a weight alone": lambda: Of(lambda s, x: (s.a(x), s.b * s.c, s.b), a=nn.Linear(6, 2), b=weight(3), c=weight(3)),
    "a weight alone and with the input": lambda: Of(lambda s, x: (x * s.b, s.b * s.c), b=weight(6), c=weight(6)),
    "nothing of the input": lambda: Of(lambda s, x: s.b.expand(4, 6) + x.detach(), b=weight(6)),
    "the input itself": lambda: Of(lambda s, x: (x, s.a(x)), a=nn.Linear(6, 2)),
}  # fmt: skip
PAIRS: dict[str, Make] = {
    "two inputs": lambda: Of(lambda s, p: torch.tanh(s.a(p[0])) * s.b(p[1]), a=nn.Linear(6, 2), b=nn.Linear(6, 2)),
    "one of two unused": lambda: Of(lambda s, p: (s.a(p[0]), torch.tanh(s.b(p[0]))),
                                    a=nn.Linear(6, 2), b=nn.Linear(6, 3)),
}  # fmt: skip


def doubled(seen: list[Any], name: str, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A hook of a weight, which changes its gradient; autograd may call it without one."""
    seen.append((name, "hook", copy.deepcopy(gradient)))
    return None if gradient is None else 2 * gradient


class Both:
    """A stage whose backward runs whole, and a copy whose backward runs in two parts, with hooks on all weights."""

    def __init__(self, make: Make, inputs: Any) -> None:
        torch.manual_seed(3)
        Product.ran.clear()
        self.modules = (make(), None)
        self.modules = (self.modules[0], copy.deepcopy(self.modules[0]))
        self.inputs = inputs
        self.seen: tuple[list[Any], list[Any]] = ([], [])
        for module, seen in zip(self.modules, self.seen, strict=True):
            for name, p in module.named_parameters():
                if p.requires_grad:
                    p.register_hook(lambda g, name=name, seen=seen: doubled(seen, name, g))
                    after = lambda p, name=name, seen=seen: seen.append((name, "after", copy.deepcopy(p.grad)))  # noqa: E731
                    p.register_post_accumulate_grad_hook(after)

    def forward(self, which: int, m: int) -> tuple[Any, Any]:
        torch.manual_seed(m)
        given = tuple(torch.randn_like(t).requires_grad_(t.requires_grad) for t in as_tuple(self.inputs))
        value = entering(given if isinstance(self.inputs, tuple) else given[0])
        return given, self.modules[which](value)

    def gradients(self, output: Any, left_out: int | None) -> tuple[torch.Tensor | None, ...]:
        outputs = [t for t in as_tuple(output) if t.requires_grad]
        return tuple(None if n == left_out else torch.randn_like(t) for n, t in enumerate(outputs))

    def compare(self, left_out: int | None = None, late: int = 2) -> None:
        """Four microbatches, whose W come so many B late."""
        whole, split, waiting = [], [], []
        for m in range(4):
            given, output = self.forward(0, m)
            whole.append(backward_through(output, self.gradients(output, left_out), given))
        for m in range(4):
            given, output = self.forward(1, m)
            arrived, left = backward_to_inputs(output, self.gradients(output, left_out), given)
            split.append(arrived)
            waiting.append(left)
            if m >= late:
                waiting.pop(0).accumulate()
        for left in waiting:
            left.accumulate()
        for one, other in zip(whole, split, strict=True):
            assert alike(one, other)
        assert alike(*([p.grad for p in module.parameters()] for module in self.modules))
        assert alike(*(list(module.buffers()) for module in self.modules))
        for name, _ in self.modules[0].named_parameters():
            for kind in ("hook", "after"):
                one, other = ([g for n, k, g in seen if (n, k) == (name, kind)] for seen in self.seen)
                assert alike(one, other), (name, kind)


def alike(one: Any, other: Any) -> bool:
    """Bit for bit, in the same memory layout."""
    return len(one) == len(other) and all(
        (a is None and b is None)
        or (a is not None and b is not None and a.layout == b.layout and torch.equal(dense(a), dense(b))
            and dense(a).stride() == dense(b).stride())
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def differentiable_input(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, requires_grad=True)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("left_out", [None, 0])
@pytest.mark.parametrize("trained", [True, False], ids=["input with gradient", "input without"])
def test_the_parts_are_the_whole_bit_for_bit(name: str, left_out: int | None, trained: bool) -> None:
    # What the second forward of a checkpoint does to batch statistics depends on when it runs.
    late = 0 if name == "a checkpoint inside" else 2
    Both(LAYERS[name], torch.zeros(4, 6, requires_grad=trained)).compare(left_out, late)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("left_out", [None, 0])
def test_several_tensors_cross_the_cut(name: str, trained: tuple[bool, bool], left_out: int | None) -> None:
    Both(PAIRS[name], tuple(torch.zeros(4, 6, requires_grad=each) for each in trained)).compare(left_out)


@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 3), (1, 6), (0, 2)])
def test_convolutions_in_channels_last(first: int, last: int) -> None:
    image = differentiable_input(4, 8 if first else 3, 8, 8).detach()
    image = image.to(memory_format=torch.channels_last).requires_grad_(first > 0)
    inputs = (image, image) if isinstance(convolutional()[first], Join) else image
    Both(lambda: convolutional()[first:last], inputs).compare()


@pytest.mark.parametrize("trained", [True, False])
def test_the_loss_needs_no_gradient(trained: bool) -> None:
    both = Both(lambda: Of(lambda s, x: s.a(x).square().mean(), a=nn.Linear(6, 2)), differentiable_input(4, 6))
    both.gradients = lambda output, left_out: None  # type: ignore[assignment, method-assign]
    both.inputs.requires_grad_(trained)
    both.compare()


class Counting(TorchDispatchMode):
    """Counts operators; a convolution's backward by the gradients that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "convolution_backward":
            for what, computed in zip(("input", "weight", "bias"), args[-1], strict=True):
                self.counts[f"{name} {what}"] += computed
        self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def counted(module: nn.Module, given: torch.Tensor, measured: bool = False) -> list[Counter[str]]:
    """The operators of an ordinary backward, of B and of W."""
    counts = []
    for whole in (True, False):
        with kept_for_backward(set()) if measured else torch.enable_grad():
            output = module(entering(given))
        gradients = (torch.randn_like(output),)
        with Counting() as first:
            left = (backward_through if whole else backward_to_inputs)(output, gradients, given)
        counts.append(first.counts)
    with Counting() as second:
        left[1].accumulate()  # type: ignore[union-attr]
    return [*counts, second.counts]


@pytest.mark.parametrize("measured", [False, True], ids=["plain", "a forward that is measured"])
def test_b_computes_no_gradients_of_weights_and_w_nothing_of_the_inputs(measured: bool) -> None:
    layers = [nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1), nn.Sigmoid()]
    whole, b, w = counted(nn.Sequential(*layers, nn.Conv2d(3, 2, 1)), differentiable_input(2, 3, 5, 5), measured)
    assert [whole[f"convolution_backward {of}"] for of in ("input", "weight", "bias")] == [3, 3, 3]
    assert [b[f"convolution_backward {of}"] for of in ("input", "weight", "bias")] == [3, 0, 0]
    assert [w[f"convolution_backward {of}"] for of in ("input", "weight", "bias")] == [0, 3, 3]
    chain = ("threshold_backward", "sigmoid_backward")
    assert [[each[name] for name in chain] for each in (whole, b, w)] == [[1, 1], [1, 1], [0, 0]]


def test_matrix_products_are_shared_out_between_the_parts() -> None:
    layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)]
    whole, b, w = counted(nn.Sequential(*layers), differentiable_input(4, 6))
    assert [each["mm"] for each in (whole, b, w)] == [6, 3, 3]
    assert [each["sum"] for each in (whole, b, w)] == [3, 0, 3]  # of biases
    assert [each["tanh_backward"] for each in (whole, b, w)] == [2, 2, 0]


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("lstm", ("mkldnn_rnn_layer_backward",)),
        ("norms", ("native_layer_norm_backward", "native_batch_norm_backward", "_prelu_kernel_backward")),
        ("one weight in several operators", ("mm", "tanh_backward")),
        ("a cell step by step", ("mm", "tanh_backward", "sigmoid_backward")),
        ("a sum in a checkpoint", ("sin", "tanh")),
        ("a checkpoint inside", ("addmm", "native_batch_norm", "native_batch_norm_backward")),
    ],
)
def test_what_cannot_be_shared_out_is_not_done_twice(name: str, operators: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    whole, b, w = counted(LAYERS[name](), differentiable_input(4, 6))
    assert all(whole[operator] for operator in operators)
    assert {operator: b[operator] + w[operator] for operator in operators} == {op: whole[op] for op in operators}


def test_the_users_functions_run_once() -> None:
    both = Both(LAYERS["the user's functions"], differentiable_input(4, 6))
    given, output = both.forward(1, 0)
    _, left = backward_to_inputs(output, both.gradients(output, None), given)
    assert len(Product.ran) == 3
    left.accumulate()
    assert len(Product.ran) == 3


def test_what_is_kept_until_w_is_counted_and_freed() -> None:
    layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    given = differentiable_input(4, 6)
    _, left = backward_to_inputs(layers(entering(given)), (torch.randn(4, 3),), given)
    assert left.bytes == 4 * (4 * 8 + 4 * 3)  # what arrived at the outputs of both layers
    left.accumulate()
    assert left.bytes == 0 and not left.parts
    _, left = backward_to_inputs(layers(torch.zeros(4, 6)), (torch.randn(4, 3),), torch.zeros(4, 6))
    assert left.bytes == 4 * 4 * 3  # the first stage keeps what came in


def test_gradients_of_weights_from_b_are_added_in_b() -> None:
    """Those of a norm; nothing but what arrived at both linear layers is kept until W."""
    layers = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    given = differentiable_input(4, 6)
    _, left = backward_to_inputs(layers(entering(given)), (torch.randn(4, 3),), given)
    assert [p.grad is not None for p in layers.parameters()] == [False, False, True, True, False, False]
    assert left.bytes == 4 * (4 * 8 + 4 * 3)


class Living(TorchDispatchMode):
    """The storages that are made inside; `bytes` counts those that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and not func.is_view and "detach" not in func.name():
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    @property
    def bytes(self) -> int:
        return sum(size for storage, size in self.made.values() if not storage.expired())


@pytest.mark.parametrize("trained", [True, False], ids=["input with gradient", "input without"])
@pytest.mark.parametrize("measured", [True, False])
def test_what_is_alive_until_w_is_what_is_counted(trained: bool, measured: bool) -> None:
    """The last tanh's result is free after B on a later stage; on the first one nothing is."""
    layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh())
    given = torch.randn(4, 6, requires_grad=trained)
    with Living() as living:
        with kept_for_backward(set()) if measured else torch.enable_grad():
            output = layers(entering(given))
        left = backward_to_inputs(output, (torch.randn(4, 5),), given)[1]
        given.grad = None
        del output
    own = {p.untyped_storage().data_ptr() for p in (given, *layers.parameters())}
    saved = {t.untyped_storage().data_ptr(): t.nbytes for t in left.saved()}
    kept = sum(size for place, size in saved.items() if place not in own)
    assert living.bytes == kept + left.bytes == 4 * 4 * (8 + 8 + 5 if trained else 8 + 5 + 5)
    saved.clear()
    left.accumulate()
    layers.zero_grad()
    assert living.bytes == 0


def test_a_gradient_that_two_layers_keep_is_counted_once() -> None:
    """In the same memory, though one of them has a view of it."""
    one, other = nn.Linear(6, 3), nn.Linear(6, 3)
    given = differentiable_input(4, 6)
    x = entering(given)
    _, left = backward_to_inputs(one(x) + other(x).view(12).view(4, 3), (torch.randn(4, 3),), given)
    assert left.bytes == 4 * 4 * 3


def test_bfloat16_under_autocast() -> None:
    def autocast(layer: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer.b(torch.relu(layer.a(x))).float()

    Both(lambda: Of(autocast, a=nn.Linear(6, 6), b=nn.Linear(6, 6)), differentiable_input(4, 6)).compare()


def test_the_other_kind_of_checkpoint_is_refused_where_it_cannot_work() -> None:
    module = Of(lambda s, x: checkpoint(s.a, x, use_reentrant=True), a=nn.Linear(6, 6))
    given = differentiable_input(4, 6)
    with pytest.raises(PipelagError, match="a layer is checkpointed with use_reentrant=True, .* use_reentrant=False"):
        backward_to_inputs(module(entering(given)), (torch.ones(4, 6),), given)
