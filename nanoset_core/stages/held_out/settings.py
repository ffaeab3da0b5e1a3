"""Names of the stage `held_out`, and which nanosets it is for.

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

VERSION = 1
ASSET = "held_out"
SHARED = "shared.parquet"
"""File that lists documents which are held out and in train."""
HASHES_FOLDER = "token_hashes"
"""Folder of the hashes of documents, below the root; one version for each shard."""
HASHES = "hashes"
"""Fact: digests of the hashes that were compared."""
TRAIN_COPIES = "train_copies"
"""Fact: documents of train that are copies of another document of train, by corpus. Comparisons of
older versions, and those without hashes, do not have it.
"""


def may_share_documents(config: ProjectConfig, spec: ResolvedNanoset) -> bool:
    """Return whether the split train of a nanoset may read documents that valid or test hold out.

    For example, a view may repeat each document, and train and valid may read one copy each.

    Args:
        config: The settings of nanoset.yaml.
        spec: The settings of the nanoset.
    """
    train_names, valid_names, test_names = _names_by_split(spec)
    held_out_names = {*valid_names, *test_names}
    if not train_names or not held_out_names:
        return False
    if spec.held_out is not None:
        # With this setting, copies count, too: any two corpora may have equal documents.
        return True
    if spec.shares is not None:
        # Each split reads another range of the same datasets.
        return _has_document_twice(config, train_names)
    return _have_common_corpus(config, train_names, held_out_names)


def _names_by_split(spec: ResolvedNanoset) -> list[Sequence[str]]:
    """Return the datasets that each split reads: none if its share is 0.

    For example, `[["web", "code"], ["web", "code"], []]` if both corpora are divided, and test has
    no share.

    Args:
        spec: The settings of the nanoset. With `split: "99,1,0"`, test reads none.

    Returns:
        Names of the datasets of train, valid and test.
    """
    names_by_split: list[Sequence[str]] = [corpora_of(spec.blend_of(split)) for split in SPLITS]
    if spec.shares is not None:
        for number, share in enumerate(parse_split(spec.shares)):
            if share == 0:
                names_by_split[number] = ()
    return names_by_split


def _have_common_corpus(
    config: ProjectConfig, names: Collection[str], other_names: Collection[str]
) -> bool:
    """Return whether a dataset is made from the same corpus as one of some other datasets.

    For example, the corpus `web` and a view of it are, and `web` and `news` are not.

    Args:
        config: The settings of nanoset.yaml.
        names: Names of datasets.
        other_names: Names of the other datasets.
    """
    corpora = {base_of(config.derived, name) for name in names}
    other_corpora = {base_of(config.derived, name) for name in other_names}
    return not corpora.isdisjoint(other_corpora)


def _has_document_twice(config: ProjectConfig, names: Collection[str]) -> bool:
    """Return whether some datasets together may contain a document more than once.

    Args:
        config: The settings of nanoset.yaml.
        names: Names of the datasets: corpora, or views and packs of corpora.
    """
    # Two datasets of the same corpus, such as `web` and a view of it, may have the same documents.
    corpora = {base_of(config.derived, name) for name in names}
    if len(corpora) < len(names):
        return True
    return any(_repeats_documents(config, name) for name in names)


def _repeats_documents(config: ProjectConfig, name: str) -> bool:
    """Return whether a dataset may have a document at several places.

    A view may repeat its documents, and packing may cut a document into pieces.

    Args:
        config: The settings of nanoset.yaml.
        name: Name of the dataset: a corpus, or a view or pack that is derived from one.
    """
    if name not in config.derived:
        return False  # a corpus has each document once
    ancestors = chain_of(config.derived, name)
    if any(config.is_packed(ancestor) for ancestor in ancestors):
        return True
    return any(config.views[ancestor].repeat > 1 for ancestor in ancestors)
