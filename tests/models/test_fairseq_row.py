"""fairseq's Transformer as a row of layers: its own network, trained by our pipelines. Needs fairseq 0.12.2."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pipelag import data, methods, models
from pipelag.data.text.parallel import BEGIN, END, PAD, Corpus, TextBatches
from pipelag.errors import PipelagError
from pipelag.models import fairseq_model as adapter
from pipelag.models.cut import layer_count, stages
from pipelag.randomness import seed_stage
from pipelag.runs.text_metrics import token_loss
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.models.translators import check_two_workers_learn_what_the_simulator_does
from tests.toy import equal, sgd

pytestmark = pytest.mark.skipif(importlib.util.find_spec("fairseq") is None, reason="fairseq is not installed")

SHAPE: dict[str, Any] = {"size": 16, "hidden": 32, "heads": 2, "blocks": 2}
DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
SOURCE = torch.tensor([[5, 9, 11, 12, END], [7, 13, END, PAD, PAD]])
GIVEN = torch.tensor([[BEGIN, 8, 12, 4], [BEGIN, 13, PAD, PAD]])
WORDS = GIVEN != PAD  # behind them ours and fairseq's differ, and no loss looks there
CPU = torch.device("cpu")


def whole_and_row(split: int = 1, **settings: Any) -> tuple[nn.Module, nn.Sequential]:
    """fairseq's model, and the row of layers that holds its modules."""
    from pipelag.models import fairseq_layers

    torch.manual_seed(0)
    shape = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()}
    whole = adapter.transformer(15, 15, **sides, **settings)
    return whole, fairseq_layers.row(whole, split)


def build(**options: Any) -> nn.Sequential:
    small = SHAPE | {"source_words": 15, "target_words": 15, "dropout": 0.0}
    return models.build("fairseq_transformer", seed=0, **(small | options))


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("shared", [{}, {"share_all_embeddings": True}])
@pytest.mark.parametrize("dropout", [{"dropout": 0.0}, DROPOUT])
def test_scores_and_gradients_are_those_of_fairseqs_whole_model(
    dtype: torch.dtype, off: float, shared: dict[str, Any], dropout: dict[str, float]
) -> None:
    """With every dropout too: the same numbers are drawn in the same order."""
    whole, row = whole_and_row(**shared, **dropout)
    whole.to(dtype)
    results = []
    for compute in (lambda: row((SOURCE, GIVEN)), lambda: adapter.scores(whole, SOURCE, GIVEN)):
        torch.manual_seed(7)
        scores = compute()
        results.append((scores, *torch.autograd.grad(scores.square().mean(), list(row.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=off, atol=off)
    with torch.no_grad():
        torch.testing.assert_close(
            row.eval()((SOURCE, GIVEN)), adapter.scores(whole.eval(), SOURCE, GIVEN), rtol=off, atol=off
        )


def test_it_holds_all_that_fairseq_trains() -> None:
    whole, row = whole_and_row(share_decoder_input_output_embed=True)
    held = {id(parameter) for parameter in row.parameters()}
    left = {name.split(".")[-1] for name, parameter in whole.named_parameters() if id(parameter) not in held}
    assert {name.split("_")[0] for name in left} == {"in", "out", "fc1", "fc2"}  # the copies of a fast path
    adapter.scores(whole, SOURCE, GIVEN).sum().backward()
    assert all((parameter.grad is not None) == (id(parameter) in held) for parameter in whole.parameters())


def test_it_has_the_layers_and_the_parameters_of_ours() -> None:
    with torch.device("meta"):
        ours, theirs = models.build("transformer"), models.build("fairseq_transformer")
    assert len(theirs) == 93  # PipeMare section 4.1
    assert [layer.label for layer in theirs] == [layer.label for layer in ours]
    for layer, fairseqs in zip(ours, theirs, strict=True):
        assert sum(p.numel() for p in layer.parameters()) == sum(p.numel() for p in fairseqs.parameters())


def test_from_our_weights_it_is_our_network() -> None:
    ours = models.build("transformer", seed=3, **SHAPE, source_words=15, target_words=15, dropout=0.0)
    theirs = models.build("fairseq_transformer", seed=3, **SHAPE, source_words=15, target_words=15, start="pipelag")
    with torch.no_grad():
        scores = [model.eval()((SOURCE, GIVEN))[WORDS] for model in (theirs, ours)]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)


def test_every_cut_computes_the_same() -> None:
    model = build().double()
    whole = model((SOURCE, GIVEN))
    for cut in range(1, layer_count(model)):
        first, second = stages(model, (cut,))
        torch.testing.assert_close(second(first((SOURCE, GIVEN))), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("split", [2, 3])
def test_a_split_one_is_the_same_network(split: int) -> None:
    """With dropout; and its parts put together are the weights that it was split from."""
    (whole, row), (_, parts) = whole_and_row(dropout=0.2), whole_and_row(split, dropout=0.2)
    assert len(parts) == split * len(row)
    outputs = []
    for model in (row, parts):
        torch.manual_seed(3)
        outputs.append(model((SOURCE, GIVEN)))
    torch.testing.assert_close(*outputs)
    other, _ = whole_and_row()
    adapter.weights_into(other, parts, renumbered=False)
    for names in adapter.operators_of(2, 2):
        for name in names:
            assert torch.equal(whole.get_submodule(name).weight, other.get_submodule(name).weight)  # type: ignore[arg-type]


def test_our_weights_put_together_from_parts_are_fairseqs() -> None:
    theirs, _ = whole_and_row(dropout=0.0)
    for split in (1, 2):
        sizes = SHAPE | {"source_words": 15, "target_words": 15, "dropout": 0.0, "split": split}
        ours = models.build("transformer", seed=1, **sizes).eval()
        adapter.weights_into(theirs.eval(), ours)
        with torch.no_grad():
            scores = adapter.scores(theirs, SOURCE, GIVEN)[WORDS], ours((SOURCE, GIVEN))[WORDS]
        torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)


def test_a_pickled_row_computes_the_same() -> None:
    row = build()
    torch.testing.assert_close(pickle.loads(pickle.dumps(row))((SOURCE, GIVEN)), row((SOURCE, GIVEN)))


def test_its_shapes_are_found_without_computing_and_it_computes_afterwards() -> None:
    row = build()
    before = row((SOURCE, GIVEN))
    stand_ins = {name: value.detach().to("meta") for name, value in (*row.named_parameters(), *row.named_buffers())}
    shaped = functional_call(row, stand_ins, ((SOURCE.to("meta"), GIVEN.to("meta")),))
    assert shaped.shape == before.shape
    assert torch.equal(row((SOURCE, GIVEN)), before)


# Training ------------------------------------------------------------------------------------------------------------

STEPS = 8


def phrases() -> Corpus:
    corpus: Corpus = data.load("phrases", train=300, test=10, most=9999)
    return corpus


def sides() -> dict[str, int]:
    corpus = phrases()
    return {"source_words": len(corpus.source_words), "target_words": len(corpus.target_words)}


def simulated(model: nn.Sequential, method: str, cuts: tuple[int, ...], microbatches: int = 1) -> nn.Sequential:
    phase = Phase(methods.get(method), STEPS, cuts, {}, microbatches)
    training = SimulatedTraining(model, [phase], sgd, token_loss(), seed=3)
    batches = TextBatches(phrases(), 6, seed=2)
    for t in range(STEPS):
        training.step(*batches[t])
    return training.model


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("shared", ["none", "decoder"])
def test_zero_delay_is_plain_training_of_fairseqs_own_model(dropout: float, shared: str) -> None:
    settings = {"dropout": dropout, "share_decoder_input_output_embed": shared == "decoder"}
    trained = simulated(build(**sides(), dropout=dropout, shared=shared), "sequential", ())
    shape = {"embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2, "layers": 2}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()}
    torch.manual_seed(0)
    whole = adapter.transformer(*sides().values(), **both, **settings)
    optimizer, batches = sgd(whole.parameters()), TextBatches(phrases(), 6, seed=2)
    for t in range(STEPS):
        (source, target), targets = batches[t]
        seed_stage(3, t, 1, CPU)
        token_loss()(adapter.scores(whole, source, target), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    other = adapter.transformer(*sides().values(), **both, **settings)
    adapter.weights_into(other, trained, renumbered=False)
    for names in adapter.operators_of(2, 2):
        for name in names:
            learned, plain = (dict(each.get_submodule(name).named_parameters()) for each in (other, whole))
            for key, value in learned.items():
                torch.testing.assert_close(value, plain[key], rtol=1e-5, atol=1e-6)


def test_a_pipeline_of_all_layers_learns_what_the_whole_does() -> None:
    """A synchronous pipeline, cut at every layer, microbatches and all; a stale one learns something else."""
    plain = simulated(build(**sides()).double(), "gpipe", (), microbatches=2).state_dict()
    cuts = tuple(range(1, len(build())))
    for name, value in simulated(build(**sides()).double(), "gpipe", cuts, microbatches=2).state_dict().items():
        torch.testing.assert_close(value, plain[name], rtol=1e-12, atol=1e-12)
    assert not equal(simulated(build(**sides()).double(), "pipemare", (9, 20)).state_dict(), plain)


def test_a_cut_that_parts_a_shared_embedding_is_refused() -> None:
    simulated(build(**sides(), shared="decoder"), "stale_weights", (5, 13))  # the encoder's
    with pytest.raises(PipelagError, match="a weight can belong to one stage only"):
        simulated(build(**sides(), shared="decoder"), "stale_weights", (20,))


@pytest.mark.real
def test_two_workers_learn_bit_for_bit_what_the_simulator_does(tmp_path: Path) -> None:
    """Through checkpoints, which hold what is measured."""
    check_two_workers_learn_what_the_simulator_does(
        tmp_path,
        model={"name": "fairseq_transformer", "options": SHAPE | {"dropout": 0.1}},
        optimizer={"name": "adamw", "lr": 0.005},
        phases=[{"method": "pipemare", "steps": 10, "cuts": [17], "recompute": True}],
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": 17}, "cannot be split into 17 parts"),
        ({"heads": 3}, "divisible by the 3 heads"),
        ({"shared": "both"}, "unknown way to share embeddings 'both'"),
        ({"shared": "all", "target_words": 16}, "one dictionary for both sides, not 15 and 16 words"),
        ({"shared": "all", "split": 2}, "a shared embedding cannot be split"),
        ({"start": "ours"}, "unknown start 'ours' of the weights"),
        ({"start": "pipelag", "decoder_blocks": 1}, "the same number of blocks on both sides"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelagError, match=message):
        build(**options)
