"""What carries the reads and updates of `pipelag.methods.reads` out on one stage, over flat buffers.

A `Reading` writes the weights that a pass reads. A `Memory` is what a policy remembers beyond the optimizer's state:
it looks on before and after every update; readings that need the same one share it. A `Change` alters an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adam, NAdam

from pipelag.errors import PipelagError
from pipelag.methods.prediction import AT_HAND, BY_NUMBER, Rule, keeps_velocity, rule_of, sgd_again, step_by, velocity
from pipelag.methods.prediction import moments as moments_of
from pipelag.tensors import as_real

if TYPE_CHECKING:
    from pipelag.stage.policy import StageWeights

Buffers = list[torch.Tensor]
SMOOTHING = 0.9  # gamma of the averages kept here, where the optimizer keeps none (SpecTrain section 3.3)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # XPipe's moments over an optimizer that keeps none (Adam's defaults)


Term = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]  # place, weights, direction (or none), factor
FEW = 1 << 18  # numbers up to which a GPU's launches are what a sum costs


def add_all(terms: Sequence[Term]) -> None:
    """place = weights + factor * direction, each.

    On a GPU the small ones in a launch for all, of whatever stage they are.
    """
    together: list[Term] = []
    for term in terms:
        place, weights, direction, factor = term
        if direction is None:
            place.copy_(weights)
        elif launched(place):
            together.append(term)
        else:
            torch.add(weights, direction, alpha=factor, out=place)
    if together:
        _in_one(together)


def launched(place: torch.Tensor) -> bool:
    """Whether launching a sum there is what it costs. By what it is added to alone, as a stage's executor must not
    matter: these sums are rounded twice, and others once."""
    return place.device.type == "cuda" and place.dtype in (torch.float32, torch.float64) and few(place)


def few(place: torch.Tensor) -> bool:
    """Of the flat buffer that it is a part of: whether a prediction goes by parameters or by larger pieces depends on
    where the optimizer's state lies, which a restart changes, and must not change a bit."""
    return place.untyped_storage().nbytes() <= FEW * place.element_size()


def _in_one(terms: Sequence[Term]) -> None:
    places, weights, directions, factors = map(list, zip(*terms, strict=True))
    torch._foreach_copy_(places, directions)
    torch._foreach_mul_(places, factors)
    torch._foreach_add_(places, weights)


class Memory:
    """Something remembered from update to update, as flat buffers like the weights, zero at first."""

    needs_steps = False  # wants the difference that an update made

    def __init__(self, stage: StageWeights) -> None:
        self.stage = stage
        self.buffers: Buffers = stage.like()

    def before_step(self) -> None:
        """The gradients are complete."""

    def after_step(self, made: Buffers) -> None:
        """The update has added `made` (empty unless some memory of the stage `needs_steps`)."""

    @classmethod
    def after_steps(cls, pairs: Sequence[tuple[Any, Buffers]]) -> None:
        """Those of all stages, (memory, what the stage's update has added): for what takes one call for all."""
        for memory, made in pairs:
            memory.after_step(made)

    def gradients(self) -> tuple[Buffers, Buffers]:
        """(places here, gradients that the optimizer steps along) of the parameters that have one, as real numbers."""
        pairs = zip(self.stage.flat.views(self.buffers), self.stage.gradients(), strict=True)
        present = [(as_real(place), as_real(gradient)) for place, gradient in pairs if gradient is not None]
        return [place for place, _ in present], [gradient for _, gradient in present]


class Difference(Memory):
    """w_t - w_{t-1}."""

    needs_steps = True

    @classmethod
    def after_steps(cls, pairs: Sequence[tuple[Difference, Buffers]]) -> None:
        """Keep the last one."""
        every = [each for one, made in pairs for each in zip(one.buffers, made, strict=True)]
        if every:
            places, steps = map(list, zip(*every, strict=True))
            torch._foreach_copy_(places, steps)


class Trajectory(Memory):
    """PipeMare's delta <- gamma delta + (1 - gamma)(w_{t+1} - w_t) (section 3.2)."""

    needs_steps = True
    gamma = 0.0

    @classmethod
    def after_steps(cls, pairs: Sequence[tuple[Trajectory, Buffers]]) -> None:
        """Follow."""
        every = [
            (place, step, 1 - one.gamma) for one, made in pairs for place, step in zip(one.buffers, made, strict=True)
        ]
        if every:
            places, steps, shares = map(list, zip(*every, strict=True))
            torch._foreach_lerp_(places, steps, shares)


class Average(Memory):
    """v <- keep v + (1 - keep) g, or of g squared, from 0 (SpecTrain, equation 1)."""

    keep, square = SMOOTHING, False

    def before_step(self) -> None:
        """Take the gradient in."""
        places, gradients = self.gradients()
        if places:
            gradients = list(torch._foreach_mul(gradients, gradients)) if self.square else gradients
            torch._foreach_mul_(places, self.keep)
            torch._foreach_add_(places, gradients, alpha=1 - self.keep)


class FirstMoment(Average):
    """Adam's m."""

    keep = BETA1


class SecondMoment(Average):
    """Adam's v."""

    keep, square = BETA2, True


class LastGradient(Memory):
    """g_t, as the optimizer steps along it."""

    def before_step(self) -> None:
        """Keep it."""
        places, gradients = self.gradients()
        if places:
            torch._foreach_copy_(places, gradients)


class Reading:
    """What a pass reads instead of the live weights."""

    laborious = True  # several cost little more to make than one, which is worth keeping them until they are read

    def __init__(self, stage: StageWeights) -> None:
        self.stage = stage

    def write(self, out: Buffers, amount: float) -> None:
        """Make `out` of the live weights, acting by so much (see `Predict`, `Correct`, `LookAhead`)."""
        raise NotImplementedError

    def write_all(self, outs: Sequence[tuple[Buffers, float]]) -> None:
        """Make several of them, each (buffers, amount): for what can be computed once for all."""
        for out, amount in outs:
            self.write(out, amount)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """What `add_all` makes the same of, as far as it is such sums: those of all stages take a few calls."""
        self.write_all(outs)
        return []

    def does_as(self, other: Reading) -> bool:
        """Whether it makes the same as another of this stage, so that one `write_all` serves both."""
        return other is self

    def along(self, out: Buffers, direction: Buffers, factor: float | Sequence[float]) -> list[Term]:
        """out = live + factor * direction, as terms; one factor for all buffers, or one each."""
        factors = factor if isinstance(factor, Sequence) else [factor] * len(out)
        return list(zip(out, self.stage.live, direction, factors, strict=True))


class Sum(Reading):
    """One whose `terms` are all that it does."""

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """See `Reading`."""
        raise NotImplementedError

    def write(self, out: Buffers, amount: float) -> None:
        """See `Reading`."""
        self.write_all([(out, amount)])

    def write_all(self, outs: Sequence[tuple[Buffers, float]]) -> None:
        """See `Reading`."""
        add_all(self.terms(outs))


class Along(Sum):
    """w + amount * (w_t - w_{t-1})."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        self.difference = stage.remember("difference", Difference)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """Go on as far as the last step."""
        return [term for out, amount in outs for term in self.along(out, self.difference.buffers, amount)]


class Correction(Sum):
    """w - amount * delta, of which a share `decay` is left after so many updates as `distance`."""

    def __init__(self, stage: StageWeights, decay: float, distance: float) -> None:
        super().__init__(stage)
        self.trajectory = stage.remember("delta", Trajectory)
        self.trajectory.gamma = decay ** (1 / distance)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """Go back along the trajectory."""
        return [term for out, amount in outs for term in self.along(out, self.trajectory.buffers, -amount)]


class ByRule(Sum):
    """w - s * step, the step by the optimizer's state (`pipelag.methods.prediction`)."""

    def __init__(self, stage: StageWeights, rule: Rule) -> None:
        super().__init__(stage)
        self.rule = rule
        self.laborious = rule not in AT_HAND  # of the state's own tensors two predictions share no work

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """Repeat the step s times. It is computed once for all s, and over Adam that is most of the work.

        Raises:
            PipelagError: the optimizer has stepped, and the rule finds no step of any parameter.
        """
        stage, optimizer, any_step, terms = self.stage, self.stage.optimizer, False, list[Term]()
        assert optimizer is not None
        amounts = [amount for _, amount in outs]
        buffers = [stage.live, *[out for out, _ in outs]]
        for state, group, live, *places in stage.state_beside(buffers, self.rule in BY_NUMBER):
            step = step_by(self.rule, state, group)
            any_step |= step is not None
            for place, amount in zip(places, amounts, strict=True):
                direction, factor = (None, 0.0) if step is None else (step.direction, -amount * step.factor)
                terms.append((place, live, direction, factor))
        if stage.steps and not any_step and any(optimizer.state.get(parameter) for parameter in stage.parameters):
            raise PipelagError(
                f"the prediction rule of {type(optimizer).__name__} finds no step in the optimizer's state after "
                f"{stage.steps} updates, so nothing would be predicted; give the optimizer the momentum that the "
                "rule reads, or change the rule to read the state that the optimizer keeps"
            )
        return terms

    def does_as(self, other: Reading) -> bool:
        """By the same rule."""
        return isinstance(other, ByRule) and other.rule is self.rule


class ByRuleAgain(Reading):
    """The same with the last gradient counted once more (PipeOptim, ambiguity D2)."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        if not isinstance(stage.optimizer, SGD):
            raise PipelagError(
                f"the last gradient is counted again for SGD only, not for {type(stage.optimizer).__name__}, whose "
                "moments PipeOptim's authors use unchanged; use the method pipeoptim"
            )
        rule_of(stage.optimizer)  # refuses SGD without momentum
        self.gradient = stage.remember("gradient", LastGradient)

    def write(self, out: Buffers, amount: float) -> None:
        """Repeat the step s times."""
        stage, optimizer = self.stage, self.stage.optimizer
        assert optimizer is not None
        torch._foreach_copy_(out, stage.live)
        for state, group, view, gradient in stage.state_beside([out, self.gradient.buffers], by_number=False):
            step = sgd_again(state, group, gradient)
            if step is not None:
                view.sub_(step, alpha=amount)


class BySmoothedGradient(Sum):
    """w - s * lr * v with an average v of the gradient that is kept here."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        self.average = stage.remember("average", Average)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """SpecTrain, equation 4."""
        rates = [group["lr"] for group in self.stage.groups]
        along = [(out, [-amount * rate for rate in rates]) for out, amount in outs]
        return [term for out, factors in along for term in self.along(out, self.average.buffers, factors)]


class ByOwnMoments(Reading):
    """w - s * lr * mhat / sqrt(vhat + eps) with moments that are kept here (XPipe over an optimizer without)."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        self.first = stage.remember("first", FirstMoment)
        self.second = stage.remember("second", SecondMoment)

    def write(self, out: Buffers, amount: float) -> None:
        """PipeOptim, equation 6, its two symbols put right."""
        torch._foreach_copy_(out, self.stage.live)
        steps = self.stage.steps
        if steps:
            bias = 1 - BETA2**steps
            moments = zip(map(as_real, self.first.buffers), map(as_real, self.second.buffers), strict=True)
            for o, group, (first, second) in zip(map(as_real, out), self.stage.groups, moments, strict=True):
                rate = -amount * group["lr"] / (1 - BETA1**steps)
                o.addcdiv_(first, (second / bias + EPSILON).sqrt_(), value=rate)


def prediction(direction: str, stage: StageWeights) -> Reading:
    """What foresees a stage's weights by one of `Predict`'s directions.

    Raises:
        PipelagError: an optimizer that keeps no direction.
    """
    optimizer = stage.optimizer
    assert optimizer is not None
    if direction == "difference":
        return Along(stage)
    if direction == "update again":
        return ByRuleAgain(stage)
    if direction == "average" or (direction == "velocity" and not keeps_velocity(optimizer)):
        return BySmoothedGradient(stage)
    if direction == "moments":
        return ByRule(stage, moments_of) if isinstance(optimizer, (Adam, NAdam)) else ByOwnMoments(stage)
    return ByRule(stage, velocity if direction == "velocity" else rule_of(optimizer))


class Change:
    """What an update does beyond the optimizer's step."""

    def __init__(self, stage: StageWeights) -> None:
        self.stage = stage

    def before_step(self) -> None:
        """The gradients are complete; they may be changed here."""

    def after_step(self) -> None:
        """The optimizer has stepped."""


class ByDelay(Change):
    """One that goes by how late the gradient is, which then is one number."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        lags = stage.passes["F"].lags
        if len(set(lags)) > 1:
            raise PipelagError(
                f"the gradients in one update of stage {stage.stage} are {', '.join(map(str, lags))} updates late, but "
                f"'{stage.method.name}' compensates for a single delay; give the stage replicas that are equally "
                "late (as those of 1F1B are), or no replicas"
            )


class Spike(ByDelay):
    """What a v + b g adds to the v that SGD subtracts already."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        if type(stage.optimizer) is not SGD or any(g["nesterov"] or g["dampening"] for g in stage.groups):
            raise PipelagError(
                f"spike compensation is defined for SGD with momentum v <- m v + g, not for "
                f"{type(stage.optimizer).__name__} with these settings; use torch.optim.SGD without nesterov and "
                "dampening"
            )
        self.gradients: list[torch.Tensor | None] = []

    def before_step(self) -> None:
        """Keep g."""
        self.gradients = [None if gradient is None else gradient.clone() for gradient in self.stage.gradients()]

    def after_step(self) -> None:
        """Add what is missing."""
        stage, optimizer = self.stage, self.stage.optimizer
        assert optimizer is not None
        each = zip(stage.parameters, stage.parameter_groups, self.gradients, strict=True)
        for parameter, group, gradient in each:
            if gradient is not None:
                momentum, rate = group["momentum"], group["lr"]
                a = momentum**stage.delay
                b = (1 - a) / (1 - momentum) if momentum != 1 else stage.delay  # 1 + m + ... + m^(D-1)
                step = optimizer.state[parameter].get("momentum_buffer")
                step = gradient if step is None else step
                parameter.data.sub_((a - 1) * step + b * gradient, alpha=rate)


class Compensation(ByDelay):
    """g + strength * g * g * (w_now - w_stale)."""

    def __init__(self, stage: StageWeights, strength: float) -> None:
        super().__init__(stage)
        self.strength = strength

    def before_step(self) -> None:
        """Change the gradients."""
        stage = self.stage
        each = zip(stage.parameters, stage.parameter_groups, stage.stale_views(), strict=True)
        for parameter, group, old in each:
            if parameter.grad is not None:
                g, sign = as_real(parameter.grad), -1 if group.get("maximize") else 1
                g.addcmul_(g * g, as_real(parameter - old), value=sign * self.strength)


class DampedStep(Change):
    """w_{t+1} = w_t + gamma (w_t - w_{t-1}) + (1 - gamma) * (the optimizer's own step)."""

    def __init__(self, stage: StageWeights, gamma: float) -> None:
        super().__init__(stage)
        if any(group.get("momentum") for group in stage.groups):
            raise PipelagError(
                "nesterov_async has its own momentum; use an optimizer without momentum (SGD with momentum=0), or "
                "the method pipedream with NAdam"
            )
        self.gamma, self.difference = gamma, stage.remember("difference", Difference)

    def after_step(self) -> None:
        """Replace the optimizer's step."""
        stage, gamma = self.stage, self.gamma
        made = [new - old for new, old in zip(stage.live, stage.begun, strict=True)]
        made = [gamma * d + (1 - gamma) * m for d, m in zip(self.difference.buffers, made, strict=True)]
        for live, old, step in zip(stage.live, stage.begun, made, strict=True):
            torch.add(old, step, out=live)
