"""Small tools over what a layer takes, gives and keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError, kind_of


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the CPU on a device, for whose copy nobody waits: a step's launches go on meanwhile.

    A GPU copies so from pinned memory alone; what is pinned here is kept until the copy is done.
    """
    there = tensor.pin_memory() if device.type == "cuda" else tensor
    return there.to(device, non_blocking=True)


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    """A layer's input or output as the tensors that cross its boundary."""
    return value if isinstance(value, tuple) else (value,)


def as_real(value: Any) -> Any:
    """A complex tensor as the two numbers of each of its own, in the same memory; also those of a dict's values."""
    if isinstance(value, dict):
        return {key: as_real(each) for key, each in value.items()}
    return torch.view_as_real(value) if isinstance(value, torch.Tensor) and value.is_complex() else value


class _Entrance(torch.autograd.Function):
    """The tensors it is given, which are no leaves and no views any more; their memory and version counters stay."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # what nothing was computed from has no gradient
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients


def entering(value: Any) -> Any:
    """What a stage is run on, for leaves that are to collect its gradients: a layer may change it in place."""
    if isinstance(value, Mapping):
        return value
    tensors = as_tuple(value)
    wanted = [place for place, t in enumerate(tensors) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not wanted:
        return value
    entered = list(tensors)
    for place, tensor in zip(wanted, _Entrance.apply(*[tensors[place] for place in wanted]), strict=True):
        entered[place] = tensor
    return tuple(entered) if isinstance(value, tuple) else entered[0]


@contextmanager
def kept_whole(value: Any, stage: int) -> Iterator[None]:
    """Around the forward of a stage that is to be run again from the same input.

    Raises:
        PipelagError: a layer has changed that input.
    """
    tensors = [t for t in as_tuple(value) if isinstance(t, torch.Tensor)]
    before = [t._version for t in tensors]
    yield
    if before != [t._version for t in tensors]:
        raise PipelagError(
            f"a layer of stage {stage} changes the stage's input in place, but recomputation runs the stage again "
            "from that input; let the layer make a new tensor (inplace=False)"
        )


def crossing(value: Any, stage: int) -> Any:
    """What a stage hands on to the next, laid out in memory as it travels: dropout draws in the order of memory.

    Raises:
        PipelagError: it is neither a tensor nor a tuple of tensors.
    """
    for each in as_tuple(value):
        if not isinstance(each, torch.Tensor):
            inside = " in a tuple" if isinstance(value, tuple) else ""
            raise PipelagError(
                f"stage {stage} returns {kind_of(each)}{inside}; it should return a tensor or a tuple of tensors"
            )
    if isinstance(value, torch.Tensor):
        return laid_out(value)
    return value if all(laid_out(each) is each for each in value) else tuple(map(laid_out, value))


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without gaps, in rows or in channels_last."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor if last or tensor.is_contiguous() else tensor.contiguous()


def trainable(loss: Any) -> torch.Tensor:
    """A loss that training can go by.

    Raises:
        PipelagError: it is no tensor, of several numbers or whole ones, or without a gradient.
    """
    if not isinstance(loss, torch.Tensor):
        raise PipelagError(f"the loss returns {kind_of(loss)}; it should return a tensor of one number")
    if loss.dim():
        raise PipelagError(
            f"the loss returns a tensor of shape {list(loss.shape)}; it should return one number, such as their mean"
        )
    if not loss.is_floating_point():
        raise PipelagError(f"the loss is of type {loss.dtype}; it should be a floating-point number")
    if not loss.requires_grad:
        raise PipelagError("the loss has no gradient; compute it from the model's output, without detach or no_grad")
    return loss


def alone(values: Sequence[Any]) -> Any:
    """The inverse: one value by itself, several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def nodes_of(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The nodes of autograd's graph behind these tensors, each once; a leaf's has it as `variable`."""
    seen, todo = set[Any](), [tensor.grad_fn for tensor in tensors]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [before for before, _ in node.next_functions]


def weight_bytes(layers: Sequence[nn.Module]) -> list[int]:
    """Bytes of each layer's parameters; one that several layers share counts in the first."""
    counted: set[int] = set()
    sizes = []
    for layer in layers:
        new = {id(p): p.numel() * p.element_size() for p in layer.parameters() if id(p) not in counted}
        counted |= set(new)
        sizes.append(sum(new.values()))
    return sizes


def own_outputs(
    value: Any, gradients: Sequence[torch.Tensor], received: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that a layer's backward starts from, with their gradients, when the layer is run by itself.

    A tensor that only passes through has its gradient handed on as it is; autograd, asked to, would copy it, which it
    does not do inside a stage.

    Args:
        value: the layer's output; gradients: one for each of its tensors that needs one; received: its input.
    """
    passing = {id(t) for t in as_tuple(received)}
    outputs, output_gradients = [], []
    for tensor, gradient in zip((t for t in as_tuple(value) if t.requires_grad), gradients, strict=True):
        if id(tensor) in passing:
            tensor.grad = gradient
        else:
            outputs.append(tensor)
            output_gradients.append(gradient)
    return outputs, output_gradients


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """What happens inside leaves no trace in batch-norm statistics and counters."""
    held = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    values = [(buffer, buffer.clone()) for _, _, buffer in held if buffer is not None]
    try:
        yield
    finally:
        for part, name, buffer in held:
            part._buffers[name] = buffer  # whatever took its place: `self.count = self.count + 1`
        for buffer, before in values:
            # Through `.data`: autograd may have saved the buffer for a backward to come, which reads batch statistics.
            buffer.data.copy_(before)


@contextmanager
def unchanged_modes(module: nn.Module) -> Iterator[None]:
    """What happens inside leaves every module in training or evaluation as it is."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class BuffersRead:
    """The buffers that a forward reads which is to be run again: a second one reads the same, whatever came between.

    Those are kept that `changed`, called after the first one, finds to be others than before; on a GPU all, for a host
    would wait for the answer. Normalisations of torch's read none of theirs in training.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        places = [
            (part, name, buffer)
            for part in module.modules()
            if not isinstance(part, nn.modules.batchnorm._NormBase)
            for name, buffer in part._buffers.items()
        ]
        copies = {id(buffer): buffer.clone() for _, _, buffer in places if buffer is not None}
        self.kept = [(part, name, buffer, copies.get(id(buffer))) for part, name, buffer in places]

    def changed(self) -> None:
        """Keep those alone that have changed. By their values: of what is written through `.data` no counter tells."""
        self.kept = [
            (part, name, buffer, copy)
            for part, name, buffer, copy in self.kept
            if part._buffers.get(name) is not buffer
            or (buffer is not None and copy is not None and not _known_equal(buffer, copy))
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Around the second forward, which leaves no trace; its backward may read these tensors, so that they stay."""
        with unchanged_buffers(self.module):
            for part, name, _, copy in self.kept:
                part._buffers[name] = copy
            yield


def _known_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of the CPU have the same values; of a device's nobody asks."""
    return one.device.type == "cpu" and torch.equal(one, other)


@contextmanager
def kept_for_backward(but: set[int], look: Callable[[torch.Tensor], None] | None = None) -> Iterator[dict[int, int]]:
    """Bytes of every tensor that autograd keeps meanwhile, by the place of its storage, each once.

    Args:
        but: places (`untyped_storage().data_ptr()`) that do not count, such as the weights'.
        look: is shown each of them.
    """
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if look is not None:
            look(tensor)
        if place not in but:
            sizes[place] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes
