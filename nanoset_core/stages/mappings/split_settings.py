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
from nanoset_core.stages.mappings.settings import BlendSpec, corpora_of, is_blended


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
    """Return the settings by which a trainer's order of samples is computed.

    nanoset.yaml names corpora (collections of texts). Trainers name datasets by their paths, which
    they also hash for the names of index files:

        corpus                                 web
        prefix of its dataset here             /data/web, for /data/web.bin and /data/web.idx
        the same where the trainer runs        /cluster/data/web

    Args:
        nanoset: The settings of nanoset.yaml on the data of the training run.
        splits: Some of `train`, `valid` and `test`.
        prefix_by_corpus: Name of each corpus → prefix of its dataset, a path without .bin and .idx.
    """
    spec = nanoset.spec
    trainer_paths: dict[str, str] = {}  # prefix → how the trainer spells it
    for corpus, prefix in prefix_by_corpus.items():
        trainer_paths[prefix] = nanoset.trainer_prefix(corpus)
    config = NanosetConfig(
        # Which datasets are read, with which weights, and how they are divided among the splits.
        **_data_arguments(nanoset, splits, prefix_by_corpus),
        sequence_length=spec.sequence_length,
        random_seed=spec.seed,
        preset=spec.preset,
        tokenizer_identifiers=nanoset.tokenizer_identifiers,
        trainer_paths=trainer_paths,
        path_to_cache=str(nanoset.cache),
        # Whether the trainer's Python is 3.12 or newer. It adds up numbers more exactly, which can
        # change the last digit of the splits' shares.
        compensated_sums=nanoset.compensated_sums,
    )
    # With the samples that the user requests; None if the number is open.
    return config.with_samples({split: spec.samples.get(split) for split in splits})


def _data_arguments(
    nanoset: NanosetLookup, splits: Sequence[SplitName], prefix_by_corpus: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments that name the data of some splits, in one of the two forms of trainers.

    A blend is several datasets with weights. Either train, valid and test divide the documents of
    one blend, or each has a blend of its own:

        {"data_path": {"/data/web": 0.7, "/data/code": 0.3}, "split": "98,1,1"}
        {"blend_per_split": [{"/data/web": 0.7, …}, "/data/wiki", None]}      test has no data

    Args:
        nanoset: The training data, as nanoset.yaml describes it, with names of corpora.
        splits: Some of `train`, `valid` and `test`. If each split has its own blend, those of other
            splits are left out.
        prefix_by_corpus: Name of each corpus → prefix of its dataset, a path without .bin and .idx.

    Returns:
        Arguments of `NanosetConfig`.
    """
    spec = nanoset.spec
    # One blend, whose documents are divided among the splits.
    if spec.blend is not None:
        return {
            "data_path": _blend_of_prefixes(spec.blend, prefix_by_corpus),
            "split": spec.shares,
        }

    # A blend for each split. `NanosetConfig` refuses settings without any data. So if none of the
    # requested splits has a blend, include the blends of all splits.
    included_splits: Sequence[SplitName] = splits
    if all(spec.blend_of(split) is None for split in splits):
        included_splits = SPLITS
    blends: list[Blend | None] = [None, None, None]  # of train, valid and test
    for number, split in enumerate(SPLITS):
        if split in included_splits:
            blends[number] = _blend_of_prefixes(spec.blend_of(split), prefix_by_corpus)
    return {"blend_per_split": blends}


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
    """Give the share of valid or test to the split before it if it is too small for a sample.

    The shares of train, valid and test divide the documents. Trainers hang or fail with a split
    that has a share but no sample. If the last hundredth has too few tokens for a sample of 2,048:

        train, valid, test    98, 1, 1    → 98, 2, 0

    Args:
        nanoset: The training data, as nanoset.yaml describes it.
        config: Its settings, with the shares as they are written.

    Returns:
        The settings with changed shares, and without samples of a split that has no share.
    """
    spec = nanoset.spec
    # Test comes first. If it is too small, valid gets its share, and may then be large enough.
    for split in ("test", "valid"):
        # If the user requests samples of this split, keep it: an error will say that it has none. A
        # schedule does not count, since it requests samples of every split.
        is_requested = split in spec.samples and spec.schedule is None
        if is_requested or not cannot_be_built(config, split, nanoset.reader):
            continue
        # Without the share of the split, such as "98,2,0", and without samples of it.
        shares = without_share(config.split, split, exactly_three=config.rules.exactly_three_shares)
        samples_of_others = {other: config.samples(other) for other in SPLITS if other != split}
        config = replace(config, split=shares).with_samples(samples_of_others)
    return config


def _with_mixture_weights(nanoset: NanosetLookup, config: NanosetConfig) -> NanosetConfig:
    """Compute the weights of a blend of datasets from a tree of shares.

    For example, nanoset.yaml says: half web; the other half in equal shares from books and code. A
    trainer has no such trees. It needs a weight for each dataset:

        {"/data/web": 0.5, "/data/books": 0.25, "/data/code": 0.25}

    Args:
        nanoset: The data of the training run, with the tree (its `mixture`). Without a tree, the
            settings stay as they are.
        config: The settings, with a blend of the datasets of the tree.

    Raises:
        ConfigError: A run that continues has no samples left.
    """
    mixture = nanoset.spec.mixture
    blend = config.blend("train")
    if mixture is None or blend is None:
        return config
    if config.samples("train"):
        check_remaining_samples(config)

    # The datasets of the blend are in the order of the leaves of the tree, as are the weights.
    dataset_paths, _ = blend
    weights = mixture_of(mixture, config, nanoset.reader).weights
    return replace(config, data_path=dict(zip(dataset_paths, weights, strict=True)))
