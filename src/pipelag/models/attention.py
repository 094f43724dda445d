"""Scaled dot-product attention for all models of this package."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F


def dot_product_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> torch.Tensor:
    """torch's `scaled_dot_product_attention`; `how` are its masks and dropout.

    In bfloat16 passes on a CPU it computes in float32, because torch's bfloat16 kernel takes three to four times as
    long for sentences (its backward 12 times). The matrix product that follows rounds the result to bfloat16.
    """
    if q.is_cpu and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **how)
    return F.scaled_dot_product_attention(q, k, v, **how)
