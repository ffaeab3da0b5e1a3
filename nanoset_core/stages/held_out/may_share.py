"""Which nanosets the stage `held_out` is for.

The stage finds documents of valid and test that train reads, too. A nanoset whose splits cannot
have a document in common needs no such search: for example, if train reads `web`, and valid `news`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.splits import SPLITS, parse_split
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.views.settings import base_of, chain_of


def may_share_documents(config: ProjectConfig, spec: ResolvedNanoset) -> bool:
    """Return whether train may read documents that are meant for valid or test only.

    If it cannot, they need not be compared. For example:

        train: web, valid: news                               no
        train: web, valid: news, and `held_out` is set        yes: equal texts count, too
        train: web, valid: a selection of web                 yes
        web, divided by `split: "99,1,0"`                     no, unless web has a document twice

    Args:
        config: The settings of nanoset.yaml.
        spec: The part of them that says what train, valid and test read.
    """
    train_names, valid_names, test_names = _names_by_split(spec)  # names of datasets
    evaluation_names = {*valid_names, *test_names}
    if not train_names or not evaluation_names:
        return False
    if spec.held_out is not None:
        return True

    splits_share_datasets = spec.shares is not None  # such as "99,1,0"
    if splits_share_datasets:
        return _has_document_twice(config, train_names)
    return _have_common_corpus(config, train_names, evaluation_names)


def _names_by_split(spec: ResolvedNanoset) -> list[Sequence[str]]:
    """Return the datasets that each of train, valid and test reads.

        blend: [web, code], split: "99,1,0"           [web, code], [web, code], []
        blend_per_split: {train: web, valid: news}    [web], [news], []

    In the first line, all divide the documents of the same datasets, and the share of test is 0.

    Args:
        spec: The settings of the training data.

    Returns:
        Names of the datasets of train, valid and test.
    """
    names_by_split: list[Sequence[str]] = [corpora_of(spec.blend_of(split)) for split in SPLITS]
    if spec.shares is not None:  # "99,1,0"
        for number, share in enumerate(parse_split(spec.shares)):
            if share == 0:
                names_by_split[number] = ()
    return names_by_split


def _have_common_corpus(
    config: ProjectConfig, names: Collection[str], other_names: Collection[str]
) -> bool:
    """Return whether one of some datasets has documents of the same corpus as one of some others.

    For example, the corpus `web` and a selection (view) of it do, and `web` and `news` do not.

    Args:
        config: The settings of nanoset.yaml. They say what each dataset is made from.
        names: Names of datasets.
        other_names: Names of the other datasets.
    """
    corpora = {base_of(config.derived, name) for name in names}
    other_corpora = {base_of(config.derived, name) for name in other_names}
    return not corpora.isdisjoint(other_corpora)


def _has_document_twice(config: ProjectConfig, names: Collection[str]) -> bool:
    """Return whether some datasets together may contain a document more than once.

        web, news                            no
        web, and a selection of web          yes
        a view of web with `repeat: 2`       yes

    Args:
        config: The settings of nanoset.yaml.
        names: Names of the datasets.
    """
    # Two datasets of the same corpus, such as `web` and a view of it, may have the same documents.
    corpora = {base_of(config.derived, name) for name in names}
    if len(corpora) < len(names):
        return True

    # A single dataset may have a document twice as well.
    return any(_repeats_documents(config, name) for name in names)


def _repeats_documents(config: ProjectConfig, name: str) -> bool:
    """Return whether a dataset may have a document at several places.

        a corpus                                      no
        a selection of it with `repeat: 2`            yes
        samples that were filled with documents       yes: a long document is divided among them
        (packed)

    Args:
        config: The settings of nanoset.yaml.
        name: Name of the dataset.
    """
    if name not in config.derived:
        return False  # a corpus

    # Look at the dataset, and at those that it was made from.
    for dataset in chain_of(config.derived, name):
        if config.is_packed(dataset) or config.views[dataset].repeat > 1:
            return True
    return False
