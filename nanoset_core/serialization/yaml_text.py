"""YAML → plain values, within bounds: no tag runs code, no alias unfolds into gigabytes, no key stands twice."""

from __future__ import annotations

import copy
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError

MOST_BYTES = 4 << 20
MOST_VALUES = 1_000_000
"""With everything counted that an alias stands for."""
_LONGEST_NUMBER = 100
_MOST_BRACKETS = 100
"""One within the other; the scanner's time grows with the square of them."""
_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What PyYAML raises, besides its own, where a tag stands at a value of another kind."""


def read_yaml(file: Path, *, remedy: str) -> object:
    """The value of a YAML file.

    Raises:
        OSError: it cannot be read.
        ConfigError: not UTF-8, not YAML, a key twice, or beyond the bounds.
    """
    import yaml

    mode = file.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        raise ConfigError("not a regular file", where=file, found="a pipe or a device", expected="YAML", remedy=remedy)
    with file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(
            "too long for settings", where=file, expected=f"at most {MOST_BYTES:,} bytes of YAML", remedy=remedy
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8 text", where=file, found=str(error), remedy="save it as UTF-8") from error
    try:
        return copy.deepcopy(_parsed(text))
    except (yaml.YAMLError, *_ERRORS) as error:
        raise ConfigError("not YAML", where=file, found=str(error)[:1000], remedy=remedy) from error


@lru_cache(maxsize=2)
def _parsed(text: str) -> object:
    """The value of a text, not to be changed; the last ones are kept: runs and ticks read the same settings again."""
    loader: Any = _loader()(text)
    node = loader.get_single_node()
    if node is None:
        return None
    _count(node, {})
    return loader.construct_document(node)


def _count(node: Any, known: dict[int, int]) -> int:
    """Values in a node, with those behind aliases, each as often as it stands there; ValueError above the bounds."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = 0  # of a value that holds itself: whoever reads it will see that
    if isinstance(node.value, str):
        if "\0" in node.value.encode().decode():  # half a surrogate cannot be encoded
            raise ValueError("a NUL within a text")
        if node.tag.endswith((":int", ":float")) and len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(node.value):,} characters")
        count = 1
    else:
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        count = 1 + sum(_count(part, known) for part in parts)
    if count > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values, with those that aliases stand for")
    known[id(node)] = count
    return count


@lru_cache(maxsize=1)
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, TokenClass: type) -> None:
            if self.flow_level >= _MOST_BRACKETS:
                raise yaml.scanner.ScannerError(
                    None, None, f"more than {_MOST_BRACKETS} brackets within each other", self.get_mark()
                )
            super().fetch_flow_collection_start(TokenClass)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = str(key_node.value)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    return Loader
