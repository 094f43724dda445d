"""Models of Hugging Face's transformers as rows of layers, laid out by torch.export; small ones with random weights."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

import pipelag
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.tensors import alone, as_tuple

transformers = pytest.importorskip("transformers", reason="the optional package transformers is not installed")

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}


def gpt2(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | ends | more))


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=40, num_hidden_layers=1, max_position_embeddings=16, **SMALL)
    return transformers.BertForSequenceClassification(config)


def vit() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_hidden_layers=1, num_labels=3, **SMALL)
    return transformers.ViTForImageClassification(config)


def llama() -> nn.Module:
    """Rotary positions under torch.no_grad, keys and values shared by heads, a gated layer: as most newer ones."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, num_hidden_layers=1, num_key_value_heads=1, tie_word_embeddings=False, **SMALL
    )
    return transformers.LlamaForCausalLM(config)


def words(count: int = 3, length: int = 6) -> torch.Tensor:
    return torch.randint(36, (count, length), generator=torch.Generator().manual_seed(count))


def mask(count: int = 3, length: int = 6) -> torch.Tensor:
    """The first sample begins with padding."""
    attended = torch.ones(count, length, dtype=torch.long)
    attended[0, :2] = 0
    return attended


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, torch.Tensor]]
    fixed: dict[str, Any]
    layers: int
    crosses: int  # tensors after layer 3


CASES = {
    "gpt2": Case(gpt2, lambda n: {"input_ids": words(n)}, {"use_cache": False}, 11, 2),
    "gpt2 with a mask": Case(
        gpt2, lambda n: {"input_ids": words(n), "attention_mask": mask(n)}, {"use_cache": False}, 11, 3
    ),
    "bert": Case(bert, lambda n: {"input_ids": words(n), "attention_mask": mask(n)}, {}, 11, 2),
    "llama": Case(llama, lambda n: {"input_ids": words(n), "attention_mask": mask(n)}, {"use_cache": False}, 9, 7),
    "vit": Case(vit, lambda n: {"pixel_values": torch.randn(n, 3, 8, 8)}, {}, 10, 2),
}


@cache
def laid_out(name: str) -> tuple[nn.Module, Any]:
    """The model, and its row: which holds the model's own parameters."""
    case = CASES[name]
    model = case.build()
    return model, pipelag.linearise(model, inputs=case.inputs(3) | case.fixed, output="logits")


def learned(model: nn.Module, output: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    output.square().sum().backward()
    return output.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_it_computes_what_the_model_does_whatever_the_batch(name: str, training: bool) -> None:
    case, (model, row) = CASES[name], laid_out(name)
    model.train(training)
    row.train(training)
    for count in (3, 5, 1):
        inputs = case.inputs(count)
        torch.manual_seed(1)
        expected = learned(model, model(**inputs, **case.fixed).logits)
        torch.manual_seed(1)
        computed = learned(model, row(alone(tuple(inputs.values()))))
        torch.testing.assert_close(computed, expected, rtol=1e-6, atol=1e-6)
        assert len(computed[1]) == sum(1 for _ in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_every_boundary_can_be_a_stage_boundary(name: str) -> None:
    """Each layer alone on what it received detached, from a pickle, its gradients handed back: as workers run it."""
    case, (model, row) = CASES[name], laid_out(name)
    assert (len(row), row[2].gives) == (case.layers, case.crosses), row.report()
    inputs = case.inputs(3)
    torch.manual_seed(1)
    expected, gradients = learned(model, model.train()(**inputs, **case.fixed).logits)
    pieces = cloudpickle.loads(cloudpickle.dumps(row.train()))
    pieces.zero_grad()
    torch.manual_seed(1)
    value: Any = alone(tuple(inputs.values()))
    passes = []
    for piece in pieces:
        received = tuple(t.detach().requires_grad_() if t.is_floating_point() else t.detach() for t in as_tuple(value))
        value = piece(alone(received))
        passes.append((received, value))
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    back: list[Any] = [2 * value.detach()]
    for received, value in reversed(passes):
        both = [(v, g) for v, g in zip(as_tuple(value), back, strict=True) if g is not None and v.requires_grad]
        torch.autograd.backward([v for v, _ in both], [g for _, g in both])
        back = [t.grad for t in received]
    of_pieces = [p.grad for _, p in sorted((n.rpartition("original.")[2], p) for n, p in pieces.named_parameters())]
    of_model = [g for _, g in sorted(zip((n for n, _ in model.named_parameters()), gradients, strict=True))]
    torch.testing.assert_close(of_pieces, of_model, rtol=1e-6, atol=1e-6)


def test_the_layers_have_the_models_names() -> None:
    _, row = laid_out("gpt2")
    assert [piece.label for piece in row][:3] == ["transformer.wte", "transformer.wpe", "transformer.h.0.attn.c_attn"]
    assert row[2].merged == ("transformer.h.0.attn.c_attn", "scaled_dot_product_attention")
    blocks = pipelag.linearise(gpt2(), inputs={"input_ids": words(), "use_cache": False}, output="logits", crossing=1)
    assert max(piece.gives for piece in blocks) == 1
    assert len(blocks) == 7  # two embeddings, two halves of two blocks, the head


def test_a_mask_is_heeded() -> None:
    """Words that are masked do not matter to those behind them."""
    _, row = laid_out("gpt2 with a mask")
    row.eval()
    other = words()
    other[0, :2] = 7
    assert torch.equal(row((words(), mask()))[0, 2:], row((other, mask()))[0, 2:])
    assert not torch.equal(row((words(), mask().fill_(1)))[0, 2:], row((other, mask().fill_(1)))[0, 2:])


def test_inputs_it_was_not_laid_out_for_are_refused() -> None:
    _, row = laid_out("gpt2")
    with pytest.raises(PipelagError, match=r"for 1 input \('input_ids'\), but is given 2; name optional .* masks"):
        row((words(), mask()))
    with pytest.raises(PipelagError, match=r"for 2 inputs .* but is given 1; give them as a tuple in this order"):
        laid_out("gpt2 with a mask")[1](words())
    with pytest.raises(PipelagError, match="is given 'input_ids', 'attention_mask'; name the ones to keep"):
        row({"input_ids": words(), "attention_mask": mask()})
    assert row({"input_ids": words()}).shape == (3, 6, 40)
    with pytest.raises(PipelagError, match=r"is \[6\], but the model was laid out for the shape \[any, any\]"):
        row(words()[0])
    with pytest.raises(PipelagError, match=r"'pixel_values' is \[3, 3, 4, 8\], .* the shape \[any, 3, 8, 8\]"):
        laid_out("vit")[1](torch.zeros(3, 3, 4, 8))
    masked = laid_out("gpt2 with a mask")[1]
    for wrong in (mask()[:1], mask(3, 7)):
        sentence = (
            rf"'attention_mask' is \[{len(wrong)}, {wrong.shape[1]}\], .* the shape \[3, 6\] given the inputs before"
        )
        with pytest.raises(PipelagError, match=sentence):
            masked((words(), wrong))


class Scaled(nn.Module):
    """Of dicts: a weight of one number for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, image: torch.Tensor, scale: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        scores: torch.Tensor = self.two(torch.tanh(self.one(image * scale)) + shift)
        return scores


def test_a_size_of_one_is_fixed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """torch warned, twice, that it had not been told so."""
    logger = logging.getLogger("torch._export.non_strict_utils")
    logger.addHandler(caplog.handler)
    row = pipelag.linearise(Scaled(), inputs={"image": torch.ones(4, 3), "scale": torch.ones(4, 1)})
    logger.removeHandler(caplog.handler)
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == [] and len(row) == 2
    assert row({"image": torch.ones(6, 3), "scale": torch.ones(6, 1)}).shape == (6, 2)
    with pytest.raises(PipelagError, match="scale"):
        row({"image": torch.ones(6, 3), "scale": torch.ones(6, 3)})


def test_it_computes_where_its_inputs_lie() -> None:
    """Positions and masks are made there, not where the examples lay."""
    elsewhere = copy.deepcopy(laid_out("gpt2 with a mask")[1]).to("meta")
    computed = elsewhere((words().to("meta"), mask().to("meta")))
    assert computed.shape == (3, 6, 40) and computed.is_meta


class Frozen(nn.Module):
    """A part that does not learn; in it, where it is asked for, another one that does."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.first, self.frozen, self.last, self.within = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.no_grad():
            turned = self.frozen(x).cos()
            with torch.set_grad_enabled(self.within):
                turned = turned * self.frozen(x).sin()
        return self.last(x * turned)


@pytest.mark.parametrize(("within", "learning"), [(False, 4), (True, 6)])
def test_no_gradient_goes_through_what_is_computed_without(within: bool, learning: int) -> None:
    torch.manual_seed(0)
    model, value = Frozen(within), torch.randn(3, 4)
    row = pipelag.linearise(model, inputs={"x": torch.randn(2, 4)})
    expected, gradients = learned(model, model(value))
    output, computed = learned(model, row(value))
    torch.testing.assert_close((output, computed), (expected, gradients), rtol=1e-6, atol=1e-6)
    assert len(gradients) == learning


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(PipelagError, match="Cast uses autocast in its forward"):
        pipelag.linearise(Cast(), inputs={"x": torch.randn(2, 4)})
    with pytest.raises(
        PipelagError, match="GPT2LMHeadModel takes arguments of any name, .* give examples of its inputs"
    ):
        pipelag.linearise(gpt2(n_layer=1))


def test_tied_embeddings_are_cut_apart_only_if_they_are_carried() -> None:
    model, inputs = gpt2(tie_word_embeddings=True, n_layer=1), {"input_ids": words(), "use_cache": False}
    row = pipelag.linearise(model, inputs=inputs, output="logits")
    with pytest.raises(PipelagError, match=r"layers 'transformer.wte' and 'lm_head'.*tie_word_embeddings=F"):
        stages(row, (3,))
    carried = pipelag.linearise(model, inputs=inputs, output="logits", carry_tied=True)
    assert [len(list(stage.parameters())) for stage in stages(carried, (1, len(carried) - 1))] == [1, 15, 0]
    assert [layer.gives for layer in carried[:2]] == [2, 3] and carried[-1].label == "lm_head"
    assert torch.equal(carried.eval()(words()), model.eval()(**inputs).logits)


class Several(nn.Module):
    """Gives two values by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        if x.shape[1] != 4:
            raise ValueError("four wanted")
        return {"a": self.inner(x) * scale, "b": x}


def test_what_to_keep_is_said_by_name() -> None:
    model, x = Several(), torch.randn(2, 4)
    row = pipelag.linearise(model, inputs={"x": x, "scale": 3.0}, output="a")
    assert torch.equal(row(x), model(x, 3.0)["a"])
    for inputs, output, sentence in (
        ({"x": x}, None, "Several returns a, b; choose one of them: output='a'"),
        ({"x": x}, "c", "unknown output 'c' of Several"),
        ({"scale": 1.0}, "a", "inputs has no tensor"),
        ({"x": torch.randn(2, 5)}, "a", "cannot be exported by torch.export with the inputs x: four wanted"),
        (["x"], "a", "cannot be traced by torch.fx"),
        (["y"], None, "unknown input 'y' of Several"),
    ):
        with pytest.raises(PipelagError, match=sentence):
            pipelag.linearise(model, inputs=inputs, output=output)


class Listed(Several):
    """Gives two values in a list."""

    def forward(self, x: torch.Tensor) -> Any:
        return [self.inner(x), x + 1]


def test_values_in_a_list_are_given_as_a_tuple() -> None:
    model, x = Listed(), torch.randn(2, 4)
    row = pipelag.linearise(model, inputs={"x": x})
    assert isinstance(row(x), tuple)
    assert all(map(torch.equal, row(x), model(x)))


class Wrong(nn.Module):
    """Computes something else when torch.export looks on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (2 if torch.compiler.is_compiling() else 1)


class WrongAndMasked(Wrong):
    """Half of its scores are those of words that may not come."""

    least = -torch.inf

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        return torch.cat((scores, torch.full_like(scores, self.least)), 1)


class WrongAndMaskedByTheLeast(WrongAndMasked):
    """The same by the least number that there is, as transformers masks: plus a score, it is itself."""

    least = torch.finfo(torch.float32).min


@pytest.mark.parametrize("kind", [Wrong, WrongAndMasked, WrongAndMaskedByTheLeast])
def test_a_row_that_gives_something_else_is_refused(kind: type[nn.Module]) -> None:
    sentence = rf"the layers of {kind.__name__} compute something other than the model \(a difference of [\d.]+\)"
    with pytest.raises(PipelagError, match=sentence):
        pipelag.linearise(kind(), inputs={"x": torch.randn(2, 4)})


def test_the_recipe_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/guide.md").read_text()
    recipe = page.partition("### Models of Hugging Face")[2].partition("GPT-2's output layer")[0]
    code = [line[4:] for line in recipe.splitlines() if line.startswith("    ") or not line]
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"torch": torch, "pipelag": pipelag}
    exec("\n".join(code), namespace)
    assert namespace["run"].delays.forward == (2, 1, 0)
    trained = transformers.GPT2LMHeadModel.from_pretrained("trained")
    assert torch.equal(trained.lm_head.weight, namespace["gpt2"].lm_head.weight)


@pytest.mark.real
def test_it_trains_with_a_mask_alike_simulated_and_on_real_workers() -> None:
    def batches() -> list[Any]:
        return [((words(3) + n, mask()), words().roll(-1, 1)) for n in range(4)]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    _, row = laid_out("gpt2 with a mask")
    before = copy.deepcopy(row)
    weights = {}
    for executor in ("simulated", "real"):
        network = copy.deepcopy(before).train()
        pipelag.train(network, batches(), cuts=(3, 7), method="pipedream", loss=loss, lr=0.1, executor=executor)
        weights[executor] = network.state_dict()
    for name, value in weights["simulated"].items():
        assert torch.equal(value, weights["real"][name]), name
    assert any(not torch.equal(value, before.state_dict()[name]) for name, value in weights["real"].items())
