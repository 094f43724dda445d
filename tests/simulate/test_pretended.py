"""On a pretended GPU (`tests.pretended`) every method has the CPU's numbers, and no step waits for the device.

Neither can be tested on torch's `meta` device (`test_meta`): it has no numbers, and code that asks whether it is on a
GPU takes the CPU's way there.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.methods import METHODS, get
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import CaffeSGD
from pipelag.stage.phase import Phase
from tests.distributed.test_real import optimizer_for
from tests.pretended import CPU, CUDA, pretended
from tests.toy import Noise, Placed, convolutional, parts_of, sgd

NAMES = [name for name, m in METHODS.items() if m.workers == "stages"]
STEPS = 6
Ends = dict[str, torch.Tensor]


def placed() -> nn.Sequential:
    first, *rest = convolutional()
    return nn.Sequential(nn.Sequential(first, Placed()), *rest)


def end_of(
    phase: Phase,
    device: torch.device,
    make: Callable[[Any], torch.optim.Optimizer] = sgd,
    dtype: torch.dtype = torch.float64,
    stop: int | None = None,
    waits: list[str] | None = None,
    model: Callable[[], nn.Sequential] = convolutional,
    **of: Any,
) -> Ends:
    """The state that a training ends with.

    stop: after so many steps, go on from a checkpoint that is read on the CPU. waits: where the host's waits are noted;
    there may be none but in the first step and in the first after a checkpoint, at which guards look, and in bfloat16
    in those for which changed copies are looked for.
    """

    def begin() -> SimulatedTraining:
        layers, loss = model().to(device, dtype).train(), nn.functional.cross_entropy
        return SimulatedTraining(layers, [phase], make, loss, seed=5, device=device, **of)

    training, batches, looked_at = begin(), Noise(), True
    for step in range(phase.steps):
        images, targets = batches.inputs(step).to(device, dtype), batches.targets(step).to(device)
        if waits is not None:
            waits.clear()
        training.step(images, targets)
        looked_at |= bool(of.get("bf16")) and step & (step - 1) == 0  # for changes of copies through `data`
        assert looked_at or not waits, f"step {step} waits: {waits}"
        looked_at = step + 1 == stop
        if looked_at:
            file = io.BytesIO()
            torch.save(training.state_dict(), file)
            file.seek(0)
            training = begin()
            training.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    training.close()
    return {name: value.detach() for name, value in training.model.state_dict().items()}


def compared(phase: Phase, close: float = 1e-8, **how: Any) -> None:
    """Check that a training ends on the pretended GPU as on the CPU, but for rounding.

    There is some, because on a GPU the sums of all small stages are made in one call.
    """
    expected = end_of(phase, CPU, **how)
    with pretended() as waits:
        ends = end_of(phase, CUDA, waits=waits, **how)
        assert all(value.is_cuda for value in ends.values())
    torch.testing.assert_close(ends, expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", NAMES)
def test_every_method(name: str) -> None:
    compared(Phase(get(name), STEPS, (1, 2, 4), microbatches=parts_of(name)), make=optimizer_for(name))


@pytest.mark.parametrize(
    ("method", "of", "how"),
    [
        ("pipemare", {"microbatches": 2, "recompute": True}, {"model": placed, "spare_memory": False}),
        ("pipemare", {"microbatches": 2, "recompute": 2}, {"model": placed}),
        ("pipedream", {"cuts": (3,), "replicas": (2, 1), "recompute": True}, {"model": placed}),
        ("pipedream", {"cuts": (3,), "replicas": (2, 1)}, {"stop": 3}),
        ("pipemare", {"microbatches": 4}, {"grouped": True}),
        ("pipemare", {}, {"bf16": True, "dtype": torch.float32, "close": 1e-3}),
        ("spectrain", {}, {"stop": 3}),
        ("xpipe", {}, {"make": partial(torch.optim.Adam, lr=0.002), "stop": 3}),
        ("pipeoptim", {}, {"make": partial(torch.optim.NAdam, lr=0.002), "stop": 3}),
        ("stale_weights", {}, {"make": lambda params: CaffeSGD(params, 0.01, 0.9), "stop": 3}),
    ],
)
def test_other_passes_optimizers_and_restarts(method: str, of: dict[str, Any], how: dict[str, Any]) -> None:
    compared(Phase(get(method), STEPS, **({"cuts": (1, 2, 4)} | of)), **how)


def test_train_waits_where_it_tells_alone(tmp_path: Path) -> None:
    """`pipelag.train` waits only where it reports losses, at an evaluation.

    A checkpoint's copies are no waits here, as the pretended GPU's tensors are in the CPU's memory.
    """
    waited: list[list[str]] = []
    batches = [Noise()[t] for t in range(6)]

    def train(device: str, waits: list[str], **of: Any) -> list[float]:
        class Counted(list[Any]):
            def __getitem__(self, step: Any) -> Any:
                waited.append(waits.copy())
                waits.clear()
                return super().__getitem__(step)

        how: dict[str, Any] = {"method": "pipemare", "cuts": (2, 4), "seed": 3, "lr": 0.01} | of
        run = pipelag.train(convolutional(), Counted(batches), device=device, **how)
        return [row["loss"] for row in run.metrics]

    measured: dict[str, Any] = {"validation": batches[:2], "metrics": ["accuracy"], "evaluate_every": 4}
    expected = train("cpu", [], **measured)
    with pretended() as waits:
        waited.clear()
        assert train("cuda", waits, **measured) == pytest.approx(expected, rel=1e-4)
        assert [bool(each) for each in waited] == [True, True, False, False, True, False]
        train("cuda", waits, checkpoints=tmp_path, steps=4)
        assert train("cuda", waits, checkpoints=tmp_path) == pytest.approx(expected, rel=1e-4)


def test_what_a_gpu_refuses_and_waits_for() -> None:
    with pretended() as waits:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert (there.device, here.device, (there * 2).device) == (CUDA, CPU, CUDA)
        assert there[1:].is_cuda and torch.zeros_like(there).is_cuda and not there.cpu().is_cuda
        for mixed in (lambda: there + here, lambda: here.add_(there), lambda: torch.cat([there, here])):
            with pytest.raises(RuntimeError, match="on the same device"):
                mixed()
        assert next(nn.LSTM(2, 2).to(device="cuda").parameters()).is_cuda
        waits.clear()
        there * torch.tensor(2.0), here.pin_memory().to("cuda", non_blocking=True), there.add_(1)
        assert not waits
        for wait in (lambda: float(there[0]), lambda: torch.equal(there, there), lambda: there.tolist()):
            wait()
            assert waits
            waits.clear()
        for copy in (lambda: here.to(CUDA, non_blocking=True), lambda: here.copy_(there), lambda: there.copy_(here)):
            copy()
            assert waits
            waits.clear()
        with pytest.raises(RuntimeError, match="places of several types"):
            torch._foreach_copy_([there.bfloat16(), there.clone()], [there, there])
        weight = there.clone().requires_grad_()
        (weight * 2).sum().backward()
        assert weight.grad is not None and weight.grad.is_cuda
