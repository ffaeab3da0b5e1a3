"""Apply the policies on_missing and on_duplicate to documents and attribute tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.settings import (
    DUPLICATES,
    FIRST_MISSING,
    MISSING,
    STAGE,
    UNMATCHED,
    WITHOUT_ID,
)
from nanoset_core.stages.shards.settings import AttributesSpec


class Violation(NamedTuple):
    """A policy that the documents or the attribute tables of a corpus violate."""

    what: str
    remedy: str


def violations(config: ProjectConfig, attributes: Manifest) -> Iterator[Violation]:
    """Yield the policies in nanoset.yaml that joined attributes violate.

    The policies say what happens if a document has no row in the attribute tables, or several.

    Args:
        config: The settings of nanoset.yaml.
        attributes: Manifest of the joined attributes.
    """
    spec = config.attributes_of(attributes.name)
    facts = attributes.facts
    if spec is None:
        return

    # Without ids, no document has a row, whatever the policies are.
    if facts[WITHOUT_ID] == facts["documents"]:
        yield Violation(
            "no document of the corpus has an id", "name the key of their ids in documents.id_key"
        )
        return
    if facts[MISSING] and spec.on_missing == "fail":
        yield Violation(missing_text(spec, facts), "add their rows, or set on_missing: keep")
    if facts[DUPLICATES] and spec.on_duplicate == "fail":
        yield Violation(
            duplicates_text(spec, facts), "keep one row of each id, or set on_duplicate: first"
        )


def check_policies(config: ProjectConfig, attributes: Manifest) -> None:
    """Check that joined attributes violate no policy.

    Raises:
        InputError: An id is missing or repeated, and `on_missing` or `on_duplicate` forbids it.
    """
    # Report the first violation only.
    for violation in violations(config, attributes):
        raise InputError(
            violation.what,
            where=f"{config.file}: {STAGE}.{attributes.name}",
            remedy=violation.remedy,
        )


def missing_text(spec: AttributesSpec, facts: Mapping[str, Any]) -> str:
    """Say how many documents have no row, and name one of them."""
    text = f"{facts[MISSING]:,} of {facts['documents']:,} documents have no row in {spec.files}"
    if facts.get(FIRST_MISSING):
        text += f", as {facts[FIRST_MISSING]!r}"
    if facts[WITHOUT_ID]:
        text += f"; {facts[WITHOUT_ID]:,} of them have no id"
    return text


def duplicates_text(spec: AttributesSpec, facts: Mapping[str, Any]) -> str:
    """Say how many documents have several rows."""
    return (
        f"{facts[DUPLICATES]:,} documents have several rows in {spec.files}, "
        "of which the first is used"
    )


def unmatched_text(spec: AttributesSpec, facts: Mapping[str, Any]) -> str:
    """Say how many ids of the tables belong to no document."""
    return f"{facts[UNMATCHED]:,} ids of {spec.files} belong to no document"
