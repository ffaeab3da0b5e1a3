"""A hash of the tokens of each document, which is stored for each shard.

Documents with equal tokens have equal hashes. After an append, only the documents of new shards are
read and hashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.blocks import divide_into_blocks
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import read_tokens, token_starts
from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.sampling.token_hashes import hash_sequences
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.held_out.names import HASHES_FOLDER, VERSION
from nanoset_core.stages.sharded import DocumentsTask, Sharded

_HASHES_FILE = "hashes.npy"
_BLOCK_TOKENS = 1 << 20
"""About how many tokens are read and hashed together."""
MIN_TOKENS = 2
"""Shorter documents have no hash, such as those of an end-of-document token alone: it proves
nothing that two of them are equal.
"""


def hashes_recipe(corpus: str, shard_digest: str) -> Recipe:
    """Return what the hashes of some documents depend on, by which stored hashes are found again.

    Hashes are stored for each shard, which is a part of a corpus: they depend only on this shard.

    Args:
        corpus: Name of the corpus.
        shard_digest: Digest that identifies the content of the shard.
    """
    return Recipe(HASHES_FOLDER, corpus, VERSION, {"shard": shard_digest})


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTask(DocumentsTask):
    """Hashes the documents of one shard."""

    def write(self, folder: Path) -> Written:
        """Compute a hash of the tokens of each document of a shard, and store the hashes in a file.

        Args:
            folder: The folder for the file.

        Returns:
            The number of documents, which is recorded with the file.
        """
        dataset = open_dataset(self.root.rebase(self.dataset))
        np.save(folder / _HASHES_FILE, document_hashes(dataset, self.first, self.count))
        return Written({"documents": self.count})


def document_hashes(
    dataset: MMapIndexedDataset, first_document: int, count: int
) -> NDArray[np.uint64]:
    """Return a hash of the tokens of each of some consecutive documents, to find copies.

    Documents with equal tokens have equal hashes. A document with fewer than 2 tokens (MIN_TOKENS)
    is not compared with others. It has 0, which is the hash of no other document:

        document     0        1      2
        tokens       5, 6     7      5, 6
        result       h        0      h

    Args:
        dataset: The dataset of the documents.
        first_document: Number of the first document.
        count: Number of documents.

    Returns:
        uint64, shape (count,).
    """
    # A document consists of sequences of tokens, often of one. Look up with which sequence each
    # document begins, and then with which token: for documents of 2, 1 and 2 tokens, 0 2 3 5.
    stop_document = first_document + count
    first_sequences = dataset.document_indices[first_document : stop_document + 1]
    borders = token_starts(dataset, first_sequences)  # (count + 1,) the last one is the end

    # There may be too many tokens for the memory, so read some documents at a time.
    hashes = np.zeros(count, np.uint64)
    for documents in divide_into_blocks(borders, _BLOCK_TOKENS):  # slices such as 0:2 and 2:3
        document_borders = borders[documents.start : documents.stop + 1]
        hashes[documents] = _hash_documents(dataset, document_borders)
    return hashes


def _hash_documents(dataset: MMapIndexedDataset, borders: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Read some consecutive documents together, and return a hash of the tokens of each.

    For example, documents with the tokens [5, 6], [7] and [5, 6] get the hashes h, 0 and h. The
    second one is too short to be compared with others, so it gets 0.

    Args:
        dataset: The dataset of the documents.
        borders: Where the tokens of each document start, and where those of the last one end, such
            as [40, 42, 43, 45]; shape (n_documents + 1,).

    Returns:
        uint64, shape (n_documents,); 0 for a document with fewer than MIN_TOKENS (2) tokens.
    """
    tokens = read_tokens(dataset, int(borders[0]), int(borders[-1]))  # [5, 6, 7, 5, 6]
    lengths = np.diff(borders)  # (n_documents,) [2, 1, 2]
    hashes = np.zeros(len(lengths), np.uint64)
    hashes[lengths > 0] = hash_sequences(tokens, lengths)  # returns no hash of an empty document

    # The value 0 is needed for documents that are too short. If a hash happens to be 0, use 1.
    hashes[hashes == 0] = 1
    hashes[lengths < MIN_TOKENS] = 0
    return hashes


def stored_hashes(project: Project, corpus: str, shard: str) -> NDArray[np.uint64] | None:
    """Return the hashes of the tokens of a shard's documents if they have been computed before.

    Args:
        project: The project.
        corpus: Name of the corpus. It consists of shards, which have some of its documents each.
        shard: Digest that identifies the shard.

    Returns:
        uint64, mapped from the file, shape (n_documents,); 0 for a document with fewer than
        MIN_TOKENS tokens. None if no hashes are stored.
    """
    stored = project.outputs.find(hashes_recipe(corpus, shard))
    if stored is None:
        return None
    path = stored.path(_HASHES_FILE)
    hashes: NDArray[np.uint64] = np.load(path, mmap_mode="r", allow_pickle=False)
    return hashes


class ShardHashes(NamedTuple):
    """The hashes of the documents of one shard."""

    first: int
    """Number of the shard's first document in the corpus."""
    hashes: NDArray[np.uint64]
    """See `document_hashes`; shape (n_documents,)."""


def each_shards_hashes(
    outputs: OutputRoot, sharded: Sharded, digests: Sequence[str]
) -> Iterator[ShardHashes]:
    """Read the stored hashes of all documents of a corpus, some at a time, to save memory.

    A corpus consists of shards, which have consecutive documents. For two shards of 2 and 3
    documents, for example, this yields

        first=0    hashes [9, 5]
        first=2    hashes [9, 7, 1]

    Args:
        outputs: Where the hashes are stored.
        sharded: The corpus with its shards.
        digests: For each shard, the name of the folder that has its hashes.
    """
    corpus_folder = outputs.folder / HASHES_FOLDER / sharded.dataset.name

    # (n_shards,) the last of the bounds is the number of all documents
    first_documents = sharded.document_bounds[:-1].tolist()
    for first_document, digest in zip(first_documents, digests, strict=True):
        path = outputs.access.fetch(corpus_folder / digest / _HASHES_FILE)  # a local path
        hashes = np.load(path, mmap_mode="r", allow_pickle=False)
        yield ShardHashes(first_document, hashes)
