"""Words out of tokens, against a slow twin that splits text; tokenizers of several kinds."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from nanoset_core.stages.contamination.token_bytes import word_vocabulary
from nanoset_core.stages.contamination.words import WordVocabulary, split_into_pieces
from nanoset_core.tokenizers.engines.reference import ReferenceEngine

TEXTS = [
    "Hello, World! It's  O'Reilly's 2nd\tNEW-line\r\nnaïve",
    "a" * 600 + "b " + "x" * 300 + " ends",
    "<|endoftext|>",
    "",
    "snake_case CamelCase http://example.com/a?b=1&c=2 3.14",
    "  .. \n",
    "日本語 and 中文abc",
]


def slow_words(text: str) -> list[str]:
    """Words of a text of one script at a time."""
    lone = "[\u3040-\u30ff\u3400-\u9fff][^\\W_\u3040-\u30ff\u3400-\u9fff]*"
    return re.findall(f"{lone}|[^\\W_\u3040-\u30ff\u3400-\u9fff]+", text.casefold())


def words_of(vocabulary: WordVocabulary, lists: list[list[int]]) -> list[list[str]]:
    begins = np.cumsum([0, *map(len, lists)])
    found = vocabulary.words(
        np.array([one for tokens in lists for one in tokens], np.uint16), begins
    )
    documents = found.documents(np.arange(len(found.hashes))).tolist()
    assert found.counts.tolist() == [documents.count(number) for number in range(len(lists))]
    texts = [vocabulary.text(found, number, number + 1) for number in range(len(found.hashes))]
    assert vocabulary.letter_counts(found).tolist() == [len(text.encode()) for text in texts]
    assert len(set(found.hashes.tolist())) == len(set(texts)), (
        "a hash is of a word, however it is cut"
    )
    return [
        [text for text, own in zip(texts, documents, strict=True) if own == number]
        for number in range(len(lists))
    ]


@pytest.mark.parametrize("merges", [0, 40])
def test_words_do_not_depend_on_how_text_was_cut(merges):
    random.seed(merges)
    texts = [*TEXTS, "THE the The", "été ÉTÉ"]
    cut = [bytes([byte]) for byte in range(128)]
    cut += [
        text[k : k + 3].encode()
        for text in texts
        for k in range(len(text))
        if random.random() < merges / 100
    ]
    cut += [letter.encode() for text in texts for letter in text if ord(letter) > 127]
    entries = list(dict.fromkeys(cut))
    lists = []
    for text in texts:
        data, tokens = text.encode(), list[int]()
        while data:
            fitting = [number for number, entry in enumerate(entries) if data.startswith(entry)]
            tokens.append(random.choice(fitting))
            data = data[len(entries[tokens[-1]]) :]
        lists.append(tokens)
    found = words_of(WordVocabulary.of(entries), lists)
    assert found == [slow_words(text) for text in texts]


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b" The", [(True, b"the")]),
        (b"the", [(False, b"the")]),
        (b"ab, cd.", [(False, b"ab"), (True, b"cd"), (True, b"")]),
        (b"...", [(True, b"")]),
        ("\u2019s".encode(), [(True, b"s")]),
        ("\u4e2d\u6587".encode(), [(True, "\u4e2d".encode()), (True, "\u6587".encode())]),
        ("\u4e2d".encode()[:1], [(True, b"\xe4")]),
        ("\u4e2d".encode()[1:], [(False, b"\xb8\xad")]),
        ("\u0915\u094d".encode(), [(False, "\u0915\u094d".encode())]),
        (b"", [(False, b"")]),
    ],
)
def test_pieces_of_a_token(data, pieces):
    assert split_into_pieces(data) == pieces


def saved(folder: Path, model: dict[str, object], **parts: object) -> Path:
    path = folder / "tokenizer.json"
    added = [
        {
            "id": 0,
            "content": "<s>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
    ]
    added[0]["normalized"] = False
    path.write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model, **parts}))
    return path


@pytest.mark.parametrize("kind", ["WordPiece", "Unigram"])
def test_vocabularies_of_other_kinds(kind, tmp_path):
    if kind == "WordPiece":
        names = ["<s>", "play", "##ing", "the", ",", "[UNK]"]
        model = {
            "type": kind,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 99,
        }
        path = saved(
            tmp_path, {**model, "vocab": {name: number for number, name in enumerate(names)}}
        )
    else:
        names = ["<s>", "▁play", "ing", "▁the", ",", "<0x41>"]
        model = {"type": kind, "unk_id": 0, "byte_fallback": True}
        path = saved(tmp_path, {**model, "vocab": [[name, 0.0] for name in names]})
    vocabulary = word_vocabulary(path)
    assert words_of(vocabulary, [[3, 1, 2, 4], [1, 0, 2]]) == [["the", "playing"], ["play", "ing"]]


def test_words_of_a_byte_level_tokenizer(tokenizer_file):
    engine, vocabulary = (
        ReferenceEngine(tokenizer_file),
        word_vocabulary(tokenizer_file),
    )
    texts = [text for text in TEXTS if not text.startswith("<")]
    found = words_of(vocabulary, [one.tolist() for one in engine.encode(texts).lists()])
    assert found[4] == slow_words(texts[4].replace("_", " "))
    assert found[0] == [
        "hello",
        "world",
        "it",
        "s",
        "o",
        "reilly",
        "s",
        "2nd",
        "new",
        "line",
        "naïve",
    ]
