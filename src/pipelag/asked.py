"""Check the arguments of `pipelag.train` before anything is trained; each refusal says what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from pipelag.errors import PipelagError, a, shown, unknown
from pipelag.methods import Method
from pipelag.models.cut import layers_of
from pipelag.stage.phase import Phase
from pipelag.tensors import trainable
from pipelag.typed import MOST_BATCH, MOST_RATE, MOST_STEPS, MOST_WORKERS

PRECISIONS = ("fp32", "bf16")
PAIRS = "give minibatches as pairs (inputs, targets) of tensors"


def check_model(model: Any) -> nn.Sequential:
    """The model as a sequence of layers.

    Raises:
        PipelagError: it has no layers, a layer that is no module, a tensor without a shape (of a lazy module), without
            numbers or without gradients, or no parameter to train.
    """
    layers = layers_of(model)
    for number, layer in enumerate(layers, start=1):
        if not isinstance(layer, nn.Module):
            raise PipelagError(f"layer {number} of the model is {shown(layer)}; it should be an nn.Module")
    sequence = model if isinstance(model, nn.Sequential) else nn.Sequential(*layers)
    if not layers:
        raise PipelagError("the model has no layers; give an nn.Sequential, or a list of modules")
    for name, tensor in [*sequence.named_parameters(), *sequence.named_buffers()]:
        if isinstance(tensor, (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)):
            raise PipelagError(
                f"'{name}' belongs to a lazy module and has no shape yet; run one minibatch through the model first"
            )
        if tensor.is_meta:
            raise PipelagError(
                f"'{name}' is on the device 'meta', which holds no numbers; build the model on a real device"
            )
        if tensor.is_inference() and isinstance(tensor, nn.Parameter):
            raise PipelagError(
                f"'{name}' was created under torch.inference_mode(), so no gradient can update it; build the model "
                "outside inference mode"
            )
    if not any(parameter.requires_grad for parameter in sequence.parameters()):
        frozen = "all its parameters are frozen" if any(True for _ in sequence.parameters()) else "it has no parameters"
        raise PipelagError(f"the model has nothing to train: {frozen}; give it parameters that require a gradient")
    return sequence


def check_gradients() -> None:
    """Refuse to train where torch records no gradients. Real workers do record them, as they are other processes."""
    if not torch.is_grad_enabled():
        raise PipelagError(
            "train is called under torch.no_grad() or torch.inference_mode(), where torch computes no gradients; "
            "call it outside of these"
        )


def check_travels(model: nn.Sequential, place: torch.device) -> None:
    """Refuse settings of this process that do not reach workers: hooks on parameters, a default dtype, autocast."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise PipelagError(
                f"'{name}' has a hook on its gradient, which cannot be sent to real workers; do what the hook does in "
                "the optimizer's step, or use executor='simulated'"
            )
    if torch.get_default_dtype() != torch.float32:
        raise PipelagError(
            f"torch's default dtype is set to {torch.get_default_dtype()}, which has no effect on real workers; "
            "convert the model itself (model.double()), and leave the default at torch.float32"
        )
    if any(torch.is_autocast_enabled(kind) for kind in {"cpu", place.type}):
        raise PipelagError(
            "train is called under torch.autocast, which has no effect on real workers; give precision='bf16', or "
            "cast inside the layers"
        )


def check_phases(phases: Any, instead: Mapping[str, bool]) -> list[Phase]:
    """The phases as a list, checked, with their numbers as Python's.

    Args:
        instead: the arguments that phases replace, and whether each is given.

    Raises:
        PipelagError: they are not phases, a value in one does not fit, or an argument that they replace is given.
    """
    if isinstance(phases, (str, bytes, Phase, Mapping)) or not isinstance(phases, Iterable):
        raise PipelagError(f"phases is {shown(phases)}; it should be a list of pipelag.Phase")
    checked = list(phases)
    for number, phase in enumerate(checked, start=1):
        if not isinstance(phase, Phase):
            raise PipelagError(f"phase {number} is {shown(phase)}; it should be a pipelag.Phase(method, steps, ...)")
        if not isinstance(phase.method, Method):
            raise PipelagError(
                f"the method of phase {number} is {shown(phase.method)}; it should be a Method, such as "
                "pipelag.methods.get('stale_weights')"
            )
        checked[number - 1] = replace(
            phase,
            steps=whole("steps", phase.steps, 1, MOST_STEPS),
            cuts=wholes(f"the cuts of phase {number}", phase.cuts),
            stage_lr=check_rates(phase.stage_lr),
            microbatches=whole("microbatches", phase.microbatches, 1, MOST_BATCH),
            recompute=check_recompute(phase.recompute),
            replicas=wholes(f"the replicas of phase {number}", phase.replicas),
        )
    if not checked:
        raise PipelagError("phases is empty; give at least one pipelag.Phase, or a method and steps")
    given = [name for name, is_given in instead.items() if is_given]
    if given:
        raise PipelagError(
            f"{given[0]} and phases are both given, but each phase sets its own {given[0]}; leave one of them out"
        )
    return checked


def whole(name: str, value: Any, least: int, most: int) -> int:
    """The value as an int, if it is a whole number in the range, also one of NumPy's; True is refused."""
    try:
        number = None if isinstance(value, (bool, torch.Tensor)) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise PipelagError(f"{name} is {shown(value)}; it should be a whole number from {least} to {most:,}")
    return number


def wholes(name: str, values: Any) -> tuple[int, ...]:
    """The values as a tuple of ints, if they are whole numbers from 1 on."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise PipelagError(f"{name} is {shown(values)}; it should be a sequence of whole numbers, such as (2, 5)")
    return tuple(whole(f"each of {name}", value, 1, 10**6) for value in values)


def check_numbers(seed: Any, threads: Any, workers: Any, every: Any) -> None:
    """Refuse a seed, a number of threads or workers, or a checkpoint_every that is no whole number in its range."""
    whole("seed", seed, 0, 2**63 - 1)
    whole("threads", threads, 1, MOST_WORKERS)
    whole("checkpoint_every", every, 0, MOST_STEPS)
    if workers is not None:
        whole("workers", workers, 1, MOST_WORKERS)


def check_folder(name: str, place: Any, empty: bool = True) -> None:
    """Refuse what is neither a path nor None. empty: an empty path is allowed, and is the working directory."""
    if place is not None and (not isinstance(place, (str, Path)) or not (empty or str(place).strip())):
        raise PipelagError(f"{name} is {shown(place)}; it should be the path of a folder")


def check_recompute(value: Any) -> bool | int:
    """True or False, or the number of stages in a segment."""
    return value if isinstance(value, bool) else whole("recompute", value, 0, 10_000)


def check_precision(value: Any, model: nn.Sequential) -> bool:
    """Whether passes compute in bfloat16; refuses other values than "fp32" and "bf16", and "bf16" without float32."""
    if value not in PRECISIONS:
        raise unknown("precision", str(value), PRECISIONS)
    if value == "bf16" and not any(p.dtype == torch.float32 and p.dim() > 1 for p in model.parameters()):
        raise PipelagError(
            "precision 'bf16' rounds a model's float32 matrices, but this model has none; leave precision out"
        )
    return bool(value == "bf16")


def check_passes(executor: str, **ways: Any) -> None:
    """Refuse a `graphs` or `grouped` that is not True or False, or that is True for real workers."""
    for name, value in ways.items():
        if not isinstance(value, bool):
            raise PipelagError(f"{name} is {shown(value)}; it should be True or False")
        if value and executor == "real":
            instead = {"graphs": "use no CUDA graphs", "grouped": "take microbatches one at a time"}[name]
            raise PipelagError(f"real workers {instead}; leave {name} out, or use executor='simulated'")


def check_rates(stage_lr: Any) -> dict[int, float]:
    """The base rates of stages by number, as Python's numbers."""
    if not isinstance(stage_lr, Mapping):
        raise PipelagError(f"stage_lr is {shown(stage_lr)}; it should map stages to rates, such as {{1: 0.01}}")
    return {
        whole("a stage in stage_lr", stage, 1, 10**6): check_rate(f"the rate of stage {stage}", rate)
        for stage, rate in stage_lr.items()
    }


def check_rate(name: str, rate: Any) -> float:
    """The learning rate as a float, if it is a finite number above 0, also one of NumPy's."""
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate <= MOST_RATE:  # type: ignore[operator]
        raise PipelagError(f"{name} is {shown(rate)}; it should be a finite number above 0, and {MOST_RATE:g} at most")
    return float(rate)


def check_functions(**functions: Any) -> None:
    """Refuse what cannot be called, a module's class instead of a module, and a module with weights to train."""
    for name, function in functions.items():
        if not callable(function) or (isinstance(function, type) and issubclass(function, nn.Module)):
            raise PipelagError(f"{name} is {shown(function)}; it should be a function, such as {EXAMPLES[name]}")
        if isinstance(function, nn.Module) and any(p.requires_grad for p in function.parameters()):
            raise PipelagError(
                f"{name} has weights of its own, which would not be trained; move them into the model's last layer, "
                "or freeze them (requires_grad_(False))"
            )


EXAMPLES = {
    "loss": "torch.nn.functional.cross_entropy",
    "rate": "lambda step: 0.99**step",
    "unpack": "lambda batch: (batch['image'], batch['label'])",
}


def check_optimizer(make: Any) -> None:
    """Refuse an optimizer that cannot be called."""
    if not callable(make):
        raise PipelagError(
            f"optimizer is {shown(make)}; it should be a function from parameters to an optimizer, such as "
            "lambda params: torch.optim.SGD(params, lr=0.1)"
        )


def check_device(name: Any) -> torch.device:
    """The device of this name; refused if it is unknown or not here. "auto" is a GPU if there is one."""
    if isinstance(name, str) and name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise unknown("device", str(name), ("auto", "cpu", "cuda", "cuda:0")) from error
    try:
        here = device.type != "meta" and torch.empty(1, device=device).device.type == device.type
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        here = False
    if not here:
        there = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        raise PipelagError(f"the device '{name}' is not available; this machine has {', '.join(['cpu', *there])}")
    return device


def steps_of(batches: Any, steps: Any, epochs: Any = None) -> int:
    """The number of minibatches to train on: `steps`, or `epochs` (default 1) times those in an epoch."""
    if steps is not None and epochs is not None:
        raise PipelagError("steps and epochs are both given, and each says how long to train; leave one of them out")
    if steps is not None:
        return whole("steps", steps, 1, MOST_STEPS)
    try:
        count = len(batches)
    except TypeError as error:
        raise PipelagError(
            "how long to train is not given: pass steps=..., since the batches have no length"
            if epochs is None
            else "epochs=... needs batches with a length, and these have none; pass steps=... instead"
        ) from error
    if not count:
        raise PipelagError("there are no minibatches to train on")
    return whole("the number of steps", count * epochs_of(epochs), 1, MOST_STEPS)


def epochs_of(epochs: Any) -> int:
    """How often to go through the data; 1 if epochs is None."""
    return 1 if epochs is None else whole("epochs", epochs, 1, MOST_STEPS)


def check_batches(batches: Any, name: str = "batches") -> None:
    """Refuse what cannot hold minibatches: a tensor or an array, a mapping, a text, None."""
    whole_set = isinstance(batches, (torch.Tensor, str, bytes, Mapping)) or hasattr(batches, "__array__")
    if whole_set or not (hasattr(batches, "__getitem__") or isinstance(batches, Iterable)):
        raise PipelagError(f"{name} is {_kind(batches)}; {PAIRS}: a list of them, a DataLoader, or any iterable")


def numbered(batches: Any) -> bool:
    """Whether minibatches are taken by number; otherwise they are iterated in order."""
    return hasattr(batches, "__getitem__") and not isinstance(batches, IterableDataset)


def check_pair(item: Any, step: int, unpacked: bool = False) -> tuple[Any, Any]:
    """The minibatch as a pair (inputs, targets).

    Raises:
        PipelagError: it is no pair (a dict needs `unpack`), holds something else than tensors, has no samples, or is a
            single sample.
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        count = f" of {len(item)} items" if isinstance(item, (tuple, list, dict)) else ""
        apart = "" if unpacked else ", or unpack=..., a function that turns a minibatch into such a pair"
        which = f"what unpack returns for minibatch {step}" if unpacked else f"minibatch {step}"
        raise PipelagError(f"{which} is {_kind(item)}{count}; {PAIRS}{apart if isinstance(item, Mapping) else ''}")
    for name, value in zip(("inputs", "targets"), item, strict=True):
        parts = value if isinstance(value, tuple) else value.values() if isinstance(value, Mapping) else (value,)
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if not tensors:
            raise PipelagError(f"the {name} of minibatch {step} are {_kind(value)}; they should be {_fitting(value)}")
        if any(tensor.dim() and not len(tensor) for tensor in tensors):
            raise PipelagError(f"the {name} of minibatch {step} have no samples; leave out empty minibatches")
        if all(tensor.dim() == 0 for tensor in tensors):
            raise PipelagError(
                f"the {name} of minibatch {step} are a single number: this is a sample, not a minibatch; collect "
                "samples with torch.utils.data.DataLoader(dataset, batch_size=...)"
            )
    return item[0], item[1]


def _fitting(value: Any) -> str:
    if hasattr(value, "__array__"):
        return "a tensor: torch.from_numpy(...)"
    if isinstance(value, (int, float)):
        return "a tensor: collect samples with torch.utils.data.DataLoader(dataset, batch_size=...)"
    return "a tensor, or a tuple or a dict of tensors"


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return "None" if value is None else a(kind)


class Loss:
    """A loss function whose values are checked: one number with a gradient. It can be pickled if the function can."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, output: Any, target: Any) -> torch.Tensor:
        """The loss; raises `PipelagError` if it is no scalar or has no gradient."""
        return trainable(self.function(output, target))


def refuse_ignored(phases: Sequence[Phase], executor: str, workers: int | None) -> None:
    """Refuse workers if simulated, which would have no effect, and real data-parallel workers without their number."""
    if executor == "simulated" and workers is not None:
        raise PipelagError(
            "the simulated executor has no workers; leave workers out (the cuts set the number of stages, or of "
            "replicas for bsp and asp), or use executor='real'"
        )
    for phase in phases:
        if executor == "real" and phase.method.data_parallel and workers is None and not phase.cuts:
            raise PipelagError(
                f"real workers of '{phase.method.name}' are replicas of the whole model; pass their number, such as "
                "workers=2"
            )
