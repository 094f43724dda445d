"""A simulated step's forward and backward as two CUDA graphs, recorded once and replayed with the same bits.

With a small model, a GPU waits for Python to launch kernels one by one; a graph launches all kernels of a pass at once.
In every step, the weights that passes read are copied into the same flat buffers (`pipelag.stage.weights`), so two
recordings serve all steps. The copies differ from step to step and stay outside of the graphs, as does the update.

A graph repeats kernels but not Python code. Passes whose Python code matters are therefore not recorded (`why_eager`,
`Unfit`), and the first replay is compared with the eager passes. Steps that cannot be replayed are computed eagerly.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from operator import is_not
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipelag.simulate.attributes import Attributes
from pipelag.simulate.recordable import (
    Results,
    Settings,
    alike,
    counted_together,
    counting_once,
    form_of,
    generators_of,
    leaves_of,
    modules_of,
    objects_of,
    own_parameters,
    parameters_of,
    same_generators,
    set_generators,
    why_eager,
)
from pipelag.stage.rounded import gradients_of
from pipelag.tensors import GRADIENT, copy_each, unchanged_buffers

if TYPE_CHECKING:
    from pipelag.simulate.pipeline import SimulatedPipeline

Show = Callable[..., None]  # (kind, observed=True): let the parameters hold what passes of a kind read


class Unfit(Exception):
    """The passes cannot be replayed, for the reason given."""


class Recorder(Protocol):
    """Makes recordings; the part of this module that needs a GPU."""

    def aside(self) -> Any:
        """A context in which passes are tried before they are recorded; raises if they synchronise with the device."""

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """Record the kernels that `passes` launches, without running them; returns (replay, where it puts results)."""


class OnCuda:
    """Records CUDA graphs with one memory pool, in which the backward finds what the forward has left."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On another stream, as torch asks for, since what libraries set up on first use must not be recorded."""
        main, side = torch.cuda.current_stream(self.stream.device), torch.cuda.Stream(self.stream.device)
        mode = torch.cuda.get_sync_debug_mode()
        side.wait_stream(main)
        try:
            with warnings.catch_warnings(), torch.cuda.stream(side):
                warnings.simplefilter("ignore")  # it says that some synchronisations are missed; recording finds those
                torch.cuda.set_sync_debug_mode("error")
                yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            main.wait_stream(side)

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """Capture a graph."""
        graph, device = torch.cuda.CUDAGraph(), self.stream.device
        with (
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream(device)),  # returns to it even if ending a capture fails
            torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"),
        ):
            results = passes()
        return graph.replay, results


def recorder_of(device: torch.device) -> Recorder | None:
    """The recorder for a device; None if the device has no graphs."""
    return OnCuda(device) if device.type == "cuda" else None


@dataclass
class Recording:
    """A recorded forward and backward over fixed tensors.

    given: the tensors of the minibatch, to be overwritten before a replay. settings: what they were when the recording
    was made. parameters: the stages'. stepped: the parameters that get the gradients.
    """

    given: list[torch.Tensor]
    forward: Callable[[], None]
    loss: Results
    backward: Callable[[], None]
    gradients: Results
    parameters: list[nn.Parameter]
    stepped: list[nn.Parameter]
    settings: Settings

    def replay(self, show: Show) -> None:
        """Replay both passes on the minibatch in `given`, each with the weights that it reads."""
        show("F")
        self.forward()
        show("B")
        self.backward()


class Graphs:
    """Replays one phase's steps. `why`: why steps are eager; empty while they are replayed."""

    def __init__(self, asked: bool) -> None:
        self.open, self.failed = asked, False
        self.why = "no two minibatches of one form have come in succession" if asked else "graphs were not asked for"
        self.form: Any = None
        self.told = set[str]()
        self.recording: Recording | None = None

    def close(self, why: str = "") -> None:
        """Replay no more steps, and free the recording's memory. `why`: the new reason, if there is one."""
        self.recording, self.open, self.why = None, False, why or self.why

    def loss(self, pipeline: SimulatedPipeline, inputs: Any, targets: Any, show: Show) -> torch.Tensor | None:
        """The minibatch's loss, with its gradients left in the parameters; None if the step has to be eager.

        The first step of a phase is always eager, for guards to examine it and for libraries to choose their kernels. A
        recording is made of the first minibatch whose form is that of the one before. Minibatches of another form (such
        as a shorter last one) are eager.
        """
        if not self.open:
            return None
        parameters = self.recording.parameters if self.recording is not None else own_parameters(pipeline)
        stepped = self.recording.stepped if self.recording is not None else parameters_of(pipeline)
        if any(map(is_not, map(GRADIENT, chain(parameters, stepped)), repeat(None))):
            return None  # there are gradients already, and an eager backward adds to them
        leaves, spec = tree_flatten((inputs, targets))
        form = form_of(leaves, spec, pipeline.device)
        if self.recording is None:
            if form is None or form != self.form:
                self.form = form
                return None
            self._open(pipeline, leaves, spec, show)
        recording = self.recording
        if recording is None or form != self.form:
            return None
        if why := recording.settings.differ():
            self._tell(f" while {why}")
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for place, tensor in zip(recording.given, tensors, strict=True):
            place.copy_(tensor)
        recording.replay(show)
        for parameter, gradient in zip(recording.stepped, recording.gradients, strict=True):
            parameter.grad = gradient
        (loss,) = recording.loss
        assert loss is not None
        return loss.clone()  # the next replay overwrites the loss (and the gradients)

    def _tell(self, why: str) -> None:
        """Say once that steps are eager."""
        if why not in self.told:
            self.told.add(why)
            print(f"pipelag: steps are computed without CUDA graphs{why}", file=sys.stderr)

    def _open(self, pipeline: SimulatedPipeline, leaves: list[Any], spec: Any, show: Show) -> None:
        """Make the recording or note why there is none; leaves everything else as it was before."""
        parts, recorder = modules_of(pipeline), recorder_of(pipeline.device)
        self.why = why_eager(pipeline, parts) if recorder is not None else "graphs need a CUDA device"
        if self.why or recorder is None:
            self.open = False
            return
        generators = generators_of(pipeline.device)
        attributes = Attributes([*parts.modules(), *objects_of(pipeline.loss)])
        try:
            with unchanged_buffers(parts):
                self.recording = self._recorded(pipeline, parts, recorder, attributes, [leaves, spec], show)
        except Exception as error:  # the model cannot be recorded; if it has an error, the eager step will raise it
            self.open, self.failed = False, True
            known = isinstance(error, Unfit)
            self.why = str(error) if known else f"recording failed: {type(error).__name__}: {error}".splitlines()[0]
            self._tell(f": {self.why}")
        finally:
            attributes.restore()
            set_generators(generators, pipeline.device)
            for parameter in parameters_of(pipeline):
                parameter.grad = None

    def _recorded(
        self,
        pipeline: SimulatedPipeline,
        parts: nn.Module,
        recorder: Recorder,
        attributes: Attributes,
        minibatch: list[Any],
        show: Show,
    ) -> Recording:
        """Try the passes, record them, and check that a replay gives the same results."""
        generators = generators_of(pipeline.device)
        parameters, settings = own_parameters(pipeline), Settings(pipeline, parts, attributes)
        passes = Passes(pipeline, *minibatch)
        if form_of(passes.leaves, passes.spec, pipeline.device) != self.form:
            raise Unfit("a tensor of the minibatch does not lie densely in memory")
        with unchanged_buffers(parts):
            with recorder.aside():
                expected = [*passes.both(show), *_each(parts, torch.clone)]
            if changed := attributes.changed():
                raise Unfit(f"a pass sets {changed}, which a graph would not")
        if not same_generators(generators, generators_of(pipeline.device)):
            raise Unfit("a pass draws random numbers, of which every minibatch has its own")
        if any(tensor._version != 1 for tensor in passes.given):
            raise Unfit("a pass writes into its minibatch")
        passes.shorten(parts, expected, recorder, show)
        passes.places = pipeline.flat_step.places()
        forward, loss = recorder.record(passes.forward)
        backward, gradients = recorder.record(passes.backward)
        stepped = parameters_of(pipeline)
        recording = Recording(passes.given, forward, loss, backward, gradients, parameters, stepped, settings)
        for place in passes.places:
            if place is not None:
                place.zero_()
        recording.replay(lambda kind: show(kind, observed=False))
        if not all(map(alike, expected, [loss, gradients, *_each(parts)])):
            raise Unfit("a replayed step differs from the same step without graphs")
        return recording


def gathered(gradients: Results, places: Sequence[torch.Tensor | None]) -> Results:
    """The gradients, copied in one call to the places that there are for them."""
    there = [
        place if place is not None and gradient is not None and gradient.layout is torch.strided else None
        for place, gradient in zip(places, gradients, strict=True)
    ]
    copy_each((place, gradient) for place, gradient in zip(there, gradients, strict=True) if place is not None)
    return [gradient if place is None else place for place, gradient in zip(there, gradients, strict=True)]


def _each(parts: nn.Module, what: Callable[[torch.Tensor], torch.Tensor] = torch.detach) -> list[Results]:
    return [[what(buffer)] for buffer in parts.buffers()]


class Passes:
    """The forward and the backward of a minibatch, on a copy of it at fixed addresses."""

    def __init__(self, pipeline: SimulatedPipeline, leaves: list[Any], spec: Any) -> None:
        self.pipeline, self.spec = pipeline, spec
        self.leaves = [
            torch.empty_like(leaf).copy_(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        self.given = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self.alive: list[torch.Tensor] = []
        # Batch norms whose counts are raised in one call; whether `gradients_of` takes all gradients at once.
        self.counting, self.at_once = list[_BatchNorm](), False
        self.places: list[torch.Tensor | None] = [None] * len(parameters_of(pipeline))  # for the gradients, if not None

    def forward(self) -> Results:
        """The loss."""
        inputs, targets = tree_unflatten(self.leaves, self.spec)
        with counted_together(self.counting):
            self.alive = [self.pipeline.plain(inputs, targets)]
        return [self.alive[0].detach()]

    def strays(self) -> bool:
        """Whether the backward would give gradients to tensors other than the stages' parameters."""
        known = set(map(id, own_parameters(self.pipeline)))
        return any(id(leaf) not in known for leaf in leaves_of(self.alive[0]))

    def backward(self) -> Results:
        """The gradients of the parameters; None for those that get none."""
        loss = self.alive.pop()
        if self.at_once:
            return gradients_of(loss, [weights.flat for weights in self.pipeline.weights], self.places)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in parameters_of(self.pipeline)]
        for parameter in parameters_of(self.pipeline):
            parameter.grad = None
        return gathered(gradients, self.places)

    def both(self, show: Show) -> list[Results]:
        """Loss and gradients, each pass with the weights that it reads."""
        show("F", observed=False)
        loss = self.forward()
        if self.strays():
            raise Unfit("a gradient goes to a tensor outside the stages")
        show("B", observed=False)
        return [loss, self.backward()]

    def shorten(self, parts: nn.Module, expected: Sequence[Results], recorder: Recorder, show: Show) -> None:
        """Let the passes launch fewer kernels, unless that raises an error or gives other results than expected."""
        after = [value for (value,) in expected[2:] if value is not None]
        self.counting, self.at_once = counting_once(parts, after), self.pipeline.rounded
        if not self.counting and not self.at_once:
            return
        try:
            with unchanged_buffers(parts), recorder.aside():
                shortened = [*self.both(show), *_each(parts, torch.clone)]
            same = all(map(alike, expected, shortened))
        except Exception:  # a layer reads the counts, or a backward runs another backward
            same = False
        for parameter in parameters_of(self.pipeline):
            parameter.grad = None
        if not same:
            self.counting, self.at_once = [], False
