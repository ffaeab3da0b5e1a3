"""Tokens of every engine against each kind's own library: on text, made-up strings, and files
changed in one setting.

Without `--tokenizers` it takes small ones of every kind that the numpy engine knows. FILE is of any
kind, PATTERN that of tiktoken's ranks. Trials are mutations of a tokenizer.json below a megabyte;
the first of them makes the strings.
"""

from __future__ import annotations

import argparse
import base64
import functools
import json
import random
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

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

HEAD, COLUMNS, TRIALS = (
    ("tokenizer", "engine"),
    ("refused", "tokenizers", "numpy", "gigatoken", "caught"),
    300,
)
_MUTABLE_BYTES = 1 << 20
_PLANES = [
    (0x01, 0x80),
    (0x80, 0x800),
    (0x800, 0xD800),
    (0xE000, 0x10000),
    (0x10000, 0x20000),
    (0x20000, 0x40000),
]
_PLANES += [(0xE0000, 0xE0200), (0xF0000, 0x110000)]
_PIECES = [
    *(
        "the",
        " quick",
        "Brown",
        "'s",
        "'S",
        "'ll",
        "'RE",
        "'ſ",
        "HTTPServer",
        "don't",
        "Привет",
        " мир",
    ),
    *("日本語", "中文", "。", "，", "カタ", "ハ", "한국어", "हिन्दी", "สวัสดี", "العربية", "١٢٣", "½"),
    *(
        "〇",
        "⼀",
        "二〇",
        "々",
        "🎉",
        "❤\ufe0f",
        "\u200d",
        "ſ",
        "ﬁ",
        "a",
        "b",
        "Z",
        "é",
        "1",
        "12",
        "12345",
    ),
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085"),
    *("\x1c", "\0", "\ufeff"),
    *(
        "!",
        "!!",
        "...",
        "/",
        "//",
        "\n/",
        "(",
        ")",
        "<",
        ">",
        "{",
        "_",
        "-",
        "=",
        "'",
        '"',
        "&",
        "|",
        "▁",
        "<0x0A>",
    ),
    *(
        "e\u0301",
        "\u0301",
        "\u0345",
        "\u05bf",
        "\u07f3\u07fd",
        "\u212b",
        "각",
        "\u1100\u1161\u11a8",
    ),
]
_BASE_TEXTS = [
    "The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times.",
    '  def f(self, x=None):\n\t\treturn self.table[x] != "x" or 3.14159\n\n\n',
    "Приветствую вас, дорогие друзья! Ça va très bien, merci — l'été. e\u0301 \u212b ﬁ",
    "日本語のテキスト。これは試験です。中文文本，处理。한국어 हिन्दी में สวัสดี العربية ١٢٣ 🎉🎊 ½",
    "I'll say he'd've gone; WE'RE DONE'S \u00a0nbsp\u3000wide\r\n \n ==== ---- ▁ ▁▁ <b>x</b> \x00 "
    "\x7f",
    *(
        "",
        " ",
        "\n",
        "▁",
        " x",
        "x ",
        "a  b   c",
        "qQ&",
        "aaaaaaaa",
        "<unk>",
        "<s>",
        "<0x41>",
        "the e \u0301",
    ),
]


def strings(seed: int, added: Sequence[str]) -> Iterator[str]:
    """Made-up strings without end: all planes, added tokens inside words, marks in pairs, runs,
    single characters.
    """
    rng = random.Random(seed)
    marks, pairs, points = _marks(), _order(len(_marks()) ** 2), _order(0x110000 - 0x800)
    for number in range(sys.maxsize):
        parts = [_piece(rng, added) for _ in range(rng.randrange(10))]
        first, second = divmod(int(pairs[number % len(pairs)]), len(marks))
        point = int(points[number % len(points)])
        pair = rng.choice(["", "a", "가", " ", "!"]) + marks[first] + marks[second]
        single = chr(point + 0x800 * (point >= 0xD800)) + rng.choice(["", "", " ", "s", "1"])
        for part in (pair, single):
            parts.insert(rng.randrange(len(parts) + 1), part)
        yield "".join(parts)


@functools.cache
def _marks() -> list[str]:
    return [chr(point) for point in range(0x20000) if unicodedata.combining(chr(point))]


@functools.cache
def _order(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).permutation(count)


def _piece(rng: random.Random, added: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.12 and added:
        token = rng.choice(added)
        return token if kind < 0.1 else token[: rng.randrange(len(token))]
    if kind < 0.3:
        low, high = rng.choice(_PLANES)
        return chr(rng.randrange(low, high))
    if kind < 0.36:
        return rng.choice(_PIECES)[:1] * rng.choice([2, 3, 8, 9, 24, 25, 31, 65, 249])
    return rng.choice(_PIECES)


def documents(files: Sequence[Path], megabytes: float) -> Iterator[str]:
    """Texts of JSON lines, so many megabytes in all, from one file after another."""
    left = megabytes * 1e6
    for path in files:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if left <= 0:
                    return
                text = json.loads(line)["text"]
                left -= len(text.encode())
                yield text


def differences(engine: Engine, reference: Engine, texts: Iterator[str]) -> tuple[int, list[str]]:
    """(how many texts, those of which the tokens differ)."""
    count, wrong = 0, []
    while batch := list(islice(texts, BATCH)):
        count += len(batch)
        ours, theirs = engine.encode(batch), reference.encode(batch)
        if np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.lengths, theirs.lengths):
            continue
        here, there = (np.split(one.ids, np.cumsum(one.lengths)) for one in (ours, theirs))
        wrong += [
            text for text, a, b in zip(batch, here, there, strict=False) if not np.array_equal(a, b)
        ]
    return count, wrong


def added_tokens(content: bytes) -> list[str]:
    """Texts of a file's added tokens."""
    tokens = json.loads(content).get("added_tokens") or []
    return [
        token["content"]
        for token in tokens
        if isinstance(token.get("content"), str) and token["content"]
    ]


def try_mutation(path: Path, name: str, added: Sequence[str]) -> str:
    """The engine that was used, "refused", "caught" (by the checks at the start alone), or "wrong"."""
    texts = [*_BASE_TEXTS, *islice(strings(len(added), added), 40)]
    for token in added[-2:] + added[:1]:
        texts += [
            token,
            f"a{token}b",
            f" {token} ",
            f"x  {token}\n {token}{token}y",
            f"{token.upper()} e{token}",
        ]
    try:
        reference = ReferenceEngine(path)
        if name == "numpy":  # first without those checks, which take a second
            known = rules.read_rules(json.loads(define(path).json()))
            if not differences(NumpyEngine(known, reference), reference, iter(texts))[1]:
                return name
        with tempfile.TemporaryDirectory() as cache:
            engine = make_engine(path, "auto" if name == "numpy" else name, cache=cache)
    except NotRecognisedError:
        return "tokenizers"
    except NanosetError:
        return "refused"
    if engine.name == "tokenizers":
        return "caught" if name == "numpy" else engine.name
    return "wrong" if differences(engine, reference, iter(texts))[1] else engine.name


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizers", nargs="+", metavar="FILE", help="with =PATTERN for tiktoken's ranks"
    )
    parser.add_argument(
        "--engine", nargs="+", default=["numpy"], help="engines to compare with the library"
    )
    parser.add_argument(
        "--texts", type=Path, nargs="*", default=[], help="JSON lines with a text each"
    )
    parser.add_argument("--megabytes", type=float, default=200, help="of these texts")
    parser.add_argument("--strings", type=int, default=20_000, help="made-up strings")


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each tokenizer and engine."""
    # the library is asked once, and not for every file
    rules.probe_classes = functools.cache(rules.probe_classes)
    given = options.tokenizers or map(str, write_small_tokenizers(folder).values())
    for path, _, pattern in (text.partition("=") for text in given):
        source = TokenizerFile(Path(path), pattern=pattern or None)
        name = source.path.stem if source.path.stem != "tokenizer" else source.path.parent.name
        for engine in options.engine:
            # The library ends the process over some files.
            limits = {"batch": 50, "dies": True, "extra_bytes": 1 << 40, "seconds": 3600}
            yield forked(
                (name, engine),
                options.trials + 1,
                _trial(source, engine, folder, options),
                **limits,
            )


def _trial(
    source: TokenizerFile, engine: str, folder: Path, options: argparse.Namespace
) -> Callable[[int], Trial]:
    """The texts and strings as trial 0; then mutations, in an order that depends on the file alone."""
    definition = define(source)
    content = definition.json()
    is_mutable = definition.converted is None and len(content) < _MUTABLE_BYTES
    every = mutations(json.loads(content)) if is_mutable else []
    random.Random(0).shuffle(every)

    def run(number: int) -> Trial:
        if number == 0:
            return _compare(source, engine, folder / "engines", options, added_tokens(content))
        return (
            _mutate(content, every[number - 1], engine, folder) if number <= len(every) else Trial()
        )

    return run


def _compare(
    source: TokenizerFile, kind: str, cache: Path, options: argparse.Namespace, added: Sequence[str]
) -> Trial:
    """All texts and strings, by an engine that learns all anew."""
    try:
        engine = make_engine(source, kind, cache=cache / f"{source.path.stem} {kind}")
    except NanosetError as error:
        return Trial(wrong=[f"refused: {error.found}"])
    trial, library = Trial(), OwnLibrary(source)
    trial.wrong += [] if engine.name == kind else [f"the engine is {engine.name}: {engine.reason}"]
    for what, texts in (
        ("documents", documents(options.texts, options.megabytes)),
        ("strings", islice(strings(0, added), options.strings)),
    ):
        trial.counts[what], wrong = differences(engine, library, texts)
        trial.wrong += [repr(text[:300]) for text in wrong]
    return trial


def _mutate(content: bytes, mutation: Mutation, engine: str, folder: Path) -> Trial:
    """A file with one change."""
    changed = mutated(json.loads(content), mutation)
    if changed is None:
        return Trial()
    path = folder / "mutated" / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(changed)
    outcome = try_mutation(path, engine, added_tokens(changed))
    counts = Counter([outcome] + [f"caught: {mutation[0]}"] * (outcome == "caught"))
    return Trial(counts, [f"wrong: {mutation[0]}"] if outcome == "wrong" else [])


# What engines are held to: each kind of file's own library

BATCH = 2_000
"""Texts that are encoded at once."""
Encode = Callable[[Sequence[str]], list[list[int]]]


class OwnLibrary:
    """The library that a tokenizer's files were made for, to which engines are held."""

    def __init__(self, source: TokenizerFile) -> None:
        own = _LIBRARIES.get(define(source).kind)
        self._encode = own(source) if own else None
        self._reference = None if own else ReferenceEngine(source)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents."""
        if self._reference is not None:
            return self._reference.encode(texts)
        ids = self._encode(texts)
        return Encoded(
            np.array([ident for one in ids for ident in one], np.int32),
            np.array([*map(len, ids)], np.int32),
        )


def _tiktoken(source: TokenizerFile) -> Encode:
    lines = (line.split() for line in source.path.read_bytes().splitlines())
    ranks = {base64.b64decode(word): int(rank) for word, rank in lines}
    pattern = PATTERNS[source.pattern or ""]
    return _encoding(pattern.regex, ranks, define(source).special_tokens, pattern.form)


def _megatron(source: TokenizerFile) -> Encode:
    count, size = source.num_special_tokens or 1000, source.vocab_size or 1 << 17
    entries = json.loads(source.path.read_bytes())[: size - count]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] + count for entry in entries}
    return _encoding(
        PATTERNS[source.pattern or "v2"].regex, ranks, define(source).special_tokens, None
    )


def _encoding(regex: str, ranks: dict[bytes, int], special: Mapping[str, int], form: Any) -> Encode:
    import tiktoken
    from tokenizers import normalizers

    encoding = tiktoken.Encoding(
        "own", pat_str=regex, mergeable_ranks=ranks, special_tokens=dict(special)
    )
    # Python's Unicode may be another
    normalise = getattr(normalizers, form)().normalize_str if form else str
    return lambda texts: [encoding.encode(normalise(text), allowed_special="all") for text in texts]


def _tekken(source: TokenizerFile) -> Encode:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(source.path)
    return lambda texts: [tokenizer.encode(text, bos=False, eos=False) for text in texts]


def _sentencepiece(source: TokenizerFile) -> Encode:
    from sentencepiece import SentencePieceProcessor

    return functools.partial(
        SentencePieceProcessor(model_file=str(source.path)).encode, out_type=int, num_threads=1
    )


_LIBRARIES = {
    "tiktoken": _tiktoken,
    "tiktoken JSON": _megatron,
    "tekken.json": _tekken,
    "SentencePiece": _sentencepiece,
}
"""Of the other kinds it is the reference engine's."""
