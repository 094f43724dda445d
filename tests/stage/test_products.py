"""Products of bfloat16 computed by float32's kernels equal a bfloat16 processor's, up to the order of summation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import pipelag
from pipelag import precision, products
from pipelag.products import PRODUCTS, Widened
from tests.toy import Noise, convolutional, sgd

BF16 = torch.bfloat16


def drawn(*shape: int) -> torch.Tensor:
    """A random leaf tensor in bfloat16 that requires a gradient."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(BF16).requires_grad_()


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "mm": (torch.mm, [drawn(9, 40), drawn(40, 7)]),
    "addmm": (torch.addmm, [drawn(7), drawn(9, 40), drawn(40, 7)]),
    "bmm": (torch.bmm, [drawn(3, 9, 40), drawn(3, 40, 7)]),
    "baddbmm": (torch.baddbmm, [drawn(3, 9, 7), drawn(3, 9, 40), drawn(3, 40, 7)]),
    "mv": (torch.mv, [drawn(9, 40), drawn(40)]),
    "linear": (F.linear, [drawn(2, 9, 40), drawn(7, 40), drawn(7)]),
    "conv1d": (F.conv1d, [drawn(2, 6, 20), drawn(5, 6, 3), drawn(5)]),
    "conv2d": (F.conv2d, [drawn(2, 6, 12, 12).detach().to(memory_format=torch.channels_last), drawn(5, 6, 3, 3)]),
    "masked": (
        F.scaled_dot_product_attention,
        [drawn(2, 2, 9, 8), drawn(2, 2, 11, 8), drawn(2, 2, 11, 8), drawn(9, 11).detach()],
    ),
    "attention": (F.scaled_dot_product_attention, [drawn(2, 2, 9, 8), drawn(2, 2, 11, 8), drawn(2, 2, 11, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_and_its_gradients_are_the_same_but_for_rounding(name: str) -> None:
    operation, inputs = CASES[name]
    leaves = [value for value in inputs if value.requires_grad]

    def computed() -> list[torch.Tensor]:
        out = operation(*inputs)
        return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]

    with Widened():
        widened = computed()
    exact = [value.detach().double().requires_grad_(value.requires_grad) for value in inputs]
    out = operation(*exact)
    within = [out.detach(), *torch.autograd.grad(out.square().sum(), [value for value in exact if value.requires_grad])]
    for ours, theirs, truth in zip(widened, computed(), within, strict=True):
        assert ours.dtype is theirs.dtype is BF16 and ours.stride() == theirs.stride()
        size = truth.abs().max()
        assert float((ours - truth).abs().max() / size) < 2**-7
        assert float((ours - truth).norm() / size) <= 1.1 * float((theirs - truth).norm() / size) + 1e-3


@pytest.mark.parametrize("name", CASES)
def test_no_product_of_bfloat16_is_left_to_torch(name: str) -> None:
    """What `Widened` passes on goes through a mode around it, in the forward and in the backward."""
    seen: list[Any] = []

    class Below(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(isinstance(value, torch.Tensor) and value.dtype is BF16 for value in args):
                seen.append(str(func))
            return func(*args, **(kwargs or {}))

    operation, inputs = CASES[name]
    with Below(), Widened():
        operation(*inputs).float().square().sum().backward()
    products = ("mm", "mv", "dot", "linear", "conv", "attention")
    assert seen and not [func for func in seen if any(word in func.split(".")[1] for word in products)]


def test_a_setting_of_the_callers_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for enabled in (False, True):
        torch.backends.mha.set_fastpath_enabled(enabled)
        with Widened():
            assert not torch.backends.mha.get_fastpath_enabled()
        assert torch.backends.mha.get_fastpath_enabled() is enabled


def test_only_a_processor_may_lack_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, there in ((lambda: False, False), (lambda: True, True), (None, False)):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", asked)
        assert products.multiplies.__wrapped__("cpu") is there and products.multiplies.__wrapped__("cuda") is True


def test_only_products_of_bfloat16_are_others() -> None:
    seen: list[Any] = []

    class Watched(Widened):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = super().__torch_dispatch__(func, types, args, kwargs)
            seen.append((func, out.dtype if isinstance(out, torch.Tensor) else None))
            return out

    inputs, weight = torch.randn(4, 6), torch.randn(6, 3)
    plain = inputs @ weight
    with Watched():
        assert torch.equal(inputs @ weight, plain)
        assert torch.equal((inputs.to(BF16) + 1).float(), inputs.to(BF16).add(1).float())
        (inputs.to(BF16) @ weight.to(BF16)).sum()
    assert [dtype for func, dtype in seen if func in PRODUCTS] == [torch.float32, BF16]


def test_it_is_taken_once_where_the_device_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(products, "multiplies", lambda kind: kind != "cpu")
    assert not isinstance(products.products(gpu), Widened)
    with products.products(cpu) as outer, pytest.raises(ZeroDivisionError):
        assert isinstance(outer, Widened) and not isinstance(products.products(cpu), Widened)
        raise ZeroDivisionError
    assert isinstance(products.products(cpu), Widened)
    monkeypatch.setattr(products, "multiplies", lambda kind: True)
    assert not isinstance(products.products(cpu), Widened)


@pytest.mark.parametrize("how", [{}, {"recompute": True}, {"method": "pipemare", "microbatches": 4}])
def test_a_training_is_the_same_but_for_rounding(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first steps, losses with widened products are about as far from float32's as native bfloat16's are."""

    def losses(**changes: Any) -> torch.Tensor:
        usual: dict[str, Any] = {"method": "pipedream", "cuts": (1, 3), "steps": 4, "optimizer": sgd, "seed": 3}
        run = pipelag.train(convolutional(), Noise(), **usual | how | changes)
        return torch.tensor([row["loss"] for row in run.metrics], dtype=torch.float64)

    called: list[int] = []
    monkeypatch.setattr(products, "multiplies", lambda kind: True)
    native, full = losses(precision="bf16"), losses()
    monkeypatch.setattr(products, "multiplies", lambda kind: called.append(1))
    widened = losses(precision="bf16")
    assert called and not torch.equal(native, full)
    assert 0 < (widened - full).norm() < 3 * (native - full).norm() < 3e-3 * full.norm()


def test_a_log_says_by_which_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "multiplies", lambda kind: False)
    assert precision.described("cpu")["bfloat16"] == "products by float32's kernels, rounded"
    monkeypatch.setattr(products, "multiplies", lambda kind: True)
    assert "bfloat16" not in precision.described("cpu")


def test_layers_whose_products_are_within_torch_are_reached() -> None:
    """Products inside torch's own layers are widened, too: a recurrent layer's and those of nn.MultiheadAttention."""
    recurrent, attention = nn.GRU(6, 5, batch_first=True), nn.MultiheadAttention(6, 2, batch_first=True)
    inputs = torch.randn(2, 7, 6)
    seen: list[Any] = []

    class Watched(Widened):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(isinstance(value, torch.Tensor) and value.dtype is BF16 for value in args):
                seen.append(func)
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Watched(), torch.autocast("cpu", BF16, cache_enabled=False):
        out = recurrent(inputs)[0] + attention(inputs, inputs, inputs, need_weights=False)[0][..., :5]
        out.float().sum().backward()
    names = {str(func) for func in seen}
    dense = {name for name in names if any(word in name for word in ("mm", "linear", "attention", "conv", "gru"))}
    assert dense and dense <= {str(func) for func in PRODUCTS}
