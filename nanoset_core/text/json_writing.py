"""Write values as JSON, however deeply they are nested.

Python's json module calls itself for each level of nesting, and gives up after some 1,000 of them.
Raw text may have deeper values, since the parser orjson accepts 1,024 levels. One such value must
not stop the build of a corpus.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


class _Written(str):
    """A piece of text that already is JSON, such as a bracket or a comma."""


_OPEN_LIST = _Written("[")
_CLOSE_LIST = _Written("]")
_OPEN_OBJECT = _Written("{")
_CLOSE_OBJECT = _Written("}")


def json_text(value: Any, encoder: json.JSONEncoder) -> str:
    """Return a value as JSON.

    The text does not depend on how deep the calls of Python are nested already, as it does with
    `json.dumps`: the same value could be written in one process, and fail in another.

    Args:
        value: The value, as Python's json module returns it.
        encoder: Says how it is written, for example with or without spaces after commas.
    """
    try:
        return encoder.encode(value)
    except RecursionError:
        return _text_of_deep_value(value, encoder)


def _text_of_deep_value(value: Any, encoder: json.JSONEncoder) -> str:
    """Return the text that `encoder.encode` would return, but without recursive calls.

    A list or object is replaced by its pieces until nothing but text is left. For [1, [2]]:

        written    pending
                   [1, [2]]
        [          1   ,   [2]   ]
        [1,        [2]   ]
        [1,[       2   ]   ]
        [1,[2]]

    Args:
        value: A value of any depth.
        encoder: Writes everything but lists and objects.
    """
    written: list[str] = []
    pending = [value]  # values and pieces of text, in reverse order: the next one is the last
    while pending:
        item = pending.pop()
        if type(item) is _Written:
            written.append(item)
        elif type(item) is list:
            pending.extend(reversed(_pieces_of_list(item, encoder)))
        elif type(item) is dict:
            pending.extend(reversed(_pieces_of_object(item, encoder)))
        else:
            written.append(encoder.encode(item))
    return "".join(written)


def _pieces_of_list(items: Sequence[Any], encoder: json.JSONEncoder) -> list[Any]:
    """Return the pieces of a list: for [1, "a"], the pieces "[", 1, ",", "a" and "]"."""
    pieces: list[Any] = [_OPEN_LIST]
    for index, item in enumerate(items):
        if index > 0:
            pieces.append(_Written(encoder.item_separator))
        pieces.append(item)
    pieces.append(_CLOSE_LIST)
    return pieces


def _pieces_of_object(members: Mapping[str, Any], encoder: json.JSONEncoder) -> list[Any]:
    """Return the pieces of an object: for {"a": 1}, the pieces "{", "a", ":", 1 and "}"."""
    pieces: list[Any] = [_OPEN_OBJECT]
    for index, (key, item) in enumerate(members.items()):
        if index > 0:
            pieces.append(_Written(encoder.item_separator))
        pieces.append(key)
        pieces.append(_Written(encoder.key_separator))
        pieces.append(item)
    pieces.append(_CLOSE_OBJECT)
    return pieces
