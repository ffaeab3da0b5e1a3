"""Metadata of what was found of evaluations in a corpus."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.ui.metadata import markdown, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.contamination import MATCHES
from nanoset_core.pipeline.project import Project
from nanoset_core.serialization.text import format_count


def contamination_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a table of matches: counts, and the first of them."""
    facts = manifest.facts
    counts = (
        f"**{facts['contaminated']:,} of {format_count(facts['documents'], 'document')}** hold texts of evaluations."
    )
    texts = format_count(facts["evaluation_texts"], "text")
    short = f"{facts['evaluation_too_short']:,} of {texts} of evaluations are too short to be looked for."
    rows = [{name: "" if value is None else value for name, value in match.items()} for match in facts["first"]]
    return {
        "summary": markdown(counts, short),
        **({"matches": table(rows)} if rows else {}),
        "table": dg.MetadataValue.path(manifest.url(MATCHES)),
        **{name: facts[name] for name in ("documents", "contaminated")},
    }
