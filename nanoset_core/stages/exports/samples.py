"""Formats of samples: MosaicML's MDS, and the chunks that litdata's `TokensLoader` reads.

Their tokens are written once more, one document after the other, in files of up to 64 MiB that index.json lists.

Sources: mosaicml-streaming 0.13.0 `base/format/mds/writer.py` (MDSWriter) and `encodings.py` (NDArray); litdata 0.2.76
`streaming/writer.py` (BinaryWriter._create_chunk), `streaming/item_loader.py` (TokensLoader), `constants.py`.
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

from nanoset_core.stages.exports.base import ExitFormat, Tokens

INDEX = "index.json"
FILE_BYTES = 1 << 26
"""Of a file at most, as MDSWriter has it; more where one sample is longer."""
_LITDATA_HEAD = np.dtype("<u4").itemsize * 3


@dataclass(frozen=True, slots=True)
class Cut:
    """Which tokens lie in which file."""

    dtype: np.dtype
    tokens: int
    length: int
    """Tokens of a sample; the last one may be shorter."""
    per_file: int
    """Tokens of each file but the last."""
    files: int

    def span(self, number: int) -> tuple[int, int]:
        """Return the first token of a file, and the one behind its last."""
        begin = number * self.per_file
        return begin, self.tokens if number == self.files - 1 else begin + self.per_file


class SampledFormat(ExitFormat):
    """Files of samples, and index.json."""

    needs_end = False
    pattern: ClassVar[re.Pattern[str]]
    """Of the names of its files."""
    drops_rest: ClassVar[bool]
    """Whether the reader passes over the tokens behind the last whole sample."""

    @abstractmethod
    def file(self, number: int) -> str:
        """Return the name of a file."""

    @abstractmethod
    def cut(self, tokens: Tokens) -> Cut:
        """Return which tokens go to which file."""

    @abstractmethod
    def file_head(self, cut: Cut, tokens: int) -> bytes:
        """Return the bytes in front of the samples of a file of so many tokens."""

    def sample_head(self, dtype: np.dtype, length: int) -> bytes:
        """Return the bytes in front of a sample of so many tokens."""
        return b""

    @abstractmethod
    def index(self, cut: Cut, sums: Sequence[str]) -> bytes:
        """Return index.json; sums: the sha256 of each file."""

    def is_file(self, name: str) -> bool:
        """Return whether an export may have a file of this name."""
        return name == INDEX or self.pattern.fullmatch(name) is not None

    def names(self, cut: Cut) -> list[str]:
        """Return the names of all files, index.json last."""
        return [*map(self.file, range(cut.files)), INDEX]

    def size(self, cut: Cut, number: int) -> int:
        """Return the bytes of a file."""
        begin, end = cut.span(number)
        whole, rest = divmod(end - begin, cut.length)
        heads = sum(
            count * len(self.sample_head(cut.dtype, length))
            for count, length in ((whole, cut.length), (rest > 0, rest))
        )
        return len(self.file_head(cut, end - begin)) + heads + (end - begin) * cut.dtype.itemsize

    def blocks(self, cut: Cut, number: int, tokens: Iterable[NDArray[np.integer]]) -> Iterator[bytes]:
        """Yield a file; tokens: its tokens in chunks of whole samples, but the last."""
        begin, end = cut.span(number)
        yield self.file_head(cut, end - begin)
        for some in tokens:
            whole = len(some) // cut.length * cut.length
            for samples in (some[:whole].reshape(-1, cut.length), some[None, whole:]):
                if samples.size:
                    yield _with_heads(self.sample_head(cut.dtype, samples.shape[1]), samples)

    def facts(self, cut: Cut) -> dict[str, int]:
        """Return counts of samples, and of tokens that the reader passes over."""
        whole, rest = divmod(cut.tokens, cut.length)
        samples = whole + (rest > 0 and not self.drops_rest)
        return {"sequence_length": cut.length, "samples": samples, "dropped": rest if self.drops_rest else 0}

    def _check_type(self, tokens: Tokens) -> None:
        if tokens.dtype.kind not in "iu":
            found, remedy = f"tokens of type {tokens.dtype.name}", "tokenize with a preset that gives whole numbers"
            raise self.refused(tokens, found, "whole numbers", remedy)

    def _length(self, tokens: Tokens) -> int:
        if tokens.sequence_length is None:
            remedy = "set sequence_length (--sequence-length)"
            raise self.refused(tokens, "no sequence_length", "the tokens of a sample", remedy)
        return tokens.sequence_length


def _with_heads(head: bytes, samples: NDArray[np.integer]) -> bytes:
    """Return samples, shape (samples, tokens), each behind the same bytes."""
    if not head:
        return samples.tobytes()
    rows = np.empty((len(samples), len(head) + samples[0].nbytes), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) :] = np.ascontiguousarray(samples).view(np.uint8)
    return rows.tobytes()


class Mds(SampledFormat):
    """MosaicML's MDS with the column `tokens`, an array, as LLM Foundry's StreamingTextDataset reads it.

    The bytes are those of `MDSWriter(columns={"tokens": "ndarray:<type>"})`.
    """

    name, reader, drops_rest = "mds", "mosaicml-streaming", False
    pattern = re.compile(r"shard\.\d{5,}\.mds")

    def file(self, number: int) -> str:
        return f"shard.{number:05}.mds"

    def cut(self, tokens: Tokens) -> Cut:
        """Return the cut of MDSWriter: samples go to a file while that has no more than FILE_BYTES."""
        length = self._length(tokens)
        room, row = FILE_BYTES - 8 - len(_config(tokens.dtype)), self._row(tokens.dtype, length)
        per_file = max(1, room // row) * length
        files = -(-tokens.tokens // per_file)
        last = tokens.tokens - (files - 1) * per_file
        if files > 1 and last < length and per_file // length * row + self._row(tokens.dtype, last) <= room:
            files -= 1  # the short sample still goes to the file in front of it
        return Cut(tokens.dtype, tokens.tokens, length, per_file, files)

    def _row(self, dtype: np.dtype, length: int) -> int:
        """Return the bytes that a sample adds to a file, its offset included."""
        return 4 + len(self.sample_head(dtype, length)) + length * dtype.itemsize

    def file_head(self, cut: Cut, tokens: int) -> bytes:
        """Return how many samples there are, where each begins, and the settings."""
        config, samples = _config(cut.dtype), -(-tokens // cut.length)
        head = np.full(2 + samples, self._row(cut.dtype, cut.length) - 4)
        head[1] = 4 * len(head) + len(config)
        head[-1] = self._row(cut.dtype, tokens - (samples - 1) * cut.length) - 4
        head[1:] = np.cumsum(head[1:])
        head[0] = samples
        return head.astype("<u4").tobytes() + config

    def sample_head(self, dtype: np.dtype, length: int) -> bytes:
        """Return the sample's size in bytes, and the shape of its array."""
        code = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
        shape = bytes([1 << 2 | code]) + length.to_bytes(1 << code, "little")
        return (len(shape) + length * dtype.itemsize).to_bytes(4, "little") + shape

    def index(self, cut: Cut, sums: Sequence[str]) -> bytes:
        shards = []
        for number in range(cut.files):
            begin, end = cut.span(number)
            data = {"basename": self.file(number), "bytes": self.size(cut, number), "hashes": {}}
            samples = -(-(end - begin) // cut.length)
            shards.append(_settings(cut.dtype) | {"raw_data": data, "samples": samples, "zip_data": None})
        return json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        place = f"remote={folder!r}, local=…" if "://" in folder else f"local={folder!r}"
        return (
            "from streaming import StreamingDataset\n"
            f"StreamingDataset({place}, batch_size=8)[0]['tokens']  # {facts['sequence_length']:,} of them"
        )


def _settings(dtype: np.dtype) -> dict[str, Any]:
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


def _config(dtype: np.dtype) -> bytes:
    return json.dumps(_settings(dtype), sort_keys=True).encode()


class LitData(SampledFormat):
    """litdata's chunks for `TokensLoader(block_size=…)`; each is one item."""

    name, reader, drops_rest = "litdata", "litdata", True
    pattern = re.compile(r"chunk-0-\d+\.bin")
    _types = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

    def file(self, number: int) -> str:
        return f"chunk-0-{number}.bin"

    def cut(self, tokens: Tokens) -> Cut:
        """Return a cut into whole samples: of each chunk the reader passes over what is behind the last of them."""
        length = self._length(tokens)
        if tokens.tokens < length:
            found, expected = f"{tokens.tokens:,} tokens", f"{length:,}, those of one sample"
            raise self.refused(tokens, found, expected, "set a smaller sequence_length")
        per_file = max(1, (FILE_BYTES - _LITDATA_HEAD) // tokens.dtype.itemsize // length) * length
        files = -(-(tokens.tokens // length * length) // per_file)
        return Cut(tokens.dtype, tokens.tokens, length, per_file, files)

    def file_head(self, cut: Cut, tokens: int) -> bytes:
        """Return that there is one item, where it begins, and where it ends."""
        return np.array([1, _LITDATA_HEAD, _LITDATA_HEAD + tokens * cut.dtype.itemsize], "<u4").tobytes()

    def index(self, cut: Cut, sums: Sequence[str]) -> bytes:
        chunks = []
        for number in range(cut.files):
            begin, end = cut.span(number)
            chunk = {"chunk_bytes": self.size(cut, number), "chunk_size": 1, "dim": end - begin}
            chunks.append(chunk | {"filename": self.file(number)})
        config = {
            "chunk_bytes": FILE_BYTES,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_numpy:{self._types.index(cut.dtype.name)}"],
            "data_spec": None,
            "encryption": None,
            "item_loader": "TokensLoader",
        }
        # The reader keeps copies of chunks in a bucket until this value changes: a time, in litdata's own index.
        mark = hashlib.sha256("".join(sums).encode()).hexdigest()
        return json.dumps({"chunks": chunks, "config": config, "updated_at": mark}, sort_keys=True).encode()

    def example(self, folder: str, name: str, facts: Mapping[str, Any]) -> str:
        return (
            "from litdata import StreamingDataset, TokensLoader\n"
            f"StreamingDataset({folder!r}, item_loader=TokensLoader(block_size={facts['sequence_length']}))"
        )
