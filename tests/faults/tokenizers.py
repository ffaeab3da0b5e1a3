"""Tokens of every engine against the reference's: on text, on made-up strings, and for files changed in one setting.

    PYTHONPATH=tests python -m faults.tokenizers [--tokenizers FILE[=PATTERN] ...] [--engine numpy gigatoken]
        [--select PATTERN] [--texts FILE ... --megabytes 200] [--strings 20000] [--mutations 300] [--expected FOLDER]

Without `--tokenizers` it takes small ones of every kind that the numpy engine knows. FILE is of any kind, PATTERN that
of tiktoken's ranks. Mutations are of a tokenizer.json below a megabyte. Digests of what each kind's own library gives
are kept in FOLDER for all engines and later calls. Exits with 1 where any token differs.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import numpy as np
from faults.references import BATCH, compare, expected_digests
from faults.tokenizer_mutations import mutated, mutations
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.tokenization.bpe import Engine, compiled, make_engine
from nanoset_core.tokenization.bpe.numpy_engine import NumpyEngine
from nanoset_core.tokenization.bpe.reference import NotRecognisedError, ReferenceEngine
from nanoset_core.tokenization.files import TokenizerFile, define

_OUTCOMES = ("refused", "tokenizers", "numpy", "gigatoken", "caught", "wrong")
_MUTABLE_BYTES = 1 << 20
_PLANES = [(0x01, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x40000)]
_PLANES += [(0xE0000, 0xE0200), (0xF0000, 0x110000)]
_PIECES = [
    *("the", " quick", "Brown", "'s", "'S", "'ll", "'RE", "'ſ", "HTTPServer", "don't", "Привет", " мир"),
    *("日本語", "中文", "。", "，", "カタ", "ハ", "한국어", "हिन्दी", "สวัสดี", "العربية", "١٢٣", "½"),
    *("〇", "⼀", "二〇", "々", "🎉", "❤\ufe0f", "\u200d", "ſ", "ﬁ", "a", "b", "Z", "é", "1", "12", "12345"),
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085"),
    *("\x1c", "\0", "\ufeff"),
    *("!", "!!", "...", "/", "//", "\n/", "(", ")", "<", ">", "{", "_", "-", "=", "'", '"', "&", "|", "▁", "<0x0A>"),
    *("e\u0301", "\u0301", "\u0345", "\u05bf", "\u07f3\u07fd", "\u212b", "각", "\u1100\u1161\u11a8"),
]
_BASE_TEXTS = [
    "The quick brown fox can't jump over the lazy dog's 12 fences; they've tried 345 times.",
    '  def f(self, x=None):\n\t\treturn self.table[x] != "x" or 3.14159\n\n\n',
    "Приветствую вас, дорогие друзья! Ça va très bien, merci — l'été. e\u0301 \u212b ﬁ",
    "日本語のテキスト。これは試験です。中文文本，处理。한국어 हिन्दी में สวัสดี العربية ١٢٣ 🎉🎊 ½",
    "I'll say he'd've gone; WE'RE DONE'S \u00a0nbsp\u3000wide\r\n \n ==== ---- ▁ ▁▁ <b>x</b> \x00 \x7f",
    *("", " ", "\n", "▁", " x", "x ", "a  b   c", "qQ&", "aaaaaaaa", "<unk>", "<s>", "<0x41>", "the e \u0301"),
]


def strings(seed: int, added: Sequence[str]) -> Iterator[str]:
    """Made-up strings without end: all planes, added tokens inside words, marks in pairs, runs, single characters."""
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
        here = np.split(ours.ids, np.cumsum(ours.lengths))
        there = np.split(theirs.ids, np.cumsum(theirs.lengths))
        wrong += [text for text, a, b in zip(batch, here, there, strict=False) if not np.array_equal(a, b)]
    return count, wrong


def added_tokens(content: bytes) -> list[str]:
    """Texts of a file's added tokens."""
    tokens = json.loads(content).get("added_tokens") or []
    return [token["content"] for token in tokens if isinstance(token.get("content"), str) and token["content"]]


def try_mutations(content: bytes, engine: str, most: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """({outcome: mutations}, which went wrong or were caught) for a share of all mutations."""
    parsed = json.loads(content)
    every = mutations(parsed)
    chosen = random.Random(seed).sample(every, min(most, len(every)))
    counts, notes = Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(content)
        try_mutation(path, engine, [])  # so that children know what is asked of the library once
        for mutation in chosen:
            changed = mutated(parsed, mutation)
            if changed is None:
                continue
            path.write_bytes(changed)
            outcome = _in_child(path, engine, added_tokens(changed))
            counts[outcome] += 1
            if outcome in ("wrong", "failed", "caught"):
                notes.append(f"{outcome}: {mutation[0]}")
    return counts, notes


def _in_child(path: Path, engine: str, added: Sequence[str]) -> str:
    """What `try_mutation` says, or "crashed": the library ends the process over some files."""
    child = os.fork()
    if child == 0:
        code = len(_OUTCOMES)
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the library says of its panics
            code = _OUTCOMES.index(try_mutation(path, engine, added))
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return "crashed" if os.WIFSIGNALED(status) else [*_OUTCOMES, "failed"][os.WEXITSTATUS(status)]


def try_mutation(path: Path, name: str, added: Sequence[str]) -> str:
    """The engine that was used, "refused", "caught" (by the checks at the start alone), or "wrong"."""
    texts = [*_BASE_TEXTS, *islice(strings(len(added), added), 40)]
    for token in added[-2:] + added[:1]:
        texts += [token, f"a{token}b", f" {token} ", f"x  {token}\n {token}{token}y", f"{token.upper()} e{token}"]
    try:
        reference = ReferenceEngine(path)
        if name == "numpy":  # first without those checks, which take a second
            known = compiled.compile_tokenizer(path, reference)
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


def remember_probes() -> None:
    """Ask the library about its classes of characters once, and not for every file."""
    compiled.probe_classes = functools.cache(compiled.probe_classes)


def small_tokenizers(folder: Path, select: str) -> list[Path]:
    """Of every kind whose name is selected, trained on the spot."""
    from tokenization.bpe.conftest import CHARACTER_KINDS, KINDS

    paths = []
    for kind, make in {**KINDS, **CHARACTER_KINDS}.items():
        if fnmatchcase(kind, select):
            paths.append(folder / f"{kind}.json")
            make().save(str(paths[-1]))
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.tokenizers", description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizers", nargs="+", help="files, with =PATTERN for tiktoken's ranks")
    parser.add_argument("--engine", nargs="+", default=["numpy"], help="engines to compare with the reference")
    parser.add_argument("--select", default="*", help="files, such as 'llama*'")
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="JSON lines with a text each")
    parser.add_argument("--megabytes", type=float, default=200, help="of these texts")
    parser.add_argument("--strings", type=int, default=20_000, help="made-up strings")
    parser.add_argument("--mutations", type=int, default=300, help="of each small tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expected", type=Path, help="where digests of the expected tokens are kept")
    options = parser.parse_args()
    bad = 0
    remember_probes()
    with tempfile.TemporaryDirectory() as folder:
        small = () if options.tokenizers else small_tokenizers(Path(folder), options.select)
        for source in map(_source, options.tokenizers or map(str, small)):
            if fnmatchcase(_name(source), options.select):
                bad += _try_file(source, options, Path(folder))
    return int(bad > 0)


def _source(given: str) -> TokenizerFile:
    path, _, pattern = given.partition("=")
    return TokenizerFile(Path(path), pattern=pattern or None)


def _name(source: TokenizerFile) -> str:
    return source.path.stem if source.path.stem != "tokenizer" else source.path.parent.name


def _try_file(source: TokenizerFile, options: argparse.Namespace, folder: Path) -> int:
    """Print what came of one tokenizer; → how much was wrong."""
    definition = define(source)
    content = definition.json()
    added = added_tokens(content)
    corpus = [f"{path.absolute()} {path.stat().st_size}" for path in options.texts]
    made = [_made(source, kind, folder / "cache" / _name(source)) for kind in options.engine]
    engines = [engine for engine in made if engine is not None]
    bad = len(made) - len(engines) + sum(engine.name not in options.engine for engine in engines)
    for what, key, texts in (
        ("documents", f"{corpus} {options.megabytes}", lambda: documents(options.texts, options.megabytes)),
        ("strings", f"{options.seed} {options.strings}", lambda: islice(strings(options.seed, added), options.strings)),
    ):
        expected, seconds = expected_digests(source, f"{what} {key}", texts, options.expected or folder)
        name = f"{_name(source)}: {len(expected):,} {what}"
        print(f"{name} by {definition.kind}'s own library, {seconds:.0f} s", flush=True)
        for engine in engines:
            begun = time.process_time()
            wrong = compare(engine, texts(), expected)
            print(f"{name}, {len(wrong)} wrong, {engine.name}, {time.process_time() - begun:.0f} s", flush=True)
            for text in wrong[:3]:
                print(f"  {text[:300]!r}", flush=True)
            bad += len(wrong)
    if options.mutations and definition.content is None and len(content) < _MUTABLE_BYTES:
        begun = time.process_time()
        counts, notes = try_mutations(content, options.engine[0], options.mutations, options.seed)
        bad += counts["wrong"] + counts["failed"]
        told = f"{_name(source)}: {counts.total():,} mutations, {dict(counts)}"
        print(f"{told}, {time.process_time() - begun:.0f} s", flush=True)
        for note in sorted(notes)[::-1][:20]:
            print(f"  {note}", flush=True)
    return bad


def _made(source: TokenizerFile, kind: str, cache: Path) -> Engine | None:
    """An engine that learns all anew; None where it is not taken, which is printed."""
    begun = time.process_time()
    try:
        engine = make_engine(source, kind, cache=cache)
    except NanosetError as error:
        print(f"{_name(source)}, {kind}: refused: {error.found}", flush=True)
        return None
    print(f"{_name(source)}, {engine.name}: made, {time.process_time() - begun:.0f} s", flush=True)
    return engine


if __name__ == "__main__":
    sys.exit(main())
