"""What people are shown of joined attributes: the figures of columns, and what was not matched.

For example: "3 of 200 documents have no row in scores.parquet".
"""

from __future__ import annotations

from dataclasses import replace

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.attributes.policies import duplicates_text, missing_text, unmatched_text
from nanoset_core.stages.attributes.settings import DUPLICATES, MISSING, UNMATCHED
from nanoset_core.stages.columns.show import columns_summary
from nanoset_core.stages.shards.settings import AttributesSpec
from nanoset_core.stages.stage import Summary


def attributes_summary(spec: AttributesSpec | None, attributes: Manifest) -> Summary:
    """Return what `nanoset status` shows of attributes: values of documents from other tables.

        names: score, quality
        3 of 200 documents have no row in scores.parquet, as 'doc-17'
        12 ids of scores.parquet belong to no document

    Args:
        spec: Their present settings, or None if they are no longer in nanoset.yaml.
        attributes: Manifest of the attributes.
    """
    summary = columns_summary(attributes)
    if spec is None:  # without settings, the texts could not name the attribute tables
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
