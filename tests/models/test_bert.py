"""BERT: its sizes, torch's own block with the same weights, padding, cuts, profiles, and learning masked words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag import methods, models
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.runs.text_metrics import masked_word_loss
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from pipelag.timing.roofline import roofline
from tests.simulate.test_simulated import naive_cycles
from tests.toy import equal, sgd

SMALL: dict[str, Any] = {"blocks": 2, "size": 16, "heads": 2, "hidden": 24, "words": 12, "length": 9}
TEXT = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 3, 0, 0]])
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
MASK = 1


def build(**options: Any) -> nn.Sequential:
    return models.build("bert", seed=0, **(SMALL | {"dropout": 0.0} | options))


def test_bert_48_has_its_parameters_by_hand() -> None:
    with torch.device("meta"):
        model = models.build("bert")
    size, hidden, words = 1024, 4096, 30522
    linear = lambda a, b: a * b + b  # noqa: E731
    norm = 2 * size
    embeddings = (words + 512 + 2) * size + norm
    block = 4 * linear(size, size) + norm + linear(size, hidden) + linear(hidden, size) + norm
    heads = linear(size, size) + linear(size, 2) + linear(size, size) + norm + linear(size, words)
    assert sum(p.numel() for p in model.parameters()) == embeddings + 48 * block + heads == 669_790_012
    assert len(model) == 1 + 6 * 48 + 4
    assert max(sum(p.numel() for p in layer.parameters()) for layer in model[1:-1]) == linear(size, hidden)


def test_a_block_is_torchs_own() -> None:
    model = build().eval()
    theirs = nn.TransformerEncoderLayer(16, 2, 24, 0.0, "gelu", 1e-12, batch_first=True).eval()
    names = ("self_attn.in_proj_", "self_attn.out_proj.", "norm1.", "linear1.", "linear2.", "norm2.")
    weights = {
        f"{n}{kind}": getattr(model[i].module, kind) for i, n in enumerate(names, 1) for kind in ("weight", "bias")
    }
    theirs.load_state_dict(weights)
    x, padding = model[0]((TEXT, SEGMENTS))
    assert padding.tolist() == (TEXT == 0).tolist()
    ours: Any = (x, padding)
    for layer in model[1:7]:
        ours = layer(ours)
    expected = theirs(x, src_key_padding_mask=padding)
    torch.testing.assert_close(ours[0][~padding], expected[~padding])


def test_padding_changes_nothing_and_segments_places_and_words_do() -> None:
    model = build().eval()
    scores, order = model((TEXT, SEGMENTS))
    assert scores.shape == (2, 6, 12) and order.shape == (2, 2)
    alone = model((TEXT[1:, :4], SEGMENTS[1:, :4]))
    torch.testing.assert_close(scores[1:, :4], alone[0])
    torch.testing.assert_close(order[1:], alone[1])
    torch.testing.assert_close(model(TEXT)[0], model((TEXT, torch.zeros_like(TEXT)))[0])
    for other in ((TEXT, 1 - SEGMENTS), (TEXT.flip(1), SEGMENTS), (TEXT.where(TEXT != 4, 9), SEGMENTS)):
        changed = model(other)
        assert not torch.allclose(changed[0][0], scores[0]) and not torch.allclose(changed[1][0], order[0])
    with pytest.raises(PipelagError, match="reads up to 9 words at a time, not 10"):
        model(torch.ones(1, 10, dtype=torch.long))


def test_stages_compose_at_every_cut_and_every_parameter_learns() -> None:
    model = build(dropout=0.2)
    torch.manual_seed(1)
    whole = model((TEXT, SEGMENTS))
    for cut in range(1, len(model)):
        first, second = stages(model, (cut,))
        torch.manual_seed(1)
        assert all(torch.equal(a, b) for a, b in zip(second(first((TEXT, SEGMENTS))), whole, strict=True))
    masked_word_loss(whole, (TEXT, torch.tensor([0, 1]))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_loss_is_that_of_the_masked_words_and_of_the_order() -> None:
    scores, order = torch.randn(2, 3, 5), torch.randn(2, 2)
    words, follows = torch.tensor([[0, 4, 0], [2, 0, 3]]), torch.tensor([1, 0])
    chances = scores.log_softmax(-1)
    masked = -(chances[0, 1, 4] + chances[1, 0, 2] + chances[1, 2, 3]) / 3
    expected = masked - (order.log_softmax(-1)[0, 1] + order.log_softmax(-1)[1, 0]) / 2
    torch.testing.assert_close(masked_word_loss((scores, order), (words, follows)), expected)


def test_it_has_a_profile_without_being_built() -> None:
    with torch.device("meta"):
        model = models.build("bert", blocks=2)
        layers = roofline(model, torch.empty(4, 128, dtype=torch.long), "v100").layers
    assert [layer.layer for layer in layers] == list(range(1, 18))
    blocks = [sum(layer.forward_ms for layer in layers[i : i + 6]) for i in (1, 7)]
    assert blocks[0] == pytest.approx(blocks[1]) and blocks[0] > 0
    assert layers[6].output_bytes == 4 * 128 * (4 * 1024 + 1)  # states and the mask of padding
    assert layers[-1].weight_bytes == 4 * (1024 * 30522 + 30522)


class Texts:
    """Two segments of two words: the second follows if it begins with 8 or more; its masked end is the first's."""

    def __init__(self, batch: int = 32) -> None:
        self.batch = batch

    def __getitem__(self, t: int) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(t)
        a, b = torch.randint(4, 12, (2, self.batch), generator=generator)
        follows = torch.randint(0, 2, (self.batch,), generator=generator)
        text = torch.stack((a, b, a % 4 + 4 + 4 * follows, b), 1)
        words = torch.zeros_like(text)
        words[:, 3], text[:, 3] = b, MASK
        return (text, torch.tensor([0, 0, 1, 1]).expand_as(text)), (words, follows)

    def inputs(self, t: int) -> Any:
        return self[t][0]

    def targets(self, t: int) -> Any:
        return self[t][1]


def test_a_small_one_learns_masked_words_and_the_order_in_a_pipeline() -> None:
    model = build(blocks=1, size=32, hidden=64)
    run = pipelag.train(
        model,
        Texts(64),
        loss=masked_word_loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.003),
        method="pipeoptim",
        cuts=(4, 8),
        steps=300,
    )
    assert run.metrics[0]["loss"] > 2.5 and run.metrics[-1]["loss"] < 0.3  # chance: log 8 + log 2 = 2.8


@pytest.mark.parametrize("cuts", [(3,), (1, 7, 13, 15)])
def test_simulated_weights_equal_the_naive_machine(cuts: tuple[int, ...]) -> None:
    options = {"dropout": 0.1}
    training = SimulatedTraining(
        build(**options), [Phase(methods.get("stale_weights"), 12, cuts)], sgd, masked_word_loss, seed=3
    )
    for t in range(12):
        training.step(*Texts(4)[t])
    naive = naive_cycles(build(**options), cuts, Texts(4), 12, 3, False, masked_word_loss)
    assert equal(training.model.state_dict(), naive.state_dict())


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(PipelagError, match="divisible by the 3 heads"):
        build(heads=3)
