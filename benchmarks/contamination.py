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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
from nanoset_core.text.files.listing import stat_file
from nanoset_core.tokenizers.engines import Engine, make_engine

BATCH = 1000
"""Documents that are tokenized together."""
MAX_MATCHES_SHOWN = 10
EXCERPT_CHARACTERS = 100
MAX_CHANGES = 6
"""Most words of a planted text that are changed."""
HOST_CHARACTERS = 2000
"""A text is planted into the middle of as many characters of a document."""

Change = Callable[[random.Random, str], str]
"""Returns a text as it is planted, given a source of randomness and the original."""


@dataclass(frozen=True)
class EvaluationTexts:
    """The texts of evaluation files, indexed for the search."""

    evaluation: Evaluation
    """Searches documents for the texts."""
    texts: list[str]
    """The texts, by their numbers."""
    findable_texts: list[str]
    """Texts that are long enough to be found."""


def main() -> None:
    """Print matches in the input, how long the search takes, and which planted texts it finds."""
    arguments = options(
        __doc__,
        tokenizer=(str,),
        input=(str,),
        evaluations=[""],
        text_keys=["question"],
        plants=3000,
        ngram=5,
        threshold=0.55,
    )
    engine = make_engine(arguments.tokenizer)
    evaluations = index_texts(
        engine,
        arguments.tokenizer,
        arguments.evaluations,
        arguments.text_keys,
        arguments.ngram,
    )

    # The input as it is.
    with tempfile.TemporaryDirectory() as folder, open(arguments.input, "rb") as lines:
        documents = (orjson.loads(line)["text"] for line in lines)
        dataset = write_dataset(Path(folder), engine, documents)
        matches = time_search(evaluations.evaluation, dataset, arguments.threshold)
        for match in matches[:MAX_MATCHES_SHOWN]:
            text = evaluations.texts[match.text][:EXCERPT_CHARACTERS]
            passage = match.words[:EXCERPT_CHARACTERS]
            print(f"  {match.share:.2f} {text!r}: {passage!r}")

    # The input with texts planted in it.
    with open(arguments.input, "rb") as lines:
        first_lines = islice(lines, 5 * arguments.plants)
        hosts = [orjson.loads(line)["text"] for line in first_lines]
    plant_texts(evaluations, engine, hosts, arguments.plants, arguments.threshold)


def index_texts(
    engine: Engine, tokenizer: str, files: Sequence[str], text_keys: Sequence[str], ngram: int
) -> EvaluationTexts:
    """Read evaluation files and index their texts; print counts, and the time for the n-grams.

    Args:
        engine: Tokenizes the texts.
        tokenizer: The tokenizer file.
        files: The evaluation files.
        text_keys: Keys of the texts in them.
        ngram: Words of an n-gram.
    """
    collector = TextCollector(engine, word_vocabulary(tokenizer))
    text_by_place: dict[tuple[int, int], str] = {}  # (number of the file, line) → text
    for file_number, name in enumerate(files):
        path = Path(name)
        texts = list(read_texts(path.parent, stat_file(path.parent, path.name), text_keys))
        for line, text in texts:
            text_by_place[file_number, line] = text
        collector.add(file_number, texts, path)

    started = time.process_time()
    index = collector.index(ngram)
    evaluation = Evaluation(collector.vocabulary, index)
    seconds = time.process_time() - started
    print(f"{evaluation_facts(collector, index)}; {seconds:.1f} s of CPU for the n-grams")

    # Texts with the same words are collected once, so that numbers are those of `origins`.
    texts_by_number = [text_by_place[origin.file, origin.line] for origin in collector.origins]
    findable_numbers = np.flatnonzero(index.letters_per_text >= MIN_LETTERS).tolist()
    findable_texts = [texts_by_number[number] for number in findable_numbers]
    return EvaluationTexts(evaluation, texts_by_number, findable_texts)


def write_dataset(folder: Path, engine: Engine, documents: Iterable[str]) -> MMapIndexedDataset:
    """Tokenize documents, write them as a dataset into a folder, and open it."""
    prefix = folder / "data"
    remaining = iter(documents)
    with MMapIndexedDatasetBuilder(prefix, np.int32) as builder:
        while batch := list(islice(remaining, BATCH)):
            encoded = engine.encode(batch)
            sequences_per_document = np.ones(len(batch), np.int64)
            builder.add_documents(encoded.ids, encoded.lengths, sequences_per_document)
    return MMapIndexedDataset(prefix)


def search(evaluation: Evaluation, dataset: MMapIndexedDataset, threshold: float) -> list[Match]:
    """Return the matches of evaluation texts in all documents of a dataset."""
    n_documents = len(dataset.document_indices) - 1
    return list(evaluation.search(dataset, 0, n_documents, threshold))


def time_search(
    evaluation: Evaluation, dataset: MMapIndexedDataset, threshold: float
) -> list[Match]:
    """Search a dataset for evaluation texts, print how long that takes, and return the matches."""
    search(evaluation, dataset, threshold)  # to fill caches
    started = time.monotonic()
    cpu_started = time.process_time()
    matches = search(evaluation, dataset, threshold)
    wall = time.monotonic() - started
    cpu = time.process_time() - cpu_started

    n_documents = len(dataset.document_indices) - 1
    n_tokens = dataset.token_count
    matching_documents = {match.document for match in matches}
    print(
        f"{n_documents:,} documents of {n_tokens / n_documents:,.0f} tokens: "
        f"{wall / n_documents * 1e6:.1f} µs a document"
    )
    print(f"  ({cpu / n_documents * 1e6:.1f} µs of CPU, {wall / n_tokens * 1e9:.1f} ns a token)")
    print(f"  {len(matching_documents):,} of them hold a text")
    return matches


def plant_texts(
    evaluations: EvaluationTexts,
    engine: Engine,
    hosts: Sequence[str],
    n_plants: int,
    threshold: float,
) -> None:
    """Plant texts into documents in several ways, and print how many of them are found.

    Args:
        evaluations: The texts.
        engine: Tokenizes the documents.
        hosts: Documents into which texts are planted.
        n_plants: Most texts that are planted.
        threshold: Share of a text's letters that a document must have.
    """
    rng = random.Random(1)
    known_words: set[str] = set()
    for host in hosts[:300]:
        known_words.update(host.split()[:50])
    words = sorted(known_words)
    changes: dict[str, Change] = {
        "as they are": lambda _, text: text,
        "in capitals, a line for each word": lambda _, text: text.upper().replace(" ", "\n"),
        "a word changed": partial(change_words, words=words, share=0),
        "a word of ten changed": partial(change_words, words=words, share=0.1),
    }
    all_texts = evaluations.findable_texts
    texts = rng.sample(all_texts, min(len(all_texts), n_plants))
    print("| planted | found |\n| --- | ---: |")
    for name, change in changes.items():
        with tempfile.TemporaryDirectory() as folder:
            documents = planted_documents(rng, hosts, texts, change)
            dataset = write_dataset(Path(folder), engine, documents)
            matches = search(evaluations.evaluation, dataset, threshold)
        found_documents = {match.document for match in matches}
        print(f"| {name} | {len(found_documents) / len(texts):.1%} |", flush=True)


def planted_documents(
    rng: random.Random, hosts: Sequence[str], texts: Iterable[str], change: Change
) -> Iterator[str]:
    """Yield a document for each text: a random host with the changed text in its middle."""
    middle = HOST_CHARACTERS // 2
    for text in texts:
        host = rng.choice(hosts)[:HOST_CHARACTERS]
        yield f"{host[:middle]}\n{change(rng, text)}\n{host[middle:]}"


def change_words(rng: random.Random, text: str, *, words: Sequence[str], share: float) -> str:
    """Return a text with some words changed, as people who copy a text might do.

    Args:
        rng: Decides about the changes.
        text: The text.
        words: Words that are put into it.
        share: Share of its words that are changed; one at least, and six at most.
    """
    changed_words = text.split(" ")
    n_changes = max(1, round(share * len(changed_words)))
    for _ in range(min(MAX_CHANGES, n_changes)):
        place = rng.randrange(len(changed_words))
        kind = rng.randrange(5)
        if kind < 3:
            changed_words[place] = rng.choice(words)
        elif kind == 3:
            del changed_words[place]
        else:
            changed_words.insert(place, rng.choice(words))
        if not changed_words:
            changed_words = [""]
    return " ".join(changed_words)


if __name__ == "__main__":
    main()
