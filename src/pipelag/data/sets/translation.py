"""Translation sets in pieces of words: IWSLT14 and WMT17 by fairseq's recipes, WMT16 by GNMT's, and Tatoeba.

BLEU is measured as by fairseq-generate with --remove-bpe, and so, as far as the paper says, as by PipeMare (appendix
C.1). Pieces are joined to words, and these are compared with the reference in Moses tokens, lower-cased for IWSLT14 and
Tatoeba. The numbers are not comparable to BLEU of detokenised text. Where no four words in a row are right, fairseq's
BLEU is 0; sacrebleu's is smoothed, and a little above 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelag.data.checks import check_counts
from pipelag.data.files.fetch import Release, data_folder, fetch
from pipelag.data.text import bpe
from pipelag.data.text.bpe import Recipe
from pipelag.data.text.parallel import Corpus, Pair, corpus
from pipelag.data.text.parallel_layouts import Parts, english_german, parts
from pipelag.errors import PipelagError


def iwslt14(
    source: str = "de", target: str = "en", merges: int = 10_000, most_pieces: int = 1000, tested_on: str = "test"
) -> Corpus:
    """IWSLT14, prepared as fairseq's prepare-iwslt14.sh does: separate dictionaries, every 23rd pair held out.

    Args:
        merges: the number of merges of the joint byte-pair encoding.
        most_pieces: training pairs with a longer side are dropped and counted.
        tested_on: "test" (the five sets of fairseq's script) or "valid" (the pairs held out).
    """
    recipe = Recipe(source, target, merges=merges, held_out=23)
    return _corpus(fetch("iwslt14"), recipe, most_pieces, tested_on)


def wmt16(source: str = "en", target: str = "de", merges: int = 32_000, most_pieces: int = 48) -> Corpus:
    """WMT16, as PipeOptim trains GNMT on it (section V-A): Europarl 7, Common Crawl and News Commentary 11.

    The text is prepared as by wmt16_en_de.sh of NVIDIA's GNMT, on which the authors' code is based: cased Moses tokens;
    pairs of 1 to 80 words whose sides differ by a factor of at most 9 and whose characters are all in Latin-1; one
    dictionary for both languages. The test set is all of newstest2014 (in the paper: 2,999 of its pairs).

    Args:
        merges: the number of merges of the joint byte-pair encoding.
        most_pieces: training pairs with a longer side are dropped and counted. NVIDIA's trainer takes 50 with begin and
            end.
    """
    recipe = Recipe(source, target, lower=False, merges=merges, ratio=9.0, most=80, latin1=True)
    return _corpus(fetch("wmt16"), recipe, most_pieces, "test", shared=True)


def wmt17(
    source: str = "en", target: str = "de", merges: int = 40_000, most_pieces: int = 1000, tested_on: str = "test"
) -> Corpus:
    """WMT17, prepared as fairseq's prepare-wmt14en2de.sh does: Europarl 7, Common Crawl and News Commentary 12.

    The test set is newstest2014, as in that script. The text is cased, and cleaned up after encoding, to at most 250
    pieces. Both languages have one dictionary: that follows from PipeMare's 91 stages (appendix C.1). Arguments as for
    `iwslt14`.
    """
    recipe = Recipe(source, target, lower=False, dashes=True, merges=merges, most=250, of_pieces=True, held_out=100)
    return _corpus(fetch("wmt17"), recipe, most_pieces, tested_on, shared=True)


def tatoeba(
    source: str = "de",
    target: str = "en",
    merges: int = 10_000,
    most_pieces: int = 1000,
    test: int = 2000,
    seed: int = 0,
    train: int | None = None,
) -> Corpus:
    """Tatoeba's sentences by IWSLT14's recipe: about as many pairs, but much shorter and easier ones.

    No sentence of the test set, in either language and whatever its case, is in the training set: training pairs that
    share one are left out and counted as dropped.

    Args:
        test: English sentences to test on, each with one of its translations.
        seed: the seed by which test sentences are chosen and training pairs are shuffled.
        train: use only so many training pairs.

    Raises:
        PipelagError: as `fetch` and `corpus`; other languages, or a part that has too few pairs or none.
    """
    check_counts("tatoeba", train=train)
    if {source, target} != {"de", "en"}:
        raise PipelagError(
            f"'tatoeba' has German and English only; choose de and en as source and target, not {source} and {target}"
        )
    release = fetch("tatoeba")
    recipe = Recipe(source, target, merges=merges)
    split, shared = split_by_sentence(english_german(release), test, seed, train)
    if source == "de":
        split = Parts([(b, a) for a, b in split.train], [(b, a) for a, b in split.test])
    return _corpus(release, recipe, most_pieces, "test", split=split, dropped=shared, settings=(test, seed, train))


def split_by_sentence(pairs: Sequence[Pair], test: int, seed: int, train: int | None = None) -> tuple[Parts, int]:
    """Split pairs so that no sentence of the test pairs, whatever its case, is in a training pair.

    The seed chooses `test` first sides, and for each one pair to test on; it also shuffles the training pairs.

    Returns:
        The parts, and how many pairs are in neither because they share a sentence with a test pair.

    Raises:
        PipelagError: there are too few different first sides for `test`, or no pair is left to train on.
    """
    by_first: dict[str, list[Pair]] = {}
    for pair in dict.fromkeys(pairs):
        by_first.setdefault(pair[0].lower(), []).append(pair)
    if not 0 < test < len(by_first):
        raise PipelagError(f"a test set of {test:,} sentences does not fit; choose 1 to {len(by_first) - 1:,}")
    rng = random.Random(seed)
    chosen = rng.sample(sorted(by_first), test)
    tested = [rng.choice(by_first[first]) for first in chosen]
    firsts, seconds = set(chosen), {pair[1].lower() for pair in tested}
    training = [
        pair
        for first, group in by_first.items()
        for pair in group
        if first not in firsts and pair[1].lower() not in seconds
    ]
    shared = sum(map(len, by_first.values())) - len(training) - len(tested)
    rng.shuffle(training)
    if not training:
        raise PipelagError("every pair shares a sentence with the test set; test on fewer")
    return Parts(training[:train], tested), shared


def _corpus(
    release: Release,
    recipe: Recipe,
    most_pieces: int,
    tested_on: str,
    shared: bool = False,
    split: Parts | None = None,
    dropped: int = 0,
    settings: tuple[int | None, ...] = (),
) -> Corpus:
    """The corpus of a release. Its pieces are prepared once, in the data folder, and numbered each time."""
    if tested_on not in ("test", "valid"):
        raise PipelagError(f"'{release.dataset}' can be tested on 'test' or 'valid', not on '{tested_on}'")
    folder = data_folder() / release.dataset / f"pieces-{bpe.key(recipe, release.fingerprint, settings)}"
    if folder.is_dir():
        pieces = bpe.read(recipe, folder)
    else:
        pieces = bpe.prepared(split or parts(release, recipe.source, recipe.target), recipe, folder)
    test = pieces.test if tested_on == "test" else pieces.valid
    if not test:
        raise PipelagError(
            f"'{release.dataset}' has no pair in '{tested_on}' to test on; take more text, or the other part"
        )
    case = "lower-cased" if recipe.lower else "cased"
    note = f"BLEU of {case} Moses tokens, as fairseq measures it"
    return corpus(
        release.dataset,
        f"{release.title.split(' ')[0]} {recipe.source}-{recipe.target}",
        pieces.train,
        test,
        str(release),
        release.official,
        "; ".join(filter(None, (release.note, note))),
        most_tokens=most_pieces,
        shared=shared,
        dropped=dropped + sum(pieces.dropped.values()),
    )
