"""Apply the policies on_missing and on_duplicate to documents and attribute tables.

Attributes are values such as scores, which are joined to documents by their ids. With `on_missing:
fail`, a document whose id is in no row of the tables is an error; with `on_missing: keep`, its
attributes are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.names import (
    DUPLICATES,
    FIRST_MISSING,
    FOLDER,
    MISSING,
    UNMATCHED,
    WITHOUT_ID,
)
from nanoset_core.stages.attributes.settings import AttributesSpec


class Violation(NamedTuple):
    """A policy that the documents or the attribute tables of a corpus violate."""

    what: str
    """What is wrong, such as "3 of 200 documents have no row in scores/*.parquet"."""
    remedy: str
    """What to do about it."""


def violations(config: ProjectConfig, attributes: Manifest) -> Iterator[Violation]:
    """Yield the policies in nanoset.yaml that joined attributes violate.

    Attributes are values of documents that other tables have, such as scores, by the documents'
    ids:

        on_missing: fail      an error if a document has no row in these tables
        on_duplicate: fail    an error if it has several rows

    Args:
        config: The settings of nanoset.yaml.
        attributes: Manifest of the joined attributes, which has the counts of such documents.
    """
    spec = config.attributes_of(attributes.name)
    if spec is None:  # the attributes were removed from nanoset.yaml
        return
    facts = attributes.facts

    # Without ids, no document has a row, whatever the policies are.
    if facts[WITHOUT_ID] == facts["documents"]:
        yield Violation(
            what="no document of the corpus has an id",
            remedy="name the key of their ids in documents.id_key",
        )
        return

    if facts[MISSING] and spec.on_missing == "fail":
        yield Violation(
            what=missing_text(spec, facts),
            remedy="add their rows, or set on_missing: keep",
        )
    if facts[DUPLICATES] and spec.on_duplicate == "fail":
        yield Violation(
            what=duplicates_text(spec, facts),
            remedy="keep one row of each id, or set on_duplicate: first",
        )


def check_policies(config: ProjectConfig, attributes: Manifest) -> None:
    """Check that values which were joined to documents are as complete as the user demands.

    A classifier may have a score for each document, for example. The settings say what happens if
    it has none for some, or several:

        on_missing: fail        an error if a document is in no table
        on_duplicate: fail      an error if a document is in several rows

    Args:
        config: The settings of nanoset.yaml.
        attributes: Manifest of the joined values, with the counts of such documents.

    Raises:
        InputError: There are such documents. Only the first violation is reported.
    """
    # Report the first violation only.
    for violation in violations(config, attributes):
        raise InputError(
            violation.what,
            where=f"{config.file}: {FOLDER}.{attributes.name}",
            remedy=violation.remedy,
        )


def missing_text(spec: AttributesSpec, facts: Mapping[str, Any]) -> str:
    """Say how many documents have no row in a table of attributes, such as scores.

        3 of 200 documents have no row in scores.parquet, as 'doc-17'; 1 of them have no id

    Args:
        spec: The settings of the attributes, which name the tables.
        facts: What was counted when the table was joined to the documents.
    """
    text = f"{facts[MISSING]:,} of {facts['documents']:,} documents have no row in {spec.files}"
    if facts.get(FIRST_MISSING):
        text += f", as {facts[FIRST_MISSING]!r}"
    if facts[WITHOUT_ID]:
        text += f"; {facts[WITHOUT_ID]:,} of them have no id"
    return text


def duplicates_text(spec: AttributesSpec, facts: Mapping[str, Any]) -> str:
    """Say for how many documents a table of attributes, such as scores, has several rows.

        5 documents have several rows in scores.parquet, of which the first is used

    Args:
        spec: The settings of the attributes, which name the tables.
        facts: What was counted when the table was joined to the documents.
    """
    return (
        f"{facts[DUPLICATES]:,} documents have several rows in {spec.files}, "
        "of which the first is used"
    )


def unmatched_text(spec: AttributesSpec, facts: Mapping[str, Any]) -> str:
    """Say how many ids of the tables belong to no document.

    Args:
        spec: The settings of the attributes, which name the tables.
        facts: Facts of the joined attributes.

    Returns:
        Such as "12 ids of scores.parquet belong to no document".
    """
    return f"{facts[UNMATCHED]:,} ids of {spec.files} belong to no document"
