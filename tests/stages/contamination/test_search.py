"""Texts of evaluations in documents: all that are copied, most that are edited a little, none by
chance.
"""

import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import FormatError, InputError
from nanoset_core.stages.contamination import search as searching
from nanoset_core.stages.contamination.collector import TextCollector, evaluation_facts
from nanoset_core.stages.contamination.ngrams import MAX_OCCURRENCES, NgramIndex, hash_ngrams
from nanoset_core.stages.contamination.search import Evaluation
from nanoset_core.stages.contamination.texts import EvaluationText, read_texts
from nanoset_core.stages.contamination.words import WordVocabulary
from nanoset_core.text.listing import stat_file
from nanoset_core.tokenizers.engines.engine import Encoded

WORDS = [
    "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=3 + number % 7))
    for number in range(3000)
]
ENTRIES = [bytes([byte]) for byte in range(256)] + [f" {word}".encode() for word in WORDS]
NUMBERS = {entry: number for number, entry in enumerate(ENTRIES)}
THRESHOLD = 0.55


class Engine:
    """Splits at spaces; words that it does not know become bytes."""

    name, version, reason, helper, reference = "toy", "1", "", "", None

    def encode(self, texts):
        lists = [tokens_of(text) for text in texts]
        ids = np.array([one for tokens in lists for one in tokens], np.int32)
        return Encoded(ids, np.array([*map(len, lists)], np.int32))


def tokens_of(text: str) -> list[int]:
    parts = [f" {part}".encode() for part in text.split(" ")]
    return [one for part in parts for one in ([NUMBERS[part]] if part in NUMBERS else list(part))]


def sample(rng: random.Random, count: int) -> list[str]:
    return [WORDS[int(2999 * rng.random() ** 3)] for _ in range(count)]


def edited(rng: random.Random, words: list[str]) -> list[str]:
    words = [*words]
    for _ in range(max(1, len(words) // 12)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return words


def evaluation_of(texts, size=5):
    collector = TextCollector(Engine(), WordVocabulary.of(ENTRIES))
    lines = [EvaluationText(line, text) for line, text in enumerate(texts, 1)]
    collector.add(0, lines, "evaluation.jsonl")
    return collector, Evaluation(collector.vocabulary, collector.index(size))


def dataset_of(folder, documents):
    with MMapIndexedDatasetBuilder(folder / "data", np.uint16) as builder:
        for text in documents:
            if tokens := tokens_of(text):
                builder.add_item(np.array(tokens, np.uint16))
            builder.end_document()
    return MMapIndexedDataset(folder / "data")


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
def test_an_n_gram_is_of_its_words_in_their_order(size):
    words = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9] * 2, np.uint64)
    found = hash_ngrams(words, size).tolist()
    named = [tuple(words[k : k + size].tolist()) for k in range(len(words) - size + 1)]
    assert len(found) == len(named)
    assert len(set(zip(found, named, strict=True))) == len(set(found)) == len(set(named))
    assert not len(hash_ngrams(words[: size - 1], size))


def test_copies_are_all_found_edited_ones_nearly_all_and_nothing_else(tmp_path, monkeypatch):
    rng = random.Random(1)
    texts = [" ".join(sample(rng, rng.randrange(12, 60))) for _ in range(200)]
    hosts = [" ".join(sample(rng, rng.randrange(0, 200))) for _ in range(800)]
    plants = {number: texts[number] for number in range(200)}
    plants |= {200 + number: " ".join(edited(rng, texts[number].split())) for number in range(200)}
    documents = [*hosts]
    for number, text in plants.items():
        said = text.title().replace(" ", ", ") if number % 2 else text
        documents[number] = f"{hosts[number]} {said} {hosts[-number]}"
    # longer than a chunk
    documents.insert(150, " ".join(hosts) + f" {texts[7]} " + " ".join(hosts))
    monkeypatch.setattr(searching, "CHUNK_TOKENS", 1 << 14)
    monkeypatch.setattr(searching, "OVERLAP_TOKENS", 1 << 8)
    collector, evaluation = evaluation_of(texts)
    assert evaluation_facts(collector, evaluation.index) == {
        "texts": 200,
        "copies": 0,
        "ngrams": len(
            {
                tuple(words[k : k + 5])
                for text in texts
                if (words := text.split())
                for k in range(len(words) - 4)
            }
        ),
        "too_short": 0,
    }
    evaluation.save(tmp_path)
    dataset = dataset_of(tmp_path, documents)
    found = [
        match
        for first, count in ((0, 500), (500, 301))
        for match in Evaluation.load(tmp_path).search(dataset, first, count, THRESHOLD)
    ]
    wanted = {number + (number >= 150): number % 200 for number in plants} | {150: 7}
    got = Counter((match.document, match.text) for match in found)
    assert not got.keys() - wanted.items(), "nothing by chance"
    assert set(got.values()) == {1}
    copied = {(number + (number >= 150), number) for number in range(200)} | {(150, 7)}
    assert copied <= got.keys(), "all copies"
    assert len(got.keys() - copied) >= 195, "nearly all that were edited"
    by_place = {(match.document, match.text): match for match in found}
    assert by_place[0, 0].share == 1.0
    assert by_place[0, 0].words.startswith(" ".join(texts[0].split()[:8]))
    assert by_place[150, 7].share == 1.0


def test_what_is_looked_for_is_said(tmp_path):
    rng = random.Random(2)
    phrase = "choose which one of these answers is right and say why it is"
    texts = [f"{phrase} {' '.join(sample(rng, 12))}" for _ in range(MAX_OCCURRENCES + 1)]
    texts += ["Too short, this one", "x " * 20, phrase, f"  {texts[0].upper()}!"]
    collector, evaluation = evaluation_of(texts)
    facts = evaluation_facts(collector, evaluation.index)
    assert (facts["texts"], facts["copies"], facts["too_short"]) == (MAX_OCCURRENCES + 4, 1, 3)
    assert collector.origins[0] == (0, 1)
    dataset = dataset_of(tmp_path, [phrase, texts[3], " ".join(texts[:20]), ""])
    matches = list(evaluation.search(dataset, 0, 4, THRESHOLD))
    assert [(match.document, match.text) for match in matches[:1]] == [(1, 3)]
    assert Counter(match.document for match in matches) == {
        1: 1,
        2: searching.MAX_MATCHES_PER_DOCUMENT,
    }


def test_no_n_gram_at_all():
    empty = np.empty(0, np.uint64), np.empty(0, np.int64), np.zeros(2, np.int64), 5
    index = NgramIndex.of(*empty)
    vocabulary = WordVocabulary.of(ENTRIES)
    found = vocabulary.words(np.array(tokens_of("some words of a text")), np.array([0, 4]))
    assert not len(index.search(found, 0.5).documents)


def test_texts_of_files(tmp_path):
    rows = [
        {"q": "one", "of": {"a": ["x", "y"]}, "n": 3},
        {"q": None, "of": {"a": []}},
        {"q": "two", "of": {"a": {"text": ["z"]}}},
    ]
    (tmp_path / "a.jsonl").write_text(
        "\n".join(map(json.dumps, rows[:1])) + "\n\n" + json.dumps(rows[2])
    )
    pq.write_table(
        pa.Table.from_pylist([{"q": row["q"], "n": row.get("n")} for row in rows]),
        tmp_path / "b.parquet",
    )
    read = {
        name: list(read_texts(tmp_path, stat_file(tmp_path, name), ("q", "of.a", "n")))
        for name in ("a.jsonl", "b.parquet")
    }
    assert read == {
        "a.jsonl": [(1, "one\nx\ny\n3"), (3, "two\nz")],
        "b.parquet": [(1, "one\n3"), (3, "two")],
    }
    with pytest.raises(InputError, match="texts at question"):
        list(read_texts(tmp_path, stat_file(tmp_path, "a.jsonl"), ("question",)))
    for name, data in (("c.jsonl", b'{"q": "one"}\n{"q'), ("d.parquet", b"PAR1")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match="cannot be read"):
            list(read_texts(tmp_path, stat_file(tmp_path, name), ("q",)))
