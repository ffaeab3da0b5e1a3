"""Formats whose file of tokens is that of the dataset, with small files next to it; and the list of
all formats.

Sources: datatrove 0.10.1 `pipeline/tokens/tokenizer.py` (TokenizedFile) and `utils/dataset.py`;
    OLMo-core 3.0.0
`data/utils.py` (write_document_indices, iter_document_indices) and `data/numpy_dataset.py`
(get_dtype).
"""

from __future__ import annotations

import gzip
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.stages.exports.samples import LitData, Mds, SampledFormat


class LinkedFormat(ExportFormat):
    """A file that has the bytes of the dataset's tokens, so that it can be a link, and small files
    next to it.
    """

    endings: ClassVar[tuple[str, ...]]
    """Of its files; that of the tokens is the first."""

    def files(self, name: str) -> list[str]:
        """Return the names of its files, that of the tokens first."""
        return [f"{name}{ending}" for ending in self.endings]

    @abstractmethod
    def write_beside(
        self, folder: Path, name: str, dataset: DatasetTraits, ends: Iterable[NDArray[np.uint64]]
    ) -> None:
        """Write the small files.

        Args:
            folder: Where to write them.
            name: Of the export's files.
            dataset: What the format knows of the dataset.
            ends: Number of the token after the last one of each document with tokens, ascending, in
                chunks.
        """


class Datatrove(LinkedFormat):
    """`.ds`, as datatrove's `DatatroveFileDataset` and nanotron's main read it."""

    name = "datatrove"
    reader = "datatrove"
    endings = (".ds", ".ds.index", ".ds.metadata")

    def _check_dtype(self, dataset: DatasetTraits) -> None:
        if dataset.dtype not in (np.uint16, np.int32, np.uint32):
            raise self.refused(
                dataset,
                f"tokens of type {dataset.dtype.name}",
                "2 or 4 bytes a token",
                "tokenize with a preset that gives tokens of such a type",
            )

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python by which datatrove opens an export."""
        size = np.dtype(facts["dtype"]).itemsize
        return (
            "from datatrove.utils.dataset import DatatroveFolderDataset\n"
            f"DatatroveFolderDataset({folder!r}, seq_len=2048, token_size={size}, return_positions=True)"
        )

    def write_beside(
        self, folder: Path, name: str, dataset: DatasetTraits, ends: Iterable[NDArray[np.uint64]]
    ) -> None:
        """Write the ends of documents as uint64, and the tokenizer's name with the number of
        tokens.
        """
        with (folder / f"{name}.ds.index").open("wb") as file:
            for chunk in ends:
                file.write(chunk.astype("<u8").data)
        size = dataset.dtype.itemsize
        tokenizer = dataset.tokenizer or f"Unknown Tokenizer|{size}"
        metadata = f"{tokenizer}|{size}\n{dataset.tokens}\n{_metric(dataset.tokens)}"
        (folder / f"{name}.ds.metadata").write_text(metadata, encoding="utf-8")


def _metric(count: int) -> str:
    """Return a count in three digits, as `humanize.metric(count, unit="T")` writes it in
    datatrove's metadata.
    """
    exponent = math.floor(math.log10(count))
    digits = round(count / 10 ** (exponent // 3 * 3), 2 - exponent % 3)
    if digits >= 10 ** (exponent % 3 + 1):
        exponent += 1  # rounding gave a digit more: 9.999 is written as 10.0
    scaled = count / 10 ** (exponent // 3 * 3)
    prefixes = ["", *"kMGTPE"]
    return f"{scaled:.{2 - exponent % 3}f} {prefixes[exponent // 3]}T"


class OlmoCore(LinkedFormat):
    """`.npy` without a header, as OLMo-core's `NumpyDatasetConfig` reads it, and the documents as
    `.csv.gz`.
    """

    name = "olmo-core"
    reader = "OLMo-core"
    endings = (".npy", ".csv.gz")

    def _check_dtype(self, dataset: DatasetTraits) -> None:
        itemsize = dataset.dtype.itemsize
        if dataset.vocab_size is not None:
            # OLMo-core derives the type from the size of the vocabulary.
            needed = _unsigned_bytes(dataset.vocab_size)
            expected = f"{needed} bytes, by its vocabulary"
            is_readable = itemsize == needed
        else:
            expected = "1, 2 or 4 bytes"
            is_readable = dataset.dtype in (np.uint8, np.uint16, np.uint32, np.int32)
        if not is_readable:
            raise self.refused(
                dataset,
                f"{itemsize} bytes a token",
                expected,
                "tokenize with a preset that gives such tokens, or link the .bin yourself and name its type (dtype)",
            )

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python by which OLMo-core opens an export."""
        path = f"{folder}/{name}.npy"
        return (
            "from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig\n"
            "NumpyFSLDatasetConfig(\n"
            f"    paths=[{path!r}], sequence_length=2048, tokenizer=TokenizerConfig(…)\n"
            ")"
        )

    def write_beside(
        self, folder: Path, name: str, dataset: DatasetTraits, ends: Iterable[NDArray[np.uint64]]
    ) -> None:
        """Write a line for each document: the number of its first token, and of the one after its
        last.
        """
        import pyarrow as pa
        import pyarrow.csv as csv

        columns = ["start", "end"]
        schema = pa.schema([(column, pa.uint64()) for column in columns])
        options = csv.WriteOptions(include_header=False)
        previous_end = 0
        with (
            (folder / f"{name}.csv.gz").open("wb") as file,
            # no time: the same documents give the same bytes
            gzip.GzipFile("", "wb", 1, file, mtime=0) as compressed,
            csv.CSVWriter(compressed, schema, write_options=options) as writer,
        ):
            for chunk in ends:
                starts = np.concatenate([[previous_end], chunk[:-1]]).astype(np.uint64)
                writer.write_table(pa.table([starts, chunk], names=columns))
                previous_end = int(chunk[-1])


def _unsigned_bytes(vocab_size: int) -> int:
    """Return the bytes of the smallest unsigned type for the ids of a vocabulary."""
    for size in (1, 2, 4):
        if vocab_size <= 1 << 8 * size:
            return size
    return 8


FORMATS: dict[str, LinkedFormat | SampledFormat] = {
    export_format.name: export_format
    for export_format in (Datatrove(), OlmoCore(), Mds(), LitData())
}
"""Name → format."""
