"""No step waits for the device: every method takes steps on torch's `meta` device, whose tensors have no numbers.

`.item()`, `.tolist()` and `float()` of a tensor on this device raise, and so does mixing devices. Copies to it are
counted, unless the host does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipelag import data
from pipelag.data.images.batches import Batches
from pipelag.data.minibatches import Minibatches
from pipelag.data.text.labelled import LabelledBatches
from pipelag.data.text.language import LanguageBatches
from pipelag.data.text.parallel import TextBatches
from pipelag.data.text.tokens import TokenBatches
from pipelag.distributed.workers.base import load_optimizer_state
from pipelag.methods import METHODS, get
from pipelag.randomness import mix, seed_stage
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import LARS, CaffeSGD
from pipelag.stage.phase import Phase
from tests.toy import convolutional, parts_of, sgd

META = torch.device("meta")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "plain": lambda params: torch.optim.SGD(params, lr=0.05),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05, foreach=True),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.05, foreach=True),
    "caffe": lambda params: CaffeSGD(params, 0.05, 0.9),
    "lars": lambda params: LARS(params, 0.05),
}
NAMES = [name for name, m in METHODS.items() if m.workers == "stages"]
USUAL = {"pipeoptim": "adamw", "xpipe": "adamw", "nesterov_async": "plain"}


class Waits(TorchDispatchMode):
    """Counts the copies to the device that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten._to_copy.default and options.get("device") == META and not args[0].is_meta:
            self.count += not options.get("non_blocking", False)
        return func(*args, **options)


def steps(method: str, optimizer: str, cuts: tuple[int, ...] = (1, 2, 4), resume: bool = False, **of: Any) -> None:
    model = convolutional().to(META)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # for `meta`, torch would draw dropout's numbers on the CPU
    of.setdefault("microbatches", parts_of(method))
    phases = [Phase(get(method), 12, cuts, **of)]
    training = SimulatedTraining(model.train(), phases, OPTIMIZERS[optimizer], nn.functional.cross_entropy, device=META)
    images, targets = torch.randn(8, 3, 8, 8, device=META), torch.zeros(8, dtype=torch.int64, device=META)
    with Waits() as waits:
        for _ in range(5):
            assert training.step(images, targets).is_meta
    assert not waits.count
    if resume:  # a checkpoint is read on the CPU
        training.load_state_dict(on_cpu(training.state_dict()))
        for _ in range(4):
            training.step(images, targets)


def on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype) if value.is_meta else value
    if isinstance(value, dict):
        return {key: on_cpu(one) for key, one in value.items()}
    return type(value)(on_cpu(one) for one in value) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("method", NAMES)
def test_every_method(method: str) -> None:
    steps(method, USUAL.get(method, "sgd"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer: str) -> None:
    steps("stale_weights", optimizer)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize(
    ("method", "of"),
    [
        ("pipemare", {"microbatches": 2, "recompute": True}),
        ("pipemare", {"microbatches": 2, "recompute": 2}),
        ("pipedream", {"cuts": (3,), "replicas": (2, 1)}),
        ("pipedream", {"cuts": (3,), "replicas": (2, 1), "resume": True}),
        ("spectrain", {"resume": True}),
        ("pipemare", {"resume": True}),
    ],
)
def test_recomputing_replicated_and_after_a_restart(method: str, of: dict[str, Any]) -> None:
    steps(method, "sgd", **of)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_after_a_restart(optimizer: str) -> None:
    """No step waits after a checkpoint is loaded, whatever the optimizer.

    torch moves NAdam's `mu_product` to the parameter's device, where every step would wait for it.
    """
    steps("stale_weights", optimizer, resume=True)


def test_real_workers_optimizers_find_their_state_where_they_look_for_it() -> None:
    """Optimizer state that comes from the CPU, in a checkpoint or a message, is moved to where the optimizer reads it.

    Captured and fused kernels read the steps on the device, all others on the CPU.
    """
    for captured in (False, True):
        optimizer = torch.optim.Adam([torch.zeros(3, device=META, requires_grad=True)], capturable=captured)
        (parameter,) = optimizer.param_groups[0]["params"]
        load_optimizer_state(optimizer, [parameter], {0: {"step": torch.tensor(2.0), "exp_avg": torch.zeros(3)}})
        state = optimizer.state[parameter]
        assert state["exp_avg"].is_meta
        assert state["step"].is_meta is captured
    optimizer = torch.optim.ASGD([parameter])
    load_optimizer_state(optimizer, [parameter], {0: {"eta": torch.tensor(0.5)}})
    assert optimizer.state[parameter]["eta"].is_meta


def test_the_generator_of_the_present_gpu_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding "cuda" seeds the current GPU's generator, since tensors of a device without a number lie there."""
    generators = [torch.Generator(), torch.Generator()]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for name, number in (("cuda", 1), ("cuda:0", 0)):
        seed_stage(3, 4, 5, torch.device(name))
        assert generators[number].initial_seed() == mix(3, 4, 5)


BATCHES: dict[str, Callable[[], Minibatches]] = {
    "images": lambda: Batches(data.load("shapes", train=60, test=10), 16, 0, device=META),
    "shifted images": lambda: Batches(data.load("shapes", train=60, test=10), 16, 0, augment=True, device=META),
    "enlarged images": lambda: Batches(data.load("shapes", train=60, test=10), 16, 0, augment="crop", device=META),
    "running text": lambda: LanguageBatches(data.load("grammar", train=200, test=20), 4, 9, 0, META),
    "labelled text": lambda: LabelledBatches(data.load("opinions", train=60, test=10), 8, 0, META),
    "sentences": lambda: TextBatches(data.load("phrases", train=60, test=10), 8, 0, META),
    "sentences by tokens": lambda: TokenBatches(data.load("phrases", train=60, test=10), 400, 0, device=META),
}


@pytest.mark.parametrize("name", BATCHES)
def test_no_minibatch_is_waited_for(name: str) -> None:
    batches = BATCHES[name]()
    with Waits() as waits:
        for step in range(2 * len(batches)):  # over the border of an epoch
            assert not waits.count, step
            batches[step]


def test_a_copy_that_is_waited_for_is_counted() -> None:
    with Waits() as waits:
        torch.ones(3).to(META)
        torch.ones(3).to(META, non_blocking=True)
    assert waits.count == 1
