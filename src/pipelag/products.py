"""Products of bfloat16 on a CPU that multiplies none: by float32's kernels, rounded where the others round.

A processor with instructions for bfloat16 (AMX, AVX-512) multiplies its numbers exactly, adds up in float32 and rounds
the sum. Without, torch goes through a matrix number by number, many times as long as in float32. The same sums come
from float32's kernels, given the same numbers: what is left of a difference is the order of addition.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
RECURRENT = aten.mkldnn_rnn_layer.default
PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.addbmm.default,
    aten.mv.default,
    aten.addmv.default,
    aten.dot.default,
    aten.linear.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.conv_tbc.default,
    aten.conv_tbc_backward.default,
    ATTENTION,
    RECURRENT,
    aten.mkldnn_rnn_layer_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}

OUTPUTS = {ATTENTION: 1, RECURRENT: 3}  # what else these give is for their backward alone


@cache
def multiplies(kind: str) -> bool:
    """Whether a kind of device ("cpu", "cuda") has instructions for products of bfloat16, and torch takes them."""
    if kind != "cpu":
        return True
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)  # None: a torch without oneDNN, as on a Mac
    return asked is not None and bool(asked())


class Widened(TorchDispatchMode):
    """Inside, products of bfloat16 are float32's, rounded: in backward passes, too."""

    here = threading.local()  # as modes are a thread's own

    def __enter__(self) -> Widened:
        self.here.active = True
        self.fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # in one operation, whose products would not come here
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self.fast)
        self.here.active = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Each operation of torch, with what it is called with."""
        more = dict(kwargs or {})
        if func not in PRODUCTS or not any(map(_rounded, args)):
            return func(*args, **more)
        outputs = func(*map(_wide, args), **{name: _wide(value) for name, value in more.items()})
        if isinstance(outputs, torch.Tensor):
            return outputs.bfloat16()
        count = OUTPUTS.get(func, len(outputs))
        return tuple(value.bfloat16() if value is not None and i < count else value for i, value in enumerate(outputs))


def products(device: torch.device) -> AbstractContextManager[Any]:
    """`Widened` where the device needs it, and it is not there already."""
    return nullcontext() if multiplies(device.type) or getattr(Widened.here, "active", False) else Widened()


def _rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16


def _wide(value: Any) -> Any:
    return value.float() if _rounded(value) else value
