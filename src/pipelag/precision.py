"""How this machine computes numbers: recorded with every log, and made deterministic if the user asks for that.

By default a run on a GPU lets cuDNN try its convolutions and take the fastest, which may be another one the next time.

`PIPELAG_DETERMINISTIC=1` in the environment asks a run and its workers to be deterministic: on a GPU the same run then
gives the same numbers bit for bit, more slowly. On a CPU it does so anyway. The variable is not part of a run's id.
"""

from __future__ import annotations

import os
from typing import Any

ASKED = "PIPELAG_DETERMINISTIC"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS sums in a fixed order only if its workspace has a fixed size
CHOICES = (  # variables by which libraries choose other instructions or fewer bits, for all programs of a machine
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
ATTENTION = ("cudnn", "flash", "mem_efficient")  # torch's kernels of attention, beside the plain operations


def asked() -> bool:
    """Whether the environment asks for deterministic numbers."""
    return os.environ.get(ASKED, "") not in ("", "0")


def ask() -> None:
    """Make this process, and those that it starts, deterministic."""
    os.environ[ASKED] = "1"
    prepare()


def prepare(alone: bool = False) -> None:
    """Set torch up as the environment asks. Call it before the process first uses a GPU.

    Args:
        alone: the process does nothing but this run or profile. Then cuDNN may choose its fastest convolutions, unless
            numbers must be deterministic.
    """
    import torch

    if alone:
        torch.backends.cudnn.benchmark = True
    if not asked():
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch warns of an operation without such a kernel
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def prepare_for(device: str) -> None:
    """Set up what needs the run's device: a setting that would affect the CPU's kernels, too."""
    import torch

    if asked() and device.startswith("cuda"):
        # With warn_only, torch still uses the fused attention kernels, which sum their gradients in no fixed order.
        for kind in ATTENTION:
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)


def described(device: str) -> dict[str, Any]:
    """The entry of `environment.json` about a run's arithmetic, with the settings of the GPU if it ran on one."""
    import torch

    from pipelag.products import multiplies

    row: dict[str, Any] = {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": asked() and torch.are_deterministic_algorithms_enabled(),
    }
    if not multiplies(device.partition(":")[0]):
        row["bfloat16"] = "products by float32's kernels, rounded"
    if chosen := {name: os.environ[name] for name in CHOICES if name in os.environ}:
        row["environment"] = chosen
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
