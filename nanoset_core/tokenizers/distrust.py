"""Records of engines that gave wrong tokens, stored below a project's root.

Once an engine is recorded as distrusted for a tokenizer, the recipes of everything that is
tokenized with it name this engine as one that must not be used. So everything that was made before
becomes stale, and is rebuilt with another engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from nanoset_core.outputs.notebook import Note, Notebook
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.json_records import JsonForm

FOLDER = "distrusted_engines"
"""Folder of the records, below the root."""
OPTION = "distrusted_engines"
"""Name of the option of recipes: `name version` of each distrusted engine, sorted."""


@dataclass(frozen=True, slots=True)
class Distrust(Note):
    """Why an engine is no longer trusted with a tokenizer."""

    json_form: ClassVar = JsonForm(
        "this is not a record of a distrusted engine", indent=2, is_ascii=False
    )

    engine: str
    version: str
    tokenizer: str
    """Fingerprint of the tokenizer."""
    where: str
    """Corpus, file and line of the document with wrong tokens."""
    what: str
    """The first difference."""

    @property
    def name(self) -> str:
        """The engine with its version."""
        return f"{self.engine} {self.version}"

    def identity(self) -> Any:
        """Return what is the same in all records of an engine: one document is reason enough."""
        return [self.engine, self.version, self.tokenizer]

    def __str__(self) -> str:
        return f"{self.name} gave wrong tokens for {self.where}: {self.what}"


class DistrustError(Exception):
    """An engine gave wrong tokens while a shard was made."""

    def __init__(self, record: Distrust) -> None:
        super().__init__(record)
        self.record = record


NOTEBOOK = Notebook(FOLDER, Distrust, skips_damaged=True)
"""All records. A damaged one is skipped: if the engine is used again, it is found out again."""


def load_records(
    outputs: OutputRoot, tokenizer: str | None = None, *, refresh: bool = False
) -> list[Distrust]:
    """Return the records of tokenizer engines that gave wrong tokens in a project.

    An engine is an implementation of tokenizers, such as "numpy 0.9.0". If its tokens for a
    document differ from those of the tokenizer's own library, a record is stored with the project's
    outputs, and the engine is no longer used. Listing a bucket takes time, so records that were
    read a few seconds ago are returned again.

    Args:
        outputs: The root of the project's outputs.
        tokenizer: Fingerprint of the tokenizer whose records are returned; None for all.
        refresh: Whether to read the records even if they were read a few seconds ago.
    """
    records = NOTEBOOK.read(outputs, refresh=refresh)
    if tokenizer is None:
        return records
    return [record for record in records if record.tokenizer == tokenizer]


def recipe_options(records: Iterable[Distrust]) -> dict[str, Any]:
    """Return the options by which recipes exclude tokenizer engines that gave wrong tokens.

    A recipe lists everything that an output is made from. An engine (implementation of a tokenizer)
    that is excluded changes the recipe, so that outputs it may have spoilt are made anew.

    Args:
        records: The records of one tokenizer's engines that gave wrong tokens.

    Returns:
        {"distrusted_engines": ["gigatoken 0.8.0"]}, for example; empty if there are no records.
    """
    engines = sorted({record.name for record in records})
    return {OPTION: engines} if engines else {}
