"""Names of the stage `held_out`, and which nanosets it is for."""

from __future__ import annotations

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


def may_share_documents(config: ProjectConfig, spec: ResolvedNanoset) -> bool:
    """Return whether a nanoset may train on documents that it holds out.

    Documents are held out if the split valid or test reads them. For example, this is possible if
    a view repeats each document, and the ranges of train and valid contain one copy each.

    Args:
        config: The settings of nanoset.yaml.
        spec: The settings of the nanoset.
    """
    # The datasets that each split reads. A split with a share of 0 reads none.
    names_by_split = [corpora_of(spec.blend_of(split)) for split in SPLITS]
    if spec.shares is not None:
        for number, share in enumerate(parse_split(spec.shares)):
            if share == 0:
                names_by_split[number] = ()
    train_names, valid_names, test_names = names_by_split
    held_out_names = {*valid_names, *test_names}
    if not train_names or not held_out_names:
        return False

    # With the setting `held_out`, a document with the same tokens counts as the same document. Any
    # two corpora may contain such copies.
    finds_copies = spec.held_out is not None
    if finds_copies:
        return True

    # Without shares, each split lists its own datasets, and reads all documents of these. A dataset
    # may be a view or a pack: find the corpus that it is made from.
    train_corpora = [base_of(config.derived, name) for name in train_names]
    if spec.shares is None:
        held_out_corpora = {base_of(config.derived, name) for name in held_out_names}
        return not held_out_corpora.isdisjoint(train_corpora)

    # Shares such as 98,1,1 cut each dataset into three consecutive ranges, one for each split. A
    # document at one place of one dataset is in a single range. It can be in two of them if two
    # datasets are made from its corpus, or if one dataset has it at several places.
    is_corpus_repeated = len(set(train_corpora)) < len(train_corpora)
    return is_corpus_repeated or any(_has_document_twice(config, name) for name in train_names)


def _has_document_twice(config: ProjectConfig, name: str) -> bool:
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
