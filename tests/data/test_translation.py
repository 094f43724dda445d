"""Translation sets in pieces: the publishers' layouts, clean-up, byte-pair encoding, splits, what is refused."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

from pipelag import data
from pipelag.data.files import fetch as module
from pipelag.data.files import manifest
from pipelag.data.files.download import download
from pipelag.data.files.manifest import OfficialFile
from pipelag.data.sets.translation import split_by_sentence
from pipelag.data.text import bpe
from pipelag.data.text.bpe import Recipe, encoder, key, learn, prepared
from pipelag.data.text.parallel import joined
from pipelag.data.text.parallel_layouts import IWSLT14_TESTS, Parts, text_of
from pipelag.errors import PipelagError
from tests.data.samples import mirror, sums, tar
from tests.data.server import serving

GERMAN = [f"Der {a} Hund sah {n} Häuser." for a in ("große", "kleine", "alte") for n in ("zwei", "drei", "vier")] * 6
ENGLISH = [f"The {a} dog saw {n} houses." for a in ("big", "small", "old") for n in ("two", "three", "four")] * 6


def iwslt14_archive(german: list[str] = GERMAN, english: list[str] = ENGLISH) -> bytes:
    """de-en.tgz with as many sentences; a test sentence for each of the five sets."""
    files = {"de-en/README": b"-", "de-en/IWSLT14.TED.tst2013.de-en.de.xml": b"not used"}
    for language, lines, number in (("de", german, "fünf"), ("en", english, "five")):
        head = f"<url>http://x</url>\n<keywords>k</keywords>\n<talkid>1</talkid>\n<title>Title {number}</title>\n"
        head += f"<description>About {number} dogs, isn't it?</description>\n"
        files[f"de-en/train.tags.de-en.{language}"] = (head + "\n".join(lines) + "\n").encode()
        for test in IWSLT14_TESTS:
            seg = f'<?xml?>\n<doc>\n<seg id="1"> {lines[0][:-1]}, isn\u2019t it? </seg>\n</doc>\n'
            files[f"de-en/IWSLT14.{test}.de-en.{language}.xml"] = seg.encode()
    return tar(files)


@pytest.fixture
def iwslt14(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The official archive in a mirror folder."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "de-en.tgz").write_bytes(iwslt14_archive())
    monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path / "m"))
    return tmp_path / "m"


def test_iwslt14_as_fairseq_prepares_it(iwslt14: Path, tmp_path: Path) -> None:
    corpus = data.load("iwslt14", merges=60)
    # 54 sentences, a title and a description; every 23rd is held out
    assert (len(corpus.train), len(corpus.test), corpus.dropped) == (54, 5, 0)
    assert len(data.load("iwslt14", merges=60, tested_on="valid").test) == 2
    assert corpus.references[0] == "the big dog saw two houses , isn &apos;t it ?"
    assert corpus.sentence(corpus.test[0][1]) == corpus.references[0]
    assert any(word.endswith("@@") for word in corpus.target_words)
    assert corpus.source_words != corpus.target_words
    assert corpus.release.startswith("not verified ") and "nobody states a sum of de-en.tgz" in corpus.note
    assert "BLEU of lower-cased Moses tokens" in corpus.note
    prepared_paths = [
        path for path in (tmp_path / "downloads" / "iwslt14").iterdir() if path.name.startswith("pieces-")
    ]
    assert sum(path.is_dir() for path in prepared_paths) == 1  # both were read from what was prepared once


def test_iwslt14_over_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as site:
        site.files["/de-en.tgz"] = iwslt14_archive()
        ours = manifest.official("iwslt14").files[0].model_copy(update={"urls": (site.address,)})
        release = manifest.official("iwslt14").model_copy(update={"files": (ours,)})
        monkeypatch.setattr(manifest, "official", lambda name: release)
        monkeypatch.setattr(module, "download", partial(download, pause=0.0))
        assert len(data.load("iwslt14", merges=60).train) == 54
    assert (tmp_path / "downloads" / "iwslt14" / "de-en.tgz").is_file()


@pytest.mark.parametrize(
    ("archive", "complaint"),
    [
        (iwslt14_archive(GERMAN[:-1]), "IWSLT14 German-English, train: 55 source lines and 56 target lines"),
        (tar({"de-en/README": b"-"}), "should hold de-en/IWSLT14.*and 11 more; fetch the set again"),
        (iwslt14_archive()[:200], "is not a complete tar or zip archive"),
        (tar({"../de-en/train.tags.de-en.de": b"x"}), "unsafe: its member '../de-en/"),
    ],
)
def test_bad_archives_are_refused(iwslt14: Path, archive: bytes, complaint: str) -> None:
    (iwslt14 / "de-en.tgz").write_bytes(archive)
    with pytest.raises(PipelagError, match=complaint):
        data.load("iwslt14", merges=60)


def wmt_archives(news: str, folder: str) -> dict[str, bytes]:
    """The four archives, 54 sentences in each of the three training texts; News Commentary in a folder."""
    texts = {"de": GERMAN, "en": ENGLISH}
    body = {language: ("\n".join(lines) + "\n").encode() for language, lines in texts.items()}
    segments = {language: f'<seg id="1">{lines[3]}</seg>\n'.encode() for language, lines in texts.items()}
    return {
        "training-parallel-europarl-v7.tgz": tar({f"training/europarl-v7.de-en.{x}": body[x] for x in body}
            | {"training/europarl-v7.cs-en.en": b"other\n"}),
        "training-parallel-commoncrawl.tgz": tar({f"commoncrawl.de-en.{x}": body[x] for x in body}),
        f"training-parallel-nc-{news}.tgz": tar({f"{folder}/news-commentary-{news}.de-en.{x}": body[x] for x in body}),
        "dev.tgz": tar({"dev/newstest2014-deen-src.en.sgm": segments["en"],
            "dev/newstest2014-deen-ref.de.sgm": segments["de"]}),
    }  # fmt: skip


@pytest.fixture
def wmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, bytes]], Path]:
    """Puts archives into a mirror, as if they were the official ones of a year."""

    def put(year: str, archives: dict[str, bytes]) -> Path:
        (tmp_path / "m").mkdir()
        files = []
        for ours in manifest.official(year).files:
            (tmp_path / "m" / ours.name).write_bytes(archives[ours.name])
            files.append(OfficialFile(name=ours.name, urls=ours.urls, **sums(archives[ours.name]).model_dump()))
        release = manifest.official(year).model_copy(update={"files": tuple(files)})
        monkeypatch.setattr(manifest, "official", lambda name: release)
        monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path / "m"))
        return tmp_path / "m"

    return put


def test_wmt17_as_fairseq_prepares_it(wmt: Callable[[str, dict[str, bytes]], Path]) -> None:
    wmt("wmt17", wmt_archives("v12", "training"))
    corpus = data.load("wmt17", merges=60)
    assert corpus.official and len(corpus.train) == 3 * 54 - 1 and corpus.title == "WMT17 en-de"
    assert corpus.source_words == corpus.target_words  # one dictionary
    assert corpus.references == (GERMAN[3].replace(".", " ."),)  # cased


def test_wmt16_as_gnmts_script_prepares_it(wmt: Callable[[str, dict[str, bytes]], Path], tmp_path: Path) -> None:
    wmt("wmt16", wmt_archives("v11", "training-parallel-nc-v11"))
    corpus = data.load("wmt16", merges=60)
    assert corpus.official and len(corpus.train) == 3 * 54 and corpus.title == "WMT16 en-de"
    assert corpus.source_words == corpus.target_words and "Der" in corpus.target_words
    assert corpus.references == (GERMAN[3].replace(".", " ."),) and corpus.dropped == 0
    assert "BLEU of cased Moses tokens" in corpus.note
    pieces = [max(len(a), len(b)) for a, b in data.load("wmt16", merges=20).train]
    short = data.load("wmt16", merges=20, most_pieces=max(pieces) - 1)
    assert max(pieces) <= 48 and len(short.train) == 162 - pieces.count(max(pieces)) > 0
    assert short.dropped == 162 - len(short.train)


def test_wmt16_lacks_another_years_news(wmt: Callable[[str, dict[str, bytes]], Path]) -> None:
    archives = wmt_archives("v11", "training")
    wmt("wmt16", archives)
    with pytest.raises(
        PipelagError, match="should hold training-parallel-nc-v11/news-commentary-v11.de-en.de and 1 more"
    ):
        data.load("wmt16", merges=60)


def test_a_mirror_without_training_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{part}.{x}.gz": gzip.compress(b"a\n") for part in ("test", "valid") for x in ("de", "en")}
    folder = mirror(tmp_path / "m", files, name="iwslt14_de_en", layout="parallel-text-gz", note="no training text")
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    with pytest.raises(PipelagError, match="holds no training text .train.de.gz is missing.*or take the data set 't"):
        data.load("iwslt14")


def test_parallel_text_of_a_mirror_is_prepared_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"de": "\n".join(GERMAN), "en": "\n".join(ENGLISH)}
    files = {f"{part}.{x}.gz": gzip.compress(texts[x].encode()) for part in ("train", "test") for x in texts}
    folder = mirror(tmp_path / "m", files, name="iwslt14_de_en", layout="parallel-text-gz", note="mine")
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    corpus = data.load("iwslt14", merges=40)
    assert len(corpus.train) == 52 and corpus.release.startswith("parallel-text-gz ")


def anki(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"{a}\t{b}\n" for a, b in pairs)


@pytest.mark.parametrize("layout", ["tsv-xz", "anki-zip"])
def test_tatoeba_from_either_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    text = anki(sorted(set(zip(ENGLISH, GERMAN, strict=True))))
    if layout == "tsv-xz":
        content = lzma.compress(text.encode())
    else:
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr("_about.txt", "-")
            archive.writestr("deu.txt", text.replace("\n", "\tCC-BY 2.0\n"))
        content = whole.getvalue()
    folder = mirror(tmp_path / "m", {"deu-eng.zip": content}, name="tatoeba_de_en", layout=layout)
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    corpus = data.load("tatoeba", test=2, merges=40)
    assert (len(corpus.train), len(corpus.test)) == (7, 2)
    assert corpus.references[0].startswith("the ") and corpus.sentence(corpus.test[0][1]) == corpus.references[0]
    back = data.load("tatoeba", test=2, merges=40, source="en", target="de")
    assert back.references[0].startswith("der")
    with pytest.raises(PipelagError, match="German and English only; choose"):
        data.load("tatoeba", source="fr")


def test_no_sentence_is_in_training_and_test() -> None:
    pairs = [(f"E{i // 2}", f"{'dD'[i // 31 % 2]}{i % 31}") for i in range(120)] + [("e3", "x"), ("E4", "X")]
    split, shared = split_by_sentence(pairs, 9, seed=1)
    for side in (0, 1):
        assert not {p[side].lower() for p in split.train} & {p[side].lower() for p in split.test}
    assert len({p[0].lower() for p in split.test}) == len(split.test) == 9
    assert len(split.train) + 9 + shared == len(set(pairs)) and shared > 0
    assert split_by_sentence(pairs, 9, seed=1) == (split, shared)
    assert split_by_sentence(pairs, 9, seed=2)[0].test != split.test
    with pytest.raises(PipelagError, match="choose 1 to 59"):
        split_by_sentence(pairs, 60, seed=1)
    with pytest.raises(PipelagError, match="every pair shares"):
        split_by_sentence([("a", "x"), ("b", "x")], 1, seed=0)


def test_the_clean_up_counts_what_it_leaves_out(tmp_path: Path) -> None:
    train = [(g, e) for g, e in zip(GERMAN, ENGLISH, strict=True)]
    bad = [("", "x"), ("a b c d", "x y"), ("w " * 9, "w " * 9), ("a b c", "x y")]
    pieces = prepared(Parts(train + bad, train[:1]), Recipe("de", "en", merges=30, most=8), tmp_path / "a" / "pieces")
    assert pieces.dropped == {"empty": 1, "sides differ by more than 1.5": 1, "more than 8 tokens": 1}
    assert len(pieces.train) == len(train) + 1
    assert (tmp_path / "a" / "pieces" / "train.de").read_text("utf-8").count("\n") == len(pieces.train)
    with pytest.raises(PipelagError, match="none of the 4 training pairs can be used"):
        prepared(Parts(bad, train[:1]), Recipe("de", "en", most=1), tmp_path / "b" / "pieces")
    assert not (tmp_path / "b" / "pieces").exists()


def test_pieces_that_find_no_room_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bpe, "_write", full)
    with pytest.raises(PipelagError, match="a/pieces could not be written .No space left on device.; free some space"):
        prepared(Parts([], []), Recipe("de", "en"), tmp_path / "a" / "pieces")
    assert not [path for path in (tmp_path / "a").iterdir() if path.is_dir()]


def test_a_small_text_may_have_no_pair_to_hold_out(iwslt14: Path, tmp_path: Path) -> None:
    train = list(zip(GERMAN, ENGLISH, strict=True))
    recipe = Recipe("de", "en", merges=30, of_pieces=True, held_out=100)
    pieces = prepared(Parts(train, train[:1]), recipe, tmp_path / "a" / "pieces")
    assert (len(pieces.train), pieces.valid) == (len(train), [])
    (iwslt14 / "de-en.tgz").write_bytes(iwslt14_archive(GERMAN[:9], ENGLISH[:9]))
    with pytest.raises(PipelagError, match="'iwslt14' has no pair in 'valid' to test on"):
        data.load("iwslt14", merges=10, tested_on="valid")


def test_every_so_manieth_pair_is_held_out_and_not_trained_on(tmp_path: Path) -> None:
    """As prepare-iwslt14.sh has it (awk: NR%23 == 0), the first being number 1."""
    text = [(f"der Hund {number}", f"the dog {number}") for number in range(1, 24)]
    pieces = prepared(Parts(text, text[:1]), Recipe("de", "en", merges=10, held_out=5), tmp_path / "a" / "pieces")

    def numbers(pairs: list[tuple[str, str]]) -> list[int]:
        return [int(joined(pair[1].split()).split()[-1]) for pair in pairs]

    assert numbers(pieces.valid) == [5, 10, 15, 20]
    assert numbers(pieces.train) == [number for number in range(1, 24) if number % 5]


def test_merges_are_learned_on_both_sides_of_the_training_text_and_on_nothing_else(tmp_path: Path) -> None:
    train = [("quelle", "ziel")] * 30 + [("valide", "valide")] * 2
    recipe = Recipe("de", "en", merges=200, held_out=16)  # the 32nd of 32, and the 16th
    pieces = prepared(Parts(train, [("testtext", "testtext quelle ziel")] * 30), recipe, tmp_path / "a" / "pieces")
    assert pieces.train[0] == ("quelle", "ziel") and len(pieces.train) == 30
    assert pieces.test[0][0].count("@@") > 3 and pieces.test[0][1].endswith(" quelle ziel")


def test_quotes_are_made_uniform_in_training_text_alone(tmp_path: Path) -> None:
    """As prepare-wmt14en2de.sh has it."""
    text = [(f"{german} „Ja“", f"{english} “Yes”") for german, english in zip(GERMAN, ENGLISH, strict=True)]
    recipe = Recipe("de", "en", lower=False, dashes=True, merges=30)
    pieces = prepared(Parts(text, text[:1]), recipe, tmp_path / "a" / "pieces")
    assert joined(pieces.train[0][1].split()).endswith("houses . &quot; Yes &quot;")
    assert joined(pieces.test[0][1].split()).endswith("houses . “ Yes ”")


def test_pairs_beyond_latin_1_can_be_left_out(tmp_path: Path) -> None:
    train = list(zip(GERMAN, ENGLISH, strict=True)) + [
        ("größte ¼", "ÿ"),
        ("снег", "snow"),
        ("a", "★"),
        ("a", "b b b b"),
    ]
    recipe = Recipe("de", "en", merges=30, ratio=3, latin1=True)
    pieces = prepared(Parts(train, train[:1]), recipe, tmp_path / "a" / "pieces")
    assert pieces.dropped == {"not in Latin-1": 2, "sides differ by more than 3": 1}
    assert len(pieces.train) == len(GERMAN) + 1
    assert (
        len(prepared(Parts(train, train), replace(recipe, latin1=False), tmp_path / "b" / "pieces").train)
        == len(train) - 1
    )


def test_a_recipe_without_the_later_rule_keeps_its_folder() -> None:
    plain = Recipe("de", "en")
    described = {name: value for name, value in asdict(plain).items() if name != "latin1"}
    tools = [metadata.version(name) for name in ("sacremoses", "subword-nmt")]
    before = hashlib.sha256(json.dumps([described, ["sums"], tools], sort_keys=True).encode()).hexdigest()[:12]
    assert key(plain, "sums") == before != key(replace(plain, latin1=True), "sums")


def test_pieces_are_joined_to_the_words_they_came_from() -> None:
    encode = encoder(learn(ENGLISH, 10))
    for line in (*ENGLISH, "an unseen wörd"):
        assert joined(encode(line).split()) == line
    assert "@@" in encode("an unseen wörd")
    with pytest.raises(PipelagError, match="too small to learn"):
        learn([""], 10)
    with pytest.raises(PipelagError, match="at least 1 merge"):
        learn(ENGLISH, 0)


def test_lines_end_at_line_feeds_alone() -> None:
    assert text_of("a\u2028b\r\nc".encode(), "x") == ["a\u2028b", "c"]
    with pytest.raises(PipelagError, match="x is not UTF-8 text"):
        text_of(b"\xff", "x")


def test_the_real_tatoeba(real_mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELAG_MIRROR", real_mirror)
    corpus = data.load("tatoeba", train=2000, test=100, merges=500)
    assert 1800 < len(corpus.train) <= 2000 and len(corpus.test) == 100 and max(corpus.unknown.values()) < 0.02
