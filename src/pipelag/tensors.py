"""Small tools for the tensors that a layer takes, returns and keeps."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError, kind_of

GRADIENT = attrgetter("grad")  # called through `map`, it takes no call of Python for each of many tensors


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a CPU tensor to a device without waiting for the copy, so that the step's launches go on meanwhile.

    A GPU can do so only from pinned memory; the pinned copy made here is kept until the transfer is done.
    """
    there = tensor.pin_memory() if device.type == "cuda" else tensor
    return there.to(device, non_blocking=True)


def copy_each(pairs: Iterable[tuple[torch.Tensor, Any]]) -> None:
    """Copy the second tensor of each pair to the first one, in one call for all."""
    if both := list(pairs):
        torch._foreach_copy_([place for place, _ in both], [value for _, value in both])


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    """A layer's input or output as a tuple of the tensors that cross its boundary; `alone` is the inverse."""
    return value if isinstance(value, tuple) else (value,)


def as_real(value: Any) -> Any:
    """A complex tensor as a real view of the same memory, (..., 2); in a dict every value; anything else as it is."""
    if isinstance(value, dict):
        return {key: as_real(each) for key, each in value.items()}
    return torch.view_as_real(value) if isinstance(value, torch.Tensor) and value.is_complex() else value


class _Entrance(torch.autograd.Function):
    """The given tensors, but no longer leaves or views; they keep their memory and version counters."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # a tensor from which nothing was computed has no gradient
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients


def entering(value: Any) -> Any:
    """The input to run a stage on, from leaves that collect its gradients; a layer may change this input in place."""
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
    """Around the forward of a stage that is to be recomputed from the same input, `value`.

    Raises:
        PipelagError: a layer has changed that input in place.
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
    """A stage's output for the next stage, in the memory layout in which messages travel.

    Dropout draws in the order of memory, so every executor needs the same layout.

    Raises:
        PipelagError: the output is neither a tensor nor a tuple of tensors.
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


def place_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 if it has none."""
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def apart_from_weights(value: Any, stage: nn.Module) -> Any:
    """A stage's output with copies in place of tensors that lie in the memory of the stage's weights.

    That memory may hold other weights when a later stage's backward reads the output. Real workers send copies anyway.
    """
    tensors = as_tuple(value)
    if not any((t if t._base is None else t._base).is_leaf for t in tensors):  # all are results of operators
        return value
    places = {place_of(weight) for weight in stage.parameters()} - {0}
    copied = tuple(t.clone() if place_of(t) in places else t for t in tensors)
    return copied if isinstance(value, tuple) else copied[0]


def in_channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory as NHWC, and not also as NCHW."""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gaps, contiguous or in channels_last."""
    return tensor if tensor.is_contiguous() or in_channels_last(tensor) else tensor.contiguous()


def trainable(loss: Any) -> torch.Tensor:
    """The loss, if a training can use it.

    Raises:
        PipelagError: it is no tensor, has several numbers, is of an integer type, or has no gradient.
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
    """The inverse of `as_tuple`: one value by itself, several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def nodes_of(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The nodes of autograd's graph behind these tensors, each once; a leaf's node has the leaf as `variable`."""
    return nodes_behind(tensor.grad_fn for tensor in tensors)


def nodes_behind(nodes: Iterable[Any]) -> Iterator[Any]:
    """These nodes of autograd's graph (None: nothing), and all behind them, each once."""
    seen, todo = set[Any](), list(nodes)
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [before for before, _ in node.next_functions]


def weight_bytes(layers: Sequence[nn.Module]) -> list[int]:
    """The bytes of each layer's parameters; a parameter that several layers share counts in the first of them."""
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
    """The outputs from which a layer's backward starts, and their gradients, if the layer is run by itself.

    A tensor that only passes through the layer gets its gradient assigned here. Autograd would copy the gradient, which
    it does not do inside a stage.

    Args:
        value: the layer's output.
        gradients: one for each tensor of the output that requires a gradient.
        received: the layer's input.
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


def kept_buffers(module: nn.Module) -> Callable[[], None]:
    """Keep the module's buffers, such as batch-norm statistics and counters; returns a function that restores them."""
    held = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    values = [(buffer, buffer.clone()) for _, _, buffer in held if buffer is not None]

    def restore() -> None:
        for part, name, buffer in held:
            part._buffers[name] = buffer  # it may have been replaced: `self.count = self.count + 1`
        for buffer, before in values:
            # Through `.data`: autograd may have saved the buffer for a later backward, which reads batch statistics.
            buffer.data.copy_(before)

    return restore


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers on leaving."""
    restore = kept_buffers(module)
    try:
        yield
    finally:
        restore()


@contextmanager
def unchanged_modes(module: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of every submodule on leaving."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class BuffersRead:
    """Keeps the buffers that a forward reads, so that its recomputation reads the same ones, whatever came between.

    `changed`, called after the first forward, keeps only the buffers that have changed since before it. On a GPU it
    keeps all, as the host would have to wait for the comparison. The buffers of torch's normalisation layers are left
    out: in training these layers do not read them.
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
        """Keep only buffers whose values have changed. Version counters do not show what is written through `.data`."""
        self.kept = [
            (part, name, buffer, copy)
            for part, name, buffer, copy in self.kept
            if part._buffers.get(name) is not buffer
            or (buffer is not None and copy is not None and not _known_equal(buffer, copy))
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Around the second forward, which leaves the buffers unchanged. Its backward may still read the kept ones."""
        with unchanged_buffers(self.module):
            for part, name, _, copy in self.kept:
                part._buffers[name] = copy
            yield


def _known_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two CPU tensors have the same values; False on a device, which would have to be waited for."""
    return one.device.type == "cpu" and torch.equal(one, other)


@contextmanager
def kept_for_backward(
    but: set[int], look: Callable[[torch.Tensor], None] | None = None, given: Container[int] = ()
) -> Iterator[dict[int, int]]:
    """The bytes of the storages that autograd keeps alive for tensors that it saves in the body, by their addresses.

    Args:
        but: addresses (`untyped_storage().data_ptr()`) that do not count, such as the weights'.
        look: called with each tensor.
        given: addresses of which only the largest saved tensor counts: a microbatch is a part of its minibatch.
    """
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if look is not None:
            look(tensor)
        if place not in but:
            part = tensor.numel() * tensor.element_size()
            sizes[place] = max(sizes.get(place, 0), part) if place in given else storage.nbytes()
        # Torch never frees what a hook returns unchanged if no backward uses it. Weights stay: a graph that has saved
        # the parameter itself reads what the parameter points at (`pipelag.stage.showing`).
        return tensor if isinstance(tensor, nn.Parameter) else tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, as_it_is):
        yield sizes


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself: a hook that changes nothing, which others can recognise."""
    return tensor
