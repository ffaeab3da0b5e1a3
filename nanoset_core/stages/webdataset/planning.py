"""Prepare what a plan needs: its settings, from nanoset.yaml, and the tokens of its datasets.

For example, `webdatasets: {tars: {corpora: {web: 1, code: 2}, tail: pad}}` becomes settings with
the frequencies 1 and 2 and the id of the pad token, and two sources, which are the .bin files of
the current datasets of `web` and `code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nanoset_core.errors import ConfigError, StaleError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.shards.document_counts import (
    DocumentCounts,
    counts_by_file,
    tokens_by_file,
)
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, shared_settings
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.tokshuf import TOKSHUF_EOT, tokshuf_tokens
from nanoset_core.text.inventory.pieces import Inventory


def settings_of(
    project: Project,
    spec: WebdatasetSpec,
    datasets: Mapping[str, Manifest],
) -> PlanSettings:
    """Return the settings by which a webdataset is planned, from nanoset.yaml and the datasets.

    Args:
        project: Its tokenizer has the special tokens.
        spec: Section of the webdataset in nanoset.yaml.
        datasets: Name → manifest of each dataset that it reads.

    Raises:
        ConfigError: The preset tokshuf is used with a tokenizer that it does not know, with another
            end token, or with a view.
        StaleError: The preset tokshuf is used, and the shards were made from other files than the
            dataset.
    """
    is_tokshuf = spec.preset == "tokshuf"
    # tokshuf cuts each raw file into contexts separately, so it needs the tokens of each file.
    streams: dict[str, list[int]] | None = None
    if is_tokshuf:
        streams = {name: _tokens_of_files(project, datasets[name]) for name in datasets}

    # nanoset.yaml has a number for each corpus: its weight, or how often its text occurs.
    weights = spec.number_by_corpus if spec.mix == "weights" else None
    frequencies = spec.number_by_corpus if spec.mix == "frequencies" else None

    settings = PlanSettings(
        sequence_length=spec.sequence_length,
        pad_id=project.special("pad") if spec.tail == "pad" else None,
        bos_id=project.special("bos") if spec.bos else None,
        eod=project.special("eod"),
        vocab_size=project.tokenizer.max_id + 1,
        streams=streams,
        frequencies=frequencies,
        weights=weights,
        contexts=spec.contexts,
        **shared_settings(spec),
    )
    if is_tokshuf:
        _check_end_token(project, settings)
        settings = settings.of_tokshuf(project.config.tokenizer_file)
    return settings


def _check_end_token(project: Project, settings: PlanSettings) -> None:
    """Check that documents end with the token that the program tokshuf-rust expects: id 0.

    With the preset tokshuf, the tar files are to be the same as those of tokshuf-rust. If the
    project ends its documents with another token, such as id 2, they would differ. The error says
    the text of the right token, such as "<|endoftext|>", since the user names tokens by their text.

    Args:
        project: Its nanoset.yaml names the end token.
        settings: `eod` is the id of the project's end token.

    Raises:
        ConfigError: Documents end with another token.
    """
    if settings.eod == TOKSHUF_EOT:
        return
    config = project.config
    expected_text = tokshuf_tokens(config.tokenizer_file).eot
    raise ConfigError(
        f"tokshuf-rust ends documents with the token {TOKSHUF_EOT}",
        where=f"{config.file}: tokenizer.eod",
        found=f"{config.tokenizer.eod!r}, the token {settings.eod}",
        expected=repr(expected_text),
        remedy="name that token, or use the default preset",
    )


def _tokens_of_files(project: Project, dataset: Manifest) -> list[int]:
    """Return how many tokens of a dataset come from each text file, in the order of the files.

    This is needed if each file is cut into training samples for itself (preset tokshuf). It is
    counted from the lists of documents that were written when the text was tokenized:

        document       0          1          2
        file           a.jsonl    a.jsonl    b.jsonl
        tokens         2          4          4            →  [6, 4]

    Args:
        project: Its outputs have the tokenized text and the list of files.
        dataset: Record of the dataset.

    Raises:
        ConfigError: The dataset is a view, a selection of documents, which are not in files.
        StaleError: The tokenized text or the files have changed since the dataset was made.
    """
    _check_not_view(project, dataset)
    tokenized = require(project, TOKENIZED, Key(dataset.name))
    inventory = _inventory_of_both(project, dataset, tokenized)  # the list of files

    # The tokenized text is stored in parts (shards), each with a list of its documents. Count the
    # tokens of each file in each part, and add them up.
    shards = current_shards(project, tokenized)
    counts_of_shards = project.outputs.access.each_copy(_count_by_file, shards)
    n_tokens_by_file = tokens_by_file(inventory.files, counts_of_shards)  # in the order of files
    return list(n_tokens_by_file.values())


def _count_by_file(shard: Manifest) -> dict[str, DocumentCounts]:
    """Count the documents and tokens of each text file in one part of the tokenized text.

    Args:
        shard: Record of the part. Its list of documents is downloaded, if it is in a bucket.
    """
    return counts_by_file(shard.path(DOCUMENTS))


def _check_not_view(project: Project, dataset: Manifest) -> None:
    """Raise ConfigError if a dataset is a view, whose documents are not in files."""
    opened = dataset_of(project.outputs, dataset)
    if not opened.is_whole_corpus:
        raise ConfigError(
            "the preset tokshuf cuts each file separately, and a view has no files",
            where=f"{project.config.file}: webdatasets",
            found=f"the {opened.kind} {dataset.name}",
            remedy="name a corpus",
        )


def _inventory_of_both(project: Project, dataset: Manifest, tokenized: Manifest) -> Inventory:
    """Return the list of text files that a dataset was made from, if all is up to date.

    Text is tokenized, and the tokens are written to a dataset. Both record the digest of the list
    of files (the inventory) that they were made from. If a file was added since, the digests differ
    from that of the present list:

        present list     dataset      tokenized text
        3f2a             3f2a         3f2a               correct
        90bc             3f2a         90bc               an error: the dataset is old

    Args:
        project: Its outputs are read.
        dataset: Record of the dataset.
        tokenized: Record of the tokenized text.

    Raises:
        StaleError: One of them was made from other files.
    """
    manifest, inventory = current_inventory(project, dataset.name)
    dataset_digest = dataset.recipe["parents"]["inventory"]
    tokenized_digest = tokenized.recipe["parents"]["inventory"]
    if not dataset_digest == tokenized_digest == manifest.digest:
        raise StaleError(
            "the dataset was made from other files than the present ones",
            where=dataset.url(),
            found=dataset_digest,
            expected=manifest.digest,
            remedy="run `nanoset build`, which tokenizes the present files first",
        )
    return inventory


def sources_of(
    project: Project,
    datasets: Mapping[str, Manifest],
    *,
    are_copied: bool,
) -> list[TokenSource]:
    """Return the tokens of datasets such as web and code, from which tar files are to be made.

    No file is opened yet. When tokens are read later, each is checked to be in the vocabulary,
    since a damaged file must not become training data.

    Args:
        project: Its tokenizer has the vocabulary.
        datasets: Name → record of each dataset.
        are_copied: Whether tokens in a bucket are copied to this machine as a whole. Otherwise
            blocks of them are fetched when they are read.

    Returns:
        The tokens of each dataset, in the same order.
    """
    greatest_id = project.tokenizer.max_id
    sources: list[TokenSource] = []
    for manifest in datasets.values():
        source = TokenSource.of_output(dataset_of(project.outputs, manifest), is_copied=are_copied)
        sources.append(replace(source, greatest_id=greatest_id))
    return sources


def estimated_tokens(spec: WebdatasetSpec, tokens_by_corpus: Mapping[str, float]) -> float:
    """Estimate how many tokens a shuffled dataset has, to know how much disk it takes.

    It is mixed from collections of texts (corpora) in one of three ways. Suppose that web has 100
    tokens and code has 50:

        frequencies {web: 1, code: 2}     code is read twice: 1 * 100 + 2 * 50 = 200
        weights {web: 1, code: 1}         equal parts, and no text twice: 50 + 50 = 100
        weights, and 30 samples of 10     30 * 10 = 300; texts are repeated if need be

    Args:
        spec: The settings of the dataset in nanoset.yaml.
        tokens_by_corpus: Name → estimated tokens of each corpus.
    """
    # A list of corpora without numbers: each of them is taken once.
    number_by_corpus = spec.number_by_corpus or dict.fromkeys(spec.names, 1.0)
    if spec.mix == "frequencies":
        return sum(
            tokens_by_corpus[corpus] * frequency for corpus, frequency in number_by_corpus.items()
        )

    # Otherwise these are weights. The number of training samples may be set, too.
    if spec.contexts is not None:
        return float(spec.contexts * spec.sequence_length)
    weights = number_by_corpus
    return _tokens_without_repetition(weights, tokens_by_corpus)


def _tokens_without_repetition(
    weights: Mapping[str, float], tokens_by_corpus: Mapping[str, float]
) -> float:
    """Return how many tokens can be mixed in some proportions until the first text is used up.

        collection of texts (corpus)     web       code
        its tokens                       100       300
        its weight                       1         2
        tokens for each unit of weight   100       150     →  100 can be taken for each unit
        tokens in the mix                100       200     →  300 together

    Args:
        weights: Corpus → its weight, 0 or more. The sum may be any number.
        tokens_by_corpus: Corpus → its tokens.
    """
    tokens_per_weight = [
        tokens_by_corpus[corpus] / weight for corpus, weight in weights.items() if weight
    ]
    return sum(weights.values()) * min(tokens_per_weight)
