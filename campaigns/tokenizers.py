"""Compare the tokens of an engine with those of the library that a tokenizer was made for.

The comparison is done on text, on random strings, and for files that were changed in one setting.

Without `--tokenizers`, the campaign takes small tokenizers of every kind that the numpy engine
supports. Trial 0 of a tokenizer compares tokens of text and random strings. Each further trial
changes one setting of a tokenizer.json, if the file is smaller than a megabyte.
"""

from __future__ import annotations

import argparse
import base64
import functools
import json
import random
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from campaigns.runner import Kind, Trial, forked
from campaigns.tokenizer_mutations import Mutation, mutated, mutations
from helpers.small_tokenizers import write_small_tokenizers
from nanoset_core.errors import NanosetError
from nanoset_core.tokenizers.engines import Engine, make_engine, rules
from nanoset_core.tokenizers.engines.engine import Encoded, NotRecognisedError
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.files import TokenizerFile, define
from nanoset_core.tokenizers.files.split_patterns import PATTERNS

HEAD = ("tokenizer", "engine")
"""First columns of the table."""
COLUMNS = ("refused", "tokenizers", "numpy", "gigatoken", "caught")
"""How trials with a changed file end: an error; the engine that was used, with right tokens; or the
engine's own comparison with the library, when it starts, noticed that its tokens would be wrong.
"""
TRIALS = 300
"""Changes of each tokenizer."""
BATCH = 2_000
"""Texts that are encoded in one call."""
_MAX_MUTABLE_BYTES = 1 << 20
"""Larger files are not changed: loading one takes seconds."""
_SURROGATES_START = 0xD800
_N_SURROGATES = 0x800
"""Code points that no text can contain, from _SURROGATES_START on."""
_N_CODE_POINTS = 0x110000
_CODE_POINT_RANGES = [
    (0x01, 0x80),
    (0x80, 0x800),
    (0x800, _SURROGATES_START),
    (0xE000, 0x10000),
    (0x10000, 0x20000),
    (0x20000, 0x40000),
    (0xE0000, 0xE0200),
    (0xF0000, 0x110000),
]
"""Start and stop of ranges of code points, from which random characters are drawn alike."""
_RUN_LENGTHS = [2, 3, 8, 9, 24, 25, 31, 65, 249]
"""How often a character is repeated: around the sizes of buffers and the limits of patterns."""
_PIECES = [
    # Words, with contractions and with capital letters inside.
    *("the", " quick", "Brown", "'s", "'S", "'ll", "'RE", "'ſ", "HTTPServer", "don't"),
    # Other scripts and their digits.
    *("Привет", " мир", "日本語", "中文", "。", "，", "カタ", "ハ", "한국어", "हिन्दी"),
    *("สวัสดี", "العربية", "١٢٣", "½", "〇", "⼀", "二〇", "々"),
    # Characters of several code points, and characters that normalisation changes.
    *("🎉", "❤\ufe0f", "\u200d", "ſ", "ﬁ"),
    # Letters and digits.
    *("a", "b", "Z", "é", "1", "12", "12345"),
    # Whitespace and control characters.
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085"),
    *("\x1c", "\0", "\ufeff"),
    # Punctuation, SentencePiece's sign for a space, and one of its tokens for bytes.
    *("!", "!!", "...", "/", "//", "\n/", "(", ")", "<", ">", "{", "_", "-", "=", "'", '"'),
    *("&", "|", "▁", "<0x0A>"),
    # Combining marks.
    *("e\u0301", "\u0301", "\u0345", "\u05bf", "\u07f3\u07fd", "\u212b", "각"),
    "\u1100\u1161\u11a8",
]
"""Parts of random strings."""
_BASE_TEXTS = [
    "The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times.",
    '  def f(self, x=None):\n\t\treturn self.table[x] != "x" or 3.14159\n\n\n',
    "Приветствую вас, дорогие друзья! Ça va très bien, merci — l'été. e\u0301 \u212b ﬁ",
    "日本語のテキスト。これは試験です。中文文本，处理。한국어 हिन्दी में สวัสดี العربية ١٢٣ 🎉🎊 ½",
    "I'll say he'd've gone; WE'RE DONE'S \u00a0nbsp\u3000wide\r\n \n ==== ---- ▁ ▁▁ <b>x</b> \x00 "
    "\x7f",
    *("", " ", "\n", "▁", " x", "x ", "a  b   c", "qQ&", "aaaaaaaa"),
    *("<unk>", "<s>", "<0x41>", "the e \u0301"),
]
"""Texts on which every changed file is tried."""


# --- Texts to compare on ---


def strings(seed: int, added: Sequence[str]) -> Iterator[str]:
    """Yield random strings without end.

    Every string has a pair of combining marks and a single character. In the course of all strings,
    every pair and every character occurs.

    Args:
        seed: Decides the strings.
        added: Added tokens, which occur inside the strings, some of them cut.
    """
    rng = random.Random(seed)
    marks = _combining_marks()
    pair_order = _random_order(len(marks) ** 2)
    character_order = _random_order(_N_CODE_POINTS - _N_SURROGATES)
    for number in count():
        parts = [_random_piece(rng, added) for _ in range(rng.randrange(10))]

        pair_number = int(pair_order[number % len(pair_order)])
        first, second = divmod(pair_number, len(marks))
        base = rng.choice(["", "a", "가", " ", "!"])
        parts.insert(rng.randrange(len(parts) + 1), base + marks[first] + marks[second])

        # Numbers from the first surrogate on stand for the code points after all surrogates.
        code_point = int(character_order[number % len(character_order)])
        if code_point >= _SURROGATES_START:
            code_point += _N_SURROGATES
        suffix = rng.choice(["", "", " ", "s", "1"])
        parts.insert(rng.randrange(len(parts) + 1), chr(code_point) + suffix)
        yield "".join(parts)


@functools.cache
def _combining_marks() -> list[str]:
    """Return the marks that Unicode combines with the previous letter, of its first two planes."""
    characters = map(chr, range(0x20000))
    return [character for character in characters if unicodedata.combining(character)]


@functools.cache
def _random_order(n: int) -> NDArray[np.int64]:
    """Return the numbers below n in a random order, which is always the same.

    Returns:
        (n,) int64.
    """
    return np.random.default_rng(0).permutation(n)


def _random_piece(rng: random.Random, added: Sequence[str]) -> str:
    """Return a part of a random string.

    Args:
        rng: Random numbers.
        added: Added tokens, of which one in eight parts is one.
    """
    choice = rng.random()
    if choice < 0.12 and added:
        token = rng.choice(added)
        is_whole = choice < 0.1
        return token if is_whole else token[: rng.randrange(len(token))]
    if choice < 0.3:
        start, stop = rng.choice(_CODE_POINT_RANGES)
        return chr(rng.randrange(start, stop))
    if choice < 0.36:
        first_character = rng.choice(_PIECES)[:1]
        return first_character * rng.choice(_RUN_LENGTHS)
    return rng.choice(_PIECES)


def documents(files: Sequence[Path], megabytes: float) -> Iterator[str]:
    """Yield the texts of files of JSON lines, until some megabytes have been yielded."""
    bytes_left = megabytes * 1e6
    for path in files:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if bytes_left <= 0:
                    return
                text = json.loads(line)["text"]
                bytes_left -= len(text.encode())
                yield text


def added_tokens(content: bytes) -> list[str]:
    """Return the texts of the added tokens of a tokenizer.json, which may be damaged.

    An *added token* is found in text before the text is divided into words, such as
    `<|endoftext|>`.
    """
    texts: list[str] = []
    for token in json.loads(content).get("added_tokens") or []:
        text = token.get("content")
        if isinstance(text, str) and text:
            texts.append(text)
    return texts


# --- Comparison ---


class Comparison(NamedTuple):
    """The result of a comparison of two engines."""

    n_texts: int
    """Number of texts that were encoded."""
    different: list[str]
    """The texts whose tokens differ."""


def compare_engines(
    engine: Engine | OwnLibrary, reference: Engine | OwnLibrary, texts: Iterator[str]
) -> Comparison:
    """Encode texts with two engines, and return the texts whose tokens differ."""
    n_texts = 0
    different: list[str] = []
    while batch := list(islice(texts, BATCH)):
        n_texts += len(batch)
        encoded = engine.encode(batch)
        expected = reference.encode(batch)
        has_same_ids = np.array_equal(encoded.ids, expected.ids)
        if has_same_ids and np.array_equal(encoded.lengths, expected.lengths):
            continue
        # All tokens of a batch are in one array, which is divided only to find the texts.
        ids_by_text = np.split(encoded.ids, np.cumsum(encoded.lengths))
        expected_by_text = np.split(expected.ids, np.cumsum(expected.lengths))
        # `np.split` returns one more array, of what comes after the last text: nothing.
        for text, ids, expected_ids in zip(batch, ids_by_text, expected_by_text, strict=False):
            if not np.array_equal(ids, expected_ids):
                different.append(text)
    return Comparison(n_texts, different)


def try_changed_file(path: Path, engine_name: str, added: Sequence[str]) -> str:
    """Encode texts with a changed tokenizer.json, and say how this ended.

    Args:
        path: The file.
        engine_name: Name of the engine that is tried.
        added: The file's added tokens.

    Returns:
        The name of the engine that was used, which may be "tokenizers", the library, if the engine
        does not support the file; "refused" if nanoset cannot use the file; "caught" if only the
        comparison at the engine's start noticed wrong tokens; or "wrong" if nothing noticed them.
    """
    texts = _texts_for_changed_file(added)
    try:
        reference = ReferenceEngine(path)
        if engine_name == "numpy":
            # First try it without the comparison at its start, which takes a second.
            known_rules = rules.read_rules(json.loads(define(path).json()))
            numpy_engine = NumpyEngine(known_rules, reference)
            if not compare_engines(numpy_engine, reference, iter(texts)).different:
                return engine_name
        # "numpy" cannot be required by its name here: then the library would never replace it.
        requested = "auto" if engine_name == "numpy" else engine_name
        with tempfile.TemporaryDirectory() as cache:
            engine = make_engine(path, requested, cache=cache)
    except NotRecognisedError:
        return "tokenizers"
    except NanosetError:
        return "refused"

    if engine.name == "tokenizers":
        return "caught" if engine_name == "numpy" else engine.name
    if compare_engines(engine, reference, iter(texts)).different:
        return "wrong"
    return engine.name


def _texts_for_changed_file(added: Sequence[str]) -> list[str]:
    """Return texts on which a changed file is tried, some of them with its added tokens."""
    texts = [*_BASE_TEXTS, *islice(strings(len(added), added), 40)]
    # The last two may be new, and the first may have other flags.
    for token in [*added[-2:], *added[:1]]:
        texts += [
            token,
            f"a{token}b",
            f" {token} ",
            f"x  {token}\n {token}{token}y",
            f"{token.upper()} e{token}",
        ]
    return texts


# --- Kinds of trials ---


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this campaign to its command line."""
    parser.add_argument(
        "--tokenizers",
        nargs="+",
        metavar="FILE",
        help="tokenizer files of any kind; FILE=PATTERN names the pattern for tiktoken's ranks",
    )
    parser.add_argument(
        "--engine", nargs="+", default=["numpy"], help="engines to compare with the library"
    )
    parser.add_argument(
        "--texts", type=Path, nargs="*", default=[], help="files of JSON lines with a text each"
    )
    parser.add_argument(
        "--megabytes", type=float, default=200, help="size of the text to take from --texts"
    )
    parser.add_argument("--strings", type=int, default=20_000, help="number of random strings")


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """Yield a kind of trial for each tokenizer and engine.

    Args:
        folder: Where the trials write.
        options: Options of the command line.
    """
    # What a regular expression's classes contain does not depend on the tokenizer: the library is
    # asked only once.
    rules.probe_classes = functools.cache(rules.probe_classes)

    descriptions = options.tokenizers
    if not descriptions:
        descriptions = [str(path) for path in write_small_tokenizers(folder).values()]
    for description in descriptions:
        path, _, pattern = description.partition("=")
        source = TokenizerFile(Path(path), pattern=pattern or None)
        # Most files are named tokenizer.json; then their folder says which one it is.
        name = source.path.stem
        if name == "tokenizer":
            name = source.path.parent.name
        for engine in options.engine:
            run_trial = _make_trial(source, engine, folder, options)
            # `dies`: the library ends the process over some changed files.
            yield forked(
                (name, engine),
                options.trials + 1,
                run_trial,
                batch=50,
                dies=True,
                extra_bytes=1 << 40,
                seconds=3600,
            )


def _make_trial(
    source: TokenizerFile, engine: str, folder: Path, options: argparse.Namespace
) -> Callable[[int], Trial]:
    """Return a function that runs the trial with a number.

    Trial 0 compares texts and random strings. Each of the others changes the file.

    Args:
        source: The tokenizer.
        engine: Name of the engine.
        folder: Where the trials write.
        options: Options of the command line.
    """
    definition = define(source)
    content = definition.json()
    changes: list[Mutation] = []
    if definition.converted is None and len(content) < _MAX_MUTABLE_BYTES:
        changes = mutations(json.loads(content))
    # The order depends on the file alone, so that a trial can be repeated by its number.
    random.Random(0).shuffle(changes)

    def run_trial(number: int) -> Trial:
        if number == 0:
            return _compare_texts(source, engine, folder / "engines", options)
        if number > len(changes):
            return Trial()
        return _change_file(content, changes[number - 1], engine, folder)

    return run_trial


def _compare_texts(
    source: TokenizerFile, engine_name: str, cache: Path, options: argparse.Namespace
) -> Trial:
    """Compare an engine with the tokenizer's own library on all texts and random strings.

    Args:
        source: The tokenizer.
        engine_name: Name of the engine.
        cache: Where the engine caches what it learns of the tokenizer.
        options: Options of the command line.
    """
    try:
        engine = make_engine(source, engine_name, cache=cache / f"{source.path.stem} {engine_name}")
    except NanosetError as error:
        return Trial(wrong=[f"refused: {error.found}"])
    trial = Trial()
    if engine.name != engine_name:
        trial.wrong.append(f"the engine is {engine.name}: {engine.reason}")

    library = OwnLibrary(source)
    added = added_tokens(define(source).json())
    texts_by_name = {
        "documents": documents(options.texts, options.megabytes),
        "strings": islice(strings(0, added), options.strings),
    }
    for name, texts in texts_by_name.items():
        comparison = compare_engines(engine, library, texts)
        trial.counts[name] = comparison.n_texts
        trial.wrong += [repr(text[:300]) for text in comparison.different]
    return trial


def _change_file(content: bytes, mutation: Mutation, engine: str, folder: Path) -> Trial:
    """Change a tokenizer.json, and encode texts with it.

    Args:
        content: The original file.
        mutation: The change.
        engine: Name of the engine.
        folder: Where the file is written.
    """
    changed = mutated(json.loads(content), mutation)
    if changed is None:
        return Trial()
    path = folder / "mutated" / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(changed)

    outcome = try_changed_file(path, engine, added_tokens(changed))
    trial = Trial(Counter([outcome]))
    if outcome == "caught":
        trial.counts[f"caught: {mutation.name}"] += 1
    if outcome == "wrong":
        trial.wrong.append(f"wrong: {mutation.name}")
    return trial


# --- The library that each kind of tokenizer was made for ---

Encode = Callable[[Sequence[str]], list[list[int]]]
"""Returns the token ids of each text."""


class OwnLibrary:
    """The library that a tokenizer was made for, with the `encode` of an engine."""

    def __init__(self, source: TokenizerFile) -> None:
        self._reference: ReferenceEngine | None = None
        self._encode: Encode | None = None
        load = _LOADERS.get(define(source).kind)
        if load is None:
            # The library of all other kinds is `tokenizers`, which the reference engine calls.
            self._reference = ReferenceEngine(source)
        else:
            self._encode = load(source)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the token ids of texts."""
        if self._encode is None:
            assert self._reference is not None
            return self._reference.encode(texts)
        ids_by_text = self._encode(texts)
        ids: list[int] = []
        for text_ids in ids_by_text:
            ids += text_ids
        lengths = [len(text_ids) for text_ids in ids_by_text]
        return Encoded(np.array(ids, np.int32), np.array(lengths, np.int32))


def _load_tiktoken(source: TokenizerFile) -> Encode:
    """Load a file of tiktoken's ranks: lines of a token in base64 and its rank."""
    ranks: dict[bytes, int] = {}
    for line in source.path.read_bytes().splitlines():
        encoded_token, rank = line.split()
        ranks[base64.b64decode(encoded_token)] = int(rank)
    pattern = PATTERNS[source.pattern or ""]
    return _tiktoken_encode(pattern.regex, ranks, define(source).special_tokens, pattern.form)


def _load_tiktoken_json(source: TokenizerFile) -> Encode:
    """Load a file of Megatron-LM's `TikTokenizer`: a JSON list of tokens in base64 with ranks.

    As there, the first ids belong to special tokens, and the ranks follow.
    """
    n_special = source.num_special_tokens or 1000
    vocab_size = source.vocab_size or 1 << 17
    ranks: dict[bytes, int] = {}
    for entry in json.loads(source.path.read_bytes())[: vocab_size - n_special]:
        ranks[base64.b64decode(entry["token_bytes"])] = entry["rank"] + n_special
    pattern = PATTERNS[source.pattern or "v2"]
    return _tiktoken_encode(pattern.regex, ranks, define(source).special_tokens, None)


def _tiktoken_encode(
    regex: str, ranks: dict[bytes, int], special_tokens: Mapping[str, int], form: str | None
) -> Encode:
    """Return a function that encodes texts with the `tiktoken` library.

    Args:
        regex: Divides a text into words.
        ranks: Token → rank, which is also its id.
        special_tokens: Text → id.
        form: Unicode normalisation of the text, such as `NFC`, or None.
    """
    import tiktoken
    from tokenizers import normalizers

    encoding = tiktoken.Encoding(
        "own", pat_str=regex, mergeable_ranks=ranks, special_tokens=dict(special_tokens)
    )
    if form is None:
        return lambda texts: [encoding.encode(text, allowed_special="all") for text in texts]
    # Not `unicodedata`: Python may have another version of Unicode than the library.
    normalizer = getattr(normalizers, form)()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        normalized = [normalizer.normalize_str(text) for text in texts]
        return [encoding.encode(text, allowed_special="all") for text in normalized]

    return encode


def _load_tekken(source: TokenizerFile) -> Encode:
    """Load Mistral's `tekken.json`."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(source.path)
    return lambda texts: [tokenizer.encode(text, bos=False, eos=False) for text in texts]


def _load_sentencepiece(source: TokenizerFile) -> Encode:
    """Load a SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    processor: Any = SentencePieceProcessor(model_file=str(source.path))
    # By default, it would start a thread for each processor in every trial.
    return functools.partial(processor.encode, out_type=int, num_threads=1)


_LOADERS: dict[str, Callable[[TokenizerFile], Encode]] = {
    "tiktoken": _load_tiktoken,
    "tiktoken JSON": _load_tiktoken_json,
    "tekken.json": _load_tekken,
    "SentencePiece": _load_sentencepiece,
}
"""Kind of a tokenizer's file → a function that loads it with its own library."""
