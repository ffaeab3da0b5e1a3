"""Documents with the same tokens as some that are named by id: copies under other ids."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError, StorageError, one_line
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.hashing import hash_texts
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.held_out.hashes import document_hashes, stored_hashes
from nanoset_core.stages.per_shard import Sharded
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.tables import document_groups

MAX_COMPARED = 1_000_000
"""Documents of one corpus whose tokens are compared, on a disk."""
MAX_COMPARED_REMOTELY = 20_000
"""Documents of one corpus whose tokens are compared, in a bucket, where each may take a request."""
MIN_TOKENS = 2
"""Shorter documents, such as an end token alone, are often equal by chance."""


class Copy(NamedTuple):
    """A document with the same tokens as a named one."""

    corpus: str
    file: str
    """Relative to the corpus's folder."""
    line: int
    """1-based; of a table the row."""
    id: str | None
    tokens: int
    of: str
    """Id of the first named document with these tokens."""


class Copies(NamedTuple):
    """What a search for copies found."""

    documents: Sequence[Copy]
    """By corpus, then by number in the corpus."""
    not_searched: Mapping[str, str]
    """Corpus that could not be read → the reason."""


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The current dataset of a corpus."""

    name: str
    dataset: Manifest
    sequences: MMapIndexedDataset
    is_named: bool
    """Whether ids name documents of this corpus."""

    def tokens(self, document: int) -> NDArray[np.integer]:
        """Return the tokens of a document, shape (n_tokens,)."""
        bounds = self.sequences.document_indices[document : document + 2]
        start, stop = token_starts(self.sequences, bounds).tolist()
        itemsize = self.sequences.dtype.itemsize
        first_byte = np.array([start * itemsize])
        stop_byte = np.array([stop * itemsize])
        all_tokens = self.sequences.tokens_for(first_byte, stop_byte)
        return all_tokens[start:stop]

    def token_digest(self, document: int) -> bytes:
        """Return a digest of the tokens of a document, whatever the dtype of its dataset."""
        return hashlib.sha256(self.tokens(document).astype("<i8").tobytes()).digest()


class _NamedDocument(NamedTuple):
    """A document of a corpus that an id names."""

    number: int
    """In the corpus."""
    tokens: int
    """How many it has."""
    identity: str


class _NamedTokens:
    """The tokens of the named documents."""

    def __init__(self) -> None:
        self.lengths: set[int] = set()
        self.id_by_digest: dict[bytes, str] = {}
        """Digest of tokens → id of the first named document with these tokens."""
        self._hashes_by_dtype: dict[np.dtype, set[int]] = {}
        """Dtype of a dataset → hashes of tokens in this dtype, as `held_out` keeps them."""

    def add(self, corpus: _Corpus, document: _NamedDocument) -> None:
        """Add a document of a corpus, unless it is too short."""
        if document.tokens < MIN_TOKENS:
            return
        self.lengths.add(document.tokens)
        self.id_by_digest.setdefault(corpus.token_digest(document.number), document.identity)
        token_hash = int(document_hashes(corpus.sequences, document.number, 1)[0])
        self._hashes_by_dtype.setdefault(corpus.sequences.dtype, set()).add(token_hash)

    def hashes(self, dtype: np.dtype) -> NDArray[np.uint64] | None:
        """Return the hashes of all documents, uint64, shape (n_hashes,); None if some are in
        another dtype.
        """
        if self._hashes_by_dtype.keys() != {dtype}:
            return None
        return np.array(sorted(self._hashes_by_dtype[dtype]), np.uint64)


def find_copies(
    project: Project,
    ids: Sequence[str],
    corpora: Collection[str] = (),
    *,
    ignored_ids: Sequence[str] = (),
) -> Copies:
    """Return the documents with the same tokens as one of some named documents, without these
    themselves.

    The current datasets of all corpora are searched. Documents of equal length are compared by
    their tokens. If `held_out` keeps hashes of the documents of a shard, only those with an equal
    hash are read.

    Args:
        project: The project.
        ids: Ids of the named documents.
        corpora: The corpora whose documents are named; default: all. The copies of these in other
            corpora are found too, also those with the same id.
        ignored_ids: Ids of documents that are no copies to report, such as those that are taken
            down already.
    """
    searched, not_searched = _current_corpora(project, corpora)

    # The named documents: their lengths, hashes, and digests of their tokens.
    named = _NamedTokens()
    ignored_by_corpus: dict[str, NDArray[np.int64]] = {}
    for corpus in searched:
        try:
            for document in _documents_with(project, corpus, ids):
                named.add(corpus, document)
            ignored = [
                document.number
                for document in _documents_with(project, corpus, [*ids, *ignored_ids])
            ]
            ignored_by_corpus[corpus.name] = np.array(ignored, np.int64)
        except (NanosetError, OSError) as error:
            not_searched[corpus.name] = one_line(error)

    # All other documents of such a length, compared with them.
    copies: list[Copy] = []
    for corpus in searched:
        if corpus.name in not_searched or not named.lengths:
            continue
        try:
            copies += _copies_in(project, corpus, ignored_by_corpus[corpus.name], named)
        except (NanosetError, OSError) as error:
            not_searched[corpus.name] = one_line(error)
    return Copies(copies, not_searched)


def _current_corpora(
    project: Project, named_corpora: Collection[str]
) -> tuple[list[_Corpus], dict[str, str]]:
    """Return the corpora with a current dataset, and corpus → why it cannot be read."""
    outputs = project.outputs
    corpora: list[_Corpus] = []
    not_readable: dict[str, str] = {}
    for name in sorted(outputs.access.names(outputs.folder / DATASET.layout.folder)):
        try:
            dataset = outputs.current(DATASET.layout.folder, name)
            if dataset is not None:
                is_named = not named_corpora or name in named_corpora
                corpora.append(
                    _Corpus(name, dataset, open_dataset(dataset, is_sampled=True), is_named)
                )
        except (NanosetError, OSError) as error:
            not_readable[name] = one_line(error)
    return corpora, not_readable


def _documents_with(project: Project, corpus: _Corpus, ids: Sequence[str]) -> list[_NamedDocument]:
    """Return the documents of a corpus that some ids name; none if ids do not name documents of
    this corpus.
    """
    import pyarrow as pa

    if not corpus.is_named:
        return []
    id_set = Ids(pa.array(ids, pa.large_string()))
    documents: list[_NamedDocument] = []
    for group in document_groups(project, corpus.name, corpus.dataset):
        table = group.read(["id", "tokens"])
        column = table.column("id").cast(pa.large_string()).combine_chunks()
        # (n_named,) rows of the group
        rows = np.flatnonzero(id_set.mask(column, hash_texts(column)))
        named = table.take(pa.array(rows))
        columns = zip(
            rows.tolist(), named["tokens"].to_pylist(), named["id"].to_pylist(), strict=True
        )
        for row, tokens, identity in columns:
            documents.append(_NamedDocument(group.first + row, tokens, identity))
    return documents


def _copies_in(
    project: Project, corpus: _Corpus, ignored: NDArray[np.int64], named: _NamedTokens
) -> list[Copy]:
    """Return the copies in a corpus.

    Args:
        project: The project.
        corpus: The corpus to search.
        ignored: Numbers of documents that are no copies to report, int64, shape (n_ignored,).
        named: The tokens of the named documents.

    Raises:
        StorageError: There are too many documents of equal length to compare.
    """
    sharded = Sharded.of(project, corpus.dataset)
    candidates = np.setdiff1d(_candidates(project, corpus, sharded, named), ignored)
    max_compared = MAX_COMPARED_REMOTELY if project.outputs.access.has_copies else MAX_COMPARED
    if len(candidates) > max_compared:
        too_many = f"{len(candidates):,} documents have as many tokens, too many to compare"
        raise StorageError(
            f"{too_many}: a nanoset that reads the corpus and has `held_out: warn` keeps a hash of each document"
        )

    id_by_number: dict[int, str] = {}
    for number in candidates.tolist():
        digest = corpus.token_digest(number)
        if digest in named.id_by_digest:
            id_by_number[number] = named.id_by_digest[digest]

    copies: list[Copy] = []
    for place in sharded.places(project, list(id_by_number)):
        number = place["document"]
        copies.append(
            Copy(
                corpus=corpus.name,
                file=place["file"],
                line=place["line"],
                id=place["id"],
                tokens=len(corpus.tokens(number)),
                of=id_by_number[number],
            )
        )
    return copies


def _candidates(
    project: Project, corpus: _Corpus, sharded: Sharded, named: _NamedTokens
) -> NDArray[np.int64]:
    """Return the numbers of the documents that may have the tokens of a named one, int64,
    ascending.
    """
    # Documents of equal length.
    lengths = np.array(sorted(named.lengths), np.int32)
    parts = [np.empty(0, np.int64)]
    for group in document_groups(project, corpus.name, corpus.dataset):
        tokens = group.read(["tokens"]).column("tokens").to_numpy()
        parts.append(group.first + np.flatnonzero(np.isin(tokens, lengths)))
    candidates = np.concatenate(parts)

    # Of shards whose hashes `held_out` keeps, those with an equal hash: this spares reading most of
    # their tokens. Hashes depend on the dtype of the dataset.
    hashes = named.hashes(corpus.sequences.dtype)
    if hashes is None:
        return candidates
    parts = [np.empty(0, np.int64)]
    for shard, (first, stop) in enumerate(pairwise(sharded.firsts.tolist())):
        in_shard = candidates[(candidates >= first) & (candidates < stop)]
        if len(in_shard):
            shard_hashes = stored_hashes(project, corpus.name, sharded.shards[shard])
            if shard_hashes is not None:
                in_shard = in_shard[np.isin(shard_hashes[in_shard - first], hashes)]
        parts.append(in_shard)
    return np.concatenate(parts)
