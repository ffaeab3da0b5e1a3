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
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.column_sources import built_columns
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.scratch_arrays import ScratchArray
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, current_version, require
from nanoset_core.stages.views.budgets import CHUNK_DOCUMENTS
from nanoset_core.stages.views.ranked_column import RankedColumn
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
    columns_of_other_tables = [name for name in names if name not in DOCUMENT_COLUMNS]
    scan = DocumentScan({TOKENS_COLUMN, *names})  # the tokens of each value are counted, too
    with tempfile.TemporaryDirectory(prefix="nanoset-columns-") as scratch:
        reading = ColumnReading(names, Path(scratch), n_values)
        for shard in tokenized_shards(project, corpus, tokenized, columns_of_other_tables):
            for batch in scan.batches(shard.relation):
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
    requested = project.config.documents_of(corpus).columns  # such as ["lang", "url"]
    unbuilt = [name for name in requested if name not in built]
    if _has_unread_tables(project, corpus):
        unbuilt.append(f"attributes of {corpus}")
    return unbuilt


def _has_unread_tables(project: Project, corpus: str) -> bool:
    """Return whether further tables of a text collection, such as scores, have not been read yet.

    The settings name the files of these tables. Which columns they have is not known before a build
    has read them.

    Args:
        project: Its nanoset.yaml may name such tables, in the section `attributes`.
        corpus: Name of the text collection.
    """
    if corpus not in project.config.attributes:
        return False
    version = current_version(project, ATTRIBUTES, Key(corpus))
    return version.manifest is None


def _check_corpus(project: Project, name: str) -> None:
    """Check that a text collection (corpus) of a name has been tokenized.

    Args:
        project: Its output folder has a folder for each tokenized corpus.
        name: The name that the user gave.

    Raises:
        ConfigError: There is no such corpus. The error suggests a similar name.
    """
    outputs = project.outputs
    corpora = outputs.names(TOKENIZED.layout.folder)
    if name in corpora:
        return

    folder = outputs.folder / TOKENIZED.layout.folder / name
    raise ConfigError(
        "no such corpus, or it is not tokenized yet",
        where=outputs.access.url(folder),
        found=repr(name),
        expected=one_of(corpora, "a built corpus; there is none yet"),
        remedy=_remedy_for_corpus(project.config, name, corpora),
    )


def _remedy_for_corpus(config: ProjectConfig, name: str, corpora: Collection[str]) -> str:
    """Return what a user can do who has asked for the columns of an unknown text collection.

    The name may be that of a selection of documents, which has no columns of its own. Then the
    remedy is to ask for the collection from which the documents were selected.

    Args:
        config: The settings of the project.
        name: The name that the user gave.
        corpora: Names of the text collections (corpora) that exist.
    """
    if name in config.derived:
        corpus = base_of(config.derived, name)
        return f"its documents have the columns of its corpus: run `nanoset columns {corpus}`"

    remedy = "run `nanoset build` first"
    if corpora:
        remedy = f"name one of these, or {remedy}"
    return remedy_for_name(name, corpora, remedy)


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

    def statistics(self, name: str) -> ColumnStatistics:
        """Return the statistics of all values that were added.

        Args:
            name: Name of the column.
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
        if not self._readers:
            self._create_readers(arrays)
        tokens = arrays[TOKENS_COLUMN].to_numpy()  # (n_documents,)
        self._tokens.append(tokens)
        for name, reader in self._readers.items():
            reader.add(arrays[name], tokens)

    def _create_readers(self, arrays: Mapping[str, Any]) -> None:
        """Create an object for each column that computes statistics, as the type of it requires.

        Args:
            arrays: Name of each column → Arrow array with the values of the first documents.
        """
        for number, name in enumerate(self._names):
            scratch_file = self._scratch / str(number)  # a name may not be a valid file name
            self._readers[name] = self._reader_for_type(arrays[name].type, scratch_file)

    def _reader_for_type(self, arrow_type: Any, scratch_file: Path) -> _ColumnReader:
        """Return an object that collects the statistics of a column while its values are read.

        Which statistics make sense depends on the type of the column:

            numbers              minimum, maximum, quantiles and a histogram. These need all values
                                 in order, so the values are written to a scratch file.
            texts and booleans   the most frequent values, which are counted while they are read.

        Args:
            arrow_type: The type of the column, an Arrow type such as int64, bool or large_string.
            scratch_file: Where the values of a column of numbers can be written.
        """
        from pyarrow import types

        type_name = str(arrow_type).removeprefix("large_")  # DuckDB returns texts as large_string
        is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type)
        if is_number:
            return _NumberReader(type_name, RankedColumn(scratch_file), self._tokens)
        return _TextReader(type_name, FrequentValues(self._n_values))

    def statistics(self) -> list[ColumnStatistics]:
        """Return the statistics of all columns; none if the corpus has no document."""
        return [reader.statistics(name) for name, reader in self._readers.items()]


class _TextCounts(NamedTuple):
    """How often the texts of some documents occur."""

    texts: Any
    """The distinct texts, an Arrow array of n_texts."""
    documents: NDArray[np.int64]
    """Documents with each text, shape (n_texts,)."""
    tokens: NDArray[np.int64]
    """How many tokens these documents have together, shape (n_texts,)."""
    null_documents: int
    """Documents without a text."""
    null_tokens: int
    """How many tokens these have together."""

    def text(self, index: int) -> str:
        """Return a distinct text, such as "en" for 0."""
        return str(self.texts[index].as_py())


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
    texts, numbers = _number_texts(array)  # ["en", "de"] and [0, 2, 1, 0]
    n_counts = len(texts) + 1  # null is counted, too
    document_counts = np.bincount(numbers, minlength=n_counts)  # [2, 1, 1]
    token_counts = np.bincount(numbers, weights=tokens, minlength=n_counts)  # [12.0, 7.0, 5.0]
    return _TextCounts(
        texts,
        documents=document_counts[:-1],
        tokens=token_counts[:-1].astype(np.int64),
        null_documents=int(document_counts[-1]),
        null_tokens=int(token_counts[-1]),
    )


def _number_texts(array: Any) -> tuple[Any, NDArray[np.int32]]:
    """Number the distinct values of a column, in the order in which they first occur.

    For example, ["en", null, "de", "en"] gives the distinct texts ["en", "de"], and the numbers
    [0, 2, 1, 0]: null has the number after those of the texts.

    Args:
        array: The values, an Arrow array of texts or booleans, of n_documents.

    Returns:
        The distinct texts, an Arrow array; and the number of each document's text, int32 of shape
        (n_documents,).
    """
    import pyarrow as pa

    encoded = array.cast(pa.large_string()).dictionary_encode()
    null_number = len(encoded.dictionary)
    numbers = encoded.indices.fill_null(null_number).to_numpy(zero_copy_only=False)
    return encoded.dictionary, numbers


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
        counts = _count_texts(array, tokens)
        self.n_documents += len(array)
        self.nulls += counts.null_documents
        self.null_tokens += counts.null_tokens

        # A column may have more distinct texts than memory can hold. So count hashes of the texts.
        hashes = hash_texts(counts.texts)
        self.distinct.add(hashes)
        self.frequent.add(hashes, counts.documents, counts.tokens, counts.text)

    def statistics(self, name: str) -> ColumnStatistics:
        """Return the statistics of a column of texts, after all of its values were read.

        Args:
            name: Name of the column.
        """
        return ColumnStatistics(
            name,
            self.type,
            nulls=self.nulls,
            null_tokens=self.null_tokens,
            nans=0,  # only numbers can be NaN
            distinct=_count_distinct(self.distinct, self.n_documents - self.nulls),
            is_distinct_exact=self.distinct.is_exact,
            values=self.frequent.most_frequent(),
            uncounted=self.frequent.error,
        )


def _count_distinct(distinct: DistinctCounter, n_values: int) -> int:
    """Return how many distinct values a column has.

    Many distinct values are not counted exactly, but estimated by their hashes. The estimate may be
    too high, but there are at most as many as values.

    Args:
        distinct: Has counted the hashes of the values.
        n_values: How many documents have a value.
    """
    return min(distinct.count, n_values)


@dataclass(slots=True)
class _NumberReader:
    """Collects the statistics of a column of numbers."""

    type: str
    column: RankedColumn
    """All values, in scratch files."""
    tokens: ScratchArray
    """How many tokens each document has. This array is complete before `statistics` is called."""
    distinct: DistinctCounter = field(default_factory=DistinctCounter)
    nulls: int = 0
    null_tokens: int = 0
    nans: int = 0
    n_numbers: int = 0
    """Documents with a value that is not NaN."""

    def add(self, array: Any, tokens: NDArray[np.int32]) -> None:
        """Add the next documents to the statistics of a column of numbers, such as their scores.

        Args:
            array: The numbers, an Arrow array, which may have nulls and NaN.
            tokens: How many tokens each document has, shape (n_documents,).
        """
        self.column.append(array)  # this also decides whether the column is int64 or float64
        numbers = self._numbers_of(array)
        self.distinct.add(_hash_numbers(numbers))
        self.n_numbers += len(numbers)
        self.nulls += array.null_count
        self.nans += len(array) - array.null_count - len(numbers)
        self.null_tokens += _tokens_of_nulls(array, tokens)

    def _numbers_of(self, array: Any) -> NDArray[np.int64 | np.float64]:
        """Return the numbers of an Arrow array, without nulls and NaN.

        For example, [0.7, null, NaN, 0.2] gives [0.7, 0.2].

        Args:
            array: An Arrow array of integers or floats.

        Returns:
            Shape (n_numbers,), with the type of the column: int64 or float64.
        """
        import pyarrow as pa

        arrow_type = pa.from_numpy_dtype(self.column.dtype)
        values = array.drop_null().cast(arrow_type).to_numpy()
        numbers: NDArray[np.int64 | np.float64] = values[~np.isnan(values)]
        return numbers

    def statistics(self, name: str) -> ColumnStatistics:
        """Return the statistics of a column of numbers, after all of its values were read.

        For example, of four documents in which the column `score` is [0.7, null, NaN, 0.2]: one
        null, one NaN, two distinct values, the minimum 0.2 and so on.

        Args:
            name: Name of the column.
        """
        return ColumnStatistics(
            name,
            self.type,
            nulls=self.nulls,
            null_tokens=self.null_tokens,
            nans=self.nans,
            distinct=_count_distinct(self.distinct, self.n_numbers),
            is_distinct_exact=self.distinct.is_exact,
            numbers=self._distribution() if self.n_numbers > 0 else None,
        )

    def _distribution(self) -> NumberStatistics:
        """Return minimum, maximum, quantiles and histogram of a column with at least one number.

        The histogram counts the documents in each range of numbers, and also their tokens. The
        numbers are in a file, since they may not fit into memory. So they cannot be sorted.
        """
        last_rank = self.n_numbers - 1
        ranks = [0, *_ranks_of_quantiles(last_rank), last_rank]
        minimum, *quantiles, maximum = self._numbers_at_ranks(ranks)
        return NumberStatistics(
            minimum,
            maximum,
            quantiles=dict(zip(QUANTILES, quantiles, strict=True)),
            bins=histogram(self._weighed_chunks),
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

    def _weighed_chunks(self) -> Iterator[WeighedValues]:
        """Yield the numbers of a column in chunks, with the weights that they have in a histogram.

        The histogram shows how many documents have a number in a range, and how many tokens. So
        each number has two weights: one document, and the tokens of this document. Documents
        without a number are left out:

            score                  0.5    null   2.0
            tokens                 9      20     7
            result: numbers        0.5           2.0
            weights (documents)    1             1
            weights (tokens)       9             7
        """
        tokens = self.tokens.mapped()  # (n_documents,)
        keys = self.column.keys()  # (n_documents,) the numbers, stored as unsigned integers
        faults = self.column.faults()  # (n_documents,) 0 for a document with a number
        for start in range(0, len(keys), CHUNK_DOCUMENTS):
            chunk = slice(start, start + CHUNK_DOCUMENTS)
            has_number = faults[chunk] == 0
            numbers = values_of_keys(keys[chunk][has_number], self.column.dtype)
            document_weights = np.ones(len(numbers), np.int64)
            token_weights = tokens[chunk][has_number].astype(np.int64)
            yield WeighedValues(numbers, [document_weights, token_weights])


def _hash_numbers(numbers: NDArray[np.int64 | np.float64]) -> NDArray[np.uint64]:
    """Return a hash of each number, by which distinct numbers can be counted.

    Args:
        numbers: The numbers, shape (n_numbers,), without NaN.

    Returns:
        Shape (n_numbers,). Each number becomes an unsigned integer whose bits are mixed, so that
        the hashes look random. 0.0 and -0.0 have the same hash.
    """
    return mix(order_keys(numbers))


def _tokens_of_nulls(array: Any, tokens: NDArray[np.int32]) -> int:
    """Return how many tokens the documents without a value have together.

    Args:
        array: The values, an Arrow array of n_documents.
        tokens: How many tokens each document has, shape (n_documents,).
    """
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    return int(tokens[is_null].sum(dtype=np.int64))


def _ranks_of_quantiles(last_rank: int) -> list[int]:
    """Return the place that each quantile in `QUANTILES` has among the numbers in ascending order.

    For example, of 101 numbers, the last one has rank 100, the quantile "0.05" has rank 5, and the
    median has rank 50.

    Args:
        last_rank: The rank of the greatest number; that of the smallest one is 0.
    """
    # A Fraction of a text such as "0.05" is exact, unlike the float 0.05.
    return [int(Fraction(quantile) * last_rank) for quantile in QUANTILES]
