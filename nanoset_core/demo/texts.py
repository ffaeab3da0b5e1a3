"""Real text from the running Python: sources, documentation topics, descriptions of installed distributions."""

from __future__ import annotations

import email
import importlib.metadata
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from nanoset_core.raw.contents import natural_key

Document = dict[str, str]
_SMALLEST, _LARGEST = 200, 400_000
_FEWEST = 20
"""So many documents leave one for each part of the split 90,5,5."""


def standard_library(limit_bytes: int) -> Iterator[Document]:
    """Yield sources of the standard library, until they hold `limit_bytes` of UTF-8 and can be split."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    yield from _sources(folder, limit_bytes, skip=("site-packages", "dist-packages", "lib2to3/tests", "idlelib/Icons"))


def libraries(limit_bytes: int) -> Iterator[Document]:
    """Yield sources of the installed packages, until they hold `limit_bytes` of UTF-8 and can be split."""
    folders = {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}
    for folder in sorted(folders):
        yield from _sources(folder, limit_bytes, skip=())


def _sources(folder: Path, limit_bytes: int, skip: tuple[str, ...]) -> Iterator[Document]:
    given = size = 0
    paths = sorted(folder.rglob("*.py"), key=lambda path: natural_key(path.relative_to(folder).as_posix()))
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if name.startswith(skip) or not path.is_file() or not _SMALLEST <= path.stat().st_size <= _LARGEST:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a source in another encoding is no text for this demo
        yield {"id": name, "text": text}
        given, size = given + 1, size + len(text.encode())
        if given >= _FEWEST and size >= limit_bytes:
            return


def documentation() -> Iterator[Document]:
    """Yield topics of the language reference, as pydoc holds them."""
    from pydoc_data import topics

    for topic, text in sorted(topics.topics.items()):
        yield {"id": f"topic/{topic}", "text": text}


def descriptions() -> Iterator[Document]:
    """Yield the long descriptions of the installed distributions, one of each name."""
    seen: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
        if metadata is None:
            continue
        message = email.message_from_string(metadata)
        body = message.get_payload()
        text = body if isinstance(body, str) and body.strip() else message.get("Description", "")
        if len(text) >= _SMALLEST:
            seen.setdefault(message.get("Name", ""), text)
    for name, text in sorted(seen.items()):
        yield {"id": f"distribution/{name}", "text": text.encode("utf-8", "replace").decode()}
