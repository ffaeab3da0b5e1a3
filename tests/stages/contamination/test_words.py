"""Words of tokenized text: the same as those of the text, whatever the tokenizer."""

import json
import random
import re
from itertools import chain
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
JAPANESE_OR_CHINESE = "\u3040-\u30ff\u3400-\u9fff"


def words_of_text(text: str) -> list[str]:
    """Return the words of a text by a regular expression: the slow way."""
    # A letter of these scripts is a word, with the letters of other scripts that follow it.
    ideograph_word = f"[{JAPANESE_OR_CHINESE}][^\\W_{JAPANESE_OR_CHINESE}]*"
    other_word = f"[^\\W_{JAPANESE_OR_CHINESE}]+"
    return re.findall(f"{ideograph_word}|{other_word}", text.casefold())


def concatenated(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return (the tokens of all documents, where each document starts)."""
    tokens = list(chain.from_iterable(documents))
    return np.array(tokens, np.uint16), np.cumsum([0, *map(len, documents)])


def words_of_tokens(vocabulary: WordVocabulary, documents: list[list[int]]) -> list[list[str]]:
    """Return the words of each document, given its tokens."""
    words = vocabulary.words(*concatenated(documents))

    words_by_document: list[list[str]] = [[] for _ in documents]
    document_of_word = words.documents(np.arange(len(words.hashes))).tolist()
    for number, document in enumerate(document_of_word):
        words_by_document[document].append(vocabulary.text(words, number, number + 1))
    return words_by_document


def random_tokenization(texts: list[str], rng: random.Random, merged_share: float):
    """Return (a random vocabulary, the tokens of each text, cut in random places).

    Args:
        texts: The texts.
        rng: The source of chance.
        merged_share: Share of the positions in texts at which a token of 3 characters starts.
    """
    tokens = [bytes([byte]) for byte in range(128)]
    for text in texts:
        for start, character in enumerate(text):
            if rng.random() < merged_share:
                tokens.append(text[start : start + 3].encode())
            if ord(character) > 127:
                tokens.append(character.encode())
    tokens = list(dict.fromkeys(tokens))

    documents = []
    for text in texts:
        remaining = text.encode()
        document = []
        while remaining:
            fitting = [number for number, token in enumerate(tokens) if remaining.startswith(token)]
            document.append(rng.choice(fitting))
            remaining = remaining[len(tokens[document[-1]]) :]
        documents.append(document)
    return WordVocabulary.of(tokens), documents


@pytest.mark.parametrize("merged_share", [0, 0.4])
def test_words_do_not_depend_on_how_text_is_cut_into_tokens(merged_share):
    texts = [*TEXTS, "THE the The", "été ÉTÉ"]
    vocabulary, documents = random_tokenization(texts, random.Random(1), merged_share)

    assert words_of_tokens(vocabulary, documents) == [words_of_text(text) for text in texts]


def test_equal_words_have_equal_hashes_and_others_do_not():
    texts = [*TEXTS, "THE the The", "été ÉTÉ"]
    vocabulary, documents = random_tokenization(texts, random.Random(2), merged_share=0.4)

    words = vocabulary.words(*concatenated(documents))

    hashes_by_text: dict[str, set[int]] = {}
    for number, word_hash in enumerate(words.hashes.tolist()):
        text = vocabulary.text(words, number, number + 1)
        hashes_by_text.setdefault(text, set()).add(word_hash)
    n_hashes_by_text = {text: len(hashes) for text, hashes in hashes_by_text.items()}
    assert set(n_hashes_by_text.values()) == {1}, n_hashes_by_text
    assert len(set(words.hashes.tolist())) == len(hashes_by_text)


def test_words_and_their_letters_are_counted():
    vocabulary = WordVocabulary.of([b"one", b" two", b"\xc3\xa9t\xc3\xa9", b", "])

    words = vocabulary.words(np.array([0, 1, 3, 2, 0]), np.array([0, 4, 4, 5]))

    assert words.counts.tolist() == [3, 0, 1]  # one two été, none, one
    assert vocabulary.letter_counts(words).tolist() == [3, 3, 5, 3]


@pytest.mark.parametrize(
    ("token", "pieces"),
    [
        (b" The", [(True, b"the")]),
        (b"the", [(False, b"the")]),
        (b"ab, cd.", [(False, b"ab"), (True, b"cd"), (True, b"")]),
        (b"...", [(True, b"")]),
        ("\u2019s".encode(), [(True, b"s")]),  # a curly apostrophe
        ("\u4e2d\u6587".encode(), [(True, "\u4e2d".encode()), (True, "\u6587".encode())]),
        ("\u4e2d".encode()[:1], [(True, b"\xe4")]),  # the first byte of a Chinese character
        ("\u4e2d".encode()[1:], [(False, b"\xb8\xad")]),  # its other bytes
        ("\u0915\u094d".encode(), [(False, "\u0915\u094d".encode())]),  # a letter and its mark
        (b"", [(False, b"")]),
    ],
)
def test_a_token_is_divided_into_pieces_of_words(token, pieces):
    assert split_into_pieces(token) == pieces


def saved_tokenizer(folder: Path, model: dict[str, object]) -> Path:
    """Write a tokenizer.json with this model, and the special token <s> as id 0."""
    special_token = {
        "id": 0,
        "content": "<s>",
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [special_token], "model": model}))
    return path


def test_word_piece_tokens_begin_words_unless_they_have_the_prefix(tmp_path):
    names = ["<s>", "play", "##ing", "the", ",", "[UNK]"]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 99,
        "vocab": {name: number for number, name in enumerate(names)},
    }

    vocabulary = word_vocabulary(saved_tokenizer(tmp_path, model))

    assert words_of_tokens(vocabulary, [[3, 1, 2, 4]]) == [["the", "playing"]]


def test_sentence_piece_tokens_begin_words_if_they_have_the_mark_of_a_space(tmp_path):
    names = ["<s>", "▁play", "ing", "▁the", ",", "<0x41>"]
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "byte_fallback": True,
        "vocab": [[name, 0.0] for name in names],
    }

    vocabulary = word_vocabulary(saved_tokenizer(tmp_path, model))

    assert words_of_tokens(vocabulary, [[3, 1, 2, 4]]) == [["the", "playing"]]
    assert words_of_tokens(vocabulary, [[1, 5]]) == [["playa"]]  # 0x41 is A


def test_special_tokens_separate_words(tmp_path):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<s>", 0.0], ["▁play", 0.0], ["ing", 0.0]]}

    vocabulary = word_vocabulary(saved_tokenizer(tmp_path, model))

    assert words_of_tokens(vocabulary, [[1, 0, 2]]) == [["play", "ing"]]


def test_words_of_a_byte_level_tokenizer_are_those_of_the_text(tokenizer_file):
    engine = ReferenceEngine(tokenizer_file)
    texts = [TEXTS[0], TEXTS[4], TEXTS[6]]
    documents = [tokens.tolist() for tokens in engine.encode(texts).lists()]

    words = words_of_tokens(word_vocabulary(tokenizer_file), documents)

    assert words == [words_of_text(text.replace("_", " ")) for text in texts]
