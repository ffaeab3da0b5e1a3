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
from nanoset_core.stages.shards.document_counts import counts_by_file, tokens_by_file
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import current_shards
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, shared_settings
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.tokshuf import TOKSHUF_EOT, tokshuf_tokens
from nanoset_core.text.pieces import Inventory


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
    """Check that documents end with the token that tokshuf-rust expects: the one with id 0.

    Args:
        project: Its nanoset.yaml names the end token.
        settings: Settings of the plan. `eod` is the id of the project's end-of-document token.

    Raises:
        ConfigError: They end with another one.
    """
    if settings.eod == TOKSHUF_EOT:
        return
    # In nanoset.yaml, the token is named by its text.
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
    """Return the number of tokens that a dataset has of each raw file, in the order of the files.

    The preset tokshuf cuts the tokens of each file separately, so these must be known.

    Args:
        project: Its outputs have the shards and the inventory of the corpus.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.

    Raises:
        ConfigError: The dataset is a view, whose documents are not in files.
        StaleError: The shards, or the files, have changed since the dataset was made.
    """
    _check_not_view(project, dataset)
    # The dataset does not record which file a token is from. The shards that it was made from do.
    tokenized = require(project, TOKENIZED, Key(dataset.name))
    inventory = _inventory_of_both(project, dataset, tokenized)
    counts = project.outputs.access.each_copy(
        lambda shard: counts_by_file(shard.path(DOCUMENTS)), current_shards(project, tokenized)
    )
    return list(tokens_by_file(inventory.files, counts).values())


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
    """Return the current files of a corpus, if its dataset and its shards were made from them.

    An inventory lists the raw files of a corpus with their sizes and digests.

    Args:
        project: Its outputs are read.
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
        tokenized: Manifest of the current set of shards.

    Raises:
        StaleError: One of them was made from other files.
    """
    manifest, inventory = current_inventory(project, dataset.name)
    dataset_digest = dataset.recipe["parents"]["inventory"]
    shards_digest = tokenized.recipe["parents"]["inventory"]
    if not dataset_digest == shards_digest == manifest.digest:
        raise StaleError(
            "the dataset was made from other files than the present ones",
            where=dataset.url(),
            found=dataset_digest,
            expected=manifest.digest,
            remedy="run `nanoset build`, or materialise tokenized_shards and indexed_dataset first",
        )
    return inventory


def sources_of(
    project: Project,
    datasets: Mapping[str, Manifest],
    *,
    are_copied: bool,
) -> list[TokenSource]:
    """Return the tokens of datasets, to plan and write tars from.

    Args:
        project: Its tokenizer says which ids tokens may have.
        datasets: Name → manifest of each dataset.
        are_copied: Whether tokens in a store are read from local copies; otherwise blocks of them
            are fetched when they are read.

    Returns:
        One source for each dataset, in the same order. No file is opened yet.
    """
    # Each token is checked when it is copied into a tar, because a damaged file must not become
    # training data.
    greatest_id = project.tokenizer.max_id
    sources: list[TokenSource] = []
    for manifest in datasets.values():
        source = TokenSource.of_output(dataset_of(project.outputs, manifest), is_copied=are_copied)
        sources.append(replace(source, greatest_id=greatest_id))
    return sources


def estimated_tokens(spec: WebdatasetSpec, tokens_by_corpus: Mapping[str, float]) -> float:
    """Estimate the number of tokens in the tars of a webdataset.

    Args:
        spec: Section of the webdataset in nanoset.yaml. It says how often each corpus is read, such
            as `{web: 1, code: 2}`, or in which proportions.
        tokens_by_corpus: Name → estimated tokens of each corpus.

    Returns:
        Tokens, repetitions counted: 100 of web and 50 of code give 200 here.
    """
    # A list of corpora without numbers: each of them is taken once.
    number_by_corpus = spec.number_by_corpus or dict.fromkeys(spec.names, 1.0)
    if spec.mix == "frequencies":
        return sum(
            tokens_by_corpus[corpus] * frequency for corpus, frequency in number_by_corpus.items()
        )
    if spec.contexts is not None:
        return float(spec.contexts * spec.sequence_length)
    return _tokens_without_repetition(number_by_corpus, tokens_by_corpus)


def _tokens_without_repetition(
    weights: Mapping[str, float], tokens_by_corpus: Mapping[str, float]
) -> float:
    """Return how many tokens can be mixed in some proportions until the first corpus is used up.

    Corpora of 100 and 300 tokens with equal weights give 100 tokens of each: 200.

    Args:
        weights: Corpus → its weight, 0 or more. The sum may be any number.
        tokens_by_corpus: Corpus → its tokens.
    """
    tokens_per_weight = [
        tokens_by_corpus[corpus] / weight for corpus, weight in weights.items() if weight
    ]
    return sum(weights.values()) * min(tokens_per_weight)
