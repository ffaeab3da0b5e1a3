"""A .bin/.idx pair by itself, with what `nanoset tokenize` noted beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanoset_core.outputs.recorded import read_record
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.remote_folder import Location
from nanoset_core.storage.working_copies import room_beside
from nanoset_core.tokenization.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenization.preprocess import MANIFEST_ENDING
from nanoset_core.tokenization.tokenizer import token_id, tokenizer_facts
from nanoset_core.verification.dataset import verify_dataset
from nanoset_core.verification.report import Report
from nanoset_core.verification.tokens import Promise

_REMEDY = "write the pair again"


def verify_prefix(
    prefix: Location, tokenizer: TokenizerPath | None = None, eod: str | None = None, *, deep: bool = False
) -> Report:
    """Check one pair: `verify_dataset`, with the promises of <prefix>.manifest.json where `nanoset tokenize` left one.

    Args:
        prefix: without .bin and .idx; of a pair in a bucket the .idx is brought, and of the tokens what is read.
        tokenizer: its file or folder; ids must be of its vocabulary.
        eod: text of the token that must end every sequence; needs the tokenizer.
        deep: read every token, and compare checksums.

    Raises:
        ConfigError: the tokenizer has no such token. MissingError, FormatError: see tokenizer_facts.
    """
    report = Report(str(prefix))
    noted = _noted(prefix)
    options, facts = noted.get("options", {}), noted.get("facts", {})
    framing = options.get("framing", {"before": (), "after": ()})
    max_id, after = None, tuple(framing["after"])
    if tokenizer is not None:
        file = tokenizer_path(tokenizer)
        max_id = tokenizer_facts(file).max_id
        after = (token_id(file, eod, "--eod"),) if eod is not None else after
    promise = Promise(
        max_id=max_id,
        dtype=options.get("dtype"),
        before=tuple(framing["before"]),
        after=after,
        documents=facts.get("documents"),
        sequences=facts.get("sequences"),
        tokens=facts.get("tokens"),
    )
    with report.catching(_REMEDY), _reached(prefix) as (here, access):
        found = verify_dataset(here, promise=promise, deep=deep, output=report.output, access=access)
        report.include(found.moved(here, str(prefix)))
    for name, fact in noted.get("files", {}).items() if deep else ():
        path = prefix.with_name(name)
        if path.is_file() and (digest := _sha256(path)) != fact["sha256"]:
            report.error(
                "a file has other bytes than when it was written",
                where=path,
                found=f"sha256 {digest}",
                expected=f"sha256 {fact['sha256']}",
                remedy=_REMEDY,
            )
    if facts and facts["lines"] != facts["documents"] + facts["skipped"] + facts["rejected"]:
        report.error("lines are not accounted for", where=f"{prefix}{MANIFEST_ENDING}", remedy=_REMEDY)
    return report


@contextmanager
def _reached(prefix: Location) -> Iterator[tuple[str, FileAccess | None]]:
    """(prefix on this machine, how its files are reached), until the block ends."""
    if isinstance(prefix, Path):
        yield str(prefix), None
        return
    with room_beside(prefix) as (here, access):
        yield str(here), access


def _noted(prefix: Location) -> dict[str, Any]:
    """What lies beside the pair, where that is a note of ours."""
    value = read_record(prefix.with_name(prefix.name + MANIFEST_ENDING)) or {}
    return value if value.get("nanoset") == 1 and "facts" in value else {}


def _sha256(path: Location) -> str | None:
    return sha256_file(path) if isinstance(path, Path) else path.store.sha256(path.path)
