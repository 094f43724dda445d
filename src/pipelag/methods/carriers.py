"""The objects that carry out the reads of `pipelag.methods.reads` on one stage, over flat buffers.

A `Reading` writes the weights that a pass reads. A `Memory` holds what a policy remembers beyond the optimizer's state;
it is called before and after every update, and readings that need the same memory share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
SMOOTHING = 0.9  # gamma of the average that is kept here if the optimizer keeps none (SpecTrain section 3.3)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of XPipe's moments for an optimizer that keeps none (Adam's defaults)


Term = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]  # place, weights, direction (or None), factor
FEW = 1 << 18  # elements up to which a GPU spends longer on launching a sum than on computing it


def add_all(terms: Iterable[Term]) -> None:
    """Compute place = weights + factor * direction for every term.

    On a GPU, the small terms of all stages are computed together, in a few launches. Other terms are computed one by
    one, each before the next is asked for, so that only one of these directions takes memory.
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
    """Whether the launch dominates the cost of a sum into this tensor, so that it is computed together with others.

    The answer depends on this tensor alone, so that every executor computes the same bits: sums computed together are
    rounded twice, single ones once.
    """
    return place.device.type == "cuda" and place.dtype in (torch.float32, torch.float64) and few(place)


def few(place: torch.Tensor) -> bool:
    """Whether the flat buffer that this tensor is a part of is small.

    The size of the tensor itself would not do: a prediction takes whole parameters or larger pieces, depending on where
    the optimizer's state lies. A restart changes that, and must not change a bit of the result.
    """
    return place.untyped_storage().nbytes() <= FEW * place.element_size()


def _in_one(terms: Sequence[Term]) -> None:
    places, weights, directions, factors = map(list, zip(*terms, strict=True))
    torch._foreach_copy_(places, directions)
    torch._foreach_mul_(places, factors)
    torch._foreach_add_(places, weights)


class Memory:
    """What is remembered from update to update: flat buffers laid out like the weights, zero at first."""

    needs_steps = False  # True: `after_step` is given how the update changed the weights

    def __init__(self, stage: StageWeights) -> None:
        self.stage = stage
        self.buffers: Buffers = stage.like()

    def before_step(self) -> None:
        """Called when the gradients are complete."""

    def after_step(self, made: Buffers) -> None:
        """Called when the update has added `made` to the weights (empty unless some memory here `needs_steps`)."""

    @classmethod
    def after_steps(cls, pairs: Sequence[tuple[Any, Buffers]]) -> None:
        """`after_step` for several stages, as pairs (memory, made); overridden where one call can serve all stages."""
        for memory, made in pairs:
            memory.after_step(made)

    def gradients(self) -> tuple[Buffers, Buffers]:
        """(places in this memory, gradients that the optimizer steps along) of the parameters with a gradient.

        Complex tensors are given as real ones.
        """
        pairs = zip(self.stage.flat.views(self.buffers), self.stage.gradients(), strict=True)
        present = [(as_real(place), as_real(gradient)) for place, gradient in pairs if gradient is not None]
        return [place for place, _ in present], [gradient for _, gradient in present]


class Difference(Memory):
    """w_t - w_{t-1}."""

    needs_steps = True

    @classmethod
    def after_steps(cls, pairs: Sequence[tuple[Difference, Buffers]]) -> None:
        """Keep the last update's difference."""
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
        """Move delta towards the last update's difference."""
        every = [
            (place, step, 1 - one.gamma) for one, made in pairs for place, step in zip(one.buffers, made, strict=True)
        ]
        if every:
            places, steps, shares = map(list, zip(*every, strict=True))
            torch._foreach_lerp_(places, steps, shares)


class Average(Memory):
    """v <- keep v + (1 - keep) g, or the same with g squared; v_0 = 0 (SpecTrain, equation 1)."""

    keep, square = SMOOTHING, False

    def before_step(self) -> None:
        """Add the gradient to the average."""
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
        """Keep the gradient."""
        places, gradients = self.gradients()
        if places:
            torch._foreach_copy_(places, gradients)


class Reading:
    """What a pass reads instead of the live weights."""

    laborious = True  # making several costs little more than one, so they are made together and kept until read

    def __init__(self, stage: StageWeights) -> None:
        self.stage = stage

    def write(self, out: Buffers, amount: float) -> None:
        """Write into `out` what a pass reads, given the live weights.

        Args:
            amount: one of the `amounts` of `Predict`, `Correct` or `LookAhead`.
        """
        raise NotImplementedError

    def write_all(self, outs: Sequence[tuple[Buffers, float]]) -> None:
        """Write several, each (buffers, amount); overridden where they can share work."""
        for out, amount in outs:
            self.write(out, amount)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> Iterable[Term]:
        """Do what `write_all` does, but leave to the caller the sums that `add_all` can make, and return these.

        The caller gives `add_all` the terms of all stages at once. A reading that is no such sum writes here and
        returns none.
        """
        self.write_all(outs)
        return []

    def does_as(self, other: Reading) -> bool:
        """Whether another reading of this stage writes the same for equal amounts, so that `write_all` serves both."""
        return other is self

    def along(self, out: Buffers, direction: Buffers, factor: float | Sequence[float]) -> list[Term]:
        """out = live + factor * direction as terms; `factor`: one for all buffers, or one for each."""
        factors = factor if isinstance(factor, Sequence) else [factor] * len(out)
        return list(zip(out, self.stage.live, direction, factors, strict=True))


class Sum(Reading):
    """A reading that consists of its `terms` alone."""

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> Iterable[Term]:
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
        """Repeat the last step `amount` times."""
        return [term for out, amount in outs for term in self.along(out, self.difference.buffers, amount)]


class Correction(Sum):
    """w - amount * delta. A share `decay` of a step's weight in delta is left after `distance` more updates."""

    def __init__(self, stage: StageWeights, decay: float, distance: float) -> None:
        super().__init__(stage)
        self.trajectory = stage.remember("delta", Trajectory)
        self.trajectory.gamma = decay ** (1 / distance)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """Go back along the trajectory."""
        return [term for out, amount in outs for term in self.along(out, self.trajectory.buffers, -amount)]


class ByRule(Sum):
    """w - s * step, with the step that a rule reads off the optimizer's state (`pipelag.methods.prediction`)."""

    def __init__(self, stage: StageWeights, rule: Rule) -> None:
        super().__init__(stage)
        self.rule = rule
        self.laborious = rule not in AT_HAND

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> Iterator[Term]:
        """Repeat the step s times. The step is computed once for all s, which with Adam is most of the work.

        Raises:
            PipelagError: the optimizer has stepped, but the rule finds no step for any parameter.
        """
        stage, optimizer, any_step = self.stage, self.stage.optimizer, False
        assert optimizer is not None
        amounts = [amount for _, amount in outs]
        buffers = [stage.live, *[out for out, _ in outs]]
        for state, group, live, *places in stage.state_beside(buffers, self.rule in BY_NUMBER):
            step = step_by(self.rule, state, group)
            any_step |= step is not None
            for place, amount in zip(places, amounts, strict=True):
                direction, factor = (None, 0.0) if step is None else (step.direction, -amount * step.factor)
                yield place, live, direction, factor
        if stage.steps and not any_step and any(optimizer.state.get(parameter) for parameter in stage.parameters):
            raise PipelagError(
                f"the prediction rule of {type(optimizer).__name__} finds no step in the optimizer's state after "
                f"{stage.steps} updates, so nothing would be predicted; give the optimizer the momentum that the "
                "rule reads, or change the rule to read the state that the optimizer keeps"
            )

    def does_as(self, other: Reading) -> bool:
        """True if both follow the same rule."""
        return isinstance(other, ByRule) and other.rule is self.rule


class ByRuleAgain(Reading):
    """w - s * step, where the step counts the last gradient once more (PipeOptim, ambiguity D2)."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        if not isinstance(stage.optimizer, SGD):
            raise PipelagError(
                f"the last gradient is counted again for SGD only, not for {type(stage.optimizer).__name__}, whose "
                "moments PipeOptim's authors use unchanged; use the method pipeoptim"
            )
        rule_of(stage.optimizer)  # raises for SGD without momentum
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
    """w - s * lr * v, where v is a smoothed gradient that is kept here."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        self.average = stage.remember("average", Average)

    def terms(self, outs: Sequence[tuple[Buffers, float]]) -> list[Term]:
        """Predict by SpecTrain's equation 4."""
        rates = [group["lr"] for group in self.stage.groups]
        along = [(out, [-amount * rate for rate in rates]) for out, amount in outs]
        return [term for out, factors in along for term in self.along(out, self.average.buffers, factors)]


class ByOwnMoments(Reading):
    """w - s * lr * mhat / sqrt(vhat + eps), with moments kept here (XPipe with an optimizer that keeps none)."""

    def __init__(self, stage: StageWeights) -> None:
        super().__init__(stage)
        self.first = stage.remember("first", FirstMoment)
        self.second = stage.remember("second", SecondMoment)

    def write(self, out: Buffers, amount: float) -> None:
        """Predict by PipeOptim's equation 6, with its interchanged moments in their places (ambiguity D1)."""
        torch._foreach_copy_(out, self.stage.live)
        steps = self.stage.steps
        if steps:
            bias = 1 - BETA2**steps
            moments = zip(map(as_real, self.first.buffers), map(as_real, self.second.buffers), strict=True)
            for o, group, (first, second) in zip(map(as_real, out), self.stage.groups, moments, strict=True):
                rate = -amount * group["lr"] / (1 - BETA1**steps)
                o.addcdiv_(first, (second / bias + EPSILON).sqrt_(), value=rate)


def prediction(direction: str, stage: StageWeights) -> Reading:
    """The reading that predicts a stage's weights along one of `Predict`'s directions.

    Raises:
        PipelagError: the stage's optimizer keeps no such direction.
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
