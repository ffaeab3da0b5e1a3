"""How much the record batches of an Arrow file unpack to, before they are unpacked.

The body of a batch may be compressed buffer by buffer; each buffer begins with its unpacked size as an int64 (-1: it is
stored as it is). Where the buffers lie is told by a flatbuffer: tables, whose fields are found through a vtable, and
vectors of structs. Formats: Arrow's `format/Message.fbs`, `File.fbs` and `Schema.fbs`; flatbuffers' "internals".

    Message          1 header type (3: RecordBatch, 2: DictionaryBatch), 2 header
    RecordBatch      0 length, 1 nodes, 2 buffers: [Buffer], 3 compression
    DictionaryBatch  0 id, 1 data: RecordBatch, 2 is delta
    Buffer           int64 offset in the body, int64 bytes
    Footer           0 version, 1 schema, 2 dictionaries: [Block], 3 record batches: [Block]
    Block            int64 offset in the file, int32 bytes of metadata, 4 bytes of padding, int64 bytes of body
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 2 << 30
"""That a record batch may unpack to: as much as a text column of the common kind can hold."""

_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_BUFFER_BYTES, _BLOCK_BYTES = 16, 24
_TAIL_BYTES = 10


class UnpackedTooLargeError(Exception):
    """A record batch that would fill the memory."""


class StreamGuard:
    """Looks at the messages of a stream before its reader unpacks them."""

    def __init__(self, source: Any) -> None:
        import pyarrow as pa

        self._messages = iter(pa.ipc.MessageReader.open_stream(source))
        self._added = 0

    def next_batch(self) -> None:
        """Go to the next record batch, past the dictionaries before it.

        Raises:
            UnpackedTooLargeError: it would fill the memory.
        """
        for message in self._messages:
            size = unpacked_bytes(message.metadata, message.body)
            check_unpacked(self._added + size)
            if message.type == "record batch":
                return
            self._added += size if _is_delta(message.metadata) else 0


class FileGuard:
    """Looks at the messages that an Arrow file's footer names."""

    def __init__(self, data: Any) -> None:
        """data: the whole file, as a pyarrow buffer."""
        self._data = data
        (size,) = struct.unpack_from("<i", data, data.size - _TAIL_BYTES)
        self._footer = memoryview(data)[data.size - _TAIL_BYTES - size : data.size - _TAIL_BYTES]
        (root,) = struct.unpack_from("<I", self._footer)
        self._batches = list(self._blocks(root, 3))
        self._dictionaries = sum(self._unpacked(block) for block in self._blocks(root, 2))

    def check(self, number: int) -> None:
        """Look at a record batch, and the dictionaries that are unpacked for it.

        Raises:
            UnpackedTooLargeError: they would fill the memory.
        """
        check_unpacked(self._dictionaries + self._unpacked(self._batches[number]))

    def _blocks(self, root: int, number: int) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of each message."""
        blocks = _table(self._footer, root, number)
        if blocks is not None:
            (count,) = struct.unpack_from("<I", self._footer, blocks)
            for place in range(blocks + 4, blocks + 4 + _BLOCK_BYTES * count, _BLOCK_BYTES):
                offset, metadata, body = struct.unpack_from("<qi4xq", self._footer, place)
                yield offset, metadata + body

    def _unpacked(self, block: tuple[int, int]) -> int:
        import pyarrow as pa

        message = pa.ipc.read_message(self._data.slice(*block))
        return unpacked_bytes(message.metadata, message.body)


def check_unpacked(size: int) -> None:
    """Refuse what would fill the memory, by UnpackedTooLargeError."""
    if size > MOST_BYTES:
        raise UnpackedTooLargeError(f"a record batch that unpacks to {size:,} bytes; {MOST_BYTES:,} are read at most")


def unpacked_bytes(metadata: Any, body: Any) -> int:
    """What a message's compressed buffers say that they unpack to, in bytes; 0 for a message without any.

    Args:
        metadata: a pyarrow buffer of a message that pyarrow has taken.
        body: the other.

    Raises:
        struct.error, ValueError: they are damaged.
    """
    view = memoryview(metadata)
    message = struct.unpack_from("<I", view)[0]
    kind = _field(view, message, 1)
    if kind is None or view[kind] not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return 0
    batch = _table(view, message, 2)
    if view[kind] == _DICTIONARY_BATCH:
        batch = None if batch is None else _table(view, batch, 1)
    buffers = None if batch is None or _field(view, batch, 3) is None else _table(view, batch, 2)
    if buffers is None:
        return 0
    (count,) = struct.unpack_from("<I", view, buffers)
    total = 0
    for place in range(buffers + 4, buffers + 4 + _BUFFER_BYTES * count, _BUFFER_BYTES):
        offset, size = struct.unpack_from("<qq", view, place)
        if size >= 8:
            total += max(struct.unpack_from("<q", body, offset)[0], 0)
    return total


def _is_delta(metadata: Any) -> bool:
    """Whether a dictionary is added to one before, which stays."""
    view = memoryview(metadata)
    batch = _table(view, struct.unpack_from("<I", view)[0], 2)
    place = None if batch is None else _field(view, batch, 2)
    return place is not None and view[place] != 0


def _field(view: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table lies; None where it is absent."""
    vtable = table - struct.unpack_from("<i", view, table)[0]
    (size,) = struct.unpack_from("<H", view, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", view, vtable + entry)
    return table + offset if offset else None


def _table(view: memoryview, table: int, number: int) -> int | None:
    """Where the table or vector lies that a field refers to."""
    place = _field(view, table, number)
    return None if place is None else place + struct.unpack_from("<I", view, place)[0]
