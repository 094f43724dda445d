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
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default  # beside its output it gives float32 for later
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
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


@cache
def multiplies(kind: str) -> bool:
    """Whether a kind of device ("cpu", "cuda") has instructions for products of bfloat16."""
    return kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Widened(TorchDispatchMode):
    """Inside, products of bfloat16 are float32's, rounded: in backward passes, too."""

    here = threading.local()  # as modes are a thread's own

    def __enter__(self) -> Widened:
        self.here.active = True
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.here.active = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Each operation of torch, with what it is called with."""
        if func not in PRODUCTS or not any(map(_rounded, args)):
            return func(*args, **kwargs or {})
        made = func(*[value.float() if _rounded(value) else value for value in args], **kwargs or {})
        if func is ATTENTION:
            return made[0].bfloat16(), *made[1:]
        if isinstance(made, torch.Tensor):
            return made.bfloat16()
        return tuple(value if value is None else value.bfloat16() for value in made)


def products(device: torch.device) -> AbstractContextManager[Any]:
    """`Widened` where the device needs it, and it is not there already."""
    return nullcontext() if multiplies(device.type) or getattr(Widened.here, "active", False) else Widened()


def _rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
