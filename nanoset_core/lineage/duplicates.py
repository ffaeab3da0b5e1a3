"""Find copies of documents: documents with the same tokens under another id.

When a document has to be taken down, its text may also be in the raw data under other ids. A copy
has exactly the tokens of the named document. To find copies without reading all tokens, the search
narrows the documents in three steps:

1. Keep the documents with as many tokens as a named one. The tables of documents list the counts.
2. If `held_out` stored hashes of documents, keep those with the hash of a named document.
3. Read the tokens of the remaining documents and compare their digests.

For example, document `a1` has 812 tokens. Of a million documents, 900 have as many, 2 of these the
same hash, and one of these the same tokens: it is a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError, StorageError, one_line
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import read_tokens, token_starts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.held_out.hashes import MIN_TOKENS, document_hashes, stored_hashes
from nanoset_core.stages.sharded import Sharded
from nanoset_core.stages.stage import Key, find_current
from nanoset_core.stages.views.tables import document_values

MAX_COMPARED = 1_000_000
"""The tokens of at most this many documents of a corpus are compared."""
MAX_COMPARED_REMOTELY = 20_000
"""The same limit for a corpus in a bucket, where each document may take a request."""


class Copy(NamedTuple):
    """A document with the same tokens as a named one."""

    corpus: str
    file: str
    """Relative to the corpus's folder."""
    line: int
    """Number of its line, or of its row in a table, from 1."""
    id: str | None
    """The copy's own id, if it has one."""
    tokens: int
    """How many tokens it has."""
    of: str
    """Id of the first named document with these tokens."""


class Copies(NamedTuple):
    """The result of a search for copies."""

    documents: Sequence[Copy]
    """Ordered by corpus, then by number in the corpus."""
    not_searched: Mapping[str, str]
    """Corpus that could not be read → the reason."""


@dataclass(frozen=True, slots=True)
class _Corpus:
    """A corpus whose current dataset is open."""

    name: str
    dataset: Manifest
    """Manifest of its current dataset."""
    sequences: MMapIndexedDataset
    """The tokens."""
    is_named: bool
    """Whether ids name documents of this corpus."""

    def tokens(self, document: int) -> NDArray[np.integer]:
        """Return the tokens of a document, shape (n_tokens,).

        Args:
            document: Number in the corpus.
        """
        bounds = self.sequences.document_indices[document : document + 2]
        start, stop = token_starts(self.sequences, bounds).tolist()
        return read_tokens(self.sequences, start, stop)

    def token_digest(self, document: int) -> bytes:
        """Return a digest of a document's tokens, which does not depend on the dataset's dtype.

        Args:
            document: Number in the corpus.
        """
        return hashlib.sha256(self.tokens(document).astype("<i8").tobytes()).digest()


class _OpenCorpora(NamedTuple):
    """The corpora that could be opened, and those that could not."""

    corpora: list[_Corpus]
    not_readable: dict[str, str]
    """Name of a corpus → why it cannot be read."""


class _NamedDocument(NamedTuple):
    """A document of a corpus that the user named by its id."""

    number: int
    """Number in the corpus."""
    n_tokens: int
    """How many tokens it has."""
    identity: str
    """Its id."""


class _NamedTokens:
    """Lengths, digests and hashes of the named documents, to compare other documents with."""

    def __init__(self) -> None:
        """Begin without named documents; `add` adds them."""
        self.lengths: set[int] = set()
        """How many tokens the named documents have."""
        self.id_by_digest: dict[bytes, str] = {}
        """Digest of tokens → id of the first named document with these tokens."""
        self._hashes_by_dtype: dict[np.dtype, set[int]] = {}
        """Dtype of a dataset → hashes of tokens in this dtype, as `held_out` stores them."""

    def add(self, corpus: _Corpus, document: _NamedDocument) -> None:
        """Add a document to the search for copies of it, unless it is very short.

        Very short documents, such as "Hello", have equal tokens by chance. For others, three things
        are stored: the number of tokens rules out most documents of a dataset at once; a hash of
        the tokens, which many datasets store for each document, rules out most of the others; and a
        digest of the tokens decides for the few that remain.

        Args:
            corpus: The corpus that has the document.
            document: Its number, id and number of tokens.
        """
        if document.n_tokens < MIN_TOKENS:
            return
        self.lengths.add(document.n_tokens)

        dtype = corpus.sequences.dtype  # the hash of the same tokens in another dtype is another
        token_hash = int(document_hashes(corpus.sequences, document.number, 1)[0])
        self._hashes_by_dtype.setdefault(dtype, set()).add(token_hash)

        digest = corpus.token_digest(document.number)
        self.id_by_digest.setdefault(digest, document.identity)

    def hashes(self, dtype: np.dtype) -> NDArray[np.uint64] | None:
        """Return the hashes by which a dataset is searched for copies of the named documents.

        The hash of a document is that of its bytes. So the same tokens have one hash as uint16, and
        another one as uint32. For each named document, only the hash in the type of its own corpus
        is known:

            named documents             hashes of copies in a dataset of uint16
            all are stored as uint16    known
            one is stored as uint32     not known for this one, so the result is None

        Args:
            dtype: Type of the dataset's tokens.

        Returns:
            Shape (n_hashes,), ascending; None if the dataset cannot be searched by hashes.
        """
        dtypes_of_named_documents = set(self._hashes_by_dtype)
        if dtypes_of_named_documents != {dtype}:
            return None
        return np.array(sorted(self._hashes_by_dtype[dtype]), np.uint64)


def find_copies(
    project: Project,
    ids: Sequence[str],
    corpora: Collection[str] = (),
    *,
    ignored_ids: Sequence[str] = (),
) -> Copies:
    """Find other documents with the same tokens as some documents, in all text collections.

    For example, the document "doc-17" has to be deleted, and "page-3" of another collection is a
    copy of it, which has to be deleted, too.

    Args:
        project: Its outputs are searched.
        ids: Ids of the documents.
        corpora: Names of the text collections (corpora) to which these ids belong; by default all.
        ignored_ids: Ids of documents that are not reported as copies, such as those that have been
            taken down already.

    Returns:
        The copies, and the corpora that could not be searched.
    """
    opened = _open_corpora(project, corpora)
    named = _read_named(project, opened.corpora, ids, ignored_ids)
    not_searched = {**opened.not_readable, **named.not_readable}  # corpus → reason

    copies: list[Copy] = []
    for corpus in opened.corpora:
        if corpus.name in not_searched or not named.tokens.lengths:
            continue
        ignored = named.ignored_by_corpus[corpus.name]
        try:
            copies += _copies_in(project, corpus, ignored, named.tokens)
        except (NanosetError, OSError) as error:
            not_searched[corpus.name] = one_line(error)  # search the others
    return Copies(copies, not_searched)


class _ReadNames(NamedTuple):
    """What was read of the documents that the user named."""

    tokens: _NamedTokens
    """Lengths, digests and hashes of their tokens."""
    ignored_by_corpus: dict[str, NDArray[np.int64]]
    """Corpus → numbers of documents that are not reported as copies, shape (n_documents,)."""
    not_readable: dict[str, str]
    """Name of a corpus → why its documents could not be read."""


def _read_named(
    project: Project, corpora: Sequence[_Corpus], ids: Sequence[str], ignored_ids: Sequence[str]
) -> _ReadNames:
    """Read the tokens of some documents, to look for copies of them afterwards.

    Args:
        project: Its outputs are searched.
        corpora: The text collections in which the ids are looked up. One that cannot be read does
            not end the search.
        ids: Ids of the documents.
        ignored_ids: Ids of other documents that the user knows already.

    Returns:
        The tokens; and of each text collection, which documents are not to be reported as copies:
        those with one of the ids, of both kinds.
    """
    tokens = _NamedTokens()
    ignored_by_corpus: dict[str, NDArray[np.int64]] = {}
    not_readable: dict[str, str] = {}
    for corpus in corpora:
        try:
            for document in _documents_with(project, corpus, ids):
                tokens.add(corpus, document)
            known_ids = [*ids, *ignored_ids]
            ignored_by_corpus[corpus.name] = _numbers_with(project, corpus, known_ids)
        except (NanosetError, OSError) as error:
            not_readable[corpus.name] = one_line(error)
    return _ReadNames(tokens, ignored_by_corpus, not_readable)


def _numbers_with(project: Project, corpus: _Corpus, ids: Sequence[str]) -> NDArray[np.int64]:
    """Return the numbers of the documents of a corpus that have one of some ids.

    Args:
        project: Its outputs are searched.
        corpus: The corpus. If the user named documents of other corpora only, nothing is returned.
        ids: Ids of documents, a field of the raw text.

    Returns:
        Numbers in the corpus, shape (n_documents,).
    """
    documents = _documents_with(project, corpus, ids)
    return np.array([document.number for document in documents], np.int64)


def _open_corpora(project: Project, named_corpora: Collection[str]) -> _OpenCorpora:
    """Open the datasets of all text collections (corpora), to search them for copies of documents.

    Collections that the settings do not name any more are opened, too. One that cannot be read does
    not end the search, but is returned with the reason.

    Args:
        project: Its outputs are searched.
        named_corpora: Names of the corpora to which the documents belong; empty for all. The copies
            may be in any corpus.
    """
    corpora: list[_Corpus] = []
    not_readable: dict[str, str] = {}
    for name in project.outputs.names(DATASET.layout.folder):
        try:
            dataset = find_current(project, DATASET, Key(name))
            if dataset is None:
                continue  # it was never built, or is damaged
            # Only few tokens of it will be read: from a bucket, read them in small blocks.
            sequences = open_dataset(dataset, is_sampled=True)
        except (NanosetError, OSError) as error:
            not_readable[name] = one_line(error)
            continue
        is_named = not named_corpora or name in named_corpora
        corpora.append(_Corpus(name, dataset, sequences, is_named))
    return _OpenCorpora(corpora, not_readable)


def _documents_with(project: Project, corpus: _Corpus, ids: Sequence[str]) -> list[_NamedDocument]:
    """Find the documents of a corpus that have one of some ids.

    The ids are in the tables of the corpus, with the numbers and lengths of the documents:

        number    tokens    id
        4711      80        doc-17

    Args:
        project: Its outputs are searched.
        corpus: The corpus. If the user named documents of other corpora only, nothing is returned.
        ids: Ids of documents, a field of the raw text.
    """
    import pyarrow as pa

    if not corpus.is_named:
        return []

    # The tables of the corpus are read in batches, from which other documents are left out. Each
    # batch has one array of numbers, one of token counts and one of ids.
    only_ids = pa.array(ids, pa.large_string())
    documents: list[_NamedDocument] = []
    for batch in document_values(
        project, corpus.name, corpus.dataset, columns=["id", "tokens"], only_ids=only_ids
    ):
        numbers = batch.numbers.tolist()
        token_counts = batch.tokens.tolist()
        identities = batch.columns["id"].to_pylist()
        for number, n_tokens, identity in zip(numbers, token_counts, identities, strict=True):
            documents.append(_NamedDocument(number, n_tokens, identity))
    return documents


def _copies_in(
    project: Project, corpus: _Corpus, ignored: NDArray[np.int64], named: _NamedTokens
) -> list[Copy]:
    """Find the documents of a text collection that have the same tokens as some other documents.

    Args:
        project: Its outputs are searched.
        corpus: The collection to search.
        ignored: Numbers of documents that are not reported, int64, shape (n_ignored,).
        named: The tokens to look for.

    Returns:
        One entry for each copy, with its file and line, in the order of the collection.

    Raises:
        StorageError: Too many documents would have to be compared.
    """
    # Lengths and stored hashes show which documents may be copies: few among millions.
    sharded = Sharded.of(project, corpus.dataset)  # the parts that the collection was tokenized in
    possible_copies = _possible_copies(project, corpus, sharded, named)
    candidates = np.setdiff1d(possible_copies, ignored)  # numbers of documents: 40 41 97
    _check_comparable(project, len(candidates))

    named_id_by_copy = _named_ids_of_copies(corpus, candidates, named)  # {40: "a1", 97: "a1"}
    places = sharded.places(project, list(named_id_by_copy))
    return [_copy_at(corpus, place, named_id_by_copy[place["document"]]) for place in places]


def _copy_at(corpus: _Corpus, place: Mapping[str, Any], named_id: str) -> Copy:
    """Describe a document that is a copy of another one.

    Args:
        corpus: The text collection that has the copy.
        place: Where the copy is: its number (`document`), `file`, `line` and `id`.
        named_id: Id of the other document.
    """
    return Copy(
        corpus=corpus.name,
        file=place["file"],
        line=place["line"],
        id=place["id"],
        tokens=len(corpus.tokens(place["document"])),
        of=named_id,
    )


def _check_comparable(project: Project, n_candidates: int) -> None:
    """Check that not too many documents have to be read to find copies.

    Args:
        project: If its outputs are in a bucket, fewer documents are allowed, since reading each
            takes a request.
        n_candidates: How many documents may be copies: those of the right length, and, if hashes of
            their tokens were stored, with the right hash.

    Raises:
        StorageError: There are too many.
    """
    max_compared = MAX_COMPARED
    if project.outputs.access.takes_requests:
        max_compared = MAX_COMPARED_REMOTELY
    if n_candidates > max_compared:
        # With stored hashes, there would be few candidates. This setting stores them.
        raise StorageError(
            f"{n_candidates:,} documents have as many tokens, too many to compare: "
            "a nanoset that reads the corpus and has `held_out: warn` keeps a hash of each document"
        )


def _named_ids_of_copies(
    corpus: _Corpus, candidates: NDArray[np.int64], named: _NamedTokens
) -> dict[int, str]:
    """Find out which documents have exactly the tokens of a document that the user has named.

    For example, {4711: "doc-17"}: document 4711 of the corpus has the tokens of the document that
    the user named "doc-17".

    Args:
        corpus: The corpus that has the documents.
        candidates: Numbers of the documents, shape (n_candidates,).
        named: The tokens of the named documents.

    Returns:
        Number of the document → id of the named document.
    """
    id_by_number: dict[int, str] = {}
    for number in candidates.tolist():
        digest = corpus.token_digest(number)
        if digest in named.id_by_digest:
            id_by_number[number] = named.id_by_digest[digest]
    return id_by_number


def _possible_copies(
    project: Project, corpus: _Corpus, sharded: Sharded, named: _NamedTokens
) -> NDArray[np.int64]:
    """Return the documents of a corpus that may be copies of those that the user has named.

    A copy has as many tokens as a named document, and the same hash of its tokens. For example, the
    named documents have 80 tokens and the hash 3f9c:

        document    tokens    hash
        0           120                     ruled out by its length
        1           80        b113          ruled out by its hash
        2           80        3f9c          possible
        3           80        not stored    possible

    Hashes are stored for each shard, a part of the corpus. The shards of some corpora have none.

    Args:
        project: Its outputs are searched.
        corpus: The corpus to search.
        sharded: The shards of its dataset.
        named: What is known of the named documents.

    Returns:
        Numbers in the corpus, int64, shape (n_candidates,), ascending.
    """
    with_length = _with_named_length(project, corpus, named)
    named_hashes = named.hashes(corpus.sequences.dtype)
    if named_hashes is None:  # they cannot be compared
        return with_length

    # The hashes are stored by shard. Shards have consecutive documents: with the bounds [0, 3, 8],
    # shard 0 has the documents 0 to 2, and shard 1 has 3 to 7.
    parts = [np.empty(0, np.int64)]  # the dtype of the result if no other part is added
    bounds = sharded.document_bounds.tolist()
    for shard, (first, stop) in enumerate(pairwise(bounds)):
        in_shard = with_length[(with_length >= first) & (with_length < stop)]
        if not len(in_shard):
            continue  # read no hashes
        hashes = stored_hashes(project, corpus.name, sharded.shards[shard])
        if hashes is not None:  # otherwise, none were stored for this shard
            in_shard = in_shard[np.isin(hashes[in_shard - first], named_hashes)]
        parts.append(in_shard)
    return np.concatenate(parts)


def _with_named_length(project: Project, corpus: _Corpus, named: _NamedTokens) -> NDArray[np.int64]:
    """Return the documents of a corpus that have as many tokens as a document that the user named.

    Others cannot be copies of it. For example, if the user named documents of 80 and 120 tokens,
    these are all documents of 80 or 120 tokens.

    Args:
        project: Its outputs are searched.
        corpus: The corpus.
        named: The tokens of the named documents.

    Returns:
        Numbers in the corpus, int64, shape (n_documents,), ascending.
    """
    lengths = np.array(sorted(named.lengths), np.int32)  # of the named documents, in tokens
    parts = [np.empty(0, np.int64)]  # the dtype of the result if no other part is added
    # A corpus may have millions of documents: their numbers of tokens are read in parts.
    for document_table in document_values(project, corpus.name, corpus.dataset, ["tokens"]):
        has_named_length = np.isin(document_table.tokens, lengths)
        parts.append(document_table.numbers[has_named_length])
    return np.concatenate(parts)
