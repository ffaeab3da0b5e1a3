"""The state of webdatasets and packed corpora."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.pipeline import packed, shuffling
from nanoset_core.pipeline.project import Project
from nanoset_core.versions.live import live_version
from nanoset_core.versions.rows import Row, state_of, stored_bytes


def webdataset_row(project: Project, name: str, datasets: Mapping[str, str | None], *, busy: bool = False) -> Row:
    """A webdataset's plan, tars and lists, as one. datasets: as for `nanoset_rows`."""
    spec = project.webdataset(name)
    live = live_version(project, shuffling.STAGE, name)
    known = {corpus: digest for corpus in spec.names if (digest := datasets.get(corpus)) is not None}
    why = [f"{corpus} is not up to date" for corpus in spec.names if corpus not in known]
    if not why:
        wanted = shuffling.plan_recipe(project, name, known)
        plan = live_version(project, shuffling.PLANS, name)
        why = plan.why_not(wanted)
        tars = live.why_not(shuffling.webdataset_recipe(wanted))
        why += [reason for reason in tars if reason not in why and not (why and reason == "plan changed")]
        if tars and not plan.why_not(wanted):
            why.append(_progress(project, name))
    figures: dict[str, int] = {}
    if live.manifest is not None:
        facts = live.manifest.facts
        figures = {name: int(facts[name]) for name in ("shards", "sequences", "tokens")}
        figures["bytes"] = stored_bytes(live.manifest)
    return Row("webdataset", name, None, state_of(live, why), tuple(why), figures, live.made_at, busy)


def _progress(project: Project, name: str) -> str:
    groups = project.webdataset(name).groups
    try:
        done = sum(shuffling.is_group_written(project, name, group) for group in range(groups))
    except NanosetError as error:
        return error.what
    return f"{done:,} of {groups:,} groups of tars written"


def packed_row(project: Project, corpus: str, dataset: str | None, *, busy: bool = False) -> Row:
    """A corpus's .pbin. dataset: digest of the dataset that belongs to its files now."""
    live = live_version(project, packed.STAGE, corpus)
    why = [f"{corpus} is not up to date"]
    if dataset is not None:
        why = live.why_not(packed.packed_recipe(project, corpus, dataset))
    figures: dict[str, Any] = {}
    if live.manifest is not None:
        figures = {name: int(live.manifest.facts[name]) for name in ("documents", "tokens")}
        figures["bytes"] = stored_bytes(live.manifest)
    return Row("packed", corpus, None, state_of(live, why), tuple(why), figures, live.made_at, busy)
