"""A registered model as something to profile: with the inputs of a data set, or those of the papers' own profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, papers
from pipelag.files import yaml_of
from pipelag.partitioner.options import ProfileOptions
from pipelag.runs.spec import DataSpec, ModelSpec, RunSpec
from pipelag.typed import checked

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pipelag.timing.layers import Profile


@dataclass(frozen=True)
class Subject:
    """A model with its inputs.

    build: on the device that is current. inputs: for so many samples, there. sample_bytes: of one. loss: whether its
    last layer is to compute the loss too. batch: samples of a minibatch where nobody says.
    """

    model: ModelSpec
    build: Callable[[], nn.Sequential]
    inputs: Callable[[int], torch.Tensor | tuple[torch.Tensor, ...]]
    sample_bytes: int
    batch: int | None = None
    loss: bool = False

    def by_sheet(self, device: str) -> Callable[[int], Profile]:
        """Its profile for so many samples by a data sheet, on the meta device."""
        import torch

        from pipelag.timing.roofline import roofline
        from pipelag.timing.sheets import data_sheet

        data_sheet(device)
        with torch.device("meta"):
            model = self._whole()

        def make(samples: int) -> Profile:
            with torch.device("meta"), self._taking(samples):
                return roofline(model, self.inputs(samples), device)

        return make

    def measured(self, batch: int, device: str, repeats: int, split: bool = False) -> Profile:
        """Its profile as this machine takes it; `split`: see `profile`."""
        import torch

        from pipelag import precision
        from pipelag.timing.profile import profile

        precision.prepare(alone=True)
        with torch.device(device), self._taking(batch):
            return profile(self._whole(), self.inputs(batch), repeats=repeats, split=split)

    @contextmanager
    def _taking(self, samples: int) -> Iterator[None]:
        """Refuse so many samples where a layer does, as batch norm over a single value does, or their shape."""
        try:
            yield
        except PipelagError:
            raise
        except ValueError as error:
            number = f"{samples} sample{'s' if samples > 1 else ''}"
            words = " ".join(str(error).split()).rstrip(".")
            raise PipelagError(
                f"model '{self.model.name}' cannot train on {number} at a time ({words}); give more with --batch"
            ) from error
        except (RuntimeError, AssertionError) as error:
            words = " ".join(str(error).split()).rstrip(".")
            if any(word in words for word in ("memory", "CUDA")):  # no fault of the shapes
                raise
            raise PipelagError(
                f"model '{self.model.name}' cannot take these inputs ({words}); give others with --data, or fit the "
                "model to them with --options"
            ) from error

    def _whole(self) -> nn.Sequential:
        """The model, with the loss where its last layer is to compute it, on the device that is current."""
        from pipelag.timing.loss import with_loss

        return with_loss(self.build()) if self.loss else self.build()

    def cuts(self, children: Sequence[int]) -> list[int]:
        """Cuts between the profile's layers as those of a run, where a block may count as several layers."""
        import torch

        from pipelag.models.cut import layer_numbers

        with torch.device("meta"):
            numbers = layer_numbers(self.build())
        if children and children[-1] >= len(numbers):
            raise PipelagError(
                f"the profile is not of '{self.model.name}': it has more layers than the model's {len(numbers)}"
            )
        return [numbers[child - 1][1] for child in children]


def options_of(text: str | None, what: str) -> dict[str, Any]:
    """A mapping given on the command line as YAML or JSON; none: empty."""
    options = yaml_of(text, what) if text is not None else {}
    if not isinstance(options, dict):
        raise PipelagError(f"{what} should be a mapping, such as '{{width: 0.5}}', not '{str(text)[:60]}'")
    return options


def subject(name: str, options: dict[str, Any], data: DataSpec | None) -> Subject:
    """The model of that name.

    Args:
        data: whose inputs it takes; none: those that the papers' plans give it.

    Raises:
        PipelagError: an unknown model, or one whose inputs nobody has told.
    """
    from pipelag.catalogue import check_model
    from pipelag.experiments.names import models

    check_model(name, options, models())
    if data is not None:
        return _on_data(ModelSpec(name=name, options=options), data)
    planned = next(_planned(name), None)
    if planned is None:
        raise PipelagError(f"the inputs of '{name}' are not known; name a data set with --data, such as --data shapes")
    return _on_shapes(ModelSpec(name=name, options={**planned[0].options, **options}), planned[1], planned[2])


def _planned(name: str) -> Iterator[tuple[ModelSpec, ProfileOptions, int]]:
    """How the papers' plans profile a model, and their minibatch; outside of the project nobody has told."""
    try:
        known = papers()
    except PipelagError:
        return
    for paper in known:
        for setup in load_paper(paper).setups.values():
            if setup.kind == "partition" and setup.model is not None and setup.model.name == name:
                source = checked(ProfileOptions, setup.options.get("profile", {}), "option of a plan's profile")
                if source.inputs and source.precision is None:
                    yield setup.model, source, setup.batch


def _on_shapes(model: ModelSpec, source: ProfileOptions, batch: int) -> Subject:
    import torch

    from pipelag.models import build

    kinds = [torch.long if one.of == "words" else torch.float for one in source.inputs]

    def inputs(samples: int) -> torch.Tensor | tuple[torch.Tensor, ...]:
        values = tuple(
            torch.zeros(samples, *one.shape, dtype=kind) for one, kind in zip(source.inputs, kinds, strict=True)
        )
        return values if len(values) > 1 else values[0]

    size = sum(prod(one.shape) * kind.itemsize for one, kind in zip(source.inputs, kinds, strict=True))
    return Subject(model, lambda: build(model.name, **model.options), inputs, size, batch, source.loss)


# Image sets that are downloaded: a sample's shape and the classes, so that a plan needs no download.
KNOWN = {
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny_imagenet": ((3, 64, 64), 200),
}


def _on_data(model: ModelSpec, data: DataSpec) -> Subject:
    import torch

    from pipelag.catalogue import check_told
    from pipelag.experiments.names import check_data
    from pipelag.models import build
    from pipelag.runs.tasks import open_task
    from pipelag.tensors import as_tuple

    check_data(data.name, data.options)
    first: torch.Tensor | tuple[torch.Tensor, ...]
    if data.name in KNOWN and not data.options:
        sample, classes = KNOWN[data.name]
        first, shape = torch.zeros(1, *sample), {"classes": classes, "in_channels": sample[0]}
    else:
        task = open_task(RunSpec(kind="profile", model=model, data=data, batch=1), torch.device("cpu"))
        first, shape = task.batches.inputs(0), task.shape

    check_told(model.name, shape, data.name)

    def inputs(samples: int) -> torch.Tensor | tuple[torch.Tensor, ...]:
        values = tuple(torch.zeros(samples, *one.shape[1:], dtype=one.dtype) for one in as_tuple(first))
        return values if isinstance(first, tuple) else values[0]

    size = sum(one[0].numel() * one.element_size() for one in as_tuple(first))
    return Subject(model, lambda: build(model.name, **(shape | model.options)), inputs, size)
