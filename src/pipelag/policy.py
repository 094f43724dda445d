"""The weight policy of a method carried out on one stage: the same object in every executor.

Between two updates a stage's weights have a version. `load` puts into the live weights what a pass reads, `restore`
puts the live version back, and `before_step`/`after_step` surround the optimizer's step. What a pass reads at a version
is a function of the stage's state at that version alone, so executors that agree on versions agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.methods.reads import Correct, DelayCompensation, LookAhead, Predict, SpikeCompensation
from pipelag.prediction import keeps_velocity, rule_of, velocity
from pipelag.schedules import Delays
from pipelag.weights import FlatParameters

Buffers = list[torch.Tensor]
Content = tuple[str, int]  # ("live" | "F" | "B", version)
SMOOTHING = 0.9  # gamma of the averages kept here, where the optimizer keeps none (SpecTrain section 3.3)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # XPipe's moments over an optimizer that keeps none (Adam's defaults)


class StageWeights:
    """What the passes of one stage read.

    Args:
        flat: the stage's parameters. They are the live weights.
        optimizer, parameters: the optimizer that updates this stage, and the parameters (in the order of `flat`,
            sharing its storage) whose gradients and state it has.
        back: how many updates older than the live weights a version can be that is still loaded.
        method, stage, stages, delays: decide the policy.

    Raises:
        PipelagError: an optimizer that the policy cannot work with.
    """

    def __init__(
        self,
        flat: FlatParameters,
        method: Method,
        stage: int,
        stages: int,
        delays: Delays,
        optimizer: Optimizer | None,
        parameters: list[nn.Parameter],
        back: int,
    ) -> None:
        self.flat, self.live, self.method = flat, flat.buffers, method
        self.optimizer, self.parameters, self.back = optimizer, parameters, back
        self.delay, self.distance = delays.forward[stage - 1], delays.distance[stage - 1]
        self.version = self.first = 0
        self.shown: Content = ("live", 0)
        self.state: dict[str, Buffers] = {}  # what the policy itself remembers, flat
        self.steps = 0  # updates seen, for the bias correction of moments kept here
        self.foresee: Callable[[Buffers, float], None] | None = None  # a prediction so many updates ahead
        active = bool(flat.buffers) and optimizer is not None
        groups = optimizer.param_groups if optimizer is not None else []
        self.group_number = next((i for i, g in enumerate(groups) if g["stage"] == stage), -1)
        self.forward = self._reader(method.forward_reads, stage, stages) if active else None
        stashed = method.backward_reads == "stashed" or method.random is not None
        self.backward = None if stashed or not active else self._reader(method.backward_reads, stage, stages)
        self.stashed = stashed
        self.change = method.update if active and (self.delay or isinstance(method.update, LookAhead)) else None
        self._check_update()
        if isinstance(self.change, LookAhead) and self.change.gamma:
            self.state.setdefault("difference", self._like())
        if self.forward is not None and not self.stashed and max(delays.backward_lags[stage - 1]):
            raise PipelagError(
                f"method '{method.name}' predicts the forward's weights and reads old ones in the backward, which no "
                "executor keeps; let the backward read live or stashed weights"
            )
        moved = active and (back > 0 or self.forward is not None or self.backward is not None)
        kept = back + 1 if self.forward is None else 1  # predicted weights have a ring of their own, `seen`
        self.plain = [self._like() for _ in range(kept)] if moved else []
        self.seen = [self._like() for _ in range(back + 1)] if self.forward else []
        self.corrected = self._like() if self.backward else []
        self.gap, self.again = 0.0, list[Buffers]()  # of recomputation by segments, see correct_recomputation
        self.previous = self._like() if self.state.keys() & {"difference", "delta"} else []
        self.saved = -1  # the version whose copy `plain` holds last
        self.begin_at(0)

    @property
    def group(self) -> dict[str, Any]:
        """The optimizer's group of this stage. Not kept: restoring an optimizer replaces its groups by new ones."""
        assert self.optimizer is not None
        return self.optimizer.param_groups[self.group_number]

    def _like(self) -> Buffers:
        return [torch.zeros_like(buffer) for buffer in self.live]

    def _reader(self, what: Any, stage: int, stages: int) -> Callable[[Buffers], None] | None:
        """What writes the weights that a pass reads into given buffers; None for the live ones."""
        if isinstance(what, Predict):
            horizon = what.horizon(stage, stages, self.delay)
            if not horizon:
                return None
            self.foresee = ahead = self._prediction(what.direction)
            return lambda out: ahead(out, horizon)
        if isinstance(what, LookAhead) and what.gamma:
            gamma = what.gamma
            self.state["difference"] = self._like()
            return lambda out: self._along(out, "difference", gamma)
        if isinstance(what, Correct) and self.distance > 0:
            self.state["delta"] = self._like()
            return lambda out: self._along(out, "delta", -self.distance)
        return None

    def _prediction(self, direction: str) -> Callable[[Buffers, float], None]:
        """What writes the weights foreseen so many updates ahead into given buffers."""
        assert self.optimizer is not None
        if direction == "difference":
            self.state["difference"] = self._like()
            return lambda out, horizon: self._along(out, "difference", horizon)
        if direction == "velocity" and not keeps_velocity(self.optimizer):
            self.state["average"] = self._like()
            return lambda out, horizon: self._along(out, "average", -horizon * self.group["lr"])
        if direction == "moments" and not isinstance(self.optimizer, (torch.optim.Adam, torch.optim.NAdam)):
            self.state |= {"first": self._like(), "second": self._like()}
            return self._moments_ahead
        rule = velocity if direction == "velocity" else rule_of(self.optimizer)
        return lambda out, horizon: self._ahead(out, horizon, rule)

    def _check_update(self) -> None:
        if isinstance(self.change, SpikeCompensation):
            plain = type(self.optimizer) is SGD and not (self.group["nesterov"] or self.group["dampening"])
            if not plain:
                raise PipelagError(
                    f"spike compensation is defined for SGD with momentum v <- m v + g, not for "
                    f"{type(self.optimizer).__name__} as given; use torch.optim.SGD without nesterov and dampening"
                )
        if isinstance(self.change, LookAhead) and self.group.get("momentum"):
            raise PipelagError(
                "nesterov_async brings its own momentum; use an optimizer without (SGD with momentum=0), or the method "
                "pipedream with NAdam"
            )

    # What a pass reads ---------------------------------------------------------------------------------------------

    def begin_at(self, version: int) -> None:
        """Count versions from this one, the live one; earlier ones are not there."""
        self.version, self.first, self.shown = version, version, ("live", version)
        self.begin()

    def begin(self) -> None:
        """A version has become the live one: make what passes at this version read of it."""
        if self.forward is not None:
            self.forward(self.seen[self.version % len(self.seen)])
        if self.backward is not None:
            self.backward(self.corrected)
        if self.again:
            self._along(self.again[self.version % len(self.again)], "delta", -self.gap)

    def _content(self, kind: str, version: int) -> Content:
        if kind == "R":
            return ("R" if self.gap else "live", version)
        if kind == "B" and not self.stashed:
            return ("B" if self.backward is not None else "live", version)
        return ("F" if self.forward is not None else "live", version)

    def correct_recomputation(self, gap: float) -> None:
        """Let T2 correct what a recomputation ("R") reads, by `gap` = tau_fwd - tau_recomp (PipeMare D.1)."""
        if "delta" in self.state and gap > 0 and self.plain:
            self.gap, self.again = gap, [self._like() for _ in range(self.back + 1)]
            self.begin()

    def load(self, kind: str, version: int) -> None:
        """Let the parameters hold what a forward ("F"), backward ("B") or recomputation ("R") at `version` reads.

        For a stashed backward that is the version of its forward. The version is at most `back` updates old.
        """
        if self.plain:
            self._show(self._content(kind, version))

    def restore(self) -> None:
        """Let the parameters hold the live version again."""
        if self.plain:
            self._show(("live", self.version))

    def _show(self, content: Content) -> None:
        if content == self.shown:
            return
        if self.shown == ("live", self.version):
            self._save()
        kind, version = content
        source = self.plain[version % len(self.plain)] if kind == "live" else self.corrected
        if kind == "F":
            source = self.seen[version % len(self.seen)]
        if kind == "R":
            source = self.again[version % len(self.again)]
        torch._foreach_copy_(self.live, source)
        self.shown = content

    def _save(self) -> None:
        """Keep a copy of the live version before its place is taken."""
        if self.saved != self.version:
            torch._foreach_copy_(self.plain[self.version % len(self.plain)], self.live)
            self.saved = self.version

    def _ahead(self, out: Buffers, horizon: float, rule: Callable[..., torch.Tensor | None]) -> None:
        assert self.optimizer is not None
        torch._foreach_copy_(out, self.live)
        group = self.group
        for parameter, view in zip(self.parameters, self.flat.views(out), strict=True):
            step = rule(self.optimizer.state.get(parameter, {}), group)
            if step is not None:
                view.sub_(step, alpha=horizon)

    def _along(self, out: Buffers, name: str, factor: float) -> None:
        torch._foreach_copy_(out, self.live)
        torch._foreach_add_(out, self.state[name], alpha=factor)

    def _moments_ahead(self, out: Buffers, horizon: float) -> None:
        torch._foreach_copy_(out, self.live)
        if self.steps:
            bias = 1 - BETA2**self.steps
            rate = -horizon * self.group["lr"] / (1 - BETA1**self.steps)
            for o, first, second in zip(out, self.state["first"], self.state["second"], strict=True):
                o.addcdiv_(first, (second / bias + EPSILON).sqrt_(), value=rate)

    # What an update does beyond the optimizer's step ---------------------------------------------------------------

    @torch.no_grad()
    def before_step(self) -> None:
        """The gradients are complete and the optimizer is about to step; they may be changed here."""
        self.restore()
        if self.back and self.plain:
            self._save()
        if isinstance(self.change, DelayCompensation):
            stale = self.flat.views(self.plain[max(self.first, self.version - self.delay) % len(self.plain)])
            for parameter, old in zip(self.parameters, stale, strict=True):
                if parameter.grad is not None:
                    g = parameter.grad
                    g.addcmul_(g * g, parameter - old, value=self.change.strength)
        if isinstance(self.change, SpikeCompensation):
            decay = self.group["weight_decay"]
            self.gradients = [
                None if p.grad is None else p.grad.add(p, alpha=decay) if decay else p.grad.clone()
                for p in self.parameters
            ]
        if "average" in self.state or "first" in self.state:
            self._smooth()
        if self.previous:
            torch._foreach_copy_(self.previous, self.live)

    def _smooth(self) -> None:
        """The averages of the gradient that the optimizer does not keep."""
        for name, keep, square in (("average", SMOOTHING, False), ("first", BETA1, False), ("second", BETA2, True)):
            if name not in self.state:
                continue
            for parameter, mean in zip(self.parameters, self.flat.views(self.state[name]), strict=True):
                if parameter.grad is not None:
                    value = parameter.grad * parameter.grad if square else parameter.grad
                    mean.mul_(keep).add_(value, alpha=1 - keep)

    @torch.no_grad()
    def after_step(self) -> None:
        """The optimizer has stepped: the next version is live."""
        self.steps += 1
        if isinstance(self.change, SpikeCompensation):
            self._compensate()
        if self.previous:
            made = [new - old for new, old in zip(self.live, self.previous, strict=True)]
            if isinstance(self.change, LookAhead):
                gamma = self.change.gamma
                made = [gamma * d + (1 - gamma) * m for d, m in zip(self.state["difference"], made, strict=True)]
                for live, old, step in zip(self.live, self.previous, made, strict=True):
                    torch.add(old, step, out=live)
            if "difference" in self.state:
                torch._foreach_copy_(self.state["difference"], made)
            if "delta" in self.state:
                assert isinstance(self.method.backward_reads, Correct)
                gamma = self.method.backward_reads.decay ** (1 / self.distance)
                torch._foreach_mul_(self.state["delta"], gamma)
                torch._foreach_add_(self.state["delta"], made, alpha=1 - gamma)
        self.version += 1
        self.shown = ("live", self.version)
        self.begin()

    def _compensate(self) -> None:
        """What a v + b g adds to the v that SGD has subtracted already."""
        assert self.optimizer is not None
        momentum, rate = self.group["momentum"], self.group["lr"]
        a = momentum**self.delay
        b = (1 - a) / (1 - momentum)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if gradient is not None:
                step = self.optimizer.state[parameter].get("momentum_buffer")
                step = gradient if step is None else step
                parameter.data.sub_((a - 1) * step + b * gradient, alpha=rate)

    # Memory and state ----------------------------------------------------------------------------------------------

    @property
    def versions_held(self) -> int:
        """How many versions of the stage's weights are kept once the pipeline is full, the live one included."""
        distinct = self.back + 1
        return max(distinct, 2 if self.forward or self.backward else 1) if self.plain else 1

    @property
    def bytes(self) -> int:
        """Bytes of weight copies and of what the policy remembers, the live weights not counted."""
        kept = [*self.plain, *self.seen, *self.again, self.corrected, *self.state.values(), self.previous]
        return sum(buffer.numel() * buffer.element_size() for buffers in kept for buffer in buffers)

    def state_dict(self) -> dict[str, Any]:
        """Everything beyond the live weights and the optimizer's state (between two steps)."""
        return {
            "version": self.version,
            "steps": self.steps,
            "saved": self.saved,
            "plain": self.plain,
            "seen": self.seen,
            "again": self.again,
            "state": self.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place; the weights and the optimizer must have been restored before."""
        self.version, self.steps, self.saved = state["version"], state["steps"], state["saved"]
        self.shown = ("live", self.version)
        pairs = [*zip(self.plain, state["plain"], strict=True), *zip(self.seen, state["seen"], strict=True)]
        pairs += zip(self.again, state["again"], strict=True)
        pairs += [(self.state[name], state["state"][name]) for name in self.state]
        for mine, saved in pairs:
            for buffer, value in zip(mine, saved, strict=True):
                buffer.copy_(value)
        self.begin()
