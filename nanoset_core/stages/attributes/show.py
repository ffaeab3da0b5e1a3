"""What people are shown of joined attributes: the figures of columns, and what was not matched.

For example: "3 of 200 documents have no row in scores.parquet".
"""

from __future__ import annotations

from dataclasses import replace

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.attributes.names import DUPLICATES, MISSING, UNMATCHED
from nanoset_core.stages.attributes.policies import duplicates_text, missing_text, unmatched_text
from nanoset_core.stages.attributes.settings import AttributesSpec
from nanoset_core.stages.columns.show import columns_summary
from nanoset_core.stages.stage import Summary


def attributes_summary(spec: AttributesSpec | None, attributes: Manifest) -> Summary:
    """Return what `nanoset status` shows of attributes, such as scores of documents.

    They are values that other tables have for the documents' ids. Besides their names and numbers,
    these are warnings:

        3 of 200 documents have no row in scores.parquet, as 'doc-17'
        5 documents have several rows in scores.parquet, of which the first is used
        12 ids of scores.parquet belong to no document

    Args:
        spec: The settings, which name these tables for the warnings. None if the attributes were
            removed from nanoset.yaml: then there are no warnings.
        attributes: The record of the attributes, with these counts.
    """
    summary = columns_summary(attributes)
    if spec is None:
        return summary

    facts = attributes.facts
    warnings = list(summary.warnings)
    if facts[MISSING]:
        warnings.append(missing_text(spec, facts))
    if facts[DUPLICATES]:
        warnings.append(duplicates_text(spec, facts))
    if facts[UNMATCHED]:
        warnings.append(unmatched_text(spec, facts))
    return replace(summary, warnings=warnings)
