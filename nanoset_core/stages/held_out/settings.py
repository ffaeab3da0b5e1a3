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
    """Return whether documents that a nanoset trains on may be among those that it holds out.

    Documents are held out if the split valid or test reads them.

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
    train, valid, test = names_by_split
    held_out = {*valid, *test}
    if not train or not held_out:
        return False

    # With this setting, copies of documents are looked for. Any two corpora may contain them.
    if spec.held_out is not None:
        return True

    # Without shares, each split has its own datasets, and reads all documents of these.
    train_bases = [base_of(config.derived, name) for name in train]
    if spec.shares is None:
        held_out_bases = {base_of(config.derived, name) for name in held_out}
        return not held_out_bases.isdisjoint(train_bases)

    # Shares such as 98,1,1 cut each dataset into consecutive ranges, one for each split. So a
    # document is in several splits only if it is read twice: by two datasets of the same corpus, by
    # a view that repeats it, or in pieces of several samples.
    is_corpus_repeated = len(set(train_bases)) < len(train_bases)
    return is_corpus_repeated or any(_has_document_twice(config, name) for name in train)


def _has_document_twice(config: ProjectConfig, name: str) -> bool:
    """Return whether a dataset may have a document, or pieces of it, in several places."""
    if name not in config.derived:
        return False
    ancestors = chain_of(config.derived, name)
    if any(config.is_packed(ancestor) for ancestor in ancestors):
        return True
    return any(config.views[ancestor].repeat > 1 for ancestor in ancestors)
