"""raw_jsonl: the inventory of a corpus's files."""

import json
import time
from collections import Counter

import dagster as dg

from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_assets.ui.file_tables import raw_files, what_changed
from nanoset_assets.ui.metadata import ROWS_SHOWN, bytes_text, markdown, plural, result, table
from nanoset_core.errors import FormatError
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import SUFFIXES, Inventory


@dg.asset(
    partitions_def=CORPORA,
    group_name="corpora",
    kinds={"json", "file"},
    tags={"nanoset/stage": "raw"},
    code_version=str(raw.VERSION),
    description="Raw text of a corpus as it lies in the raw folder: every file with its size and content digest, in "
    "document order. Its data version changes when a file is added, removed, renamed or edited.",
)
def raw_jsonl(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    started = time.monotonic()
    opened = project.open(context)
    before = _last_inventory(opened, context.partition_key)
    inventory = raw.survey(opened, context.partition_key)
    manifest = raw.publish_inventory(opened, inventory)
    if inventory.ignored:
        context.log.warning(f"not read, since of another kind: {', '.join(inventory.ignored[:ROWS_SHOWN])}")
    metadata = {
        "summary": markdown(_summary(inventory)),
        "changed_since_the_last": what_changed(before, inventory),
        "listing": raw_files(inventory),
        **_ignored(inventory),
        "files": manifest.facts["files"],
        "stored_bytes": manifest.facts["stored_bytes"],
        "ignored_files": len(inventory.ignored),
        "folder": dg.MetadataValue.path(str(raw.corpus_folder(opened, context.partition_key))),
    }
    return result(manifest, time.monotonic() - started, metadata)


def _last_inventory(project: Project, corpus: str) -> Inventory | None:
    try:
        manifest = project.outputs.current(raw.STAGE, corpus)
    except FormatError:
        return None  # damaged; what is made now takes its place
    return None if manifest is None else Inventory.from_json(json.loads(manifest.path(raw.FILE).read_bytes()))


def _summary(inventory: Inventory) -> str:
    kinds = Counter(next(suffix for suffix in SUFFIXES if path.endswith(suffix)) for path in inventory.files)
    named = ", ".join(f"{count:,} {suffix}" for suffix, count in kinds.most_common())
    return f"**{plural(len(inventory.files), 'file')}** ({named}), {bytes_text(inventory.size)} as stored."


def _ignored(inventory: Inventory) -> dict[str, dg.TableMetadataValue]:
    if not inventory.ignored:
        return {}
    return {"not_read": table([{"file": path} for path in inventory.ignored[:ROWS_SHOWN]], len(inventory.ignored))}
