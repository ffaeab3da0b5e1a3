"""raw_jsonl: the inventory of a corpus's files."""

import time

import dagster as dg

from nanoset_assets.metadata import result, table
from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_core.pipeline import raw

FILES_SHOWN = 200


@dg.asset(
    partitions_def=CORPORA,
    group_name="corpora",
    kinds={"json", "file"},
    code_version=str(raw.VERSION),
    description="Raw text of a corpus as it lies in the raw folder: every file with its size and content digest, in "
    "document order. Its data version changes when a file is added, removed, renamed or edited.",
)
def raw_jsonl(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    started = time.monotonic()
    opened = project.open(context)
    inventory = raw.survey(opened, context.partition_key)
    manifest = raw.publish_inventory(opened, inventory)
    if inventory.ignored:
        context.log.warning(f"not read, since of another kind: {', '.join(inventory.ignored[:FILES_SHOWN])}")
    sizes: dict[str, int] = {}
    for piece in inventory.pieces:
        sizes[piece.path] = sizes.get(piece.path, 0) + piece.size
    rows = [{"file": path, "bytes": size} for path, size in list(sizes.items())[:FILES_SHOWN]]
    return result(
        manifest,
        time.monotonic() - started,
        {
            "files": manifest.facts["files"],
            "stored_bytes": manifest.facts["stored_bytes"],
            "ignored_files": len(inventory.ignored),
            "listing": table(rows),
        },
    )
