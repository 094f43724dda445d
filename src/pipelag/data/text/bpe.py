"""Raw parallel text -> pieces of words, as by fairseq's preparation scripts; kept for the next run.

The steps are Moses tokenisation (sacremoses), a clean-up as by clean-corpus-n.perl, and joint byte-pair encoding
(Sennrich et al., 2016; subword-nmt), learned on both sides of the training text. The result is kept as a folder that
fairseq-preprocess can read: `code`, `{train,valid,test}.<language>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from pipelag.data.files.download import locked
from pipelag.data.text.parallel import Pair, pairs_of
from pipelag.data.text.parallel_layouts import Parts
from pipelag.errors import PipelagError
from pipelag.files import is_watched

LONGEST_WORD = 1000  # characters; clean-corpus-n.perl leaves out sentences with longer ones
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Recipe:
    """How text becomes pieces.

    lower: lower-case the text.
    dashes: split off hyphens; before that, in training text only, make quotation marks and the like uniform.
    merges: the number of merges of the byte-pair encoding.
    ratio, most: leave pairs out of training if a side is empty or has more than `most` tokens, or if the sides' numbers
    of tokens differ by more than the factor `ratio`.
    of_pieces: tokens are pieces in this clean-up, otherwise words.
    latin1: also leave out pairs with a character that is not in Latin-1.
    held_out: hold out every n-th pair for validation; 0: none.
    """

    source: str
    target: str
    lower: bool = True
    dashes: bool = False
    merges: int = 10_000
    ratio: float = 1.5
    most: int = 175
    of_pieces: bool = False
    held_out: int = 0
    latin1: bool = False


@dataclass(frozen=True)
class Pieces:
    """Pairs of sentences in pieces; `dropped`: training pairs that the clean-up left out, by reason."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    dropped: dict[str, int]


def key(recipe: Recipe, *also: Any) -> str:
    """Twelve hex digits of a hash of everything that the pieces depend on; `also` identifies the text."""
    tools = [metadata.version(name) for name in ("sacremoses", "subword-nmt")]
    settings = asdict(recipe)
    if not recipe.latin1:  # keep the keys from before this setting existed
        del settings["latin1"]
    if recipe.dashes:  # a new key: test text used to be made uniform too
        settings["uniform"] = "training text"
    text = json.dumps([settings, also, tools], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def prepared(text: Parts, recipe: Recipe, folder: Path) -> Pieces:
    """The pieces of a text, made once and kept in `folder`, which is put in place by a rename when it is complete.

    Raises:
        PipelagError: the clean-up leaves nothing, or the folder cannot be written.
    """
    if not folder.is_dir():
        with locked(folder, f"another process is preparing {folder}; waiting for it"):
            if not folder.is_dir():
                try:
                    _made(text, recipe, folder)
                except OSError as error:
                    raise PipelagError(
                        f"{folder} could not be written ({error.strerror}); free some space and start again"
                    ) from error
    return read(recipe, folder)


def _made(text: Parts, recipe: Recipe, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        inside = Path(scratch) / folder.name
        inside.mkdir()
        _write(text, recipe, inside)
        os.replace(inside, folder)


def read(recipe: Recipe, folder: Path) -> Pieces:
    """The pieces that `prepared` left in a folder."""
    parts = []
    for part in PARTS:
        sides = [(folder / f"{part}.{language}").read_text("utf-8").split("\n")[:-1] for language in _sides(recipe)]
        parts.append(pairs_of(sides[0], sides[1], f"{folder}, {part}"))
    return Pieces(parts[0], parts[1], parts[2], json.loads((folder / "dropped.json").read_text()))


def _sides(recipe: Recipe) -> tuple[str, str]:
    return recipe.source, recipe.target


def _write(text: Parts, recipe: Recipe, folder: Path) -> None:
    words = {"train": _words(text.train, recipe, uniform=recipe.dashes), "test": _words(text.test, recipe)}
    dropped: dict[str, int] = {}
    if not recipe.of_pieces:
        words["train"] = _training(words["train"], recipe, dropped)
    train = words.pop("train")
    valid = train[recipe.held_out - 1 :: recipe.held_out] if recipe.held_out else []
    if recipe.held_out:
        train = [pair for number, pair in enumerate(train, start=1) if number % recipe.held_out]
    code = learn((pair[side] for side in (0, 1) for pair in train), recipe.merges)
    (folder / "code").write_text(code, "utf-8")
    encode = encoder(code)
    for part, pairs in zip(PARTS, (train, valid, words["test"]), strict=True):
        pieces = [(encode(a), encode(b)) for a, b in pairs]
        if recipe.of_pieces and part == "train":
            pieces = _training(pieces, recipe, dropped)
        elif recipe.of_pieces and part == "valid":  # a small text may leave none
            pieces = _clean(pieces, recipe, {})
        for side, language in enumerate(_sides(recipe)):
            with (folder / f"{part}.{language}").open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(pair[side] + "\n" for pair in pieces)
    (folder / "dropped.json").write_text(json.dumps(dropped) + "\n")


def _words(pairs: Sequence[Pair], recipe: Recipe, uniform: bool = False) -> list[Pair]:
    """The sentences as Moses tokens separated by single spaces; special characters are escaped, as by tokenizer.perl.

    uniform: first make quotation marks and the like uniform, and remove control characters.
    """
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    sides = []
    for side, language in enumerate(_sides(recipe)):
        tokeniser = MosesTokenizer(language)
        normaliser = MosesPunctNormalizer(language, post_remove_control_chars=True)
        sentences = []
        for pair in pairs:
            line = normaliser.normalize(pair[side]) if uniform else pair[side]
            tokens = tokeniser.tokenize(line, aggressive_dash_splits=recipe.dashes, return_str=True)
            sentences.append(" ".join((tokens.lower() if recipe.lower else tokens).split()))
        sides.append(sentences)
    return list(zip(sides[0], sides[1], strict=True))


def _training(pairs: Sequence[Pair], recipe: Recipe, dropped: dict[str, int]) -> list[Pair]:
    """The training pairs after the clean-up; raises `PipelagError` if none is left."""
    clean = _clean(pairs, recipe, dropped)
    if not clean:
        raise PipelagError(f"none of the {len(pairs):,} training pairs can be used: {dropped or 'there are none'}")
    return clean


def _clean(pairs: Sequence[Pair], recipe: Recipe, dropped: dict[str, int]) -> list[Pair]:
    """The pairs that the clean-up keeps; `dropped` counts the others by reason."""
    clean = []
    for pair in pairs:
        counts = [len(side.split()) for side in pair]
        if not all(counts):
            reason = "empty"
        elif max(counts) > recipe.most or any(len(w) > LONGEST_WORD for side in pair for w in side.split()):
            reason = f"more than {recipe.most} tokens"
        elif max(counts) > recipe.ratio * min(counts):
            reason = f"sides differ by more than {recipe.ratio:g}"
        elif recipe.latin1 and any(ord(character) > 255 for side in pair for character in side):
            reason = "not in Latin-1"
        else:
            clean.append(pair)
            continue
        dropped[reason] = dropped.get(reason, 0) + 1
    return clean


def learn(sentences: Iterable[str], merges: int) -> str:
    """Learn the merges of a byte-pair encoding, as subword-nmt writes them; pairs of symbols seen once are not merged.

    Raises:
        PipelagError: `merges` is below 1, or the text has nothing to merge.
    """
    from subword_nmt.learn_bpe import learn_bpe

    out = io.StringIO()
    if merges < 1:
        raise PipelagError(f"a byte-pair encoding needs at least 1 merge, not {merges}")
    bar = sys.stderr if is_watched() else io.StringIO()
    try:
        with contextlib.redirect_stderr(bar):
            learn_bpe((f"{sentence}\n" for sentence in sentences), out, merges)
    except (ValueError, IndexError) as error:
        raise PipelagError("the training text is too small to learn a byte-pair encoding on; take more") from error
    return out.getvalue()


def encoder(code: str) -> Callable[[str], str]:
    """A function from words to pieces, both separated by spaces; a piece that does not end its word is marked by @@."""
    from subword_nmt.apply_bpe import BPE

    encode: Callable[[str], str] = BPE(io.StringIO(code)).process_line
    return encode
