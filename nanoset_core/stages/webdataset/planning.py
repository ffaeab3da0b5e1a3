"""From a webdataset of nanoset.yaml to what its plan is made of: the settings of the plan, and
sources of tokens.
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


def settings_of(
    project: Project,
    spec: WebdatasetSpec,
    datasets: Mapping[str, Manifest],
) -> PlanSettings:
    """Return the settings of the plan of a webdataset.

    Args:
        project: The project.
        spec: Its section of nanoset.yaml.
        datasets: Name → manifest of each dataset that it reads.

    Raises:
        ConfigError: With the preset tokshuf: another tokenizer, or a view.
        StaleError: With the preset tokshuf: shards of other files than the dataset.
    """
    # tokshuf-rust cuts each file on its own.
    is_tokshuf = spec.preset == "tokshuf"
    streams: dict[str, list[int]] | None = None
    if is_tokshuf:
        streams = {}
        for name, dataset in datasets.items():
            streams[name] = _tokens_of_files(project, name, dataset)
    has_weights = spec.mix == "weights"
    settings = PlanSettings(
        sequence_length=spec.sequence_length,
        pad_id=project.special("pad") if spec.tail == "pad" else None,
        bos_id=project.special("bos") if spec.bos else None,
        eod=project.special("eod"),
        vocab_size=project.tokenizer.max_id + 1,
        streams=streams,
        frequencies=None if has_weights else spec.numbers,
        weights=spec.numbers if has_weights else None,
        contexts=spec.contexts,
        **shared_settings(spec),
    )
    if not is_tokshuf:
        return settings
    _check_end_token(project, settings)
    return settings.of_tokshuf(project.config.tokenizer_file)


def _check_end_token(project: Project, settings: PlanSettings) -> None:
    """Check that documents end with the token that tokshuf-rust takes."""
    if settings.eod == TOKSHUF_EOT:
        return
    config = project.config
    raise ConfigError(
        "tokshuf-rust ends documents with the token 0",
        where=f"{config.file}: tokenizer.eod",
        found=f"{config.tokenizer.eod!r}, the token {settings.eod}",
        expected=repr(tokshuf_tokens(config.tokenizer_file).eot),
        remedy="name that token, or use the default preset",
    )


def _tokens_of_files(project: Project, corpus: str, dataset: Manifest) -> list[int]:
    """Return the tokens of each file of a corpus, in the dataset's order."""
    named = dataset_of(project.outputs, dataset)
    if not named.is_whole_corpus:
        raise ConfigError(
            "the preset tokshuf cuts each file on its own, which a view has not",
            where=f"{project.config.file}: webdatasets",
            found=f"the {named.kind} {corpus}",
            remedy="name a corpus",
        )
    # Only the shards know which tokens are of which file: they must be those of the dataset.
    digest = dataset.recipe["parents"]["inventory"]
    tokenized = require(project, TOKENIZED, Key(corpus))
    inventory_manifest, inventory = current_inventory(project, corpus)
    if tokenized.recipe["parents"]["inventory"] != digest or inventory_manifest.digest != digest:
        raise StaleError(
            "the dataset was made from other files than the present ones",
            where=dataset.url(),
            found=digest,
            expected=inventory_manifest.digest,
            remedy="run `nanoset build`, or materialise tokenized_shards and indexed_dataset first",
        )
    shards = current_shards(project, tokenized)
    counts = project.outputs.access.each_copy(
        lambda shard: counts_by_file(shard.path(DOCUMENTS)), shards
    )
    return list(tokens_by_file(inventory.files, counts).values())


def sources_of(
    project: Project,
    datasets: Mapping[str, Manifest],
    is_stored: bool,
) -> list[TokenSource]:
    """Return the tokens of datasets, which stay in their store if `is_stored`."""
    # Every token is checked on its way into a tar: a damaged file must not become training data.
    greatest_id = project.tokenizer.max_id
    sources: list[TokenSource] = []
    for manifest in datasets.values():
        source = TokenSource.of_output(dataset_of(project.outputs, manifest), is_stored=is_stored)
        sources.append(replace(source, greatest_id=greatest_id))
    return sources


def estimated_tokens(spec: WebdatasetSpec, tokens_by_corpus: Mapping[str, float]) -> float:
    """Return about how many tokens the tars of a webdataset hold, by the tokens of its corpora."""
    numbers = spec.numbers or dict.fromkeys(spec.names, 1.0)
    if spec.mix == "frequencies":
        return sum(tokens_by_corpus[corpus] * frequency for corpus, frequency in numbers.items())
    if spec.contexts is not None:
        return float(spec.contexts * spec.sequence_length)
    # By weights, as many contexts as repeat no corpus: the corpus that is used up first decides.
    tokens_per_weight = [
        tokens_by_corpus[corpus] / weight for corpus, weight in numbers.items() if weight
    ]
    return sum(numbers.values()) * min(tokens_per_weight)
