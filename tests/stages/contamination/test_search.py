"""Evaluation texts in documents: copies are found, and most that were edited a little; none by
chance.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import FormatError, InputError
from nanoset_core.stages.contamination import search as search_module
from nanoset_core.stages.contamination.collector import TextCollector, evaluation_facts
from nanoset_core.stages.contamination.ngrams import MAX_OCCURRENCES, NgramIndex, hash_ngrams
from nanoset_core.stages.contamination.search import MAX_MATCHES_PER_DOCUMENT, Evaluation
from nanoset_core.stages.contamination.texts import EvaluationText, read_texts
from nanoset_core.stages.contamination.words import WordVocabulary
from nanoset_core.text.files.listing import stat_file
from nanoset_core.tokenizers.engines.engine import Encoded


def made_up_word(number: int) -> str:
    """Return a word of three to nine letters; the same number always gives the same word."""
    letters = random.Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=3 + number % 7)
    return "".join(letters)


WORDS = [made_up_word(number) for number in range(3000)]
BYTE_TOKENS = [bytes([byte]) for byte in range(256)]
TOKENS = BYTE_TOKENS + [f" {word}".encode() for word in WORDS]
ID_BY_TOKEN = {token: token_id for token_id, token in enumerate(TOKENS)}
THRESHOLD = 0.55


class ToyEngine:
    """Tokenizes at spaces; words outside the vocabulary become bytes."""

    name = "toy"
    version = "1"
    reason = ""
    helper = ""
    reference = None

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the tokens of texts."""
        documents = [tokens_of(text) for text in texts]
        ids = list(chain.from_iterable(documents))
        lengths = [len(document) for document in documents]
        return Encoded(np.array(ids, np.int32), np.array(lengths, np.int32))


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text, which is taken to begin with a space."""
    tokens: list[int] = []
    for word in text.split(" "):
        spaced_word = f" {word}".encode()
        if spaced_word in ID_BY_TOKEN:
            tokens.append(ID_BY_TOKEN[spaced_word])
        else:
            tokens.extend(spaced_word)
    return tokens


def random_text(rng: random.Random, n_words: int) -> str:
    """Return words of which some are much more frequent than others, as in a language."""
    return " ".join(WORDS[int(2999 * rng.random() ** 3)] for _ in range(n_words))


def edit_text(rng: random.Random, text: str) -> str:
    """Return a text in which about one word of twelve was replaced, and one at least."""
    words = text.split()
    for _ in range(max(1, len(words) // 12)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return " ".join(words)


def collect(texts: list[str]) -> TextCollector:
    """Collect the lines of an evaluation file."""
    collector = TextCollector(ToyEngine(), WordVocabulary.of(TOKENS))
    lines = [EvaluationText(line, text) for line, text in enumerate(texts, start=1)]
    collector.add(0, lines, "evaluation.jsonl")
    return collector


def evaluation_of(texts: list[str]) -> Evaluation:
    """Return the evaluation of the lines of a file, which is searched for n-grams of five words."""
    collector = collect(texts)
    return Evaluation(collector.vocabulary, collector.index(5))


def dataset_of(folder: Path, documents: list[str]) -> MMapIndexedDataset:
    """Write documents into a folder, and open them as a dataset."""
    with MMapIndexedDatasetBuilder(folder / "data", np.uint16) as builder:
        for text in documents:
            tokens = tokens_of(text)
            if tokens:
                builder.add_item(np.array(tokens, np.uint16))
            builder.end_document()
    return MMapIndexedDataset(folder / "data")


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
def test_the_hash_of_an_n_gram_depends_on_its_words_and_their_order(size):
    words = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9] * 2
    ngrams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]

    hashes = hash_ngrams(np.array(words, np.uint64), size).tolist()

    hash_by_ngram = dict(zip(ngrams, hashes, strict=True))
    assert hashes == [hash_by_ngram[ngram] for ngram in ngrams]
    assert len(set(hashes)) == len(hash_by_ngram)


def test_a_text_that_is_shorter_than_an_n_gram_has_none():
    assert len(hash_ngrams(np.array([3, 1, 4], np.uint64), 4)) == 0


class Planted:
    """Documents of which some hold evaluation texts.

    Document k holds text k for k < 200, and an edited text k - 200 for k < 400; no other does.
    Every second plant has other punctuation and capitals.
    """

    def __init__(self) -> None:
        rng = random.Random(1)
        self.texts = [random_text(rng, rng.randrange(12, 60)) for _ in range(200)]
        hosts = [random_text(rng, rng.randrange(0, 200)) for _ in range(800)]
        edited_texts = [edit_text(rng, text) for text in self.texts]

        self.documents = list(hosts)
        for number, plant in enumerate(self.texts + edited_texts):
            if number % 2:
                plant = plant.title().replace(" ", ", ")
            self.documents[number] = f"{hosts[number]} {plant} {hosts[-number]}"


@pytest.fixture(scope="module")
def planted() -> Planted:
    """Documents of which some hold evaluation texts."""
    return Planted()


@pytest.fixture(scope="module")
def planted_matches(planted, tmp_path_factory):
    """All matches in the planted documents."""
    folder = tmp_path_factory.mktemp("planted")
    dataset = dataset_of(folder, planted.documents)
    evaluation = evaluation_of(planted.texts)
    return list(evaluation.search(dataset, 0, len(planted.documents), THRESHOLD))


def test_all_copies_are_found(planted_matches):
    share_by_place = {(match.document, match.text): match.share for match in planted_matches}

    shares = [share_by_place.get((number, number)) for number in range(200)]
    assert shares == [1.0] * 200


def test_nearly_all_edited_copies_are_found(planted_matches):
    places = {(match.document, match.text) for match in planted_matches}

    places_of_edited_texts = {(200 + number, number) for number in range(200)}
    assert len(places_of_edited_texts & places) >= 195


def test_no_text_is_found_by_chance_or_twice(planted_matches):
    places = Counter((match.document, match.text) for match in planted_matches)

    planted_places = {(number, number % 200) for number in range(400)}
    assert places.keys() <= planted_places
    assert set(places.values()) == {1}


def test_a_match_quotes_the_passage(planted, planted_matches):
    first_words = " ".join(planted.texts[0].split()[:8])

    assert planted_matches[0].words.startswith(first_words)


def test_a_saved_evaluation_finds_the_same_in_ranges_of_documents(
    planted, planted_matches, tmp_path
):
    evaluation_of(planted.texts).save(tmp_path)
    dataset = dataset_of(tmp_path, planted.documents)

    loaded = Evaluation.load(tmp_path)

    first_half = loaded.search(dataset, 0, 300, THRESHOLD)
    second_half = loaded.search(dataset, 300, 500, THRESHOLD)
    assert [*first_half, *second_half] == planted_matches


def test_a_text_in_the_middle_of_a_long_document_is_found_once(planted, tmp_path, monkeypatch):
    monkeypatch.setattr(search_module, "CHUNK_TOKENS", 1 << 14)
    monkeypatch.setattr(search_module, "OVERLAP_TOKENS", 1 << 8)
    other_text = " ".join(planted.documents[400:])
    long_document = f"{other_text} {planted.texts[7]} {other_text}"
    dataset = dataset_of(tmp_path, ["", long_document, ""])
    assert dataset.token_count > 3 << 14

    matches = list(evaluation_of(planted.texts).search(dataset, 0, 3, THRESHOLD))

    assert [(match.document, match.text, match.share) for match in matches] == [(1, 7, 1.0)]


def test_the_facts_of_an_evaluation_count_n_grams_once():
    texts = ["one two three four five six", "two three four five six seven"]

    collector = collect(texts)

    assert evaluation_facts(collector, collector.index(5)) == {
        "texts": 2,
        "copies": 0,
        "ngrams": 3,
        "too_short": 2,
    }


def test_texts_with_the_same_words_are_collected_once():
    text = random_text(random.Random(2), 12)

    collector = collect([text, f"  {text.upper()}!"])

    assert collector.copies == 1
    assert collector.origins == [(0, 1)]


def test_texts_with_few_letters_in_n_grams_are_too_short_to_be_found():
    collector = collect(["Too short, this one", "x " * 20, random_text(random.Random(2), 12)])

    assert evaluation_facts(collector, collector.index(5))["too_short"] == 2


def test_a_phrase_of_very_many_texts_proves_nothing(tmp_path):
    rng = random.Random(2)
    phrase = "choose which one of these answers is right and say why it is"
    texts = [f"{phrase} {random_text(rng, 12)}" for _ in range(MAX_OCCURRENCES + 1)]
    dataset = dataset_of(tmp_path, [phrase, texts[3]])

    matches = list(evaluation_of(texts).search(dataset, 0, 2, THRESHOLD))

    assert [(match.document, match.text) for match in matches] == [(1, 3)]


def test_only_the_best_matches_of_a_document_are_reported(tmp_path):
    rng = random.Random(2)
    texts = [random_text(rng, 20) for _ in range(MAX_MATCHES_PER_DOCUMENT + 4)]
    dataset = dataset_of(tmp_path, [" ".join(texts)])

    matches = list(evaluation_of(texts).search(dataset, 0, 1, THRESHOLD))

    assert len(matches) == MAX_MATCHES_PER_DOCUMENT


def test_an_index_without_n_grams_finds_nothing():
    no_words = np.empty(0, np.uint64)
    no_letters = np.empty(0, np.int64)
    index = NgramIndex.of(no_words, no_letters, words_per_text=np.zeros(2, np.int64), size=5)
    tokens = tokens_of("some words of a text")

    words = WordVocabulary.of(TOKENS).words(np.array(tokens), np.array([0, len(tokens)]))

    assert len(index.search(words, 0.5).documents) == 0


def write_jsonl(path: Path, *lines: str) -> None:
    """Write a file of lines, of which some may be blank."""
    path.write_text("\n".join(lines))


def test_the_texts_of_a_line_are_joined_in_the_order_of_the_keys(tmp_path):
    first = json.dumps({"n": 3, "q": "one", "of": {"a": ["x", "y"]}})
    third = json.dumps({"q": "two", "of": {"a": {"text": ["z"]}}})
    write_jsonl(tmp_path / "a.jsonl", first, "", third)

    texts = list(read_texts(tmp_path, stat_file(tmp_path, "a.jsonl"), ("q", "of.a", "n")))

    assert texts == [(1, "one\nx\ny\n3"), (3, "two\nz")]


def test_rows_of_tables_are_read_and_those_without_text_skipped(tmp_path):
    rows = [{"q": "one", "n": 3}, {"q": None, "n": None}, {"q": "two", "n": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")

    texts = list(read_texts(tmp_path, stat_file(tmp_path, "b.parquet"), ("q", "of.a", "n")))

    assert texts == [(1, "one\n3"), (3, "two")]


def test_a_file_without_any_text_at_the_keys_is_an_error(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", '{"q": "one"}')

    with pytest.raises(InputError, match="texts at question"):
        list(read_texts(tmp_path, stat_file(tmp_path, "a.jsonl"), ("question",)))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param("c.jsonl", b'{"q": "one"}\n{"q', id="cut line"),
        pytest.param("d.parquet", b"PAR1", id="cut table"),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)

    with pytest.raises(FormatError, match="cannot be read"):
        list(read_texts(tmp_path, stat_file(tmp_path, name), ("q",)))
