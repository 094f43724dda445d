"""fairseq's SequenceGenerator on the weights of our rows of layers, against our own search. Needs fairseq 0.12.2."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipelag import models
from pipelag.__main__ import main
from pipelag.data.text.parallel import END, PAD
from pipelag.errors import PipelagError
from pipelag.runs.text_metrics import search

pytestmark = pytest.mark.skipif(importlib.util.find_spec("fairseq") is None, reason="fairseq is not installed")

SHAPE: dict[str, Any] = {"size": 32, "hidden": 64, "heads": 4, "blocks": 2}
WORDS = 40


def sharp(name: str, seed: int, **options: Any) -> nn.Sequential:
    """A network with opinions, of which ending a sentence is one."""
    sizes = SHAPE | {"source_words": WORDS, "target_words": WORDS, "dropout": 0.0}
    model = models.build(name, seed=seed, **(sizes | options))
    with torch.no_grad():
        for layer in model:
            if layer.label.startswith("output"):
                layer.module.weight.mul_(3)  # type: ignore[union-attr, operator]
        if not options:
            model[-1].module.weight[END] *= 4  # type: ignore[union-attr, index, operator]
    return model.eval()


def sentences(seed: int) -> torch.Tensor:
    source = torch.randint(4, WORDS, (12, 7), generator=torch.Generator().manual_seed(seed))
    source[:, -1] = END
    source[::3, 4:] = torch.tensor([END, PAD, PAD])
    return source


@pytest.mark.parametrize("name", ["transformer", "fairseq_transformer"])
@pytest.mark.parametrize(("beam", "lenpen"), [(1, 1.0), (2, 1.0), (5, 1.0), (5, 0.0), (5, 2.0)])
def test_fairseqs_generator_writes_what_our_search_writes(name: str, beam: int, lenpen: float) -> None:
    from pipelag.models.fairseq_generator import Generator

    write, lengths = Generator(), set()
    for seed in range(4):
        model, source = sharp(name, seed), sentences(seed)
        written = search(model, source, beam, 12, lenpen)
        assert write(model, source, beam, 12, lenpen) == written  # one generator, other weights each time
        lengths |= {len(words) for words in written}
    assert len(lengths) > 2  # so that the division by the length matters


def test_the_length_penalty_prefers_longer_or_shorter_ones() -> None:
    model, source = sharp("transformer", 1), sentences(1)
    short, long = (sum(map(len, search(model, source, 5, 12, lenpen))) for lenpen in (0.0, 2.0))
    assert short < long


@pytest.mark.parametrize("name", ["transformer", "fairseq_transformer"])
def test_split_weights_are_put_together(name: str) -> None:
    from pipelag.models.fairseq_generator import Generator

    model, source = sharp(name, 0, split=2), sentences(0)
    assert Generator()(model, source, 2, 12) == search(model, source, 2, 12)


def test_unequal_sides_are_translated_too() -> None:
    from pipelag.models.fairseq_generator import Generator

    model = sharp("fairseq_transformer", 0, decoder_blocks=1, source_words=50)
    assert Generator()(model, sentences(0), 2, 12) == search(model, sentences(0), 2, 12)


def test_a_diverged_model_writes_nothing() -> None:
    from pipelag.models.fairseq_generator import Generator

    model = sharp("fairseq_transformer", 0)
    with torch.no_grad():
        model[3].module.weight.fill_(torch.nan)  # type: ignore[union-attr, operator]
    assert Generator()(model, sentences(0), 2, 12) == [[]] * 12


def test_the_callers_random_numbers_stay() -> None:
    from pipelag.models.fairseq_generator import Generator

    model = sharp("transformer", 0)
    before = torch.get_rng_state()
    Generator()(model, sentences(0), 1, 4)
    assert torch.equal(torch.get_rng_state(), before)


def run(out: Path, model: str, **options: Any) -> int:
    spec: dict[str, Any] = {
        "model": {"name": model, "options": {} if model == "gnmt" else {"blocks": 1, "size": 16, "hidden": 32}},
        "data": {"name": "phrases", "options": {"train": 300, "test": 20}},
        "batch": 8,
        "optimizer": {"name": "adam", "lr": 0.01},
        "phases": [{"method": "pipemare_t1", "steps": 20, "cuts": [5, 9]}],
        "evaluate_every": 10,
        "options": {"beam": 3} | options,
    }
    return main(["run", "--spec", json.dumps(spec), "--out", str(out), "--threads", "1"])


@pytest.mark.parametrize("model", ["transformer", "fairseq_transformer"])
def test_a_run_may_ask_for_fairseqs_generator(tmp_path: Path, model: str) -> None:
    """It measures the same BLEU, and trains the same."""
    asked: dict[str, dict[str, Any]] = {"ours": {}, "theirs": {"generator": "fairseq"}}
    rows = {}
    for name, options in asked.items():
        assert run(tmp_path / name, model, **options) == 0
        rows[name] = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()]
    measured = ("bleu", "accuracy", "loss", "test_loss")
    assert [[row[key] for key in measured] for row in rows["ours"]] == [
        [row[key] for key in measured] for row in rows["theirs"]
    ]


def test_a_run_may_ask_for_another_length_penalty(tmp_path: Path) -> None:
    """By which it writes other translations, and trains the same."""
    usual, short = [], []
    for rows, options in ((usual, {}), (short, {"lenpen": 0.1})):
        assert run(tmp_path / str(options), "transformer", **options) == 0
        rows += [json.loads(line) for line in (tmp_path / str(options) / "metrics.jsonl").open()]
    assert [row["loss"] for row in short] == [row["loss"] for row in usual] and len(usual) == 2
    assert short[-1]["bleu"] != usual[-1]["bleu"]


def test_generators_that_there_are_not_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "a", "transformer", generator="fairsec") == 2
    assert run(tmp_path / "b", "gnmt", generator="fairseq") == 2
    errors = capsys.readouterr().err
    assert "the option 'generator' of a train run is 'fairsec', which is not known; did you mean 'fairseq'?" in errors
    assert "models transformer and fairseq_transformer, not with 'gnmt'" in errors
    from pipelag.models.fairseq_generator import same_shape

    with pytest.raises(PipelagError, match="works only with the models transformer"):
        same_shape(nn.Sequential(nn.Linear(2, 2)))


def test_fairseqs_model_scores_as_before_after_it_has_generated() -> None:
    """Its attention remembers the beam and would fold a later minibatch's sentences."""
    from pipelag.models import fairseq_model as fairseq
    from pipelag.models.fairseq_generator import same_shape

    whole, source = same_shape(sharp("transformer", 0)), sentences(0)
    before = fairseq.scores(whole, source, source)
    fairseq.generate(whole, source, beam=3, longest=4)
    torch.testing.assert_close(fairseq.scores(whole, source, source), before)
