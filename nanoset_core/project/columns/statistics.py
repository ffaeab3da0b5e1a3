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
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.scan import TOKENS_COLUMN, DocumentScan
from nanoset_core.errors import ConfigError, one_of, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.column_sources import built_columns
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.scratch_arrays import ScratchArray
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, current_version, require
from nanoset_core.stages.views.budgets import CHUNK_DOCUMENTS
from nanoset_core.stages.views.ranked_column import NAN, NULL, RankedColumn
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.tables import DOCUMENT_COLUMNS, tokenized_shards
from nanoset_core.statistics.distinct import DistinctCounter
from nanoset_core.statistics.frequent import FrequentValue, FrequentValues
from nanoset_core.statistics.hashing import hash_texts, mix
from nanoset_core.statistics.histogram import Bin, WeighedValues, histogram
from nanoset_core.statistics.ranks import keys_at_ranks, order_keys, values_of_keys

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
    """Compute statistics of the columns of a tokenized corpus, for `nanoset columns`.

    A corpus is a collection of texts. Its documents have columns, which users need to select or to
    mix documents by. They see here, for example, that the column `lang` is "en" in 80 % of the
    documents, or that the median of the column `score` is 0.7.

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
    tokenized = require(project, TOKENIZED, Key(corpus))  # the present build of the tokens

    # Every document has some columns, such as `file`. Other columns are requested by nanoset.yaml.
    # Some of these may not exist yet, because they were requested after the last build.
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
    """Read some columns of all documents of a text collection once, and return their statistics.

    Args:
        project: Its output folder has tables with a row for each document.
        corpus: Name of the collection.
        tokenized: Describes the present build of its tokens, which lists the shards: the pieces in
            which the text was tokenized. Each shard has its own tables.
        names: The columns to read.
        n_values: How many of the most frequent values to report.
    """
    n_documents = int(tokenized.facts["documents"])
    work = project.progress.work(ACTIVITY, corpus, n_documents)
    # Columns such as a score are in tables of their own, which are joined to that of the documents.
    further_columns = [name for name in names if name not in DOCUMENT_COLUMNS]
    # Always read the number of tokens of each document: tokens of each value are counted, too.
    scan = DocumentScan({TOKENS_COLUMN, *names})
    with tempfile.TemporaryDirectory(prefix="nanoset-columns-") as scratch:
        reading = ColumnReading(names, Path(scratch), n_values)  # collects the statistics
        for shard in tokenized_shards(project, corpus, tokenized, further_columns):
            for batch in scan.batches(shard.relation):  # some rows at a time
                reading.add(batch.columns)
                work.advance(len(batch.rows))
        return reading.statistics()


def _unbuilt_columns(project: Project, corpus: str, built: Collection[str]) -> list[str]:
    """Return the columns that the settings request, but that no build has made yet.

    Args:
        project: Its nanoset.yaml has the settings.
        corpus: Name of the text collection.
        built: Names of the columns that exist.

    Returns:
        Names of columns, such as ["lang"]; and "attributes of web" if further tables for the
        collection `web` have not been read yet.
    """
    # Keys of the JSON lines, as in `documents.columns: [lang]`.
    requested = project.config.documents_of(corpus).columns
    unbuilt = [name for name in requested if name not in built]

    # Columns of other tables, such as another team's scores. Which columns these have is not known
    # before they are built.
    has_tables = corpus in project.config.attributes
    if has_tables:
        version = current_version(project, ATTRIBUTES, Key(corpus))
        if version.manifest is None:
            unbuilt.append(f"attributes of {corpus}")
    return unbuilt


def _check_corpus(project: Project, name: str) -> None:
    """Check that a text collection (corpus) of a name has been tokenized.

    Args:
        project: Its output folder has a folder for each tokenized corpus.
        name: The name that the user gave.

    Raises:
        ConfigError: There is no such corpus. The error suggests a similar name.
    """
    outputs = project.outputs
    folder = outputs.folder / TOKENIZED.layout.folder
    corpora = outputs.names(TOKENIZED.layout.folder)
    if name in corpora:
        return

    if name in project.config.derived:
        # It is a selection of the documents of a corpus, and has no columns of its own.
        corpus = base_of(project.config.derived, name)
        remedy = f"its documents have the columns of its corpus: run `nanoset columns {corpus}`"
    else:
        remedy = "run `nanoset build` first"
        if corpora:
            remedy = f"name one of these, or {remedy}"
        remedy = remedy_for_name(name, corpora, remedy)
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
    """Check the names of columns that the user gave. There are three cases:

        file      every document has this column, so it exists
        score     it is in the settings and was built, or was not built yet: "run `nanoset build`"
        scoer     no such column: "did you mean score?"

    Args:
        project: The project, whose nanoset.yaml the error names.
        names: The names to check.
        built: Columns that were built, in addition to those that every document has.
        unbuilt: Columns that are in the settings, but were not built yet.

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
        """Prepare to read the documents of a text collection, of which none was read so far.

        Args:
            names: The columns to compute statistics of, such as ["lang", "score"].
            scratch: An empty folder for scratch files, since a column of numbers may not fit into
                memory. The caller deletes it.
            n_values: How many of the most frequent values to report, of columns of texts.
        """
        self._names = names
        self._scratch = scratch
        self._n_values = n_values
        self._tokens = ScratchArray(scratch / "tokens", np.int32)
        self._readers: dict[str, _ColumnReader] = {}  # filled when the types are known

    def add(self, arrays: Mapping[str, Any]) -> None:
        """Add the next documents of a text collection to the statistics of its columns.

        For example, for two documents and the columns `lang` and `score`:

            {"lang": ["en", "de"], "score": [0.7, 0.2], "tokens": [31, 12]}

        Args:
            arrays: Name of each column → Arrow array with the values of these documents. The number
                of tokens of each document is always among the columns.
        """
        tokens = arrays[TOKENS_COLUMN].to_numpy()  # (n_documents,)
        self._tokens.append(tokens)
        for number, name in enumerate(self._names):
            values = arrays[name]
            if name not in self._readers:
                # These are the first documents. They show the type of the column, on which depends
                # how its statistics are computed.
                scratch_file = self._scratch / str(number)  # a name may not be a valid file name
                self._readers[name] = _reader_for_type(values.type, scratch_file, self._n_values)
            self._readers[name].add(values, tokens)

    def statistics(self) -> list[ColumnStatistics]:
        """Return the statistics of all columns; none if the corpus has no document."""
        tokens = self._tokens.mapped()
        return [reader.statistics(name, tokens) for name, reader in self._readers.items()]


def _reader_for_type(arrow_type: Any, scratch_file: Path, n_values: int) -> _ColumnReader:
    """Return an object that collects the statistics of a column while its values are read.

    Which statistics make sense depends on the type of the column:

        numbers              minimum, maximum, quantiles and a histogram. These need all values in
                             order, so the values are written to a scratch file, since a column may
                             not fit into memory.
        texts and booleans   the most frequent values, which are counted while they are read.

    Args:
        arrow_type: The type of the column, an Arrow type such as int64, bool or large_string.
        scratch_file: Where the values of a column of numbers can be written.
        n_values: How many of the most frequent texts to report.
    """
    from pyarrow import types

    type_name = str(arrow_type).removeprefix("large_")  # DuckDB returns texts as large_string
    is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type)
    if is_number:
        return _NumberReader(type_name, RankedColumn(scratch_file))
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
    """Count the documents, and their tokens, of each distinct value of a column. For example:

        value               "en"   null   "de"   "en"
        tokens              9      5      7      3

    gives

        texts               "en"   "de"   (null)
        documents           2      1      1
        tokens              12     7      5

    Args:
        array: The values, an Arrow array of texts or booleans, of n_documents.
        tokens: How many tokens each document has, shape (n_documents,).
    """
    import pyarrow as pa

    # Arrow numbers the distinct texts: "en" is 0 and "de" is 1. Give null the next number.
    encoded = array.cast(pa.large_string()).dictionary_encode()
    texts = encoded.dictionary  # ["en", "de"]
    null_number = len(texts)  # 2
    # (n_documents,) number of each document's text: [0, 2, 1, 0]
    numbers = encoded.indices.fill_null(null_number).to_numpy(zero_copy_only=False)

    # Count how often each number occurs: once for each document, and once for each token.
    n_counts = null_number + 1
    documents = np.bincount(numbers, minlength=n_counts)  # [2, 1, 1]
    token_counts = np.bincount(numbers, weights=tokens, minlength=n_counts)  # [12.0, 7.0, 5.0]
    return _TextCounts(texts, documents, token_counts.astype(np.int64))


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
        """Add the next documents to the statistics of a column of texts, such as their languages.

        For example, "en" has 2 documents and 12 tokens here, and null (no language) has 1 and 5:

            language    "en"   null   "de"   "en"
            tokens      9      5      7      3

        Args:
            array: The texts, an Arrow array. A column of booleans is counted as the texts "true"
                and "false".
            tokens: How many tokens each document has, shape (n_documents,).
        """
        counts = _count_texts(array, tokens)  # how often each text occurs, and at last null
        self.n_documents += len(array)
        self.nulls += int(counts.documents[-1])
        self.null_tokens += int(counts.tokens[-1])

        # A column may have more distinct texts than memory can hold. So count hashes of the texts.
        hashes = hash_texts(counts.texts)
        self.distinct.add(hashes)

        # Keep the counts of frequent texts. Only for these, the text itself is needed.
        def text_of(index: int) -> str:
            """Return a distinct text, such as "en" for 0."""
            return str(counts.texts[index].as_py())

        self.frequent.add(hashes, counts.documents[:-1], counts.tokens[:-1], text_of)

    def statistics(self, name: str, tokens: NDArray[np.int32]) -> ColumnStatistics:
        """Return the statistics of a column of texts, after all of its values were read.

        Args:
            name: Name of the column.
            tokens: Not used: `add` has counted the tokens. Columns of numbers have the same method,
                and need them there.
        """
        # If there are many distinct values, their number is an estimate, which may be too high. But
        # it cannot be higher than the number of documents with a value.
        n_documents_with_value = self.n_documents - self.nulls
        n_distinct = min(self.distinct.count, n_documents_with_value)
        return ColumnStatistics(
            name,
            self.type,
            nulls=self.nulls,  # documents without a value
            null_tokens=self.null_tokens,  # the tokens of these documents
            nans=0,  # only numbers can be NaN
            distinct=n_distinct,
            is_distinct_exact=self.distinct.is_exact,
            values=self.frequent.most_frequent(),
            # Memory is limited, so some rare values may not have been counted. Such a value has at
            # most this many documents; 0 if all values were counted.
            uncounted=self.frequent.error,
        )


@dataclass(slots=True)
class _NumberReader:
    """Collects the statistics of a column of numbers."""

    type: str
    column: RankedColumn
    distinct: DistinctCounter = field(default_factory=DistinctCounter)

    def add(self, array: Any, tokens: NDArray[np.int32]) -> None:
        """Add the next documents to the statistics of a column of numbers, such as their scores.

        Args:
            array: The numbers, an Arrow array, which may have nulls and NaN.
            tokens: Not used. Columns of texts have the same method, and need the tokens there.
        """
        # Most statistics, such as the median, need all numbers. Write them to a file until then.
        self.column.append(array)  # this also decides whether the column is int64 or float64
        self.distinct.add(self._hashes_of_numbers(array))

    def _hashes_of_numbers(self, array: Any) -> NDArray[np.uint64]:
        """Return a hash of each number, to count the distinct ones, without nulls and NaN.

        Args:
            array: The numbers, an Arrow array.

        Returns:
            Shape (n_numbers,). 0.0 and -0.0 have the same hash.
        """
        import pyarrow as pa

        arrow_type = pa.from_numpy_dtype(self.column.dtype)
        numbers = array.drop_null().cast(arrow_type).to_numpy()
        if self.column.dtype is np.float64:
            numbers = numbers[~np.isnan(numbers)]
        # Turn each number into an unsigned integer, and mix its bits, so that all of them look
        # random.
        return mix(order_keys(numbers))

    def statistics(self, name: str, tokens: NDArray[np.int32]) -> ColumnStatistics:
        """Return the statistics of a column of numbers, after all of its values were read.

        For example, of four documents in which the column `score` is [0.7, null, NaN, 0.2]: one
        null, one NaN, two distinct values, the minimum 0.2 and so on.

        Args:
            name: Name of the column.
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        # (n_documents,) why a document has no number: NULL or NAN; 0 if it has one
        faults = self.column.faults()
        is_null = faults == NULL
        n_nulls = int(np.count_nonzero(is_null))
        null_tokens = int(tokens[is_null].sum(dtype=np.int64))
        n_nans = int(np.count_nonzero(faults == NAN))

        n_values = len(faults) - n_nulls - n_nans
        numbers = None
        if n_values > 0:
            numbers = self._distribution(n_values, tokens)  # minimum, quantiles and so on

        # Many distinct values are not counted exactly, but estimated by their hashes. The estimate
        # may be too high, but there are at most as many as values.
        n_distinct = min(self.distinct.count, n_values)
        return ColumnStatistics(
            name,
            self.type,
            nulls=n_nulls,
            null_tokens=null_tokens,
            nans=n_nans,
            distinct=n_distinct,
            is_distinct_exact=self.distinct.is_exact,
            numbers=numbers,
        )

    def _distribution(self, n_values: int, tokens: NDArray[np.int32]) -> NumberStatistics:
        """Return minimum, maximum, quantiles and histogram of the numbers in a column.

        The histogram counts the documents in each range of numbers, and also their tokens. The
        numbers are in a file, since they may not fit into memory. So they cannot be sorted.

        Args:
            n_values: How many documents have a number, at least one.
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        # The rank of a number is its place in ascending order. For 101 numbers, the minimum has
        # rank 0, the median rank 50, and the maximum rank 100.
        last_rank = n_values - 1
        # A Fraction of a text such as "0.05" is exact, unlike the float 0.05.
        ranks_of_quantiles = [int(Fraction(quantile) * last_rank) for quantile in QUANTILES]
        minimum, *quantiles, maximum = self._numbers_at_ranks([0, *ranks_of_quantiles, last_rank])

        def read_numbers() -> Iterator[WeighedValues]:
            """Read the numbers in chunks, each number with its document's count of tokens."""
            return self._weighed_chunks(tokens)  # `histogram` reads all of them twice

        return NumberStatistics(
            minimum,
            maximum,
            quantiles=dict(zip(QUANTILES, quantiles, strict=True)),
            bins=histogram(read_numbers),
        )

    def _numbers_at_ranks(self, ranks: Sequence[int]) -> list[Any]:
        """Return numbers of a column by their places in ascending order, without sorting them.

        For example, of the numbers 0.5, -3.0 and 2.0, those with the ranks [0, 2] are [-3.0, 2.0].

        Args:
            ranks: The places, counted from 0, in any order.
        """
        # In the file, each number is stored as an unsigned integer, its key. Smaller numbers have
        # smaller keys, so that negative numbers and floats need no treatment of their own here.
        # This reads the file several times.
        keys = keys_at_ranks(self._key_chunks, ranks)  # (n_ranks,)
        numbers: list[Any] = values_of_keys(np.array(keys), self.column.dtype).tolist()
        return numbers

    def _key_chunks(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the numbers of a column in chunks, each number as an unsigned integer, its key.

        A smaller number has a smaller key. Documents without a number are left out. In chunks,
        columns can be read that do not fit into memory.
        """
        keys = self.column.keys()  # (n_documents,)
        faults = self.column.faults()  # (n_documents,) 0 for a document with a number
        for start in range(0, len(keys), CHUNK_DOCUMENTS):
            chunk = slice(start, start + CHUNK_DOCUMENTS)
            has_number = faults[chunk] == 0
            yield keys[chunk][has_number]

    def _weighed_chunks(self, tokens: NDArray[np.int32]) -> Iterator[WeighedValues]:
        """Yield the numbers of a column in chunks, with the weights that they have in a histogram.

        The histogram shows how many documents have a number in a range, and how many tokens. So
        each number has two weights: one document, and the tokens of this document. Documents
        without a number are left out:

            score                  0.5    null   2.0
            tokens                 9      20     7
            result: numbers        0.5           2.0
            weights (documents)    1             1
            weights (tokens)       9             7

        Args:
            tokens: How many tokens each of all documents has, shape (n_documents,).
        """
        keys = self.column.keys()  # (n_documents,) the numbers, stored as unsigned integers
        faults = self.column.faults()  # (n_documents,) 0 for a document with a number
        for start in range(0, len(keys), CHUNK_DOCUMENTS):
            chunk = slice(start, start + CHUNK_DOCUMENTS)
            has_number = faults[chunk] == 0
            numbers = values_of_keys(keys[chunk][has_number], self.column.dtype)
            document_weights = np.ones(len(numbers), np.int64)
            token_weights = tokens[chunk][has_number].astype(np.int64)
            yield WeighedValues(numbers, [document_weights, token_weights])
