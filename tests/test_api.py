"""The library's face, and the examples in docs and README: what they show must run."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import pipelag
from pipelag.methods import METHODS, Method
from pipelag.schedules.library import cycle
from pipelag.timing.layers import LayerTime, Profile, balanced_cuts
from tests.toy import convolutional, sgd
from tests.workflow.test_warm import JOB

ROOT = Path(__file__).resolve().parents[1]


def linear() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 16)), nn.Sequential(nn.ReLU(), nn.Linear(16, 2))]


def pairs(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(8, 4, generator=generator) for _ in range(count)]
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def test_train_takes_a_list_of_layers_and_any_iterable() -> None:
    listed = pipelag.train(linear(), pairs(30), cuts=(1, 2))
    generated = pipelag.train(linear(), iter(pairs(30)), cuts=(1, 2), steps=30)
    assert listed.metrics == generated.metrics and len(listed.metrics) == 30
    assert listed.delays.forward == (4, 2, 0) and listed.diverged_at is None
    assert listed.metrics[-1]["loss"] < listed.metrics[0]["loss"]


@pytest.mark.real
def test_a_script_with_lambdas_and_its_own_classes_runs_on_real_workers(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(
        "from torch import nn\nclass Twice(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    )
    (tmp_path / "script.py").write_text(
        "import torch, pipelag\nfrom torch import nn\nfrom mymodel import Twice\n"
        "torch.manual_seed(0)\n"
        "model = [nn.Linear(4, 8), Twice(), nn.Linear(8, 2)]\n"
        "data = [(torch.randn(4, 4), torch.tensor([0, 1, 0, 1])) for _ in range(6)]\n"
        "from pipelag import methods\n"
        "loss = lambda output, target: nn.functional.cross_entropy(output, target) * (len(methods()) > 0)\n"
        "run = pipelag.train(model, data, cuts=(2,), executor='real', loss=loss)\n"
        "print(len(run.metrics), run.delays.forward)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "6 (2, 0)\n", done.stderr


def test_train_refuses_what_it_cannot_do() -> None:
    with pytest.raises(pipelag.PipelagError, match="5 steps need 5 minibatches, and there are 3; train fewer steps"):
        pipelag.train(linear(), pairs(3), steps=5)
    with pytest.raises(pipelag.PipelagError, match="5 steps need 5 minibatches, and there were only 3"):
        pipelag.train(linear(), iter(pairs(3)), steps=5)
    with pytest.raises(pipelag.PipelagError, match="how long to train is not given"):
        pipelag.train(linear(), iter(pairs(3)))
    with pytest.raises(pipelag.PipelagError, match="a Linear cannot be cut: give the model as an nn.Sequential"):
        pipelag.train(nn.Linear(1, 1), pairs(2), cuts=(1,))  # type: ignore[arg-type]


def test_a_registered_method_is_known_everywhere() -> None:
    method = Method("mine", "a method of a user's", "nowhere", cycle)
    try:
        pipelag.register(method)
        assert pipelag.methods()["mine"] == "a method of a user's"
        assert pipelag.train(linear(), pairs(4), method="mine", cuts=(1,)).delays.forward == (2, 0)
        with pytest.raises(pipelag.PipelagError, match="a method named 'mine' is already registered"):
            pipelag.register(Method("mine", "another", "nowhere", cycle))
    finally:
        METHODS.pop("mine")


def times(*milliseconds: float) -> Profile:
    return Profile(tuple(LayerTime(i, f"layer {i}", ms / 3, 2 * ms / 3) for i, ms in enumerate(milliseconds, start=1)))


def test_balanced_cuts_are_the_best_of_all() -> None:
    from itertools import combinations

    profile = times(3, 1, 4, 1, 5, 9, 2, 6)
    for stages in range(1, 9):
        values = [layer.total_ms for layer in profile.layers]

        def slowest(cuts: tuple[int, ...], values: list[float] = values) -> float:
            bounds = [0, *cuts, 8]
            return max(sum(values[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True))

        best = min(slowest(cuts) for cuts in combinations(range(1, 8), stages - 1))
        assert slowest(balanced_cuts(profile, stages)) == pytest.approx(best)
    with pytest.raises(pipelag.PipelagError, match="8 layers can be cut into 1 to 8 stages, not 9"):
        balanced_cuts(profile, 9)


def test_a_profile_times_every_layer_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), nn.Flatten(), nn.Linear(72, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = torch.ones_like(next(model.parameters()))
    next(model.parameters()).grad = gradient
    profile = pipelag.profile(model, torch.randn(4, 1, 8, 8), repeats=2, warmup=1)
    assert [layer.layer for layer in profile.layers] == [1, 2, 3] and all(
        layer.total_ms > 0 for layer in profile.layers
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    first, *others = model.parameters()
    assert first.grad is gradient and torch.equal(gradient, torch.ones_like(first))
    assert all(parameter.grad is None for parameter in others)
    profile.save(tmp_path / "profile.jsonl")
    assert Profile.load(tmp_path / "profile.jsonl") == profile
    (tmp_path / "other.jsonl").write_text("{}")
    with pytest.raises(pipelag.PipelagError, match="is not a profile that pipelag saved"):
        Profile.load(tmp_path / "other.jsonl")


@pytest.mark.real
@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/methods.md", "docs/planning.md", "docs/scale.md"])
def test_the_python_examples_in_the_docs_run(page: str, tmp_path: Path) -> None:
    """As scripts, each a fork of the warm process."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert blocks
    (tmp_path / "page.py").write_text("\n".join(blocks))
    subprocess.run([*JOB, "-m", "tests.script", "page.py"], cwd=tmp_path, check=True)


def test_what_the_docs_name_is_where_they_say() -> None:
    """Every dotted name below `pipelag` in a page of prose."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for name in set(re.findall(r"\bpipelag(?:\.[A-Za-z_]\w*)+", page.read_text())) - {
            "pipelag.pdf",
            "pipelag.yaml",
        }:
            pkgutil.resolve_name(name)


def test_the_callers_random_numbers_go_on_as_if_nothing_had_trained() -> None:
    """But for what the caller's own data draws, in the caller's stream: dropout draws elsewhere."""

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield torch.randn(4, 3, 8, 8), torch.randint(4, (4,))

    torch.manual_seed(3)
    expected = [next(batches())[0] for _ in range(5)]
    after = torch.rand(3)
    torch.manual_seed(3)
    seen: list[torch.Tensor] = []

    def noted() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pair in batches():
            seen.append(pair[0])
            yield pair

    model = convolutional()
    torch.manual_seed(3)
    pipelag.train(model, noted(), method="pipedream", cuts=(3,), steps=5, optimizer=sgd, seed=9)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
    assert torch.equal(torch.rand(3), after)


def test_the_rooms_are_there_after_a_plain_import() -> None:
    """In a process of its own: here others have imported them."""
    program = (
        "import pipelag; print(pipelag.data.load('digits').name, len(pipelag.models.MODELS), pipelag.timing.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["digits", str(len(pipelag.models.MODELS)), "pipelag.timing"], done.stderr
    with pytest.raises(AttributeError, match="no attribute 'room'"):
        pipelag.room  # noqa: B018
