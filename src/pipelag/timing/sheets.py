"""Peak rates, bandwidths and memory of devices, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from pipelag.errors import unknown


@dataclass(frozen=True)
class Device:
    """A data sheet.

    flops: floating-point operations per second, in float32 unless the device's name says otherwise.
    bandwidth: bytes per second of the memory.
    memory: bytes.
    """

    flops: float
    bandwidth: float
    memory: float = float("inf")


GIB = 2**30  # the sheets' GB of memory

# Rates at boost clocks from NVIDIA's data sheets; where a sheet rounds its rate, cores x 2 x boost clock instead.
DEVICES = {
    "v100": Device(15.7e12, 900e9, 16 * GIB),  # NVIDIA V100 SXM2
    "v100_fp16": Device(125e12, 900e9, 16 * GIB),  # its tensor cores; for models and inputs of half precision
    "p100": Device(9.3e12, 732e9, 16 * GIB),  # NVIDIA Tesla P100 for PCIe, 16 GB
    "p100_sxm2": Device(10.6e12, 732e9, 16 * GIB),  # NVIDIA Tesla P100 with NVLink
    "p40": Device(11.76e12, 346e9, 24 * GIB),  # NVIDIA Tesla P40: 3840 cores at 1.531 GHz; the sheet says 12 TFLOPS
    "titan_x": Device(10.97e12, 480e9, 12 * GIB),  # NVIDIA Titan X (Pascal)
    "1080ti": Device(11.34e12, 484e9, 11 * GIB),  # NVIDIA GTX 1080 Ti
    # NVIDIA A100 80GB SXM (data sheet of June 2021) and H100 SXM (data sheet of March 2023): bfloat16 on the tensor
    # cores, without sparsity.
    "a100_bf16": Device(312e12, 2039e9, 80 * GIB),
    "h100_bf16": Device(989.4e12, 3350e9, 80 * GIB),
}


def data_sheet(name: str) -> Device:
    """The data sheet of the device of this name.

    Raises:
        PipelagError: an unknown device (the message names the nearest).
    """
    if name not in DEVICES:
        raise unknown("device with a data sheet", name, DEVICES)
    return DEVICES[name]
