"""The networks that judge a text: sizes, what they look at, cuts, and learning what counting words cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipelag import data, models
from pipelag.data.text.labelled import PAD
from pipelag.errors import PipelagError
from pipelag.models.cut import stages

SMALL: dict[str, dict[str, Any]] = {
    "residual_lstm": {"layers": 2, "size": 8, "memory": 12, "words": 20},
    "sentiment_transformer": {"size": 8, "hidden": 12, "heads": 2, "blocks": 1, "words": 20, "dropout": 0.0},
}
TEXT = torch.tensor([[PAD, PAD, 3, 4, 5], [6, 7, 8, 9, 10]])


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_spectrains_residual_lstm_has_its_sizes() -> None:
    with torch.device("meta"):
        model = models.build("residual_lstm")
    cell = 4 * 1024 * (512 + 512 + 2) + 512 * 1024  # gates of input and output state, two biases; the projection
    assert len(model) == 10
    assert parameters(model) == 10_000 * 512 + 8 * cell + 2 * 513 == 42_935_298


def test_spectrains_transformer_has_the_sizes_of_torchs() -> None:
    with torch.device("meta"):
        model = models.build("sentiment_transformer")
        theirs = nn.Transformer(512, 8, 6, 6, dim_feedforward=512)
    without_last_norms = parameters(theirs) - 2 * 2 * 512
    assert len(model) == 93
    assert parameters(model) == without_last_norms + 10_000 * 512 + 512 + 2 * 513 == 30_367_234


def test_the_lstm_adds_its_input_and_the_last_state_is_judged() -> None:
    model = models.build("residual_lstm", seed=0, **SMALL["residual_lstm"])
    x = model[0](TEXT)
    for layer in model[1:-1]:
        x = layer.lstm(x)[0] + x
    linear = model[-1][-1]
    torch.testing.assert_close(model(TEXT), x[:, -1] @ linear.weight.T + linear.bias)
    assert (model[0](TEXT)[0, :2] == 0).all()
    mean = models.build("residual_lstm", seed=0, mean=True, **SMALL["residual_lstm"])
    torch.testing.assert_close(mean(TEXT), x.mean(1) @ linear.weight.T + linear.bias)
    with pytest.raises(PipelagError, match="at least as many memory cells as outputs, not 2 layers and 4 cells"):
        models.build("residual_lstm", **SMALL["residual_lstm"] | {"memory": 4})


@pytest.mark.parametrize("name", SMALL)
def test_every_word_counts_and_every_parameter_learns(name: str) -> None:
    model = models.build(name, seed=0, **SMALL[name])
    scores = model(TEXT)
    assert scores.shape == (2, 2)
    for place in range(5):
        other = TEXT.clone()
        other[1, place] = 15
        changed = model(other)
        assert torch.equal(changed[0], scores[0]) and not torch.allclose(changed[1], scores[1])
    scores[:, 0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_transformer_does_not_see_padding() -> None:
    model = models.build("sentiment_transformer", seed=0, **SMALL["sentiment_transformer"])
    before = model(TEXT)
    with torch.no_grad():  # what stands at padded places, before attention, is of no account
        model[0].module.weight[PAD] += 1.0
    torch.testing.assert_close(model(TEXT), before)


@pytest.mark.parametrize("name", SMALL)
def test_stages_compose_at_every_cut(name: str) -> None:
    model = models.build(name, seed=0, **SMALL[name])
    for cut in range(1, len(model)):
        first, second = stages(model, (cut,))
        assert torch.equal(second(first(TEXT)), model(TEXT))


def test_a_small_lstm_learns_what_counting_words_cannot() -> None:
    text = data.load("opinions", train=4000, test=500, noise=0.0)
    model = models.build("residual_lstm", seed=0, layers=2, size=24, memory=32, words=len(text.words))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(0)
    for _ in range(250):
        rows = torch.randint(4000, (64,), generator=order)
        loss = nn.functional.cross_entropy(model(text.train[rows]), text.train_labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (model(text.test).argmax(1) == text.test_labels).float().mean()
    assert accuracy > 0.75  # counting words: 0.62
