"""Formats of exports that share the tokens of a dataset, and the list of all formats.

The file of tokens of these formats has the bytes of the dataset's .bin, so that it can be a link.
Small files next to it say where documents end.

The layouts are those of these versions:

- datatrove 0.10.1: `pipeline/tokens/tokenizer.py` (TokenizedFile) and `utils/dataset.py`.
- OLMo-core 3.0.0: `data/utils.py` (write_document_indices, iter_document_indices) and
  `data/numpy_dataset.py` (get_dtype).
"""

from __future__ import annotations

import gzip
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.stages.exports.samples import LitData, Mds, SampledFormat
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    import pyarrow.csv as csv


class LinkedFormat(ExportFormat):
    """A format whose file of tokens can be a link to that of the dataset."""

    endings: ClassVar[tuple[str, ...]]
    """Endings of the files of an export; the first one is that of the tokens."""

    def files(self, name: str) -> list[str]:
        """Return the names of the files of an export, with the file of tokens first.

        Args:
            name: Name of the export's files, without the ending.

        Returns:
            For datatrove, "web" gives `["web.ds", "web.ds.index", "web.ds.metadata"]`.
        """
        return [f"{name}{ending}" for ending in self.endings]

    @abstractmethod
    def write_small_files(
        self, folder: Path, name: str, dataset: DatasetTraits, ends: Iterable[NDArray[np.uint64]]
    ) -> int:
        """Write the small files of an export.

        Args:
            folder: Where to write them.
            name: Name of the export's files, without the ending.
            dataset: Properties of the dataset.
            ends: End of each document that has tokens: the number of the token after its last one.
                Ascending, in chunks of shape (n_documents,).

        Returns:
            The number of documents.
        """


class Datatrove(LinkedFormat):
    """The format `.ds`, which datatrove's `DatatroveFileDataset` and nanotron's main read."""

    name = "datatrove"
    reader = "datatrove"
    endings = (".ds", ".ds.index", ".ds.metadata")

    def _check_dtype(self, dataset: DatasetTraits) -> None:
        if dataset.dtype not in (np.uint16, np.int32, np.uint32):
            raise self.refused(
                dataset,
                found=f"tokens of type {dataset.dtype.name}",
                expected="uint16, int32 or uint32",
                remedy="tokenize the text again with `nanoset tokenize`, which gives such tokens",
            )

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python that open an export with datatrove."""
        size = np.dtype(facts["dtype"]).itemsize
        return (
            "from datatrove.utils.dataset import DatatroveFolderDataset\n"
            "DatatroveFolderDataset(\n"
            f"    {folder!r},\n"
            f"    seq_len=2048, token_size={size}, return_positions=True,\n"
            ")"
        )

    def write_small_files(
        self, folder: Path, name: str, dataset: DatasetTraits, ends: Iterable[NDArray[np.uint64]]
    ) -> int:
        """Write the two small files next to the tokens, by which datatrove and nanotron read them.

        Datatrove is a library whose format has three files. web.ds has the tokens. For documents of
        812 and 95 tokens, the others are:

            web.ds.index       812, 907: the end of each document, as uint64
            web.ds.metadata    three lines:
                               gpt2|2     the tokenizer's name, and the bytes of a token
                               907        the number of tokens
                               907 T      the same, for people; such as 12.3 kT for 12345

        Args:
            folder: Where to write the files.
            name: Name of the files without the ending, such as "web".
            dataset: Properties of the dataset.
            ends: End of each document: the number of the token after its last one. In chunks of
                shape (n_documents,).

        Returns:
            The number of documents.
        """
        n_documents = 0
        with (folder / f"{name}.ds.index").open("wb") as file:
            for chunk in ends:
                file.write(chunk.astype("<u8").data)
                n_documents += len(chunk)
        (folder / f"{name}.ds.metadata").write_text(_metadata(dataset), encoding="utf-8")
        return n_documents


def _metadata(dataset: DatasetTraits) -> str:
    """Return the contents of the .ds.metadata of an export of a dataset."""
    token_bytes = dataset.dtype.itemsize
    tokenizer = dataset.tokenizer
    if not tokenizer:
        # datatrove writes the bytes of a token twice in this case: "Unknown Tokenizer|2|2".
        tokenizer = f"Unknown Tokenizer|{token_bytes}"
    return f"{tokenizer}|{token_bytes}\n{dataset.tokens}\n{_metric(dataset.tokens)}"


_METRIC_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
"""Prefixes of the powers of 1,000: k for 1,000, M for 1,000,000, and so on."""


def _metric(count: int) -> str:
    """Shorten a count of tokens to three digits and a metric prefix, for a file that people read.

        907         → "907 T"
        12,345      → "12.3 kT"
        9,999       → "10.0 kT"

    Datatrove writes this text to its files. It equals `humanize.metric(count, unit="T")`.

    Args:
        count: The number of tokens, at least 1.
    """
    n_digits = math.floor(math.log10(count)) + 1  # 5 for 12,345
    scale = _scale_of(n_digits)  # thousands with 1 decimal

    # Rounding may give one digit more: 9,999 is not 10.00 k, which has four digits, but 10.0 k. And
    # 999,999 is not 1000 k, but 1.00 M. Then write the count as one with more digits.
    rounded = round(count / scale.unit, scale.decimals)
    if rounded * scale.unit >= 10**n_digits:
        scale = _scale_of(n_digits + 1)
    return f"{count / scale.unit:.{scale.decimals}f} {scale.prefix}T"


class _Scale(NamedTuple):
    """How a number is written with three digits."""

    unit: int
    """The number is divided by this power of 1,000."""
    prefix: str
    """The metric prefix of this power."""
    decimals: int
    """Number of digits after the decimal point."""


def _scale_of(n_digits: int) -> _Scale:
    """Return how a whole number is written with three digits.

        digits of the number    1      2      3     4       5       6      7
        as in                   1.23   12.3   123   1.23 k  12.3 k  123 k  1.23 M

    Args:
        n_digits: Number of digits of the number.
    """
    power = (n_digits - 1) // 3
    digits_before_point = n_digits - 3 * power
    return _Scale(
        unit=1000**power, prefix=_METRIC_PREFIXES[power], decimals=3 - digits_before_point
    )


class OlmoCore(LinkedFormat):
    """The format of OLMo-core's `NumpyDatasetConfig`.

    It consists of a `.npy` without a header, and a `.csv.gz` of the documents.
    """

    name = "olmo-core"
    reader = "OLMo-core"
    endings = (".npy", ".csv.gz")

    def _check_dtype(self, dataset: DatasetTraits) -> None:
        """Check that OLMo-core would read the tokens of a dataset with the right number of bytes.

        Its files of tokens do not say how many bytes a token has. OLMo-core computes it from the
        number of ids in the vocabulary, and would read nonsense if that were wrong:

            ids in the vocabulary    bytes of a token
            up to 256                1
            up to 65,536             2
            more                     4

        Args:
            dataset: Properties of the dataset, such as the type of its tokens. If the size of the
                vocabulary is not known, only the type is checked.

        Raises:
            ConfigError: The tokens have another size, or are not whole numbers.
        """
        # Ids are not negative, so the bytes of int32 are those of uint32.
        if dataset.dtype not in (np.uint8, np.uint16, np.uint32, np.int32):
            raise self.refused(
                dataset,
                found=f"tokens of type {dataset.dtype.name}",
                expected="uint8, uint16, uint32 or int32",
                remedy="tokenize the text again with `nanoset tokenize`, which gives such tokens",
            )
        if dataset.vocab_size is None:
            return  # see `unchecked`

        token_bytes = dataset.dtype.itemsize
        needed_bytes = _unsigned_bytes(dataset.vocab_size)
        if token_bytes == needed_bytes:
            return
        if token_bytes < needed_bytes:
            remedy = "name the tokenizer that made the tokens"
        else:
            # `nanoset tokenize` follows Megatron-LM's rule, by which no preset gives fewer bytes.
            remedy = "link the .bin as a .npy yourself, and name its type in OLMo-core (dtype)"
        raise self.refused(
            dataset,
            found=f"{format_count(token_bytes, 'byte')} a token",
            expected=f"{format_count(needed_bytes, 'byte')}, by its vocabulary of "
            f"{format_count(dataset.vocab_size, 'token')}",
            remedy=remedy,
        )

    def unchecked(self, dtype: np.dtype) -> str:
        """Say for which vocabularies OLMo-core reads tokens of a type with the right size."""
        vocabularies = {1: "up to 256", 2: "257 to 65,536", 4: "more than 65,536"}
        return (
            "the size of the vocabulary is not known without --tokenizer: OLMo-core reads these "
            f"tokens of {format_count(dtype.itemsize, 'byte')} only if it has "
            f"{vocabularies[dtype.itemsize]} tokens"
        )

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python that open an export with OLMo-core."""
        path = f"{folder}/{name}.npy"
        return (
            "from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig\n"
            "NumpyFSLDatasetConfig(\n"
            f"    paths=[{path!r}],\n"
            "    sequence_length=2048, tokenizer=TokenizerConfig(…),\n"
            ")"
        )

    def write_small_files(
        self, folder: Path, name: str, dataset: DatasetTraits, ends: Iterable[NDArray[np.uint64]]
    ) -> int:
        """Write the small file by which OLMo-core finds the documents in a file of tokens.

        It is a compressed CSV file with a line for each document: the number of its first token,
        and that of the token after its last one. For documents of 812, 95 and 3 tokens:

            0,812
            812,907
            907,910

        Args:
            folder: Where to write the file.
            name: Name of the export's files, without the ending.
            dataset: Properties of the dataset.
            ends: End of each document, such as [812, 907, 910], in chunks of shape (n_documents,).

        Returns:
            The number of documents.
        """
        # Imported here: every command imports this module, but few of them write exports.
        import pyarrow as pa

        columns = ["start", "end"]
        previous_end = 0
        n_documents = 0
        with _csv_gz_writer(folder / f"{name}.csv.gz", columns) as writer:
            for chunk in ends:
                starts = np.concatenate([[previous_end], chunk[:-1]]).astype(np.uint64)
                writer.write_table(pa.table([starts, chunk], names=columns))
                previous_end = int(chunk[-1])
                n_documents += len(chunk)
        return n_documents


@contextmanager
def _csv_gz_writer(path: Path, columns: Sequence[str]) -> Iterator[csv.CSVWriter]:
    """Write tables of numbers to a compressed CSV file, while the context is open.

        with _csv_gz_writer(path, ["start", "end"]) as writer:
            writer.write_table(table)

    The CSV has no header, since OLMo-core reads it without one:

        0,812
        812,907

    Args:
        path: Path of the file.
        columns: Names of the columns of the tables, which all have the type uint64.
    """
    import pyarrow as pa
    import pyarrow.csv as csv

    schema = pa.schema([(column, pa.uint64()) for column in columns])
    options = csv.WriteOptions(include_header=False)
    with (
        path.open("wb") as file,
        # No file name and no time, so that the same tables give the same bytes.
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as compressed,
        csv.CSVWriter(compressed, schema, write_options=options) as writer,
    ):
        yield writer


def _unsigned_bytes(vocab_size: int) -> int:
    """Return the size in bytes of the smallest unsigned type that holds all ids of a vocabulary."""
    for size in (1, 2, 4):
        if vocab_size <= 1 << 8 * size:
            return size
    return 8


FORMATS: dict[str, LinkedFormat | SampledFormat] = {
    export_format.name: export_format
    for export_format in (Datatrove(), OlmoCore(), Mds(), LitData())
}
"""Name of each format → the format."""
