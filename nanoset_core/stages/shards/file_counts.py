"""What became of each file of a corpus: its lines, documents, rejected lines and tokens.

The counts of a file are the sums over the shards that were made from it. A shard that was made from
one file has its counts in its manifest. If there were several files, the rows of its tables are
counted by file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.shards.document_counts import DocumentCounts, counts_by_file
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.losses import stored_sizes
from nanoset_core.stages.shards.one_shard import DOCUMENTS, REJECTS
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.stages.shards.shard_sets import ranges_of_shards
from nanoset_core.text.inventory.pieces import Inventory, SourceRange
from nanoset_core.wording import abbreviated

MAX_ROWS_READ = 2_000_000
"""Rows of tables of documents and rejects that are read at most: some tenths of a second."""


@dataclass(slots=True)
class FileCounts:
    """What became of one file, or of the part of it in some shards."""

    stored_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    rejected: int = 0
    skipped: int = 0
    """Documents without tokens."""
    purged: int = 0
    """Erased documents that were left out."""
    may_have_skipped: bool = False
    """Whether a shard with this file and others skipped documents: it does not say of which file
    they were.
    """

    @property
    def lines(self) -> int | None:
        """The lines of the file; None if that is not known."""
        if self.may_have_skipped:
            return None
        return self.documents + self.rejected + self.skipped + self.purged

    def add(self, other: FileCounts) -> None:
        """Add the counts of another part of the same file.

        Large files are tokenized in parts. For example, the first part has 1,000 documents, 3 lines
        of it were rejected, and the second part has 500 documents and 1 such line: 1,500 and 4
        together.

        Args:
            other: The counts of the other part; they are not changed.
        """
        self.stored_bytes += other.stored_bytes
        self.documents += other.documents
        self.tokens += other.tokens
        self.rejected += other.rejected
        self.skipped += other.skipped
        self.purged += other.purged
        self.may_have_skipped |= other.may_have_skipped


def file_counts(
    inventory: Inventory,
    tokenized: Manifest,
    shards: Sequence[Manifest],
    *,
    max_files: int,
    max_rows: int = MAX_ROWS_READ,
) -> dict[str, FileCounts] | None:
    """Return the documents, tokens and rejected lines of the first files of a corpus.

        {"a.jsonl": FileCounts(documents=900, tokens=230000, rejected=3, …), "b.jsonl": …}

    A corpus is tokenized in parts (shards). If a shard is of one file, its manifest has the counts
    of this file. If it is of several files, its tables of documents and rejected lines have to be
    read, which takes time.

    Args:
        inventory: The files of the corpus.
        tokenized: Manifest of the tokenized corpus.
        shards: All its shards, in document order.
        max_files: No more shards are looked at once the counts of more files than this are known.
        max_rows: Rows of tables that are read at most; files after that are left out.

    Returns:
        Path → counts, in document order; None if it is not known which files a shard was made from.
    """
    try:
        ranges = ranges_of_shards(inventory, tokenized)
    except FormatError:
        return None

    counts_by_path: dict[str, FileCounts] = {}
    n_rows_read = 0
    for source, shard in zip(ranges, shards, strict=True):
        n_rows_read += _rows_to_read(source, shard)
        if n_rows_read > max_rows:
            # The shard before may have the start of this file: without the rest, leave it out.
            counts_by_path.pop(source.files[0], None)
            break
        for path, counts in _counts_in_shard(source, shard).items():
            counts_by_path.setdefault(path, FileCounts()).add(counts)
        if len(counts_by_path) > max_files:
            break
    return counts_by_path


def _rows_to_read(source: SourceRange, shard: Manifest) -> int:
    """Return how many rows have to be read to count the documents of each file of a shard.

    A shard is a part of a corpus that was tokenized at once. Its manifest has the number of its
    documents and rejected lines. If these are from several files, two tables have to be read, which
    name the file of each. Reading may take long, so the caller stops at a limit.

        files             documents, rejected lines     rows to read
        a.jsonl           900, 3                        0: all are of a.jsonl
        b.jsonl, c.jsonl  900, 3                        903

    Args:
        source: The range of text that the shard was made from.
        shard: Manifest of the shard.
    """
    if len(source.files) == 1:
        return 0
    return int(shard.facts["documents"] + shard.facts["rejected"])


def _counts_in_shard(source: SourceRange, shard: Manifest) -> dict[str, FileCounts]:
    """Return the counts of each file that a shard, a part of a tokenized corpus, was made from.

        {"a.jsonl": FileCounts(documents=900, …), "b.jsonl": FileCounts(documents=100, …)}

    Args:
        source: The range of text that the shard was made from, which names the files.
        shard: Manifest of the shard.

    Returns:
        Path → counts of the part of the file that is in this shard.
    """
    if len(source.files) > 1:
        return _counts_by_tables(source, shard)  # by the rows for each document
    # The counts of the shard are those of its only file.
    [path] = source.files
    return {path: _counts_of_shard(shard)}


def _counts_of_shard(shard: Manifest) -> FileCounts:
    """Return the counts of a shard, which is a part of a tokenized corpus, from its manifest.

        {"documents": 1000, "tokens": 812000, "rejected": 3, …}

    Args:
        shard: Manifest of the shard.
    """
    facts = shard.facts
    return FileCounts(
        stored_bytes=facts["stored_bytes"],
        documents=facts["documents"],
        tokens=facts["tokens"],
        rejected=facts["rejected"],  # lines that are no documents
        skipped=facts["skipped"],  # documents without tokens
        purged=facts.get("purged", 0),  # documents that users have erased, if there are any
    )


def _counts_by_tables(source: SourceRange, shard: Manifest) -> dict[str, FileCounts]:
    """Count the documents and rejected lines of each file that was tokenized together with others.

    A shard has the tokens of a part of a corpus, here of several small files. Its manifest only has
    totals. The counts of each file are found in three places:

        stored_bytes          the description of the text that the shard was made from
        documents, tokens     the shard's table of documents, a row for each
        rejected              the shard's list of rejected lines

    Documents without tokens, and those that users have erased, are in no table. So they are not
    counted (`skipped` and `purged` are 0).

    Args:
        source: The part of the text that the shard was made from. It names the files.
        shard: Manifest of the shard.

    Returns:
        Path → counts of the part of the file that is in this shard, such as
        {"a.jsonl": FileCounts(documents=1000, tokens=812000, rejected=3, …), "b.jsonl": …}.

    Raises:
        FormatError: A table cannot be read, or names a file that is not in this part of the text.
    """
    size_by_path = stored_sizes(source.pieces)
    documents_by_path = counts_by_file(shard.path(DOCUMENTS))
    rejected_by_path = _rejected_by_file(shard)
    _check_files_are_known([*documents_by_path, *rejected_by_path], source, shard)
    has_skipped = shard.facts["skipped"] > 0  # in which of the files is not known

    counts_by_path = {}
    for path in source.files:
        documents_of_file = documents_by_path.get(path, DocumentCounts())
        counts_by_path[path] = FileCounts(
            stored_bytes=size_by_path[path],
            documents=documents_of_file.documents,
            tokens=documents_of_file.tokens,
            rejected=rejected_by_path[path],
            may_have_skipped=has_skipped,
        )
    return counts_by_path


def _check_files_are_known(paths: Iterable[str], source: SourceRange, shard: Manifest) -> None:
    """Check that the tables of a shard name no file that the shard was not made from.

    Args:
        paths: The files that the tables name.
        source: The part of the text that the shard was made from. It names its files.
        shard: Manifest of the shard.

    Raises:
        FormatError: A file is not in this part of the text.
    """
    known_paths = set(source.files)
    for path in paths:
        if path not in known_paths:
            raise FormatError(
                "the tables of a shard name a file that the shard was not made from",
                where=shard.folder,
                found=path,
                expected=abbreviated(source.files),
                remedy="delete the shard's folder and run `nanoset build`, which makes it again",
            )


def _rejected_by_file(shard: Manifest) -> Counter[str]:
    """Count the rejected lines of each file, from a shard's list of them: `{"a.jsonl": 3}`.

    The list also has faults, which are not lines: each says where a file became unreadable. If no
    line was rejected, the list is not read.

    Args:
        shard: Manifest of the shard, which has the tokens of a part of the corpus.
    """
    if shard.facts["rejected"] == 0:
        return Counter()
    rejects = read_rejects(shard.path(REJECTS), LineNumbers())
    return Counter(reject.file for reject in rejects if not reject.is_fault)
