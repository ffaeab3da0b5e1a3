"""Files that other readers want beside the tokens of a dataset, which they take as they are.

Sources: datatrove 0.10.1 `pipeline/tokens/tokenizer.py` (TokenizedFile) and `utils/dataset.py`; OLMo-core 3.0.0
`data/utils.py` (write_document_indices, iter_document_indices) and `data/numpy_dataset.py` (get_dtype).
"""

from __future__ import annotations

import gzip
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.exports.base import ExitFormat, Tokens
from nanoset_core.stages.exports.samples import LitData, Mds, SampledFormat


class LinkedFormat(ExitFormat):
    """A file that is the tokens of the dataset, and small ones beside it."""

    endings: ClassVar[tuple[str, ...]]
    """Of its files, that of the tokens first."""

    def files(self, name: str) -> list[str]:
        """Return the names of its files."""
        return [f"{name}{ending}" for ending in self.endings]

    @abstractmethod
    def write_beside(self, folder: Path, name: str, tokens: Tokens, ends: Iterable[NDArray[np.uint64]]) -> None:
        """Write the small files; ends: behind which token each document with tokens ends, ascending, in chunks."""


class Datatrove(LinkedFormat):
    """`.ds`, as datatrove's `DatatroveFileDataset` and nanotron's main read it."""

    name, reader, endings = "datatrove", "datatrove", (".ds", ".ds.index", ".ds.metadata")

    def _check_type(self, tokens: Tokens) -> None:
        if tokens.dtype not in (np.uint16, np.int32, np.uint32):
            remedy = "tokenize with a preset that gives tokens of such a type"
            raise self.refused(tokens, f"tokens of type {tokens.dtype.name}", "2 or 4 bytes a token", remedy)

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python by which datatrove opens an export."""
        size = np.dtype(facts["dtype"]).itemsize
        return (
            "from datatrove.utils.dataset import DatatroveFolderDataset\n"
            f"DatatroveFolderDataset({folder!r}, seq_len=2048, token_size={size}, return_positions=True)"
        )

    def write_beside(self, folder: Path, name: str, tokens: Tokens, ends: Iterable[NDArray[np.uint64]]) -> None:
        """Write the ends of documents as uint64, and the tokenizer's name with the count of tokens."""
        with (folder / f"{name}.ds.index").open("wb") as file:
            for some in ends:
                file.write(some.astype("<u8").data)
        size = tokens.dtype.itemsize
        named = tokens.tokenizer or f"Unknown Tokenizer|{size}"
        text = f"{named}|{size}\n{tokens.tokens}\n{_metric(tokens.tokens)}"
        (folder / f"{name}.ds.metadata").write_text(text, encoding="utf-8")


def _metric(count: int) -> str:
    """Return a count of three digits as `humanize.metric(count, unit="T")` writes it in datatrove's metadata."""
    exponent = math.floor(math.log10(count))
    if round(count / 10 ** (exponent // 3 * 3), 2 - exponent % 3) >= 10 ** (exponent % 3 + 1):
        exponent += 1  # 9.999 is written as 10.0
    scaled = count / 10 ** (exponent // 3 * 3)
    return f"{scaled:.{2 - exponent % 3}f} {['', *'kMGTPE'][exponent // 3]}T"


class OlmoCore(LinkedFormat):
    """`.npy` without a header, as OLMo-core's `NumpyDatasetConfig` reads it, and the documents as `.csv.gz`."""

    name, reader, endings = "olmo-core", "OLMo-core", (".npy", ".csv.gz")

    def _check_type(self, tokens: Tokens) -> None:
        if tokens.vocab_size is None:
            wanted = tokens.dtype if tokens.dtype in (np.uint8, np.uint16, np.uint32, np.int32) else None
        else:
            wanted = next(np.dtype(f"u{size}") for size in (1, 2, 4, 8) if tokens.vocab_size <= 1 << 8 * size)
        if wanted is None or tokens.dtype.itemsize != wanted.itemsize:
            expected = "1, 2 or 4 bytes" if wanted is None else f"{wanted.itemsize} bytes, by its vocabulary"
            remedy = (
                "tokenize with a preset that gives such tokens, or link the .bin yourself and name its type (dtype)"
            )
            raise self.refused(tokens, f"{tokens.dtype.itemsize} bytes a token", expected, remedy)

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return lines of Python by which OLMo-core opens an export."""
        return (
            "from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig\n"
            "NumpyFSLDatasetConfig(\n"
            f"    paths=[{f'{folder}/{name}.npy'!r}], sequence_length=2048, tokenizer=TokenizerConfig(…)\n"
            ")"
        )

    def write_beside(self, folder: Path, name: str, tokens: Tokens, ends: Iterable[NDArray[np.uint64]]) -> None:
        """Write the first token of each document, and the one behind its last, a line each."""
        import pyarrow as pa
        import pyarrow.csv as csv

        names = ["start", "end"]
        options = csv.WriteOptions(include_header=False)
        with (
            (folder / f"{name}.csv.gz").open("wb") as file,
            gzip.GzipFile("", "wb", 1, file, mtime=0) as packed,
            csv.CSVWriter(packed, pa.schema([(one, pa.uint64()) for one in names]), write_options=options) as writer,
        ):
            for first, some in _with_first(ends):
                starts = np.concatenate([[first], some[:-1]]).astype(np.uint64)
                writer.write_table(pa.table([starts, some], names=names))


def _with_first(ends: Iterable[NDArray[np.uint64]]) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    first = 0
    for some in ends:
        yield first, some
        first = int(some[-1])


FORMATS: dict[str, LinkedFormat | SampledFormat] = {
    one.name: one for one in (Datatrove(), OlmoCore(), Mds(), LitData())
}
