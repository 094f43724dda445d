"""Our Transformer against fairseq's with the same weights. Needs fairseq 0.12.2 (see `pipelag.compat.fairseq`)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Optional

import pytest
import torch

from pipelag import models
from pipelag.data import load
from pipelag.data.text import binarised
from pipelag.data.text.parallel import BEGIN, END, PAD, corpus
from pipelag.errors import PipelagError
from pipelag.models import fairseq_model as adapter
from pipelag.runs.text_metrics import search

installed = importlib.util.find_spec("fairseq") is not None


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
@pytest.mark.parametrize("size", ["small", "transformer_iwslt_de_en"])
def test_same_weights_give_the_same_scores(size: str) -> None:
    torch.manual_seed(0)
    small = {
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
           {"embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4, "layers": 2}.items()},
    } if size == "small" else {}  # fmt: skip
    theirs = adapter.transformer(40, 37, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, **small).eval()
    shape = {"size": 32, "hidden": 64, "heads": 4, "blocks": 2} if small else {}
    ours = models.build("transformer", source_words=40, target_words=37, dropout=0.0, **shape).eval()
    adapter.weights_from(theirs, ours)
    source = torch.tensor([[5, 9, 31, 12, END], [7, 30, END, PAD, PAD]])
    target = torch.tensor([[BEGIN, 8, 36, 4], [BEGIN, 20, 4, 11]])
    with torch.no_grad():
        torch.testing.assert_close(ours((source, target)), adapter.scores(theirs, source, target), rtol=1e-4, atol=1e-5)


def same_shape(seed: int, words: int = 40) -> tuple[torch.nn.Module, torch.nn.Sequential]:
    """fairseq's model and ours with the same weights, sharp enough to have opinions."""
    torch.manual_seed(seed)
    shape = {"embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4, "layers": 2}
    settings = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()}
    theirs = adapter.transformer(words, words, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, **settings)
    ours = models.build(
        "transformer", source_words=words, target_words=words, dropout=0.0, size=32, hidden=64, heads=4, blocks=2
    )
    with torch.no_grad():
        theirs.decoder.output_projection.weight.mul_(3)  # type: ignore[union-attr, operator]
        theirs.decoder.output_projection.weight[2] *= 4  # type: ignore[union-attr, index]
    adapter.weights_from(theirs, ours)
    return theirs.eval(), ours.eval()


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_our_search_writes_what_fairseqs_generator_writes(beam: int) -> None:
    lengths = set()
    for seed in range(6):
        theirs, ours = same_shape(seed)
        source = torch.randint(4, 40, (12, 7), generator=torch.Generator().manual_seed(seed))
        source[:, -1] = END
        source[::3, 4:] = torch.tensor([END, PAD, PAD])
        written = search(ours, source, beam, longest=12)
        assert written == adapter.generate(theirs, source, beam, longest=12)
        lengths |= {len(words) for words in written}
    assert len(lengths) > 3 and 12 in lengths  # so that the division by the length and the limit matter


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
def test_a_corpus_survives_being_binarised(tmp_path: Path) -> None:
    pairs = [("ein ha@@ us", "a house"), ("zwei <unk>", "two ho@@ uses"), ("ein hund", "a dog")]
    data = corpus("toy", "toy", pairs, pairs[:2])
    binarised.write(data, tmp_path / "bin", "de", "en")
    loaded = load("fairseq", folder=str(tmp_path / "bin"))
    for name in ("source_words", "target_words", "train", "test", "references"):
        assert getattr(loaded, name) == getattr(data, name)
    assert loaded.references[1] == "two houses"
    assert loaded.release.startswith("binarised ") and not loaded.official
    with pytest.raises(PipelagError, match="valid.de-en.de.bin is missing; fairseq-preprocess"):
        load("fairseq", folder=str(tmp_path / "bin"), tested_on="valid")
    with pytest.raises(PipelagError, match="need different names"):
        binarised.write(data, tmp_path / "bin", "de", "de")


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
def test_fairseqs_own_preprocessing_is_read(tmp_path: Path) -> None:
    """The text that `pipelag.data.text.bpe` keeps, through fairseq-preprocess."""
    adapter.imported()
    from fairseq_cli import preprocess

    texts = {"train": ["ein ha@@ us", "zwei hunde"], "test": ["ein hund"]}
    for part, lines in texts.items():
        for language in ("de", "en"):
            (tmp_path / f"{part}.{language}").write_text("\n".join(lines) + "\n")
    parser = preprocess.options.get_preprocessing_parser()
    where = ["--trainpref", str(tmp_path / "train"), "--testpref", str(tmp_path / "test"), "--destdir", str(tmp_path)]
    preprocess.main(parser.parse_args(["--source-lang", "de", "--target-lang", "en", *where]))
    loaded = load("fairseq", folder=str(tmp_path))
    assert [loaded.source_words[t] for t in loaded.train[0][0]] == ["ein", "ha@@", "us"]
    assert len(loaded.source_words) % 8 == 0  # fairseq fills dictionaries up
    assert loaded.references == ("ein <<unk>>",)


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
def test_an_unknown_word_is_written_as_by_fairseq_generate(tmp_path: Path) -> None:
    """So BLEU counts no word of a translation as right where the reference has an unknown one, as fairseq's does."""
    data = corpus("toy", "toy", [("ein ha@@ us", "a ho@@ use")], [("ein", "a ho@@ <unk> use")], most_unknown=1)
    binarised.write(data, tmp_path, "de", "en")
    dictionary = binarised.dictionary(data.target_words)
    target = torch.tensor(data.test[0][1])
    assert load("fairseq", folder=str(tmp_path)).references == (dictionary.string(target, "@@ ", escape_unk=True),)
    assert data.sentence(data.test[0][1]) == dictionary.string(target, "@@ ")


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("dict.de.txt", b"ein\n", "does not hold files as fairseq-preprocess writes them .Incorrect dictionary format"),
        ("dict.en.txt", b"a 1\n", "train in en has a word of number 5, but dict.en.txt has only 5 words; binarise all"),
        ("train.de-en.de.idx", b"", "Index file doesn't match expected format.*; binarise the text again"),
        ("test.de-en.en.bin", b"\0", "buffer is smaller than requested size.; binarise the text again"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, refusal: str) -> None:
    data = corpus("toy", "toy", [("ein haus", "a house")], [("ein haus", "a house")])
    binarised.write(data, tmp_path, "de", "en")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PipelagError, match=refusal):
        load("fairseq", folder=str(tmp_path))


@pytest.mark.skipif(installed, reason="fairseq is installed")
def test_without_fairseq_it_says_what_to_do() -> None:
    with pytest.raises(PipelagError, match="or use pipelag's own model"):
        adapter.imported()
    with pytest.raises(PipelagError, match="fairseq cannot be imported"):
        load("fairseq", folder="nowhere")


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
def test_fairseq_is_imported_where_typing_io_is_gone() -> None:
    """Python 3.13 has no `typing.io`, for which hydra's parser asks; nothing of it is left behind."""
    code = """
        import sys, typing
        sys.modules.pop("typing.io", None)
        from pipelag.compat.fairseq import imported
        imported()
        assert "typing.io" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
def test_fairseq_knows_an_optional_field_by_its_type() -> None:
    """By the type's text alone it would not from Python 3.14 on, where `typing.Optional[str]` is `str | None`."""
    fairseq = adapter.imported()
    interpret = fairseq.dataclass.utils.interpret_dc_type
    assert interpret(str | None) is interpret(Optional[str]) is str  # noqa: UP045
    assert interpret(int | str) == int | str and interpret(list[int]) == list[int]
