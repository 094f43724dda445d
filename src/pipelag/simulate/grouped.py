"""Takes microbatches that read the same weights through a stage in one pass: fewer, larger kernels, the same training.

A minibatch in n microbatches goes through every stage n times, and a small network spends most of that time on
launching kernels. Weights do not change within a minibatch, so its passes may come in any order. A stage's microbatches
form a few runs, and all microbatches of a run read one version in their forwards and one in their backwards. Each run
is one pass. Batch norm's statistics, dropout's draws and the loss are still computed for each microbatch. The only
difference is rounding, since sums over samples are added in another order.

A layer that mixes samples in some other way would train differently, so a phase's first minibatch is computed both
ways and compared. A layer that mixes samples only slightly might change gradients no more than rounding does. Each
stage is therefore also tested for whether a microbatch's outputs stay the same when the other microbatches are
replaced. As kernels compute rows independently, they mostly do, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from pipelag.data.split import split
from pipelag.errors import PipelagError
from pipelag.randomness import seed_stage, set_state, state_of
from pipelag.simulate.recordable import Results
from pipelag.stage.recompute import Gradients, backward_through, differentiable, fresh
from pipelag.tensors import alone, as_real, as_tuple, entering, unchanged_buffers

if TYPE_CHECKING:
    from pipelag.simulate.pipeline import SimulatedPipeline

Lags = Mapping[str, Sequence[Sequence[int]]]  # kind of pass -> lags per stage and microbatch of an update
FULL, ROUNDED = 0.01, 0.05  # the share of a gradient's norm that rounding may change, in float32 and in bfloat16
# How much of an output's norm rounding may change if the pass has other samples in it (in a packed sequence, say).
# PLACES: in units of the last place. SHORT: for numbers computed in 16 bits, a share of the norm below one such unit,
# since few of them are rounded differently.
PLACES, SHORT = 10, 0.0002
MIXES = "a layer mixes the samples of a minibatch, or draws random numbers in a way of its own"


class Unfit(Exception):
    """The model's microbatches cannot share passes, for the reason given."""


class Grouped:
    """One phase's steps with passes that microbatches share. `why`: why they do not; empty while they do."""

    def __init__(self, pipeline: SimulatedPipeline, asked: bool) -> None:
        reasons = {
            "it was not asked for": not asked,
            "a minibatch goes through in one piece": pipeline.microbatches == 1,
            "the forward is run again before the backward": bool(pipeline.recompute),
            "stages have replicas, whose gradients are kept over a round": pipeline.rounds is not None,
        }
        self.why = next((reason for reason, holds in reasons.items() if holds), "")
        self.tried = bool(self.why)
        self.apart = [] if self.why else [Apart(stage, pipeline.device) for stage in pipeline.stages]

    def loss(self, pipeline: SimulatedPipeline, t: int, inputs: Any, targets: Any, lags: Lags) -> torch.Tensor | None:
        """The loss of the phase's minibatch t, with its gradients left in the parameters.

        None: nothing was done, and the minibatch has to be computed microbatch by microbatch.

        Raises:
            PipelagError: the first minibatch's microbatches could share passes, but this one's cannot.
        """
        if not self.why and pipeline.observe is not None:
            self.why = "somebody looks at what each microbatch reads"
        if not self.tried:
            self.tried, self.why = True, self.why or self._unfit(pipeline, t, inputs, targets, lags)
        if self.why:
            return None
        try:
            return Passes(pipeline, self.apart, t, lags).loss(inputs, targets)
        except Unfit as error:
            raise PipelagError(
                "the microbatches of this minibatch cannot share passes, as those of the phase's first could: "
                f"{error}; train with grouped=False"
            ) from error

    def _unfit(self, pipeline: SimulatedPipeline, t: int, inputs: Any, targets: Any, lags: Lags) -> str:
        """Compute a minibatch both ways, leaving no trace; returns why grouping does not work, or ""."""
        with left_as_it_was(pipeline):
            expected = results_of(pipeline, pipeline.by_microbatches(t, inputs, targets, lags))
            counted = self._counted(pipeline)
        limit = ROUNDED if pipeline.rounded else FULL
        # In a phase's first minibatch all microbatches read one version, so that every stage has a single run. Here
        # every second stage is given two runs. With 2 microbatches these are of one each, so that a second trial gives
        # them to the other stages.
        for first in range(1 if pipeline.microbatches > 2 else 2):
            passes = Passes(pipeline, self.apart, t, lags, trial=True)
            for index in range(first, len(passes.runs), 2):
                passes.runs[index] = [range(1), range(1, passes.count)]
            try:
                with left_as_it_was(pipeline):
                    grouped = results_of(pipeline, passes.loss(inputs, targets))
                    alike = near(counted, self._counted(pipeline), 0.0)
                alike = alike and all(near(*pair, limit) for pair in zip(expected, grouped, strict=True))
                if not alike or (not first and not passes.independent(inputs)):
                    return MIXES
            except Unfit as error:
                return str(error)
            except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
                return f"a layer does not take several microbatches: {type(error).__name__}: {error}".splitlines()[0]
        return ""

    def _counted(self, pipeline: SimulatedPipeline) -> Results:
        """Copies of the buffers that must not depend on the number of passes: those of layers not in `Apart.layers`."""
        by_itself = {layer for apart in self.apart for layer, _ in apart.layers}
        layers = (layer for stage in pipeline.stages for layer in stage.modules() if layer not in by_itself)
        return [buffer.clone() for layer in layers for buffer in layer._buffers.values() if buffer is not None]

    def state_dict(self) -> dict[str, Any]:
        """What the first minibatch has shown, since a resumed run does not compute it again."""
        return {"tried": self.tried, "why": self.why}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an older checkpoint's is empty."""
        self.tried, self.why = state.get("tried", self.tried), state.get("why", self.why)


class Passes:
    """The passes of the phase's minibatch t: per stage, one for each run of microbatches (`runs`, from 0)."""

    def __init__(
        self, pipeline: SimulatedPipeline, apart: Sequence[Apart], t: int, lags: Lags, trial: bool = False
    ) -> None:
        self.pipeline, self.apart, self.lags, self.trial = pipeline, apart, lags, trial
        self.count = pipeline.microbatches
        self.first = t * self.count
        self.runs = [self._runs(index) for index in range(len(pipeline.stages))]

    def _runs(self, index: int) -> list[range]:
        def reads(j: int) -> list[Any]:
            weights, place = self.pipeline.weights[index], self.pipeline.version
            return [weights.reads(kind, *place(index, self.first + j, self.lags[kind])) for kind in ("F", "B")]

        runs = [list(run) for _, run in groupby(range(self.count), reads)]
        return [range(run[0], run[-1] + 1) for run in runs]

    def loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        """Compute both passes: returns the minibatch's loss, detached, and leaves its gradients in the parameters."""
        pipeline, target_parts = self.pipeline, split(targets, self.count)
        entered: list[list[Any]] = []  # by stage and run
        leaving: list[list[Any]] = []
        losses: list[torch.Tensor] = []
        value, last = inputs, len(pipeline.stages) - 1
        for index in range(last + 1):
            parts = parted(value, self.runs[index], self.count)
            entered.append([fresh(by_itself(part) if len(parts) > 1 else part) for part in parts])
            leaving.append([])
            for run, part in zip(self.runs[index], entered[index], strict=True):
                output = self._forward(index, run, part)
                if index == last:
                    each = zip(split(output, len(run)), target_parts[run.start : run.stop], strict=True)
                    losses += (ends := [pipeline.part_of_loss(*pair) for pair in each])
                    output = sum(ends[1:], ends[0])
                leaving[index].append(output)
            value = joined(leaving[index]) if index < last else None
        self._backward(entered, leaving)
        total = losses[0].detach()
        for loss in losses[1:]:
            total = total + loss.detach()
        return total

    def _forward(self, index: int, run: range, part: Any) -> Any:
        pipeline = self.pipeline
        self._load("F", index, run)
        begun = pipeline.start * self.count + self.first
        apart = self.apart[index](pipeline.seed, [begun + j for j in run], index + 1)
        with apart, pipeline.computing(), pipeline.guards[index]():
            drawn = self._drawn() if self.trial and len(run) > 1 else []
            value = pipeline.stages[index](entering(part))
            if drawn and not all(map(torch.equal, drawn, self._drawn())):
                raise Unfit("a layer draws random numbers in a way of its own")
            return value

    @torch.no_grad()
    def independent(self, inputs: Any) -> bool:
        """Whether a microbatch's output at each stage stays the same if all other microbatches are copies of it.

        It is tested for the first and for the last microbatch.
        """
        parts = self._each(inputs)
        for index in range(len(self.runs)):
            outputs = self._together(index, parts)
            for j in (0, self.count - 1):
                alone = self._together(index, [parts[j]] * self.count)[j]
                for a, b in zip(tree_leaves(outputs[j]), tree_leaves(alone), strict=True):
                    if not near([a], [b], rounding(a.dtype, self.pipeline.rounded)):
                        return False
            parts = outputs
        return True

    def _together(self, index: int, parts: Sequence[Any]) -> list[Any]:
        """A stage's outputs by microbatch, from one pass over all of `parts`; a layer may change its input in place."""
        whole = tree_map(lambda *tensors: torch.cat(tensors), *parts)
        with left_as_it_was(self.pipeline):
            return self._each(self._forward(index, range(self.count), whole))

    def _each(self, value: Any) -> list[Any]:
        return parted(value, [range(j, j + 1) for j in range(self.count)], self.count)

    def _drawn(self) -> list[torch.Tensor]:
        """The states of the random generators."""
        return [state_of(device) for device in {torch.device("cpu"), self.pipeline.device}]

    def _backward(self, entered: list[list[Any]], leaving: list[list[Any]]) -> None:
        """Run the backwards from the last stage to the first, each run with the weights that its backwards read."""
        gradients: Gradients | None = None
        for index in range(len(leaving) - 1, -1, -1):
            runs = self.runs[index]
            arriving = [None] * len(runs) if gradients is None else parted(gradients, runs, self.count)
            returned: list[Gradients] = []
            wanted = [differentiable(inputs) for inputs in entered[index]]
            for run, gradient in zip(runs, arriving, strict=True):
                self._load("B", index, run)
                returned.append(backward_through(leaving[index].pop(0), gradient, entered[index].pop(0)))
            gradients = tuple(map(gradient_of, zip(*wanted, strict=True), zip(*returned, strict=True)))

    def _load(self, kind: str, index: int, run: range) -> None:
        place = self.pipeline.version(index, self.first + run.start, self.lags[kind])
        self.pipeline.weights[index].load(kind, *place)


def parted(value: Any, runs: Sequence[range], count: int) -> list[Any]:
    """Split a minibatch in `count` microbatches into the parts of each run; a None (no gradient) goes to all."""
    if len(runs) == 1 or value is None:
        return [value] * len(runs)
    if isinstance(value, Mapping):
        return [dict(zip(value, part, strict=True)) for part in parted(tuple(value.values()), runs, count)]
    if isinstance(value, tuple):
        return list(zip(*(parted(item, runs, count) for item in value), strict=True)) or [()] * len(runs)
    if not isinstance(value, torch.Tensor) or not value.dim() or len(value) % count:
        raise Unfit("what goes from a stage to the next is not one row per sample")
    size = len(value) // count
    return [value[run.start * size : run.stop * size] for run in runs]


def by_itself(part: Any) -> Any:
    """A run's part with its own version counter, so that a layer may change it in place without harm to the others."""
    return tree_map(lambda tensor: tensor.data.requires_grad_(tensor.requires_grad), part)


def joined(outputs: Sequence[Any]) -> Any:
    """The outputs of a stage's runs joined and detached; they require gradients if they did before."""
    if len(outputs) == 1:
        return outputs[0]
    each = zip(*map(as_tuple, outputs), strict=True)
    whole = [torch.cat([t.detach() for t in parts]).requires_grad_(parts[0].requires_grad) for parts in each]
    return tuple(whole) if isinstance(outputs[0], tuple) else alone(whole)


def gradient_of(inputs: Sequence[torch.Tensor], parts: Gradients) -> torch.Tensor | None:
    """The gradient of an input over all runs, joined from those of each run; None if no run has one."""
    if all(part is None for part in parts):
        return None
    each = [torch.zeros_like(entered) if part is None else part for entered, part in zip(inputs, parts, strict=True)]
    return torch.cat(each) if len(each) > 1 else each[0]


class Apart:
    """Runs those layers of a stage that depend on the microbatch for each one apart, with its own random numbers."""

    def __init__(self, stage: nn.Module, device: torch.device) -> None:
        self.device, self.states = device, list[torch.Tensor]()
        self.layers = [(layer, draws(layer)) for layer in stage.modules() if draws(layer) or normalises(layer)]
        self.drawing = any(drawn for _, drawn in self.layers)

    @contextmanager
    def __call__(self, seed: int, microbatches: Sequence[int], stage: int) -> Iterator[None]:
        """A context for a run's forward. `microbatches`: their numbers, counted from the start of the training."""
        self.states.clear()
        for number in microbatches if self.drawing else microbatches[:1]:
            seed_stage(seed, number, stage, self.device)
            self.states += [state_of(self.device)] if len(microbatches) > 1 else []
        layers = [pair for pair in self.layers if not idle(pair[0])] if len(microbatches) > 1 else []
        own = [vars(layer).get("forward") for layer, _ in layers]  # set by other libraries, perhaps
        for layer, drawn in layers:
            layer.forward = partial(self._each, layer.forward, len(microbatches), drawn)
        try:
            yield
        finally:
            for (layer, _), forward in zip(layers, own, strict=True):
                del layer.forward
                if forward is not None:
                    layer.forward = forward

    def _each(self, forward: Callable[..., torch.Tensor], count: int, drawn: bool, x: Any, *rest: Any) -> torch.Tensor:
        """A layer's output for a run, computed microbatch by microbatch."""
        if len(x) % count:
            raise Unfit("a layer that goes by the microbatch is given something else than a row per sample")
        outputs, before = [], state_of(self.device) if drawn else None
        for j, part in enumerate(x.split(len(x) // count)):
            if drawn:
                set_state(self.states[j], self.device)
            outputs.append(forward(part, *rest))
            if drawn:
                self.states[j] = state_of(self.device)
        if before is not None:
            set_state(before, self.device)
        return torch.cat(outputs)


def normalises(layer: nn.Module) -> bool:
    """Whether a layer computes statistics over a microbatch."""
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def draws(layer: nn.Module) -> bool:
    """Whether a layer is known to draw random numbers; others that do are found in the trial."""
    return isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__.endswith("Dropout")


def idle(layer: nn.Module) -> bool:
    """Whether a layer that `draws` leaves its input as it is for now, which then need not be a row per sample."""
    return getattr(layer, "p", None) == 0 or (isinstance(layer, nn.modules.dropout._DropoutNd) and not layer.training)


@contextmanager
def left_as_it_was(pipeline: SimulatedPipeline) -> Iterator[None]:
    """A context whose passes leave no gradients, statistics or counters behind."""
    with ExitStack() as stack:
        for stage in pipeline.stages:
            stack.enter_context(unchanged_buffers(stage))
        try:
            yield
        finally:
            for weights in pipeline.weights:
                for parameter in weights.flat.parameters:
                    parameter.grad = None


def results_of(pipeline: SimulatedPipeline, loss: torch.Tensor) -> list[Results]:
    """A minibatch's results: its loss, each stage's gradients, and copies of each stage's buffers."""
    gradients: list[Results] = [[parameter.grad for parameter in each.flat.parameters] for each in pipeline.weights]
    buffers: list[Results] = [[buffer.clone() for buffer in stage.buffers()] for stage in pipeline.stages]
    return [[loss], *gradients, *buffers]


def near(first: Results, second: Results, limit: float) -> bool:
    """Whether two lists of tensors differ by at most a share `limit` of the first's norm; equal elements may be inf."""
    if [value is None for value in first] != [value is None for value in second]:
        return False
    apart = length = 0.0
    for a, b in zip(first, second, strict=True):
        if a is not None and b is not None:
            a, b = as_real(a).double(), as_real(b).double()
            equal = (a == b) | (a.isnan() & b.isnan())
            apart += float((a - b).masked_fill(equal, 0).square().sum())
            length += float(a.masked_fill(~a.isfinite(), 0).square().sum())
    return apart <= limit**2 * length


def rounding(dtype: torch.dtype, rounded: bool) -> float:
    """The share of its norm by which an output may differ when it is computed by kernels of other sizes."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    least = torch.finfo(dtype).eps
    return SHORT if rounded or PLACES * least > SHORT else PLACES * least
