"""Optimizers by name, and the settings that each takes. Torch is imported only to make one: the workflow reads this.

A user's own optimizer is a function from the spec and its own options to a factory. The factory makes the optimizer
from parameters or parameter groups:

    @optimizer("sign_sgd")
    def sign_sgd(spec, scale=1.0):
        return lambda parameters: SignSGD(parameters, lr=scale * spec.lr)

Methods that predict weights also need the optimizer's prediction rule (`pipelag.methods.prediction.prediction_rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from pipelag.errors import PipelagError, kind_of, unknown
from pipelag.registry import free
from pipelag.typed import MOST_RATE, Options, Typed, check_keywords

if TYPE_CHECKING:
    from pipelag.stage.optimizers import OptimizerFactory


@dataclass(frozen=True)
class Known:
    """A registered optimizer.

    settings: the fields of `OptimizerSpec` that it takes beside name, lr and options.
    make: (spec, **options) -> its factory.
    """

    settings: tuple[str, ...]
    make: Callable[..., OptimizerFactory]


OPTIMIZERS: dict[str, Known] = {}
Rate = Annotated[float, Field(gt=0, le=MOST_RATE)]
Beta = Annotated[float, Field(ge=0, lt=1)]


def optimizer(name: str, *settings: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated optimizer by name.

    `settings`: the fields of `OptimizerSpec` that it takes beside name, lr and options.
    """

    def add(make: Callable[..., Any]) -> Callable[..., Any]:
        free("optimizer", name, OPTIMIZERS)
        for setting in settings:
            if setting not in OptimizerSpec.model_fields:
                raise unknown("setting of an optimizer", setting, OptimizerSpec.model_fields)
        OPTIMIZERS[name] = Known(settings, make)
        return make

    return add


class OptimizerSpec(Typed):
    """The optimizer of a run, by name, with its settings.

    sgd: PyTorch's SGD (v = m v + (1 - dampening) g; w -= lr v). caffe_sgd: Caffe's (v = m v + lr g; w -= v). adam,
    adamw, nadam: PyTorch's. lars: a learning rate per layer, for large minibatches. `optimizer` registers others.

    Caffe's SGD differs only when the learning rate changes: its velocity remembers the old rate. SpecTrain's form
    (equation 1: v = gamma v + (1 - gamma) g) is sgd with dampening = momentum. For a setting that is None the optimizer
    takes its own default, as in PyTorch. With the option `decay_vectors: false` weight decay applies to matrices and
    kernels only, not to biases and norms.
    """

    name: str = "sgd"
    lr: Rate
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    nesterov: bool = False
    dampening: float | None = Field(default=None, ge=0, le=1)
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] | None = None
    eps: float | None = Field(default=None, gt=0)
    trust: float | None = Field(default=None, gt=0)
    options: Options = Field(default_factory=dict)

    @model_validator(mode="after")
    def _own_settings(self) -> OptimizerSpec:
        if self.name not in OPTIMIZERS:
            raise unknown("optimizer", self.name, OPTIMIZERS)
        known = OPTIMIZERS[self.name]
        for key, field in type(self).model_fields.items():
            if key not in ("name", "lr", "options", *known.settings) and getattr(self, key) != field.default:
                raise ValueError(f"the optimizer '{self.name}' has no {key}; leave it out")
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs a momentum above 0 and no dampening; give these, or leave nesterov out")
        check_keywords(known.make, 1, self.options, f"option of the optimizer '{self.name}'")
        return self

    def given(self, *settings: str) -> dict[str, Any]:
        """Those of these settings that are not None."""
        return {key: value for key in settings if (value := getattr(self, key)) is not None}


def factory(spec: OptimizerSpec) -> OptimizerFactory:
    """The factory of a spec's optimizer, which makes it from parameters or parameter groups."""
    make = OPTIMIZERS[spec.name].make(spec, **spec.options)
    if not callable(make):
        raise PipelagError(
            f"the optimizer '{spec.name}' returns {kind_of(make)}; it should return a function from parameters to a "
            "torch.optim.Optimizer"
        )
    return make


def _decaying(make: Callable[[OptimizerSpec], OptimizerFactory]) -> Callable[..., OptimizerFactory]:
    """`make` with the option `decay_vectors`: if false, one-dimensional tensors have no weight decay."""

    def chosen(spec: OptimizerSpec, decay_vectors: bool = True) -> OptimizerFactory:
        plain = make(spec)
        return plain if decay_vectors else lambda parameters: plain(_parted(parameters))

    chosen.__doc__ = make.__doc__
    return chosen


def _parted(parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """Each parameter group in two: with weight decay, and without. Plain parameters count as one group."""
    entries = list(parameters)
    groups = entries if isinstance(entries[0], dict) else [{"params": entries}]
    return [
        group
        | {"params": [p for p in group["params"] if (p.dim() > 1) == decayed]}
        | ({} if decayed else {"weight_decay": 0.0})
        for group in groups
        for decayed in (True, False)
    ]


@optimizer("sgd", "momentum", "weight_decay", "nesterov", "dampening")
@_decaying
def sgd(spec: OptimizerSpec) -> OptimizerFactory:
    """PyTorch's SGD."""
    import torch

    settings = spec.given("lr", "momentum", "weight_decay", "nesterov", "dampening")
    return lambda parameters: torch.optim.SGD(parameters, **settings)


@optimizer("caffe_sgd", "momentum", "weight_decay", "nesterov")
@_decaying
def caffe_sgd(spec: OptimizerSpec) -> OptimizerFactory:
    """Caffe's SGD (`pipelag.stage.optimizers`)."""
    from pipelag.stage.optimizers import CaffeSGD

    settings = spec.given("lr", "momentum", "weight_decay", "nesterov")
    return lambda parameters: CaffeSGD(parameters, **settings)


@optimizer("lars", "momentum", "weight_decay", "trust")
@_decaying
def lars(spec: OptimizerSpec) -> OptimizerFactory:
    """Layer-wise adaptive rates (`pipelag.stage.optimizers`)."""
    from pipelag.stage.optimizers import LARS

    settings = spec.given("lr", "momentum", "weight_decay", "trust")
    return lambda parameters: LARS(parameters, **settings)


def _moments(kind: str) -> Callable[[OptimizerSpec], OptimizerFactory]:
    def make(spec: OptimizerSpec) -> OptimizerFactory:
        import torch

        settings = spec.given("lr", "weight_decay", "betas", "eps")
        return lambda parameters: getattr(torch.optim, kind)(parameters, **settings)

    return make


for _name, _kind in (("adam", "Adam"), ("adamw", "AdamW"), ("nadam", "NAdam")):
    optimizer(_name, "weight_decay", "betas", "eps")(_decaying(_moments(_kind)))
