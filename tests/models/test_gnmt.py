"""GNMT: the profiles' network as it was, padding that is not seen, weights of the backward's own time, learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipelag import data, models
from pipelag.data.text.parallel import BEGIN, END, PAD, TextBatches
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.models.gnmt import AttentionStart, Source, TwoWays
from pipelag.models.recurrent import Recurrent
from pipelag.runs.text_metrics import TranslationTest, token_loss
from pipelag.stage.weights import FlatParameters
from pipelag.timing.roofline import roofline

SOURCE = torch.tensor([[4, 5, 6, 7, END], [8, 9, END, PAD, PAD], [5, 4, 4, END, PAD]])
TARGET = torch.tensor([[BEGIN, 7, 8, 9], [BEGIN, 4, PAD, PAD], [BEGIN, 5, 6, PAD]])
WANTED = torch.tensor([[7, 8, 9, END], [4, END, PAD, PAD], [5, 6, END, PAD]])
PLACES = [pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")), "cpu"]


def build(**options: Any) -> nn.Sequential:
    small = {"layers": 8, "size": 6, "source_words": 12, "target_words": 11, "dropout": 0.0}
    return models.build("gnmt", seed=0, **(small | options)).double()


def gradients(model: nn.Sequential, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> list[Any]:
    model.zero_grad()
    token_loss()(model((source, target)), labels).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_the_trained_network_is_the_profiled_one_with_two_vocabularies() -> None:
    with torch.device("meta"):
        profiled, trained = models.build("gnmt"), models.build("gnmt", source_words=900, target_words=700)
    assert [type(layer) for layer in trained[:2]] == [Source, TwoWays] and isinstance(trained[4 + 1], AttentionStart)
    shapes = [[tuple(p.shape) for p in model.parameters()] for model in (profiled, trained)]
    renamed = [tuple({32320: 0, 900: 0, 700: 0}.get(n, n) for n in shape) for shape in shapes[0]]
    assert renamed == [tuple({900: 0, 700: 0}.get(n, n) for n in shape) for shape in shapes[1]]
    assert shapes[1][0] == (900, 1024) and shapes[1][-1] == (700,)
    drops = [layer.dropout for layer in trained if isinstance(layer, (Recurrent, AttentionStart))]
    assert len(drops) == 8 and all(isinstance(d, nn.Dropout) and d.p == 0.2 for d in drops)
    assert not any(isinstance(module, nn.Dropout) for module in profiled.modules())


def test_inputs_are_added_from_the_third_lstm_of_each_side_on() -> None:
    for options in ({"words": 20}, {"source_words": 20, "target_words": 18}):
        added = [each.label for each in models.build("gnmt", size=4, **options) if getattr(each, "residual", False)]
        assert added == ["encoder 3", "encoder 4", "decoder 3", "decoder 4"]
    layer = Recurrent("", 8, 4, residual=True, joined=True).eval()
    x, attended = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(layer((x, attended))[0], x + layer.lstm(torch.cat((x, attended), -1))[0])


def test_padding_changes_neither_scores_nor_gradients() -> None:
    model = build()
    wider = nn.functional.pad(SOURCE, (0, 4), value=PAD)
    longer, more = (nn.functional.pad(words, (0, 3), value=PAD) for words in (TARGET, WANTED))
    scores = model((SOURCE, TARGET))
    torch.testing.assert_close(model((wider, longer))[:, :4], scores, rtol=1e-12, atol=1e-12)
    for row, (words, length) in enumerate(((5, 4), (3, 2), (4, 3))):  # each sentence alone, without any padding
        alone = model((SOURCE[row : row + 1, :words], TARGET[row : row + 1, :length]))
        torch.testing.assert_close(scores[row : row + 1, :length], alone, rtol=1e-12, atol=1e-12)
    plain, padded = gradients(model, SOURCE, TARGET, WANTED), gradients(model, wider, longer, more)
    assert len(plain) == len(list(model.parameters()))
    for ours, theirs in zip(padded, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_profiles_form_takes_every_place_for_a_word() -> None:
    model = models.build("gnmt", seed=0, size=6, words=12).double()
    wider = nn.functional.pad(SOURCE, (0, 4), value=PAD)
    assert not torch.allclose(model((wider, TARGET)), model((SOURCE, TARGET)))


def test_words_are_seen_from_both_sides_in_the_source_and_from_one_in_the_target() -> None:
    model = build()
    scores = model((SOURCE, TARGET))
    for place in range(4):
        source, target = SOURCE.clone(), TARGET.clone()
        source[0, place], target[0, place] = 10, 10
        assert (model((source, TARGET))[0] != scores[0]).any(-1).all()  # every place of the target attends to it
        changed = (model((SOURCE, target))[0] != scores[0]).any(-1)
        assert changed.tolist() == [False] * place + [True] * (4 - place)


def test_the_first_lstm_reads_each_way_as_torchs_does_without_padding() -> None:
    model = build()
    x, padding, target = model[0]((SOURCE, TARGET))
    assert padding.tolist() == (SOURCE == PAD).tolist() and target is TARGET
    out = model[1]((x, padding, target))[0]
    for row, words in enumerate((5, 3, 4)):
        torch.testing.assert_close(out[row, :words], model[1].lstm(x[row : row + 1, :words])[0][0])
        assert (out[row, words:] == 0).all()


def test_stages_compose_at_every_cut() -> None:
    model = build(dropout=0.3)
    for cut in range(1, len(model)):
        first, second = stages(model, (cut,))
        torch.manual_seed(1)
        whole = model((SOURCE, TARGET))
        torch.manual_seed(1)
        assert torch.equal(second(first((SOURCE, TARGET))), whole)


def unrolled(lstm: nn.LSTM, x: torch.Tensor, reverse: bool = False) -> torch.Tensor:
    """An LSTM written down step by step, for sentences of one length; its weights are saved by reference."""
    end = "_reverse" if reverse else ""
    weights = [getattr(lstm, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    h = c = x.new_zeros(len(x), lstm.hidden_size)
    out = []
    for step in range(x.shape[1])[:: -1 if reverse else 1]:
        gates = nn.functional.linear(x[:, step], weights[0], weights[2])
        i, f, g, o = (gates + nn.functional.linear(h, weights[1], weights[3])).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out[:: -1 if reverse else 1], 1)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["one way", "both ways, packed"])
def test_a_backward_reads_the_weights_of_its_own_time(kind: str, place: str) -> None:
    """The weights change between a layer's forward and its backward, as they do in a pipeline without stashing."""
    both = kind != "one way"
    results: dict[str, list[torch.Tensor]] = {}
    for version in ("ours", "by hand", "unchanged"):
        torch.manual_seed(0)
        layer = TwoWays("both", 6, 5, 0.0) if both else Recurrent("one", 6, 5)
        layer.double().to(place)
        flat = FlatParameters(layer.parameters())
        x = torch.randn(3, 7, 6, dtype=torch.float64).to(place).requires_grad_()
        if version == "by hand":
            ways = [unrolled(layer.lstm, x, reverse) for reverse in ((False, True) if both else (False,))]
            out = torch.cat(ways, -1)
        elif both:
            out = layer((x, torch.zeros(3, 7, dtype=torch.bool, device=place), TARGET))[0]
        else:
            out = layer(x)
        if version != "unchanged":
            flat.buffers[0].mul_(1.5)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out).to(out)).sum().backward()
        grads = [parameter.grad for parameter in layer.parameters()]
        assert x.grad is not None and all(grad is not None for grad in grads)
        results[version] = [out.detach(), x.grad, *(grad for grad in grads if grad is not None)]
    for ours, theirs in zip(results["ours"], results["by hand"], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(results["ours"][0], results["unchanged"][0])
    assert not torch.allclose(results["ours"][1], results["unchanged"][1])


def test_it_has_a_profile_with_vocabularies_too() -> None:
    words = [torch.empty(4, 10, dtype=torch.long, device="meta") for _ in range(2)]
    with torch.device("meta"):
        model = models.build("gnmt", size=16, source_words=50, target_words=40)
        layers = roofline(model, tuple(words), "v100").layers
    assert len(layers) == 10 and all(layer.forward_ms > 0 for layer in layers)
    assert layers[0].output_bytes == 4 * (4 * 10 * 16) + 4 * 10 + 8 * 4 * 10  # vectors, padding, the target's words


def test_a_small_one_learns_to_translate() -> None:
    phrases = data.load("phrases", train=4000, test=60, most=9999)
    vocabularies = {"source_words": len(phrases.source_words), "target_words": len(phrases.target_words)}
    model = models.build("gnmt", seed=0, layers=6, size=48, dropout=0.1, **vocabularies)
    optimizer, batches = torch.optim.Adam(model.parameters(), lr=0.006), TextBatches(phrases, 64, seed=0)
    test = TranslationTest(phrases, torch.device("cpu"), beam=2)
    before = test.measure(model)
    for t in range(180):
        inputs, targets = batches[t]
        optimizer.zero_grad()
        token_loss()(model(inputs), targets).backward()
        optimizer.step()
    after = test.measure(model)
    assert before["bleu"] < 5 and after["bleu"] > 75 and after["accuracy"] > 90


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"layers": 5}, "even number of LSTMs, at least 4 .half of them in the encoder., not 5"),
        ({"layers": 2}, "at least 4"),
        ({"source_words": 9}, "needs both source_words and target_words"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PipelagError, match=complaint):
        models.build("gnmt", **options)
