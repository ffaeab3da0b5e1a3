"""The trainer's settings for splits of a nanoset, as nanoset.yaml has them.

nanoset.yaml names corpora, and trainers read datasets: so the settings have the prefixes of the
current datasets in place of the corpora. A run that continues adds what it has read before. Limits
on epochs are applied afterwards, in `planning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.mixture import mixture_of
from nanoset_core.sampling.orders import Read
from nanoset_core.sampling.shortages import cannot_be_built
from nanoset_core.sampling.splits import SPLITS, SplitName, without_share
from nanoset_core.stages.mappings.continuing import check_remaining_samples, continue_run
from nanoset_core.stages.mappings.lookup import NanosetLookup
from nanoset_core.stages.mappings.settings import BlendSpec, NanosetSpec, corpora_of, is_blended


def dataset_prefixes(nanoset: NanosetLookup, splits: Sequence[SplitName]) -> dict[str, str]:
    """Return where the datasets are that some splits depend on.

        {"web": "/data/datasets/web/3f9c…/web_text_document"}

    Args:
        nanoset: The nanoset, with the current versions of its datasets.
        splits: Some of `train`, `valid` and `test`.

    Returns:
        Name of a corpus or view → path of its dataset without .bin and .idx.

    Raises:
        MissingError: A dataset has not been built.
    """
    prefixes: dict[str, str] = {}
    for split in splits:
        for corpus in nanoset.spec.corpora_of(split):
            prefixes[corpus] = nanoset.prefix(corpus)
    return prefixes


def settings_as_written(
    nanoset: NanosetLookup, splits: Sequence[SplitName], read: Read | None
) -> NanosetConfig:
    """Convert what nanoset.yaml says of some splits to the terms of the trainer.

    nanoset.yaml names corpora. The settings of trainers name datasets instead, by their prefixes,
    which are paths without .bin and .idx:

        nanoset.yaml     blend: {web: 0.7, code: 0.3}
        settings         data_path: {"/data/…/web_text_document": 0.7, "/data/…/code_…": 0.3}

    Three cases need the datasets, too:

        the run has read other data before          its orders of samples go on where they stopped
        a share of the data is too small            the split before gets it
        a mixture, which is a tree of shares        weights are computed from the sizes of datasets

    Limits on how often data is read are applied later.

    Args:
        nanoset: The nanoset, which is the data of a training run.
        splits: The splits. The settings request no samples of other splits.
        read: What the run has read before; None if it starts with this data, or if train is none of
            the splits.

    Raises:
        MissingError: A dataset has not been built.
        ConfigError: The settings contradict each other, or the run cannot continue with them.
    """
    spec = nanoset.spec
    prefix_by_corpus = dataset_prefixes(nanoset, splits)
    config = _config_of_prefixes(nanoset, splits, prefix_by_corpus)

    # What follows from other data: earlier parts of a run, splits without samples, a mixture.
    if read is not None:
        consumed_samples = 0
        if spec.continue_from is not None:
            consumed_samples = spec.continue_from.consumed_samples
        config = continue_run(
            config, read, prefix_by_corpus, consumed_samples=consumed_samples, exact=nanoset.exact
        )
    if spec.blend is not None:
        config = _without_empty_splits(nanoset, config)
    if spec.mixture is not None:
        config = _with_mixture_weights(nanoset, config)
    return config


def _config_of_prefixes(
    nanoset: NanosetLookup, splits: Sequence[SplitName], prefix_by_corpus: Mapping[str, str]
) -> NanosetConfig:
    """Return the settings that decide which samples a trainer reads, in which order.

    nanoset.yaml names corpora (collections of texts). The result has the paths of the datasets that
    were made from them, on this machine and on the machine that trains:

        nanoset.yaml               blend: {web: 0.7, code: 0.3}
        result: `data_path`        {"/data/web": 0.7, "/data/code": 0.3}
                `trainer_paths`    {"/data/web": "/cluster/data/web", …}

    Args:
        nanoset: The settings of nanoset.yaml on the training data.
        splits: Some of `train`, `valid` and `test`, whose samples are requested.
        prefix_by_corpus: Name of each corpus → path of its dataset on this machine.
    """
    spec = nanoset.spec
    trainer_path_by_prefix = {
        prefix: nanoset.trainer_prefix(corpus) for corpus, prefix in prefix_by_corpus.items()
    }
    config = NanosetConfig(
        **_data_arguments(nanoset, splits, prefix_by_corpus),
        sequence_length=spec.sequence_length,
        random_seed=spec.seed,
        preset=spec.preset,
        compensated_sums=nanoset.compensated_sums,
        tokenizer_identifiers=nanoset.tokenizer_identifiers,
        trainer_paths=trainer_path_by_prefix,
        path_to_cache=str(nanoset.cache),
    )
    return config.with_samples({split: spec.samples.get(split) for split in splits})


def _data_arguments(
    nanoset: NanosetLookup, splits: Sequence[SplitName], prefix_by_corpus: Mapping[str, str]
) -> dict[str, Any]:
    """Return which datasets are read, as arguments of `NanosetConfig`.

    Either train, valid and test divide the documents of the same datasets, or each has its own:

        {"data_path": {"/data/web": 0.7, "/data/code": 0.3}, "split": "98,1,1"}
        {"blend_per_split": ["/data/web", "/data/wiki", None]}      test has no data

    Args:
        nanoset: The settings of nanoset.yaml, which names corpora such as web.
        splits: Some of `train`, `valid` and `test`. If each has its own data, that of others is
            left out.
        prefix_by_corpus: Name of each corpus → path of its dataset.
    """
    spec = nanoset.spec
    if spec.blend is not None:
        blend = _blend_of_prefixes(spec.blend, prefix_by_corpus)
        return {"data_path": blend, "split": spec.shares}

    included_splits = _splits_to_include(spec, splits)
    blends: list[Blend | None] = []
    for split in SPLITS:
        blend_of_split = spec.blend_of(split) if split in included_splits else None
        blends.append(_blend_of_prefixes(blend_of_split, prefix_by_corpus))
    return {"blend_per_split": blends}


def _splits_to_include(spec: NanosetSpec, splits: Sequence[SplitName]) -> Sequence[SplitName]:
    """Return the splits whose data the settings of a trainer name.

    These are the requested ones. But if none of them has data, such as test alone, all splits are
    included: `NanosetConfig` does not accept settings without any data.

    Args:
        spec: The settings of nanoset.yaml, in which each split has its own data.
        splits: The requested splits.
    """
    have_data = any(spec.blend_of(split) is not None for split in splits)
    return splits if have_data else SPLITS


def _blend_of_prefixes(
    blend: BlendSpec | None, prefix_by_corpus: Mapping[str, str]
) -> Blend | None:
    """Return a blend with the paths of datasets in place of the names of corpora.

        "web"                          "/data/web"
        ("web", "code")                ["/data/web", "/data/code"]
        {"web": 0.7, "code": 0.3}      {"/data/web": 0.7, "/data/code": 0.3}

    Args:
        blend: The blend, or None.
        prefix_by_corpus: Name of each corpus → path of its dataset without .bin and .idx.
    """
    if blend is None:
        return None
    if isinstance(blend, Mapping):
        return {prefix_by_corpus[corpus]: weight for corpus, weight in blend.items()}
    prefixes = [prefix_by_corpus[corpus] for corpus in corpora_of(blend)]
    return prefixes if is_blended(blend) else prefixes[0]


def _without_empty_splits(nanoset: NanosetLookup, config: NanosetConfig) -> NanosetConfig:
    """If the share of valid or test is too small for a single sample, give it to another split.

    Otherwise, trainers would hang or fail. For example, test is to have a hundredth of the
    documents, but these have fewer tokens than a sample:

        shares of train, valid and test      98, 1, 1
        result                               98, 2, 0

    Args:
        nanoset: The settings of nanoset.yaml.
        config: The same settings in the terms of the trainer.
    """
    exactly_three = config.rules.exactly_three_shares  # whether the trainer needs all three
    # First test, whose share goes to valid, and then valid, whose share goes to train.
    for split in ("test", "valid"):
        if _samples_are_requested(nanoset.spec, split):
            continue  # it is an error later if there are none
        if cannot_be_built(config, split, nanoset.reader):
            shares = without_share(config.split, split, exactly_three=exactly_three)  # "98,2,0"
            config = _without_samples_of(split, replace(config, split=shares))
    return config


def _samples_are_requested(spec: NanosetSpec, split: SplitName) -> bool:
    """Return whether nanoset.yaml requests samples of a split by the key `samples`.

    Numbers of samples that follow from a `schedule` are not such a request.
    """
    return split in spec.samples and spec.schedule is None


def _without_samples_of(split: SplitName, config: NanosetConfig) -> NanosetConfig:
    """Return settings that request no samples of a split, and as many of the others as before."""
    samples = {other: config.samples(other) for other in SPLITS if other != split}
    return config.with_samples(samples)


def _with_mixture_weights(nanoset: NanosetLookup, config: NanosetConfig) -> NanosetConfig:
    """Return settings with a weight for each dataset, computed from a tree of shares.

    For example, nanoset.yaml wants half of the samples from web, and the other half in equal shares
    from books and code. Trainers know no such trees, but only weights:

        {"/data/web": 0.5, "/data/books": 0.25, "/data/code": 0.25}

    Args:
        nanoset: The settings of nanoset.yaml, with the tree, which is called a mixture. Without
            one, the result is `config`.
        config: The same settings in the terms of the trainer, still without the weights.

    Raises:
        ConfigError: The training run has read all its samples before.
    """
    mixture = nanoset.spec.mixture
    blend = config.blend("train")
    if mixture is None or blend is None:
        return config
    if config.samples("train"):
        check_remaining_samples(config)  # weights are computed from samples that are not read yet
    dataset_paths, _ = blend  # in the order of the tree, as are the weights
    weights = mixture_of(mixture, config, nanoset.reader).weights
    weight_by_path = dict(zip(dataset_paths, weights, strict=True))
    return replace(config, data_path=weight_by_path)
