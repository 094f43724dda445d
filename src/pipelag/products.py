"""Products of bfloat16 on a CPU without instructions for them: computed by float32's kernels, then rounded.

A processor with instructions for bfloat16 (AMX, AVX-512) multiplies its numbers exactly, adds in float32 and rounds the
sum. Without them torch multiplies number by number, which takes many times as long as float32. float32's kernels give
the same sums for the same numbers; only the order of addition may differ.
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

OUTPUTS = {ATTENTION: 1, RECURRENT: 3}  # outputs beyond these are for the backward only


@cache
def multiplies(kind: str) -> bool:
    """Whether a kind of device ("cpu", "cuda") has instructions for products of bfloat16 that torch uses."""
    if kind != "cpu":
        return True
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)  # None: a torch without oneDNN, as on a Mac
    return asked is not None and bool(asked())


class Widened(TorchDispatchMode):
    """A mode in which float32's kernels compute the products of bfloat16, rounded afterwards; in backwards, too."""

    here = threading.local()  # a dispatch mode belongs to its thread

    def __enter__(self) -> Widened:
        self.here.active = True
        self.fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # a single operation, whose products would not pass through here
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self.fast)
        self.here.active = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry out an operation of torch: in float32 if it is a product of bfloat16, otherwise as it is."""
        more = dict(kwargs or {})
        if func not in PRODUCTS or not any(map(_rounded, args)):
            return func(*args, **more)
        outputs = func(*map(_wide, args), **{name: _wide(value) for name, value in more.items()})
        if isinstance(outputs, torch.Tensor):
            return outputs.bfloat16()
        count = OUTPUTS.get(func, len(outputs))
        return tuple(value.bfloat16() if value is not None and i < count else value for i, value in enumerate(outputs))


def products(device: torch.device) -> AbstractContextManager[Any]:
    """`Widened` if the device needs it and it is not active already; otherwise a context that does nothing."""
    return nullcontext() if multiplies(device.type) or getattr(Widened.here, "active", False) else Widened()


def _rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16


def _wide(value: Any) -> Any:
    return value.float() if _rounded(value) else value
