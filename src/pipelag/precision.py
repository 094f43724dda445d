"""How numbers are computed on this machine: recorded with every log, and made repeatable where that is asked for.

A run on a GPU lets cuDNN try its convolutions and take the fastest, which need not be the same the next time.

`PIPELAG_DETERMINISTIC=1` in the environment asks for it, of a run and of its workers: on a GPU the same run gives the
same numbers bit for bit, more slowly. On the CPU it does so anyway. It is no part of a run's id.
"""

from __future__ import annotations

import os
from typing import Any

ASKED = "PIPELAG_DETERMINISTIC"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS sums in one order with a workspace of fixed size only
ATTENTION = ("cudnn", "flash", "mem_efficient")  # torch's kernels of attention, beside the plain operations


def asked() -> bool:
    """Whether the environment asks for numbers that repeat."""
    return os.environ.get(ASKED, "") not in ("", "0")


def ask() -> None:
    """Ask for it, of this process and those that it starts."""
    os.environ[ASKED] = "1"
    prepare()


def prepare(alone: bool = False) -> None:
    """Do as the environment asks. Call it before the process first uses a GPU.

    Args:
        alone: the process is a run's or a profile's alone: where numbers need not repeat, cuDNN may take its fastest
            convolutions.
    """
    import torch

    if alone:
        torch.backends.cudnn.benchmark = True
    if not asked():
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)  # of an operation that has no such kernel torch tells
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def prepare_for(device: str) -> None:
    """The rest of it, once it is known where a run computes: a setting that a CPU's kernels would follow, too."""
    import torch

    if asked() and device.startswith("cuda"):
        # Attention in one kernel sums its gradients in no fixed order where torch only warns of such kernels.
        for kind in ATTENTION:
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)


def described(device: str) -> dict[str, Any]:
    """What `environment.json` says of a run's arithmetic; the settings that only a GPU has, where it ran on one."""
    import torch

    from pipelag.products import multiplies

    row: dict[str, Any] = {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": asked() and torch.are_deterministic_algorithms_enabled(),
    }
    if not multiplies(device.partition(":")[0]):
        row["bfloat16"] = "products by float32's kernels, rounded"
    if device.startswith("cuda"):
        cudnn = torch.backends.cudnn
        row |= {
            "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": cudnn.allow_tf32},
            "cudnn": {"deterministic": cudnn.deterministic, "benchmark": cudnn.benchmark},
            "cublas_workspace": os.environ.get(WORKSPACE),
            "attention": [
                kind for kind in (*ATTENTION, "math") if getattr(torch.backends.cuda, f"{kind}_sdp_enabled")()
            ],
        }
    return row
