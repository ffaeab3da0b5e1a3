"""raw_jsonl: the inventory of a corpus's files."""

import json
from collections.abc import Mapping
from typing import Any

from nanoset_assets.run_requests import was_asked_by_itself
from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.corpus import raw_metadata
from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import FormatError
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.contents import awaited
from nanoset_core.raw.pieces import Inventory


def _details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {
        "kinds": {"json", "file"},
        "tags": {"nanoset/stage": "raw"},
        "description": "Raw text of a corpus as it lies in the raw folder: every file with its size and content "
        "digest, in document order. Its data version changes when a file is added, removed, renamed or edited.",
    }


@page_of(raw.INVENTORY, _details)
def raw_jsonl(work: Work) -> Mapping[str, Any]:
    """Survey a corpus, and show its files and what changed of them."""
    corpus = work.key.subject
    before = _last_inventory(work.project, corpus)
    asked_by_itself = was_asked_by_itself(work.names, work.context.run.tags)
    inventory = raw.survey(work.project, corpus, settled=asked_by_itself, executor=work.project.executor)
    work.made(raw.publish_inventory(work.project, inventory))
    notices = [*awaited(inventory.awaited), *raw.notices(work.project, corpus)]
    for notice in notices:
        work.context.log.warning(notice.text)
    return raw_metadata(work.project, before, inventory, notices)


def _last_inventory(project: Project, corpus: str) -> Inventory | None:
    try:
        manifest = project.outputs.current(raw.STAGE, corpus)
    except FormatError:
        return None  # damaged; what is made now takes its place
    return None if manifest is None else Inventory.from_json(json.loads(manifest.path(raw.FILE).read_bytes()))
