"""Measure the search for evaluation texts in documents: time, and how many planted texts it finds.

    python -m benchmarks.contamination --tokenizer tokenizer.json --input web.jsonl
        --evaluations gsm8k.jsonl … [--text-keys question answer] [--plants 3000]
        [--ngram 5] [--threshold 0.55]

The input is JSON lines with `text`. Matches in the input itself are printed, for a person to judge.
Then texts are planted in its documents: unchanged, in capitals with a line break for each space,
with one word changed, and with a tenth of the words changed, at most six. Of five changes, three
replace a word, one removes one and one adds one.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import orjson

from benchmarks.harness import options
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.stages.contamination.collector import TextCollector, evaluation_facts
from nanoset_core.stages.contamination.ngrams import MIN_LETTERS
from nanoset_core.stages.contamination.search import Evaluation, Match
from nanoset_core.stages.contamination.texts import read_texts
from nanoset_core.stages.contamination.token_bytes import word_vocabulary
from nanoset_core.text.listing import stat_file
from nanoset_core.tokenizers.engines import Engine, make_engine

BATCH = 1000
SHOWN = 10


def written(folder: Path, engine: Engine, texts: Iterator[str]) -> MMapIndexedDataset:
    """Tokenize documents into a dataset."""
    with MMapIndexedDatasetBuilder(folder / "data", np.int32) as builder:
        waiting: list[str] = []
        for text in texts:
            waiting.append(text)
            if len(waiting) == BATCH:
                add(builder, engine, waiting)
        add(builder, engine, waiting)
    return MMapIndexedDataset(folder / "data")


def add(builder: MMapIndexedDatasetBuilder, engine: Engine, texts: list[str]) -> None:
    encoded = engine.encode(texts)
    builder.add_documents(encoded.ids, encoded.lengths, np.ones(len(texts), np.int64))
    texts.clear()


def edits(words: Sequence[str], share: float) -> Callable[[random.Random, str], str]:
    """Return what changes this share of a text's words, one at least and six at most."""

    def edit(rng: random.Random, text: str) -> str:
        parts = text.split(" ")
        for _ in range(min(6, max(1, round(share * len(parts))))):
            at, kind = rng.randrange(len(parts)), rng.randrange(5)
            parts[at : at + (kind < 4)] = [rng.choice(words)] if kind != 3 else []
            parts = parts or [""]
        return " ".join(parts)

    return edit


def search(evaluation: Evaluation, dataset: MMapIndexedDataset, threshold: float) -> list[Match]:
    return list(evaluation.search(dataset, 0, len(dataset.document_indices) - 1, threshold))


def main() -> None:
    found = options(
        __doc__,
        tokenizer=(str,),
        input=(str,),
        evaluations=[""],
        text_keys=["question"],
        plants=3000,
        ngram=5,
        threshold=0.55,
    )
    engine = make_engine(found.tokenizer)
    collector = TextCollector(engine, word_vocabulary(found.tokenizer))
    texts: dict[tuple[int, int], str] = {}
    for number, name in enumerate(found.evaluations):
        file = Path(name)
        own = list(read_texts(file.parent, stat_file(file.parent, file.name), found.text_keys))
        texts |= {(number, line): text for line, text in own}
        collector.add(number, own, file)
    begun = time.process_time()
    index = collector.index(found.ngram)
    evaluation = Evaluation(collector.vocabulary, index)
    print(
        f"{evaluation_facts(collector, index)}; {time.process_time() - begun:.1f} s of CPU for "
        "the n-grams"
    )
    sought = [
        texts[collector.origins[number]]
        for number in np.flatnonzero(index.letters_per_text >= MIN_LETTERS).tolist()
    ]
    with tempfile.TemporaryDirectory() as folder, open(found.input, "rb") as lines:
        documents = written(Path(folder), engine, (orjson.loads(line)["text"] for line in lines))
        matches = as_it_is(evaluation, documents, found.threshold)
        for match in matches[:SHOWN]:
            print(
                f"  {match.share:.2f} {texts[collector.origins[match.text]][:100]!r}: "
                f"{match.words[:100]!r}"
            )
    with open(found.input, "rb") as lines:
        hosts = [orjson.loads(line)["text"] for line in islice(lines, 5 * found.plants)]
    planted(evaluation, engine, hosts, sought, found.plants, found.threshold)


def as_it_is(
    evaluation: Evaluation, documents: MMapIndexedDataset, threshold: float
) -> list[Match]:
    """Look through documents, and say what that takes."""
    search(evaluation, documents, threshold)
    begun, used = time.monotonic(), time.process_time()
    matches = search(evaluation, documents, threshold)
    wall, cpu = time.monotonic() - begun, time.process_time() - used
    count = len(documents.document_indices) - 1
    print(
        f"{count:,} documents of {documents.token_count / count:,.0f} tokens: "
        f"{wall / count * 1e6:.1f} µs a document"
    )
    print(
        f"  ({cpu / count * 1e6:.1f} µs of CPU, {wall / documents.token_count * 1e9:.1f} ns a "
        "token)"
    )
    print(f"  {len({match.document for match in matches}):,} of them hold a text")
    return matches


def planted(
    evaluation: Evaluation,
    engine: Engine,
    hosts: list[str],
    texts: list[str],
    plants: int,
    threshold: float,
) -> None:
    """Plant texts into documents, and say how many of these are found."""
    rng = random.Random(1)
    words = sorted({word for host in hosts[:300] for word in host.split()[:50]})
    kinds: dict[str, Callable[[random.Random, str], str]] = {
        "as they are": lambda _, text: text,
        "in capitals, a line for each word": lambda _, text: text.upper().replace(" ", "\n"),
        "a word changed": edits(words, 0),
        "a word of ten changed": edits(words, 0.1),
    }
    print("| planted | found |\n| --- | ---: |")
    chosen = rng.sample(texts, min(len(texts), plants))
    for name, change in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            lines = (
                f"{(host := rng.choice(hosts)[:2000])[:1000]}\n{change(rng, text)}\n{host[1000:]}"
                for text in chosen
            )
            held = {
                match.document
                for match in search(evaluation, written(Path(folder), engine, lines), threshold)
            }
        print(f"| {name} | {len(held) / len(chosen):.1%} |", flush=True)


if __name__ == "__main__":
    main()
