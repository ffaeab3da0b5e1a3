"""Formats of exports that consist of samples: MosaicML's MDS, and chunks of litdata.

A sample is a fixed number of tokens. All documents are concatenated, and cut into samples. Samples
are written to files of up to 64 MiB, which index.json lists. These formats have headers between the
tokens, so that they cannot share the file of a dataset.

A file of MDS, with n samples and c bytes of settings. All numbers are uint32:

    shard.00000.mds    offset        size        content
                       0             4           n
                       4             4 (n + 1)   first byte of each sample, and the end of the file
                       8 + 4 n       c           settings as JSON
                       8 + 4 n + c   rest        samples: bytes that follow, shape, tokens

A chunk for litdata's `TokensLoader`, which is one item:

    chunk-0-0.bin      offset        size        content
                       0             12          1 (items), 12 (its first byte), the end of the file
                       12            rest        tokens

The layouts are those of these versions:

- mosaicml-streaming 0.13.0: `base/format/mds/writer.py` (MDSWriter) and `encodings.py` (NDArray).
- litdata 0.2.76: `streaming/writer.py` (BinaryWriter._create_chunk), `streaming/item_loader.py`
  (TokensLoader) and `constants.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.rounding import ceil_division
from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.storage.location import is_remote

INDEX = "index.json"
"""Name of the list of files."""
FILE_BYTES = 1 << 26
"""Greatest size of a file, as in MDSWriter. Only a file of a single long sample is larger."""
_LITDATA_HEADER_BYTES = 12
"""Size of the header of a chunk, three numbers of type uint32."""
_UINT32_BYTES = 4
"""Size of a number in a header of MDS."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which tokens are in which file."""

    dtype: np.dtype
    tokens: int
    """Number of tokens in all files."""
    length: int
    """Number of tokens in a sample; the last sample may have fewer."""
    per_file: int
    """Number of tokens in each file except the last one."""
    files: int
    """Number of files."""

    def span(self, number: int) -> tuple[int, int]:
        """Return which of the dataset's tokens are in a file.

        Args:
            number: Number of the file, from 0 on.

        Returns:
            (first token, token after the last one): (1000, 2000) for file 1 of 1,000 tokens each.
        """
        start = number * self.per_file
        is_last = number == self.files - 1
        return start, self.tokens if is_last else start + self.per_file

    def tokens_in(self, number: int) -> int:
        """Return the number of tokens in a file.

        Args:
            number: Number of the file, from 0 on.
        """
        start, stop = self.span(number)
        return stop - start


class SampledFormat(ExportFormat):
    """A format that consists of files of samples, and index.json."""

    needs_end = False
    pattern: ClassVar[re.Pattern[str]]
    """Pattern of the names of the files of samples."""
    drops_rest: ClassVar[bool]
    """Whether the reader skips the tokens after the last complete sample of the export."""

    @abstractmethod
    def file(self, number: int) -> str:
        """Return the name of a file of samples.

        Args:
            number: Number of the file, from 0 on: 2 may give `shard.00002.mds`.
        """

    @abstractmethod
    def cut(self, dataset: DatasetTraits) -> Cut:
        """Decide which tokens are written to which file.

        Args:
            dataset: Number and type of the tokens, and the length of samples that is set.

        Raises:
            ConfigError: The length of samples is not set, or the reader needs more tokens.
        """

    @abstractmethod
    def file_header(self, cut: Cut, tokens: int) -> bytes:
        """Return the bytes before the samples of a file.

        Args:
            cut: Which tokens are in which file.
            tokens: Number of tokens in the file.
        """

    def sample_header(self, dtype: np.dtype, length: int) -> bytes:
        """Return the bytes before the tokens of each sample; none, unless a format has such bytes.

        Args:
            dtype: Type of the tokens.
            length: Number of tokens in the sample.
        """
        return b""

    @abstractmethod
    def index(self, cut: Cut, sha256s: Sequence[str]) -> bytes:
        """Return the contents of index.json.

        Args:
            cut: Which tokens are in which file.
            sha256s: The sha256 of each file.
        """

    def is_file(self, name: str) -> bool:
        """Return whether a name is that of a file of an export in this format.

        Args:
            name: Name of a file, such as `index.json`.
        """
        return name == INDEX or self.pattern.fullmatch(name) is not None

    def names(self, cut: Cut) -> list[str]:
        """Return the names of all files of an export, with index.json last.

        Args:
            cut: Which tokens are in which file; it has the number of files.
        """
        return [*map(self.file, range(cut.files)), INDEX]

    def size(self, cut: Cut, number: int) -> int:
        """Return the size of a file of samples in bytes.

        It is known before the file is written, so that a complete file can be recognised:

            header of the file     header of a sample, tokens     header of a sample, tokens     …

        Args:
            cut: Which tokens are in which file.
            number: Number of the file.
        """
        tokens = cut.tokens_in(number)
        size = len(self.file_header(cut, tokens)) + tokens * cut.dtype.itemsize

        # Add the headers of the complete samples, and of a shorter sample at the end.
        n_complete, rest = divmod(tokens, cut.length)
        size += n_complete * len(self.sample_header(cut.dtype, cut.length))
        if rest:
            size += len(self.sample_header(cut.dtype, rest))
        return size

    def blocks(
        self, cut: Cut, number: int, chunks: Iterable[NDArray[np.integer]]
    ) -> Iterator[bytes]:
        """Yield the bytes of a file of samples, which are token sequences of one length.

        Some formats have a header before each sample. For samples of 2 tokens, and a file with the
        tokens 5 9 2 7 1, they are

            header of the file    header, 5 9    header, 2 7    header, 1     (a shorter sample)

        Args:
            cut: Which tokens are in which file.
            number: Number of the file.
            chunks: The tokens of the file. Each chunk except the last consists of complete samples.
        """
        yield self.file_header(cut, cut.tokens_in(number))
        for chunk in chunks:
            n_complete, rest = divmod(len(chunk), cut.length)
            if n_complete:
                samples = chunk[: n_complete * cut.length].reshape(n_complete, cut.length)
                yield _with_headers(self.sample_header(cut.dtype, cut.length), samples)
            if rest:  # a shorter sample at the end of the last chunk
                sample = chunk[-rest:].reshape(1, rest)
                yield _with_headers(self.sample_header(cut.dtype, rest), sample)

    def facts(self, cut: Cut) -> dict[str, int]:
        """Count the samples of an export, and the tokens that its reader skips.

        A sample is a sequence of tokens of one length. For 10,050 tokens in samples of 100, there
        are 100 complete samples, and 50 tokens are left:

            the reader skips them           {"sequence_length": 100, "samples": 100, "dropped": 50}
            it reads a shorter sample       {"sequence_length": 100, "samples": 101, "dropped": 0}

        Args:
            cut: The number of tokens, and the length of samples.
        """
        n_complete, rest = divmod(cut.tokens, cut.length)
        facts = {"sequence_length": cut.length, "samples": n_complete, "dropped": 0}
        if self.drops_rest:
            facts["dropped"] = rest
        elif rest:
            facts["samples"] += 1  # the shorter sample at the end
        return facts

    def _check_dtype(self, dataset: DatasetTraits) -> None:
        """Check that the tokens of a dataset are integers.

        Training uses tokens as indices of a table of embeddings, and the readers of these formats
        do not convert them. A dataset of other numbers, such as floating-point ones, would fail
        only then.

        Args:
            dataset: Properties of the dataset.

        Raises:
            ConfigError: The tokens are not integers.
        """
        if dataset.dtype.kind not in "iu":
            raise self.refused(
                dataset,
                found=f"tokens of type {dataset.dtype.name}",
                expected="whole numbers",
                remedy="tokenize with a preset that gives whole numbers",
            )

    def _sample_length(self, dataset: DatasetTraits) -> int:
        """Return the number of tokens in a sample, which a user has to choose for these formats.

        Formats such as that of MosaicML's streaming consist of samples of one length, by which a
        model is trained. nanoset.yaml says `sequence_length: 2048`, or the command line
        `--sequence-length 2048`.

        Args:
            dataset: Properties of the dataset, and this setting.

        Raises:
            ConfigError: `sequence_length` is not set.
        """
        if dataset.sequence_length is None:
            raise self.refused(
                dataset,
                found="no sequence_length",
                expected="the tokens of a sample",
                remedy="set sequence_length (--sequence-length)",
            )
        return dataset.sequence_length


def _with_headers(header: bytes, samples: NDArray[np.integer]) -> bytes:
    """Return the bytes of samples (sequences of tokens), with the same header before each of them.

    With the header `H` and two samples of two tokens, [[5, 9], [2, 7]], these are the bytes of

        H 5 9 H 2 7

    Args:
        header: Bytes before each sample; b"" if the format has none.
        samples: The tokens, shape (n_samples, length).
    """
    if not header:
        return samples.tobytes()

    # Fill a table of bytes, with a row for each sample: first its header, and then its tokens.
    header_bytes = len(header)
    token_bytes = samples[0].nbytes
    rows = np.empty((len(samples), header_bytes + token_bytes), np.uint8)
    rows[:, :header_bytes] = np.frombuffer(header, np.uint8)
    rows[:, header_bytes:] = np.ascontiguousarray(samples).view(np.uint8)
    return rows.tobytes()


class Mds(SampledFormat):
    """MosaicML's MDS with a column `tokens`, as LLM Foundry's StreamingTextDataset reads it.

    The bytes are those that `MDSWriter(columns={"tokens": "ndarray:<type>"})` writes.
    """

    name = "mds"
    reader = "mosaicml-streaming"
    drops_rest = False
    pattern = re.compile(r"shard\.\d{5,}\.mds")

    def file(self, number: int) -> str:
        return f"shard.{number:05}.mds"

    def cut(self, dataset: DatasetTraits) -> Cut:
        """Decide which tokens are written to which file, as MDSWriter does.

        MDSWriter adds samples to a file until the next one would make it larger than FILE_BYTES.
        With room for 3 samples of 2 tokens in each file, 13 tokens are divided like this:

            file 0    0 1, 2 3, 4 5
            file 1    6 7, 8 9, 10 11
            file 2    12                  unless this short sample still fits into file 1

        Args:
            dataset: The dataset to export.

        Raises:
            ConfigError: The length of samples is not set.
        """
        length = self._sample_length(dataset)
        room = _mds_room(dataset.dtype)
        sample_bytes = self._bytes_of_sample_and_offset(dataset.dtype, length)
        samples_per_file = max(1, room // sample_bytes)
        tokens_per_file = samples_per_file * length
        n_files = ceil_division(dataset.tokens, tokens_per_file)

        # The last sample may be shorter. If it would be alone in the last file, it may still fit
        # into the file before.
        tokens_in_last_file = dataset.tokens - (n_files - 1) * tokens_per_file
        is_short_sample_alone = n_files > 1 and tokens_in_last_file < length
        if is_short_sample_alone:
            short_bytes = self._bytes_of_sample_and_offset(dataset.dtype, tokens_in_last_file)
            rest_of_room = room - samples_per_file * sample_bytes
            if short_bytes <= rest_of_room:
                n_files -= 1
        return Cut(dataset.dtype, dataset.tokens, length, tokens_per_file, n_files)

    def _bytes_of_sample_and_offset(self, dtype: np.dtype, length: int) -> int:
        """Return the bytes that a sample adds to a file: its own, and its offset in the header."""
        return self._sample_bytes(dtype, length) + _UINT32_BYTES

    def _sample_bytes(self, dtype: np.dtype, length: int) -> int:
        """Return the size in bytes of a sample of `length` tokens, with the sample's header."""
        return len(self.sample_header(dtype, length)) + length * dtype.itemsize

    def file_header(self, cut: Cut, tokens: int) -> bytes:
        """Return the bytes in front of the first sample, in a file of MosaicML's streaming.

        Such a file consists of samples: sequences of tokens. The header says where each of them
        starts. For n samples and c bytes of settings, with all numbers as uint32:

            offset      size       content
            0           4          n
            4           4 (n + 1)  offset of each sample in the file, and the end of the file
            8 + 4 n     c          settings as JSON

        Args:
            cut: Length of samples, and dtype of the tokens.
            tokens: Number of tokens in the file.
        """
        settings = _settings_json(cut.dtype)
        sample_sizes = self._sample_sizes(cut, tokens)
        n_samples = len(sample_sizes)
        header_bytes = _UINT32_BYTES * (1 + n_samples + 1) + len(settings)

        # (n_samples + 1,) the first sample follows the header, and each other one the one before
        offsets = header_bytes + np.concatenate([[0], np.cumsum(sample_sizes)])
        numbers = np.concatenate([[n_samples], offsets])
        return numbers.astype("<u4").tobytes() + settings

    def _sample_sizes(self, cut: Cut, tokens: int) -> NDArray[np.int64]:
        """Return the size in bytes of each sample of a file, with the sample's header.

        The last sample may be shorter than the others. Its header may be shorter, too, since it
        has the number of tokens. For samples of 2,048 tokens of 2 bytes, and 100 tokens at the end:

            tokens     4,096    4,096    …    200
            header         7        7    …      6
            result     4,103    4,103    …    206

        Args:
            cut: Length of samples, and dtype of the tokens.
            tokens: Number of tokens in the file.

        Returns:
            Shape (n_samples,).
        """
        n_samples = ceil_division(tokens, cut.length)
        last_length = tokens - (n_samples - 1) * cut.length
        sizes = np.full(n_samples, self._sample_bytes(cut.dtype, cut.length))
        sizes[-1] = self._sample_bytes(cut.dtype, last_length)
        return sizes

    def sample_header(self, dtype: np.dtype, length: int) -> bytes:
        """Return the bytes in front of the tokens of a sample, in a file of MosaicML's streaming.

        A sample is a sequence of tokens. The header says how many there are, as the encoding
        `NDArray` of this library does. Numbers are little-endian. For 2,048 tokens of type uint16:

            offset  size   content
            0       4      4,099: number of bytes that follow, 1 + 2 + 4,096
            4       1      0b000001_01: number of dimensions (6 bits), type of the lengths (2 bits)
            5       2      2,048: length of the only dimension
            7       4,096  tokens, which are not part of the result

        The type of the lengths is the smallest that can hold them: 0 for uint8, 1 for uint16, and 2
        for uint32. So the length takes 1, 2 or 4 bytes.

        Args:
            dtype: Type of the tokens.
            length: Number of tokens.
        """
        if length < 1 << 8:
            length_type = 0
            bytes_of_length = 1
        elif length < 1 << 16:
            length_type = 1
            bytes_of_length = 2
        else:
            length_type = 2
            bytes_of_length = 4

        n_dimensions = 1  # a sample is a list of tokens
        shape = bytes([n_dimensions << 2 | length_type])  # the type is in the two lowest bits
        shape += length.to_bytes(bytes_of_length, "little")
        bytes_that_follow = len(shape) + length * dtype.itemsize
        return bytes_that_follow.to_bytes(_UINT32_BYTES, "little") + shape

    def index(self, cut: Cut, sha256s: Sequence[str]) -> bytes:
        """Return the contents of index.json, which lists the files with their sizes and samples.

        Args:
            cut: Which tokens are in which file.
            sha256s: Not used, since MDS records digests only of types that the user chooses.
        """
        shards = [self._index_entry(cut, number) for number in range(cut.files)]
        return json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()

    def _index_entry(self, cut: Cut, number: int) -> dict[str, Any]:
        """Return the entry of one file in index.json."""
        entry = _settings(cut.dtype)
        entry["raw_data"] = {
            "basename": self.file(number),
            "bytes": self.size(cut, number),
            "hashes": {},
        }
        entry["samples"] = ceil_division(cut.tokens_in(number), cut.length)
        entry["zip_data"] = None
        return entry

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        places = f"local={folder!r}"
        if is_remote(folder):
            places = f"remote={folder!r},\n    local=…"
        return (
            "from streaming import StreamingDataset\n"
            "dataset = StreamingDataset(\n"
            f"    {places},\n"
            "    batch_size=8,\n"
            ")\n"
            f"dataset[0]['tokens']  # {facts['sequence_length']:,} of them"
        )


def _settings(dtype: np.dtype) -> dict[str, Any]:
    """Return the settings that each file of MosaicML's streaming contains, as JSON.

    The library writes them to each of its MDS files, and to index.json for each file. They say that
    a sample has one column, "tokens", with an array of numbers, such as "ndarray:uint16". The files
    here have to be the same, byte by byte.

    Args:
        dtype: Type of the tokens.
    """
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": FILE_BYTES,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{dtype.name}"],
        "column_sizes": [None],
    }


def _settings_json(dtype: np.dtype) -> bytes:
    """Return the settings as they are in the header of each file of MDS."""
    return json.dumps(_settings(dtype), sort_keys=True).encode()


def _mds_room(dtype: np.dtype) -> int:
    """Return how many bytes of a file of MDS remain for samples and their offsets.

    The header also has the number of samples, the offset of the end of the file, and the settings.

    Args:
        dtype: Type of the tokens.
    """
    settings_bytes = len(_settings_json(dtype))
    return FILE_BYTES - 2 * _UINT32_BYTES - settings_bytes


class LitData(SampledFormat):
    """litdata's chunks, as `TokensLoader(block_size=…)` reads them; each chunk is one item."""

    name = "litdata"
    reader = "litdata"
    drops_rest = True
    pattern = re.compile(r"chunk-0-\d+\.bin")
    _dtypes = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    """Names of the dtypes, in the order of litdata's numbers for them."""

    def file(self, number: int) -> str:
        return f"chunk-0-{number}.bin"

    def cut(self, dataset: DatasetTraits) -> Cut:
        """Decide which tokens are written to which file, which litdata calls chunks.

        The reader skips the tokens after the last complete sample of a chunk. So only the last
        chunk has such tokens. With room for 3 samples of 2 tokens in each chunk, 13 tokens are
        divided like this:

            chunk 0    0 1, 2 3, 4 5
            chunk 1    6 7, 8 9, 10 11, 12      the reader skips token 12

        Args:
            dataset: The dataset to export.

        Raises:
            ConfigError: The length of samples is not set, or there are too few tokens for a sample.
        """
        length = self._sample_length(dataset)
        if dataset.tokens < length:
            raise self.refused(
                dataset,
                found=f"{dataset.tokens:,} tokens",
                expected=f"at least {length:,}, for one sample",
                remedy="set a smaller sequence_length",
            )

        # Count the files for complete samples only, so that the rest never has a file of its own.
        n_samples = dataset.tokens // length
        samples_per_file = _samples_per_chunk(dataset.dtype, length)
        tokens_per_file = samples_per_file * length
        n_files = ceil_division(n_samples, samples_per_file)
        return Cut(dataset.dtype, dataset.tokens, length, tokens_per_file, n_files)

    def file_header(self, cut: Cut, tokens: int) -> bytes:
        """Return the bytes before the tokens of a chunk.

        They are three numbers of type uint32: the number of items, which is 1, and the offsets of
        the item's first byte and of its end.

        Args:
            cut: Which tokens are in which file.
            tokens: Number of tokens in the chunk.
        """
        stop = _LITDATA_HEADER_BYTES + tokens * cut.dtype.itemsize
        return np.array([1, _LITDATA_HEADER_BYTES, stop], "<u4").tobytes()

    def index(self, cut: Cut, sha256s: Sequence[str]) -> bytes:
        """Return the contents of index.json, by which litdata finds the files of tokens.

        litdata, a library, calls such a file a chunk. The keys are those of its own writer:

            {"chunks": [{"filename": …}, …], "config": {…}, "updated_at": "77cd…"}

        Args:
            cut: Which tokens are in which chunk.
            sha256s: The sha256 of each chunk, by which readers notice that the tokens changed.
        """
        chunks = [self._index_entry(cut, number) for number in range(cut.files)]
        dtype_number = self._dtypes.index(cut.dtype.name)  # litdata numbers the types of arrays
        config = {
            "chunk_bytes": FILE_BYTES,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_numpy:{dtype_number}"],  # plain tokens of this type
            "data_spec": None,
            "encryption": None,
            "item_loader": "TokensLoader",  # litdata's class that reads such chunks
        }
        # The reader keeps copies of a bucket's chunks until this value changes. In litdata's own
        # index it is a time; a digest makes the same tokens give the same bytes.
        updated_at = hashlib.sha256("".join(sha256s).encode()).hexdigest()
        index = {"chunks": chunks, "config": config, "updated_at": updated_at}
        return json.dumps(index, sort_keys=True).encode()

    def _index_entry(self, cut: Cut, number: int) -> dict[str, Any]:
        """Return the entry of one chunk in index.json."""
        return {
            "chunk_bytes": self.size(cut, number),
            "chunk_size": 1,  # the tokens of a chunk are one item
            "dim": cut.tokens_in(number),
            "filename": self.file(number),
        }

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        return (
            "from litdata import StreamingDataset, TokensLoader\n"
            "StreamingDataset(\n"
            f"    {folder!r},\n"
            f"    item_loader=TokensLoader(block_size={facts['sequence_length']}),\n"
            ")"
        )


def _samples_per_chunk(dtype: np.dtype, length: int) -> int:
    """Return how many complete samples fit into a chunk of litdata; a very long one has its own.

    Args:
        dtype: Type of the tokens.
        length: Number of tokens in a sample.
    """
    max_tokens = (FILE_BYTES - _LITDATA_HEADER_BYTES) // dtype.itemsize
    return max(1, max_tokens // length)
