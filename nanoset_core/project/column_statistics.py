"""Statistics of the columns of a corpus's documents: types, distinct values, quantiles, counts.

For example, the column `lang` has 12 distinct values, of which "en" is the most frequent one; the
median of the column `score` is 0.7.

The tables of the documents are read once. Texts are counted while they are read. Numbers are also
written to scratch files, from which quantiles and histograms are computed afterwards. So memory is
bounded, however many documents there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.scan import TOKENS_COLUMN, DocumentScan
from nanoset_core.errors import ConfigError, one_of, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.distinct import DistinctCounter
from nanoset_core.sampling.frequent import FrequentValue, FrequentValues
from nanoset_core.sampling.hashing import hash_texts, mix
from nanoset_core.sampling.histogram import Bin, WeighedValues, histogram
from nanoset_core.sampling.ranks import keys_at_ranks, order_keys, values_of_keys
from nanoset_core.stages.attributes.column_sources import built_columns
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, current_version, require
from nanoset_core.stages.views.budgets import CHUNK_DOCUMENTS
from nanoset_core.stages.views.ranked_column import NAN, NULL, RankedColumn
from nanoset_core.stages.views.scratch import ScratchArray
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.tables import DOCUMENT_COLUMNS, tokenized_shards

ACTIVITY = "columns"
"""What the progress calls the reading of the tables."""
QUANTILES = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
"""Shares of the values that are not greater than the quantile, about."""
DEFAULT_VALUES = 10
"""How many of the most frequent values are reported."""
_ALWAYS_SHOWN = ("file", "id", TOKENS_COLUMN)
"""Columns of every document that are reported unless others are requested."""


@dataclass(frozen=True, slots=True)
class NumberStatistics:
    """How the values of a column of numbers are distributed. Nulls and NaN do not count."""

    minimum: int | float
    maximum: int | float
    quantiles: dict[str, int | float]
    """Share, such as "0.25" → the greatest value of this share of the documents."""
    bins: Sequence[Bin]
    """Histogram. Its amounts are documents and tokens."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of the values of a column."""

    name: str
    type: str
    """Name of the Arrow type, such as `int64` or `string`."""
    nulls: int
    """Documents without a value."""
    null_tokens: int
    """Tokens of these documents."""
    nans: int
    """Documents with the value NaN."""
    distinct: int
    """Number of distinct values."""
    is_distinct_exact: bool
    """Whether that number is exact; otherwise it is off by about 0.4 %."""
    numbers: NumberStatistics | None = None
    """None for columns of texts or booleans, and if there is no value."""
    values: Sequence[FrequentValue] = ()
    """The most frequent values, for columns of texts or booleans."""
    uncounted: int = 0
    """Documents that any value has at most which is not among these because of limited memory; 0 if
    all values were counted.
    """


@dataclass(frozen=True, slots=True)
class CorpusColumns:
    """The columns of a corpus."""

    corpus: str
    documents: int
    tokens: int
    columns: Sequence[ColumnStatistics]
    unbuilt: Sequence[str]
    """Columns of the settings that have not been built, and so are not among these."""


def corpus_columns(
    project: Project,
    corpus: str,
    names: Sequence[str] | None = None,
    n_values: int = DEFAULT_VALUES,
) -> CorpusColumns:
    """Compute statistics of the columns of a tokenized corpus.

    Args:
        project: Its output root has the tables of the documents.
        corpus: Name of the corpus.
        names: The columns; default: file, id, tokens, and all that were built for the corpus.
        n_values: How many of the most frequent values to report.

    Raises:
        ConfigError: There is no such column, or no such corpus.
        MissingError: The corpus or its columns have not been built.
        FormatError: A table is damaged.
    """
    _check_corpus(project, corpus)
    tokenized = require(project, TOKENIZED, Key(corpus))

    # Some columns exist for every document, such as `file`. Others exist if nanoset.yaml requests
    # them and they were built since.
    built = built_columns(project, corpus)
    unbuilt = _unbuilt_columns(project, corpus, built)
    if names is None:
        names = [*_ALWAYS_SHOWN, *built]
    _check_names(project, names, built, unbuilt)
    return CorpusColumns(
        corpus,
        documents=tokenized.facts["documents"],
        tokens=tokenized.facts["tokens"],
        columns=_read_columns(project, corpus, tokenized, names, n_values),
        unbuilt=unbuilt,
    )


def _read_columns(
    project: Project, corpus: str, tokenized: Manifest, names: Sequence[str], n_values: int
) -> list[ColumnStatistics]:
    """Read the tables of all documents of a corpus once, and return the statistics of columns.

    Args:
        project: Its output root has the tables.
        corpus: Name of the corpus.
        tokenized: Manifest of the corpus's set of shards; each shard has a table.
        names: The columns.
        n_values: How many of the most frequent values to report.
    """
    n_documents = int(tokenized.facts["documents"])
    work = project.progress.work(ACTIVITY, corpus, n_documents)
    # Every shard has a table with some columns, such as `file`. Others are in tables of their own,
    # which are joined to it by naming them.
    joined_columns = [name for name in names if name not in DOCUMENT_COLUMNS]
    scan = DocumentScan({TOKENS_COLUMN, *names})
    with tempfile.TemporaryDirectory(prefix="nanoset-columns-") as scratch:
        reading = ColumnReading(names, Path(scratch), n_values)
        for tables in tokenized_shards(project, corpus, tokenized, joined_columns):
            for batch in scan.batches(tables.relation):
                reading.add(batch.columns)  # name of each column → Arrow array
                work.advance(len(batch.rows))
        return reading.statistics()


def _unbuilt_columns(project: Project, corpus: str, built: Collection[str]) -> list[str]:
    """Return the columns that nanoset.yaml requests and that have not been built.

    Columns come from two places: `documents.columns` names keys of the corpus's own lines, and
    `attributes` names tables that another team made, whose columns are built together.

    Args:
        project: Its nanoset.yaml requests columns.
        corpus: Name of the corpus.
        built: Columns that exist.

    Returns:
        Names of columns; "attributes of <corpus>" in place of the columns of such tables.
    """
    requested = project.config.documents_of(corpus).columns
    unbuilt = [name for name in requested if name not in built]

    requests_attributes = corpus in project.config.attributes
    if requests_attributes:
        attributes = current_version(project, ATTRIBUTES, Key(corpus)).manifest
        if attributes is None:
            unbuilt.append(f"attributes of {corpus}")
    return unbuilt


def _check_corpus(project: Project, name: str) -> None:
    """Check that a corpus exists and is tokenized.

    Args:
        project: Its output root has a folder for each tokenized corpus.
        name: The name that the user gave.

    Raises:
        ConfigError: There is no such corpus; or it is the name of a view or packs, whose documents
            have the columns of their corpus.
    """
    outputs = project.outputs
    folder = outputs.folder / TOKENIZED.layout.folder
    corpora = sorted(outputs.access.names(folder))
    if name in corpora:
        return
    remedy = remedy_for_name(name, corpora, "name one of these, or run `nanoset build` first")
    if name in project.config.derived:
        corpus = base_of(project.config.derived, name)
        remedy = f"its documents have the columns of its corpus: run `nanoset columns {corpus}`"
    raise ConfigError(
        "no such corpus, or it is not tokenized yet",
        where=outputs.access.url(folder / name),
        found=repr(name),
        expected=one_of(corpora, "a built corpus; there is none yet"),
        remedy=remedy,
    )


def _check_names(
    project: Project,
    names: Sequence[str],
    built: Collection[str],
    unbuilt: Collection[str],
) -> None:
    """Check that columns exist.

    Args:
        project: The project, whose nanoset.yaml the error names.
        names: The columns that the user requests.
        built: Columns that were built, in addition to those that every document has.
        unbuilt: Columns that nanoset.yaml requests, but that have not been built.

    Raises:
        ConfigError: A column does not exist, or has not been built.
    """
    existing_names = sorted(DOCUMENT_COLUMNS.union(built))
    for name in names:
        if name in unbuilt:
            raise ConfigError(
                "this column has not been built",
                where=project.config.file,
                found=name,
                remedy="run `nanoset build` first",
            )
        if name not in existing_names:
            remedy = "correct the name, or add the column by documents.columns or attributes"
            raise ConfigError(
                "no such column",
                where=project.config.file,
                found=name,
                expected=f"one of {', '.join(existing_names)}",
                remedy=remedy_for_name(name, existing_names, remedy),
            )


class _ColumnReader(Protocol):
    """Collects the statistics of one column while its documents are read."""

    def add(self, array: Any, tokens: NDArray[np.int32]) -> None:
        """Add the values of some documents.

        Args:
            array: The values, an Arrow array of n_documents.
            tokens: How many tokens each document has, shape (n_documents,).
        """
        ...

    def statistics(self, name: str, tokens: NDArray[np.int32]) -> ColumnStatistics:
        """Return the statistics of all values that were added.

        Args:
            name: Name of the column.
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        ...


class ColumnReading:
    """Collects the statistics of columns while the tables of a corpus are read, batch by batch."""

    def __init__(self, names: Sequence[str], scratch: Path, n_values: int) -> None:
        """Begin with no document.

        Args:
            names: The columns.
            scratch: An empty folder for scratch files, which the caller removes.
            n_values: How many of the most frequent values to report.
        """
        self._names = names
        self._scratch = scratch
        self._n_values = n_values
        self._tokens = ScratchArray(scratch / "tokens", np.int32)
        self._readers: dict[str, _ColumnReader] = {}  # filled when the types are known

    def add(self, arrays: Mapping[str, Any]) -> None:
        """Add some documents.

        Args:
            arrays: Name of each column, and of that with the numbers of tokens → Arrow array with
                the values of these documents.
        """
        tokens = arrays[TOKENS_COLUMN].to_numpy()
        self._tokens.append(tokens)
        for number, name in enumerate(self._names):
            values = arrays[name]
            # The first documents show the type of a column, and so which reader it needs.
            if name not in self._readers:
                scratch_file = self._scratch / str(number)  # a name may not be a valid file name
                self._readers[name] = _reader_of(values.type, scratch_file, self._n_values)
            self._readers[name].add(values, tokens)

    def statistics(self) -> list[ColumnStatistics]:
        """Return the statistics of all columns; none if the corpus has no document."""
        tokens = self._tokens.mapped()
        return [reader.statistics(name, tokens) for name, reader in self._readers.items()]


def _reader_of(arrow_type: Any, path: Path, n_values: int) -> _ColumnReader:
    """Return what collects the statistics of a column: one for numbers, one for all other types.

    Args:
        arrow_type: The Arrow type, such as int64, bool or large_string.
        path: A scratch file, for the values of a column of numbers.
        n_values: How many of the most frequent values to report, of other columns.
    """
    from pyarrow import types

    type_name = str(arrow_type).removeprefix("large_")  # DuckDB returns texts as large_string
    is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type)
    if is_number:
        return _NumberReader(type_name, RankedColumn(path))
    return _TextReader(type_name, FrequentValues(n_values))


class _TextCounts(NamedTuple):
    """How often the texts of some documents occur."""

    texts: Any
    """The distinct texts, an Arrow array of n_texts."""
    documents: NDArray[np.int64]
    """Documents with each text, and at last those with null, shape (n_texts + 1,)."""
    tokens: NDArray[np.int64]
    """How many tokens these documents have together, shape (n_texts + 1,)."""


def _count_texts(array: Any, tokens: NDArray[np.int32]) -> _TextCounts:
    """Count the documents and tokens of each distinct value.

    For example, documents with 9, 5, 7 and 3 tokens have the values "en", null, "de" and "en": the
    texts ["en", "de"] have [2, 1] documents and [12, 7] tokens, and null has 1 and 5.

    Args:
        array: The values, an Arrow array of texts or booleans, of n_documents.
        tokens: How many tokens each document has, shape (n_documents,).
    """
    import pyarrow as pa

    encoded = array.cast(pa.large_string()).dictionary_encode()
    texts = encoded.dictionary
    # (n_documents,) index of each document's text; null has the next index: [0, 2, 1, 0]
    null_index = len(texts)
    indices = encoded.indices.fill_null(null_index).to_numpy(zero_copy_only=False)
    return _TextCounts(
        texts,
        documents=np.bincount(indices, minlength=null_index + 1),
        tokens=np.bincount(indices, tokens, null_index + 1).astype(np.int64),
    )


@dataclass(slots=True)
class _TextReader:
    """Collects the statistics of a column of texts or booleans."""

    type: str
    frequent: FrequentValues
    distinct: DistinctCounter = field(default_factory=DistinctCounter)
    nulls: int = 0
    null_tokens: int = 0
    n_documents: int = 0

    def add(self, array: Any, tokens: NDArray[np.int32]) -> None:
        """Count the documents and tokens of each value, for some documents.

        Args:
            array: The values, an Arrow array of n_documents.
            tokens: How many tokens each document has, shape (n_documents,).
        """
        counts = _count_texts(array, tokens)
        self.n_documents += len(array)
        self.nulls += int(counts.documents[-1])
        self.null_tokens += int(counts.tokens[-1])

        # Two sketches remember texts by their hashes, so that memory is bounded: one estimates how
        # many distinct texts there are, the other finds the most frequent ones.
        hashes = hash_texts(counts.texts)
        self.distinct.add(hashes)
        self.frequent.add(
            hashes,
            counts.documents[:-1],
            counts.tokens[:-1],
            text_of=lambda index: str(counts.texts[index].as_py()),
        )

    def statistics(self, name: str, tokens: NDArray[np.int32]) -> ColumnStatistics:
        """Return the statistics of all values that were added.

        Args:
            name: Name of the column.
            tokens: Not used here, since `add` has counted the tokens. Readers of numbers need it.
        """
        # The number of distinct values is an estimate if there are many, and may be too high.
        n_values = self.n_documents - self.nulls
        n_distinct = min(self.distinct.count, n_values)
        return ColumnStatistics(
            name,
            self.type,
            nulls=self.nulls,
            null_tokens=self.null_tokens,
            nans=0,
            distinct=n_distinct,
            is_distinct_exact=self.distinct.is_exact,
            values=self.frequent.most_frequent(),
            # To save memory, rare values are not counted: none has more documents than this.
            uncounted=self.frequent.error,
        )


@dataclass(slots=True)
class _NumberReader:
    """Collects the statistics of a column of numbers."""

    type: str
    column: RankedColumn
    distinct: DistinctCounter = field(default_factory=DistinctCounter)

    def add(self, array: Any, tokens: NDArray[np.int32]) -> None:
        """Add the values of some documents.

        Args:
            array: The numbers, an Arrow array. Some may be null or NaN.
            tokens: Not used yet: `statistics` gets those of all documents.
        """
        import pyarrow as pa

        self.column.append(array)

        # Count distinct numbers, by hashes. Equal numbers, such as 0.0 and -0.0, have equal keys,
        # and so equal hashes. Null and NaN are no values; only floats can be NaN.
        numbers = array.drop_null().cast(pa.from_numpy_dtype(self.column.dtype)).to_numpy()
        if self.column.dtype is np.float64:
            numbers = numbers[~np.isnan(numbers)]
        hashes = mix(order_keys(numbers))
        self.distinct.add(hashes)

    def statistics(self, name: str, tokens: NDArray[np.int32]) -> ColumnStatistics:
        """Return the statistics of all values that were added.

        Args:
            name: Name of the column.
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        faults = self.column.faults()  # (n_documents,) 0 for a number, or NULL, or NAN
        n_values = int(np.count_nonzero(faults == 0))
        is_null = faults == NULL
        null_tokens = int(tokens[is_null].sum(dtype=np.int64))
        # Minimum, quantiles and so on, if there is a number.
        numbers = self._numbers(tokens) if n_values else None
        # The number of distinct values is an estimate if there are many, and may be too high.
        n_distinct = min(self.distinct.count, n_values)
        return ColumnStatistics(
            name,
            self.type,
            nulls=int(np.count_nonzero(is_null)),
            null_tokens=null_tokens,
            nans=int(np.count_nonzero(faults == NAN)),
            distinct=n_distinct,
            is_distinct_exact=self.distinct.is_exact,
            numbers=numbers,
        )

    def _numbers(self, tokens: NDArray[np.int32]) -> NumberStatistics:
        """Return minimum, maximum, quantiles and histogram of the values.

        There must be at least one value.

        Args:
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        # A quantile is the value at a rank, its place in ascending order: of 101 values, the
        # minimum has rank 0, the median rank 50, and the maximum rank 100.
        n_values = int(np.count_nonzero(self.column.faults() == 0))
        last_rank = n_values - 1
        ranks_of_quantiles = [int(Fraction(quantile) * last_rank) for quantile in QUANTILES]

        # The column stores values as unsigned integers that sort in the same way. Find those at the
        # ranks, and turn them back into values.
        keys = keys_at_ranks(self._key_chunks, [0, *ranks_of_quantiles, last_rank])
        minimum, *quantiles, maximum = values_of_keys(np.array(keys), self.column.dtype).tolist()
        return NumberStatistics(
            minimum,
            maximum,
            quantiles=dict(zip(QUANTILES, quantiles, strict=True)),
            bins=histogram(partial(self._weighed_chunks, tokens)),
        )

    def _key_chunks(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the keys of all values in chunks."""
        keys = self.column.keys()
        faults = self.column.faults()
        for start in range(0, len(keys), CHUNK_DOCUMENTS):
            chunk = slice(start, start + CHUNK_DOCUMENTS)
            yield keys[chunk][faults[chunk] == 0]

    def _weighed_chunks(self, tokens: NDArray[np.int32]) -> Iterator[WeighedValues]:
        """Yield all values in chunks, with the documents and tokens of each, for a histogram.

        For example, documents with 9, 20 and 7 tokens have the values 0.5, null and 2.0: a chunk
        has the values [0.5, 2.0], which count for [1, 1] documents and [9, 7] tokens.

        Args:
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        keys = self.column.keys()  # (n_documents,) values as unsigned integers in the same order
        faults = self.column.faults()  # (n_documents,) 0, or why there is no value
        for start in range(0, len(keys), CHUNK_DOCUMENTS):
            chunk = slice(start, start + CHUNK_DOCUMENTS)
            has_value = faults[chunk] == 0
            values = values_of_keys(keys[chunk][has_value], self.column.dtype)
            documents = np.ones(len(values), np.int64)
            tokens_of_values = tokens[chunk][has_value].astype(np.int64)
            yield WeighedValues(values, [documents, tokens_of_values])
