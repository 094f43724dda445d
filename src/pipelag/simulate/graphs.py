"""A simulated step as two CUDA graphs: its forward and its backward, recorded once and replayed, bit for bit.

Small models keep a GPU waiting for Python, which launches their kernels one by one; a graph launches all of a pass at
once. What passes read is copied into the same flat buffers in every step (`pipelag.stage.weights`), so two recordings
serve all steps, and moving the versions, which differ, stays outside of them, as does the update.

A graph repeats kernels, not Python. So nothing is recorded that Python has a part in (`why_eager`, `Unfit`), the first
recording is compared with the passes as they are, and whatever does not fit is computed as ever.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipelag.simulate.attributes import Attributes
from pipelag.simulate.recordable import (
    Results,
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
    settings_of,
    why_eager,
)
from pipelag.stage.rounded import gradients_of
from pipelag.tensors import unchanged_buffers

if TYPE_CHECKING:
    from pipelag.simulate.pipeline import SimulatedPipeline

Show = Callable[..., None]  # (kind, observed=True): let the parameters hold what passes of a kind read


class Unfit(Exception):
    """These passes cannot be replayed, for the reason given."""


class Recorder(Protocol):
    """Makes recordings: what of them only a GPU can do."""

    def aside(self) -> Any:
        """A context in which passes are tried before they are recorded; raises where they wait for the device."""

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """Record what is launched meanwhile, which is not computed; returns its replay, and where that puts results."""


class OnCuda:
    """CUDA graphs with one memory pool, so that the backward's finds what the forward's has left in it."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On another stream, as torch wants it: what libraries set up at a first use must not be recorded."""
        main, side = torch.cuda.current_stream(self.stream.device), torch.cuda.Stream(self.stream.device)
        mode = torch.cuda.get_sync_debug_mode()
        side.wait_stream(main)
        try:
            with warnings.catch_warnings(), torch.cuda.stream(side):
                warnings.simplefilter("ignore")  # that not every synchronisation is found: a recording finds the others
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
            torch.cuda.stream(torch.cuda.current_stream(device)),  # back to it where a capture fails to end
            torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"),
        ):
            results = passes()
        return graph.replay, results


def recorder_of(device: torch.device) -> Recorder | None:
    """What records on a device; None where nothing can."""
    return OnCuda(device) if device.type == "cuda" else None


@dataclass
class Recording:
    """Two passes over fixed tensors. settings: those of `settings_of` that it was made under, of these modules and
    parameters of the stages."""

    given: list[torch.Tensor]
    forward: Callable[[], None]
    loss: Results
    backward: Callable[[], None]
    gradients: Results
    modules: list[nn.Module]
    parameters: list[nn.Parameter]
    settings: Any

    def replay(self, show: Show) -> None:
        """Both passes of the minibatch given, each over the weights that are its own."""
        show("F")
        self.forward()
        show("B")
        self.backward()


class Graphs:
    """The recording of one phase's steps. `why` says why steps are eager; it is empty while they are replayed."""

    def __init__(self, asked: bool) -> None:
        self.open, self.failed = asked, False
        self.why = "no two minibatches of one form have come in succession" if asked else "graphs were not asked for"
        self.form: Any = None
        self.recording: Recording | None = None

    def close(self, why: str = "") -> None:
        """Make no steps any more, for a reason where there is a new one; the memory of the recording is free."""
        self.recording, self.open, self.why = None, False, why or self.why

    def loss(self, pipeline: SimulatedPipeline, inputs: Any, targets: Any, show: Show) -> torch.Tensor | None:
        """The minibatch's loss, its gradients given to the parameters; None where the step has to be eager.

        The first step of a phase is: guards look at it, and libraries choose their kernels. A recording is made of the
        first minibatch that has the form of the one before; those of another form (the last, short one) are eager.
        """
        parameters = self.recording.parameters if self.recording is not None else own_parameters(pipeline)
        if not self.open or any(parameter.grad is not None for parameter in chain(parameters, parameters_of(pipeline))):
            return None  # an eager backward would add to them
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
        if settings_of(pipeline, recording.modules, recording.parameters) != recording.settings:
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for place, tensor in zip(recording.given, tensors, strict=True):
            place.copy_(tensor)
        recording.replay(show)
        for parameter, gradient in zip(parameters_of(pipeline), recording.gradients, strict=True):
            parameter.grad = gradient
        (loss,) = recording.loss
        assert loss is not None
        return loss.clone()  # the next replay overwrites it, as it does the gradients

    def _open(self, pipeline: SimulatedPipeline, leaves: list[Any], spec: Any, show: Show) -> None:
        """Make the recording, or say why there is none; either way, everything is as it was before."""
        parts, recorder = modules_of(pipeline), recorder_of(pipeline.device)
        self.why = why_eager(pipeline, parts) if recorder is not None else "graphs need a CUDA device"
        if self.why or recorder is None:
            self.open = False
            return
        generators = generators_of(pipeline.device)
        attributes = Attributes([*parts.modules(), *objects_of(pipeline.loss)])
        try:
            with unchanged_buffers(parts):
                self.recording = self._recorded(pipeline, recorder, attributes, [leaves, spec], show)
        except Exception as error:  # whatever keeps a model from being recorded: the eager step says it if it is wrong
            self.open, self.failed = False, True
            known = isinstance(error, Unfit)
            self.why = str(error) if known else f"recording failed: {type(error).__name__}: {error}".splitlines()[0]
            print(f"pipelag: steps are computed without CUDA graphs: {self.why}", file=sys.stderr)
        finally:
            attributes.restore()
            set_generators(generators, pipeline.device)
            for parameter in parameters_of(pipeline):
                parameter.grad = None

    def _recorded(
        self, pipeline: SimulatedPipeline, recorder: Recorder, attributes: Attributes, minibatch: list[Any], show: Show
    ) -> Recording:
        """Try the passes, record them, and see that a replay does what they did."""
        generators, parts = generators_of(pipeline.device), modules_of(pipeline)
        modules = [module for stage in pipeline.stages for module in stage.modules()]
        parameters = own_parameters(pipeline)
        settings = settings_of(pipeline, modules, parameters)
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
        forward, loss = recorder.record(passes.forward)
        backward, gradients = recorder.record(passes.backward)
        recording = Recording(passes.given, forward, loss, backward, gradients, modules, parameters, settings)
        recording.replay(lambda kind: show(kind, observed=False))
        if not all(map(alike, expected, [loss, gradients, *_each(parts)])):
            raise Unfit("a replayed step differs from the same step without graphs")
        return recording


def _each(parts: nn.Module, what: Callable[[torch.Tensor], torch.Tensor] = torch.detach) -> list[Results]:
    return [[what(buffer)] for buffer in parts.buffers()]


class Passes:
    """The forward and the backward of a minibatch, over a copy of it that stays where it is."""

    def __init__(self, pipeline: SimulatedPipeline, leaves: list[Any], spec: Any) -> None:
        self.pipeline, self.spec = pipeline, spec
        self.leaves = [
            torch.empty_like(leaf).copy_(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        self.given = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self.alive: list[torch.Tensor] = []
        # Batch norms whose counts are raised together; whether rounded parameters' gradients are taken together.
        self.counting, self.at_once = list[_BatchNorm](), False

    def forward(self) -> Results:
        """The loss."""
        inputs, targets = tree_unflatten(self.leaves, self.spec)
        with counted_together(self.counting):
            self.alive = [self.pipeline.plain(inputs, targets)]
        return [self.alive[0].detach()]

    def strays(self) -> bool:
        """Whether the backward would give gradients to others than the stages' parameters."""
        known = set(map(id, own_parameters(self.pipeline)))
        return any(id(leaf) not in known for leaf in leaves_of(self.alive[0]))

    def backward(self) -> Results:
        """The gradients of the parameters, None of those that have none."""
        loss = self.alive.pop()
        if self.at_once:
            return gradients_of(loss, [weights.flat for weights in self.pipeline.weights])
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in parameters_of(self.pipeline)]
        for parameter in parameters_of(self.pipeline):
            parameter.grad = None
        return gradients

    def both(self, show: Show) -> list[Results]:
        """Loss and gradients, each pass over the weights that are its own."""
        show("F", observed=False)
        loss = self.forward()
        if self.strays():
            raise Unfit("a gradient goes to a tensor outside the stages")
        show("B", observed=False)
        return [loss, self.backward()]

    def shorten(self, parts: nn.Module, expected: Sequence[Results], recorder: Recorder, show: Show) -> None:
        """Do with fewer kernels what passes do, unless something else than expected comes of it, or an error."""
        after = [value for (value,) in expected[2:] if value is not None]
        self.counting, self.at_once = counting_once(parts, after), self.pipeline.rounded
        if not self.counting and not self.at_once:
            return
        try:
            with unchanged_buffers(parts), recorder.aside():
                shortened = [*self.both(show), *_each(parts, torch.clone)]
            same = all(map(alike, expected, shortened))
        except Exception:  # a layer that reads the counts, or a backward that runs another one
            same = False
        for parameter in parameters_of(self.pipeline):
            parameter.grad = None
        if not same:
            self.counting, self.at_once = [], False
