"""Optimizers that torch lacks, with their prediction rules; and optimizers whose groups belong to one stage each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from pipelag.errors import PipelagError, shown
from pipelag.methods.prediction import AT_HAND, BY_MOMENTUM, BY_NUMBER, prediction_rule
from pipelag.typed import MOST_RATE, signature_of

OptimizerFactory = Callable[[Iterable[Any]], Optimizer]
_MADE: WeakKeyDictionary[Optimizer, list[dict[str, Any]]] = WeakKeyDictionary()  # the groups' settings
_SET: WeakKeyDictionary[Optimizer, dict[int, float]] = WeakKeyDictionary()  # the groups' rates, as set last
COUNTS = ("step", "mu_product")  # numbers of torch's optimizers that Python reads, but in kernels fused or captured
SCHEDULED = (
    "the learning-rate scheduler attached to the {} would be ignored; give rate=lambda step: ..., a factor on its rate"
)


class CaffeSGD(Optimizer):
    """SGD as Caffe defines it, with the rate inside the velocity: v = m v + lr (g + wd w); w = w - v.

    With `nesterov`, w = w - ((1 + m) v_new - m v_old) (Caffe's NesterovSolver). Equal to `torch.optim.SGD` while the
    rate is constant; after a drop of the rate Caffe's velocity still carries the old one for about 1/(1-m) steps.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if "velocity" not in self.state[parameter]:
                    self.state[parameter]["velocity"] = torch.zeros_like(parameter)
            if all(parameter.device.type == "cpu" for parameter in parameters):
                for parameter in parameters:  # one by one, so that the tensors stay in a core's cache
                    self._update([parameter], group)
            else:
                self._update(parameters, group)

    def _update(self, parameters: list[torch.Tensor], group: Mapping[str, Any]) -> None:
        """Update several parameters in a few operations for all of them."""
        momentum, nesterov = group["momentum"], group["nesterov"]
        velocities = [self.state[parameter]["velocity"] for parameter in parameters]
        given = [parameter.grad for parameter in parameters if parameter.grad is not None]
        gradients = torch._foreach_add(given, parameters, alpha=group["weight_decay"])
        if nesterov:
            torch._foreach_add_(parameters, velocities, alpha=momentum)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, gradients, alpha=group["lr"])
        torch._foreach_sub_(parameters, velocities, alpha=1 + momentum if nesterov else 1)


@prediction_rule(CaffeSGD)
def caffe(state: Mapping[str, Any], group: Mapping[str, Any]) -> torch.Tensor | None:
    """Caffe's velocity, which includes the rate already."""
    return state.get("velocity")


BY_MOMENTUM.add(CaffeSGD)
BY_NUMBER.add(caffe)
AT_HAND.add(caffe)


class LARS(Optimizer):
    """SGD with momentum and a rate for each layer, lr * trust * |w| / (|g| + wd |w|) (You et al., 2017).

    One-dimensional tensors (biases, normalisation) and those whose weights or gradients are zero have the plain rate.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            decay = group["weight_decay"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.add(parameter, alpha=decay)
                if parameter.dim() > 1:
                    size, slope = parameter.norm(), parameter.grad.norm()
                    ratio = group["trust"] * size / (slope + decay * size)
                    gradient.mul_(torch.where((size > 0) & (slope > 0), ratio, torch.ones_like(ratio)))
                state = self.state[parameter]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(parameter)
                state["velocity"].mul_(group["momentum"]).add_(gradient, alpha=group["lr"])
                parameter.sub_(state["velocity"])


def group_by_stage(
    make: OptimizerFactory, stages: Sequence[Sequence[nn.Parameter]], base: dict[int, float], numbers: Sequence[int]
) -> Optimizer | None:
    """Make one optimizer whose groups belong to one stage each; None if no stage has parameters.

    Each group carries `stage` and `base_lr`, from which `set_rates` computes its `lr`.

    Args:
        make: called with one group for each stage that has parameters; it may split these further (for no weight decay
            of biases, say).
        stages: the parameters of each stage.
        base: stage number -> base learning rate, where it differs from the optimizer's own.
        numbers: the stages' numbers.

    Raises:
        PipelagError: `make` does not return such an optimizer.
    """
    groups = [
        {"params": list(parameters), "stage": number, **({"lr": base[number]} if number in base else {})}
        for number, parameters in zip(numbers, stages, strict=True)
        if len(parameters)
    ]
    if not groups:
        return None
    stage_of = {id(p): number for number, parameters in zip(numbers, stages, strict=True) for p in parameters}
    frozen = {id(p) for parameters in stages for p in parameters if not p.requires_grad}
    every = [parameter for parameters in stages for parameter in parameters]
    before = _memories(every)
    try:
        optimizer = make(groups)
    except ValueError as error:
        if "parameter groups" in str(error):
            raise PipelagError(f"the optimizer takes no parameter groups, but each stage needs one: {error}") from error
        error.add_note(f"while the optimizer of the stages {[group['stage'] for group in groups]} was made")
        raise
    _check(optimizer, stage_of, frozen, base)
    if any(now[0] != was[0] or now[1] > was[1] for now, was in zip(_memories(every), before, strict=True)):
        raise PipelagError(
            f"{type(optimizer).__name__} keeps views of its parameters' memory from when it is made, or gives them "
            "other memory then, but a pipeline moves them afterwards; let each step use the parameters themselves"
        )
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, np.generic):  # checkpoints hold plain Python numbers
                group[name] = value.item()
        group["base_lr"] = group["lr"]
    _MADE[optimizer] = [copy.deepcopy(_settings(group)) for group in optimizer.param_groups]
    return optimizer


def _memories(parameters: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
    """Where each parameter's memory is, and how many tensors share it."""
    memories = [(parameter.data_ptr(), parameter.untyped_storage()._cdata) for parameter in parameters]
    return [(place, torch._C._storage_Use_Count(memory)) for place, memory in memories]  # type: ignore[attr-defined]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's entries other than its parameters, its stage and its rates."""
    return {name: value for name, value in group.items() if name not in ("params", "stage", "lr", "base_lr")}


def made_with(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of an optimizer's groups when `group_by_stage` made it; some optimizers count there later."""
    return _MADE.get(optimizer) or [_settings(group) for group in optimizer.param_groups]


def counted(optimizer: Optimizer | None) -> list[dict[str, Any]]:
    """Per group, the settings that the optimizer itself has changed since it was made, such as a step counter.

    Schedule-free optimizers, for example, count their steps there.
    """
    if optimizer is None:
        return []
    return [
        {
            name: value
            for name, value in _settings(group).items()
            if name not in before or not _same(before[name], value)
        }
        for group, before in zip(optimizer.param_groups, made_with(optimizer), strict=True)
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


class OtherParameters(PipelagError):
    """An optimizer is over other parameters than it was given."""


def _check(optimizer: Any, stage_of: Mapping[int, int], frozen: set[int], base: Mapping[int, float]) -> None:
    """Refuse what is no optimizer, what cannot step stage by stage, and an optimizer over other parameters.

    Removes groups without parameters, and writes into each other group its `stage`.

    Args:
        stage_of: `id` of a parameter -> its stage's number.
        frozen: `id`s of the parameters that the optimizer may leave out.
        base: as in `group_by_stage`.
    """
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise PipelagError(f"the optimizer's function returns {kind}; it should return a torch.optim.Optimizer")
    closure = signature_of(optimizer.step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure is not None and closure.default is Parameter.empty):
        raise PipelagError(
            f"{kind} computes the loss again within its step, which a pipeline cannot do; use SGD or Adam"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise PipelagError("SparseAdam takes only sparse gradients, but those of a pipeline are dense; use Adam")
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):  # each step's rate is set here, whatever it has set
        raise PipelagError(SCHEDULED.format(kind))
    groups = optimizer.param_groups = [group for group in optimizer.param_groups if group["params"]]
    covered = {id(p) for group in groups for p in group["params"]}
    if not stage_of.keys() - frozen <= covered <= stage_of.keys():
        raise OtherParameters(
            f"{kind} is over other parameters than it was given; pass on what the function is called with: "
            "lambda params: torch.optim.SGD(params, lr=0.1). In bf16 and on real workers these are not the model's "
            "own tensors: recognise them by their shapes, or by attributes that you give to parameters"
        )
    for group in groups:
        its = sorted({stage_of[id(p)] for p in group["params"]})
        if len(its) > 1:
            raise PipelagError(
                f"{kind} has one parameter group over the stages {its[0]} to {its[-1]}, but each stage updates by "
                "itself; pass on the groups that the function is called with, or split each of them separately"
            )
        if its[0] in base and "stage" not in group:
            raise PipelagError(
                f"stage {its[0]} has a learning rate of its own, but the function of the {kind} drops the settings of "
                'its group; derive groups from it: group | {"params": [...]}'
            )
        group["stage"] = its[0]
        if (
            isinstance(group.get("lr"), bool)
            or not isinstance(group.get("lr"), (int, float))
            or not abs(group["lr"]) <= MOST_RATE
        ):
            raise PipelagError(
                f"{kind} has the learning rate {group.get('lr')!r}; it should be a finite number, {MOST_RATE:g} at most"
            )


def apart(optimizer: Optimizer | None) -> dict[nn.Parameter, int]:
    """Parameter -> which of its stage's groups, counted from 0, it is in."""
    numbers: dict[nn.Parameter, int] = {}
    seen: dict[int, int] = {}
    for group in optimizer.param_groups if optimizer is not None else []:
        number = seen.get(group["stage"], 0)
        seen[group["stage"]] = number + 1
        numbers |= dict.fromkeys(group["params"], number)
    return numbers


def hooked(optimizer: Optimizer) -> bool:
    """Whether hooks run around its steps: its own, or those of all optimizers."""
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]
    hooks += [torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks]
    return any(hooks)


def others_code(optimizer: Optimizer) -> bool:
    """Whether a step runs a user's or a library's code: the optimizer's own, its `step` set anew, or hooks."""
    ours = type(optimizer).__module__.startswith(("torch.optim", "pipelag."))
    return not ours or "step" in vars(optimizer) or hooked(optimizer)


def set_rates(optimizer: Optimizer, scale: Callable[[int], float]) -> None:
    """Set every group's rate to its base rate times `scale(stage)`.

    Raises:
        PipelagError: a rate is too large, or somebody has set one since.
    """
    known = _SET.setdefault(optimizer, {})
    for number, group in enumerate(optimizer.param_groups):
        if group["lr"] != known.get(number, group["lr"]):
            raise PipelagError(
                f"the learning rate of stage {group['stage']} was set to {shown(group['lr'])} in the optimizer, which "
                "would be ignored, since each step's rate is set anew; give rate=lambda step: ..., a factor on the "
                "rates, or change a group's 'base_lr'"
            )
        rate = group["lr"] = known[number] = float(group["base_lr"] * scale(group["stage"]))
        if rate > MOST_RATE:
            raise PipelagError(
                f"stage {group['stage']} has the learning rate {rate:g}; it should be {MOST_RATE:g} at most"
            )


def restore_state(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a `state_dict` into an optimizer such that every tensor keeps its own dtype, on the right device.

    torch's `load_state_dict` converts all tensors but the step counts to the parameter's dtype and device.
    """
    optimizer.load_state_dict(dict(saved))
    _SET.pop(optimizer, None)
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in saved["state"].items():
        parameter, group = parameters[number]
        for key, value in placed(values, parameter, group).items():
            now = optimizer.state[parameter][key]
            if isinstance(value, torch.Tensor) and (now.dtype, now.device) != (value.dtype, value.device):
                optimizer.state[parameter][key] = value.detach().clone()


def placed(values: Mapping[str, Any], parameter: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's state, moved to the parameter's device; counts that Python reads stay where they are."""
    read = () if group.get("fused") or group.get("capturable") else COUNTS
    return {
        key: value.to(parameter.device) if isinstance(value, torch.Tensor) and key not in read else value
        for key, value in values.items()
    }


def adopt_state(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Give an optimizer the state (momentum, moments) that its parameters had in the phase before."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in state:
                optimizer.state[parameter] = state[parameter]
