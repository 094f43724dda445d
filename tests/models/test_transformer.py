"""The Transformer cut by weight: sizes, masks, searching, and training it to translate."""

from __future__ import annotations

import math

import pytest
import torch

from pipelag import data, models
from pipelag.api import train
from pipelag.data.text.parallel import BEGIN, END, PAD, TextBatches, corpus, padded
from pipelag.errors import PipelagError
from pipelag.models.attention import dot_product_attention
from pipelag.runs.text_metrics import TranslationTest, search, token_loss


def build(**options: object) -> torch.nn.Sequential:
    small = {"source_words": 20, "target_words": 18, "size": 16, "hidden": 32, "heads": 2, "blocks": 1, "dropout": 0.0}
    return models.build("transformer", seed=0, **(small | options)).eval()


def test_fairseqs_transformer_has_a_layer_per_weight() -> None:
    with torch.device("meta"):
        model = models.build("transformer")
    assert len(model) == 93  # PipeMare section 4.1
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(42.7e6, rel=0.02)  # 3 embeddings, not shared
    assert all(sum(p.dim() > 1 for p in layer.parameters()) <= 1 for layer in model)


@pytest.mark.parametrize("split", [2, 3])
def test_a_split_transformer_is_the_same_network(split: int) -> None:
    """Outputs, dropout and gradients; what crosses a boundary inside an operator is enough to go on with."""
    sizes = {"blocks": 2, "dropout": 0.2}
    whole, parts = build(**sizes).train(), build(split=split, **sizes).train()
    assert len(parts) == split * len(whole)
    inputs = torch.tensor([[4, 5, 6, END], [7, END, PAD, PAD]]), torch.tensor([[BEGIN, 7, 8], [BEGIN, 9, PAD]])
    outputs = []
    for model in (whole, parts):
        torch.manual_seed(3)
        out = model(inputs)
        out.square().sum().backward()
        outputs.append(out)
    torch.testing.assert_close(*outputs)
    for place, layer in enumerate(whole):
        pieces = list(parts[place * split : (place + 1) * split])
        for weight, *others in zip(layer.parameters(), *(piece.parameters() for piece in pieces), strict=True):
            axis = 1 if isinstance(layer.module, torch.nn.Embedding) else 0
            joined, grads = torch.cat(others, axis), torch.cat([other.grad for other in others], axis)
            assert joined.shape == weight.shape
            torch.testing.assert_close(joined.sort(axis)[0], weight.sort(axis)[0])
            torch.testing.assert_close(grads.sort(axis)[0], weight.grad.sort(axis)[0])


def test_a_pipeline_of_parts_trains_as_the_whole_does() -> None:
    """PipeMare's figure 8 splits the same 12 layers into 186 stages."""
    with torch.device("meta"):
        assert len(models.build("transformer", split=2)) == 186
    phrases = data.load("phrases", train=64, test=4)
    words = {"source_words": len(phrases.source_words), "target_words": len(phrases.target_words)}
    batches, ends = TextBatches(phrases, 8, 0), []
    for cuts in ((), range(1, 36)):
        model = build(split=2, **words).train()
        sgd = {"loss": token_loss(), "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1), "steps": 3}
        train(model, batches, cuts=cuts, method="gpipe", microbatches=2, **sgd)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends)


def test_words_are_scaled_and_placed_as_in_fairseq() -> None:
    """Vectors times the root of their size; sines, then cosines, of places counted from 2."""
    first = build()[0].eval()
    words = torch.tensor([[5, 6, 5]])
    x, hidden, _ = first((words, words))
    size = x.shape[-1]
    for place, word in enumerate(words[0].tolist()):
        angles = [(place + 2) / 10_000 ** (i / (size // 2 - 1)) for i in range(size // 2)]
        waves = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        torch.testing.assert_close(x[0, place], first.module.weight[word] * size**0.5 + waves)
    assert not hidden.any()


def test_padding_and_later_words_change_nothing() -> None:
    model = build()
    source, target = torch.tensor([[4, 5, 6, END]]), torch.tensor([[BEGIN, 7, 8]])
    longer = torch.cat((source, torch.full((1, 3), PAD)), 1)
    plain = model((source, target))
    torch.testing.assert_close(model((longer, target)), plain)
    torch.testing.assert_close(model((source, torch.tensor([[BEGIN, 7, 9]])))[:, :2], plain[:, :2])
    assert not torch.allclose(model((torch.tensor([[4, 5, 7, END]]), target)), plain)


def test_attention_equals_torchs_own() -> None:
    """The fused projections and the masks against nn.MultiheadAttention with the same weights."""
    model = build()
    first, out = model[1], model[2]
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": first.module.weight,
            "in_proj_bias": first.module.bias,
            "out_proj.weight": out.module.weight,
            "out_proj.bias": out.module.bias,
        }
    )
    x, hidden = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False, False, False, True, True]])
    target = torch.zeros(2, 1)
    ours = out(first((x, hidden, target)))[0]
    torch.testing.assert_close(ours, theirs(x, x, x, key_padding_mask=hidden)[0])


def test_beam_search_finds_what_greedy_search_misses() -> None:
    class Table(torch.nn.Module):
        """Word 4 looks best at first, but 5 leads to a surer end."""

        def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            words = value[1]
            scores = torch.full((*words.shape, 8), -20.0)
            for row in range(words.shape[0]):
                last = int(words[row, -1])
                if last == BEGIN:
                    scores[row, -1, 4], scores[row, -1, 5] = 0.5, 0.4
                elif last == 5:
                    scores[row, -1, END] = 9.0
                else:
                    scores[row, -1, 4:8], scores[row, -1, END] = 0.0, 0.1
            return scores

    source = torch.tensor([[4, END]])
    assert search(Table(), source, beam=1, longest=6)[0][0] == 4
    assert search(Table(), source, beam=3, longest=6)[0] == [5]


class Whole(torch.nn.Module):
    """A model that does not say which of its layers read the target."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = self.model(value)
        return scores


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    ("name", "options", "layers"),
    [
        ("transformer", {"size": 16, "hidden": 32, "heads": 2, "blocks": 1}, 7),
        ("transformer", {"size": 16, "hidden": 32, "heads": 2, "blocks": 1, "split": 2}, 14),
        ("gnmt", {"layers": 4, "size": 16}, 3),
    ],
)
def test_a_translation_is_encoded_once_and_the_same(name: str, options: dict[str, int], layers: int, beam: int) -> None:
    model = models.build(name, seed=3, source_words=12, target_words=11, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # surer of its words, so that sentences end at different places
    source = torch.tensor([[4, 5, 6, 7, END], [8, END, PAD, PAD, PAD], [9, 10, 11, END, PAD]])
    runs: list[int] = []
    for number, layer in enumerate(model):
        layer.register_forward_hook(lambda *_, number=number: runs.append(number))
    projected: set[int] = set()  # places that the last layer scores
    model[-1].register_forward_hook(lambda _module, _inputs, output: projected.add(output.shape[1]))
    once = search(model, source, beam, longest=9)
    assert projected == {1} or options.get("split")
    counts = [runs.count(number) for number in range(len(model))]
    assert set(counts[:layers]) == {1} and min(counts[layers:]) > 1
    assert once == search(Whole(model), source, beam, longest=9)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_ignores_padding(smoothing: float) -> None:
    scores = torch.randn(2, 3, 7, requires_grad=True)
    targets = torch.tensor([[4, 5, END], [6, PAD, END]])
    torch_s = torch.nn.functional.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing
    )
    ours = token_loss(smoothing)(scores, targets)
    torch.testing.assert_close(ours, torch_s)
    (expected,), (gradient,) = torch.autograd.grad(torch_s, scores), torch.autograd.grad(ours, scores)
    assert torch.equal(gradient, expected) and not gradient[1, 1].any() and gradient[1, 2].all()


def test_attention_within_bfloat16_passes_on_a_cpu_is_float32s() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 1, 1, 5) > 0.3
    mask[..., 0] = True
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        rough = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        ours = dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.equal(ours, exact) and not torch.equal(rough.float(), exact)


def test_a_perfect_translator_has_a_bleu_of_100() -> None:
    phrases = data.load("phrases", train=400, test=12)
    answers = {tuple(a): (*b, END) for a, b in phrases.test}

    class Oracle(torch.nn.Module):
        def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            source, target = value
            scores = torch.zeros(*target.shape, len(phrases.target_words))
            for row, words in enumerate(source.tolist()):
                answer = answers[tuple(w for w in words if w not in (PAD, END))]
                for place in range(target.shape[1]):
                    scores[row, place, answer[place] if place < len(answer) else END] = 50.0
            return scores

    measured = TranslationTest(phrases, torch.device("cpu"), beam=2).measure(Oracle())
    assert measured["bleu"] == pytest.approx(100.0)
    assert measured["accuracy"] == 100.0
    assert padded([(4,), (5, 6)]).tolist() == [[4, PAD], [5, 6]]


def test_a_beam_is_as_wide_as_the_vocabulary_allows() -> None:
    few = corpus("few", "few", [("a b", "x y"), ("b", "y")], [("a", "x")])  # 6 words: 4 special ones, x and y

    class Even(torch.nn.Module):
        def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return torch.zeros(*value[1].shape, len(few.target_words))

    wide, widest = (TranslationTest(few, torch.device("cpu"), beam=beam).measure(Even()) for beam in (5, 12))
    assert wide == widest and len(few.target_words) == 6


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PipelagError, match="cannot be split into 17 parts"):
        build(split=17)
    with pytest.raises(PipelagError, match="divisible by the 3 heads"):
        build(heads=3)
    with pytest.raises(PipelagError, match="must be even, 4 or more, .* not 2"):
        build(size=2)
