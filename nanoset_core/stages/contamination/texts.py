"""Texts of evaluation files: the values of some keys of each line or row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from nanoset_core.errors import FormatError, InputError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.contents import FileStat
from nanoset_core.text.endings import is_table
from nanoset_core.text.lines import read_lines
from nanoset_core.text.parsing import value_at
from nanoset_core.text.pieces import Piece, StoredPiece
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables import read_table

_LONGEST_LINE = 64 << 20


def read_texts(folder: RawFolder, file: FileStat, keys: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (line or row from 1, its text) of a file of JSON lines or a table: the texts at all
    keys, in their order.

    Texts in lists and objects are taken, too; what has none is left out.

    Raises:
        FormatError: a line is no JSON object, or the file is damaged.
        InputError: no line has any of the keys.
    """
    is_any, line, path = False, 0, folder / file.path
    try:
        for line, row in (
            _rows_of_table(folder, file) if is_table(file.path) else _lines(folder, file)
        ):
            texts = [text for key in keys for text in _strings(value_at(row, key))]
            is_any = is_any or bool(texts)
            if texts:
                yield line, "\n".join(texts)
    except (FaultError, orjson.JSONDecodeError) as error:
        what, remedy = "a file of evaluations cannot be read", "mend the file, or name others"
        detail = error.detail if isinstance(error, FaultError) else error
        raise FormatError(
            what, where=f"{path}, behind line {line}", found=detail, remedy=remedy
        ) from error
    if not is_any:
        expected, remedy = f"texts at {', '.join(keys)}", "correct text_keys, or name other files"
        raise InputError(
            "no text in a file of evaluations", where=path, expected=expected, remedy=remedy
        )


def _lines(folder: RawFolder, file: FileStat) -> Iterator[tuple[int, Any]]:
    for block in read_lines(
        StoredPiece(folder, Piece(file.path, 0, file.size, 1, "")), _LONGEST_LINE
    ):
        for line, data in enumerate(block.lines, block.first_number):
            if data.strip():
                yield line, orjson.loads(data)


def _rows_of_table(folder: RawFolder, file: FileStat) -> Iterator[tuple[int, Any]]:
    for first, rows in read_table(
        folder / file.path, lambda schema: None, lambda rows, first: (first, rows)
    ):
        yield from enumerate(rows.to_pylist(), first)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)
    elif isinstance(value, int | float):
        yield str(value)
