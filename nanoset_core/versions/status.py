"""`nanoset status`: what is up to date, stale, missing or failing, told without building and without reading text."""

from __future__ import annotations

from collections.abc import Iterator

from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.locks import busy_names
from nanoset_core.versions.corpus_status import corpus_status
from nanoset_core.versions.nanoset_status import PLANNED_BYTES, nanoset_rows
from nanoset_core.versions.rows import Row
from nanoset_core.versions.stat_survey import Budget
from nanoset_core.versions.webdataset_status import packed_row, webdataset_row


def project_status(project: Project) -> Iterator[Row]:
    """The state of every corpus, nanoset, webdataset and packed corpus, each as soon as it is known.

    Files are known by size, time and inode from earlier surveys; those of a live inventory that were written since are
    read where they are small (8 MiB in all). What `nanoset build` would make is not up to date here, as far as the
    outputs go; its history of runs is not looked at.

    Raises:
        MissingError, InputError, ConfigError: the raw folder, or nanoset.yaml, is not as it must be.
    """
    busy = busy_names(project.outputs.folder)
    budget, planning = Budget(), Budget(PLANNED_BYTES)
    datasets: dict[str, str | None] = {}
    for corpus in _corpora(project):
        found = corpus_status(project, corpus, budget, busy=corpus in busy)
        datasets[corpus] = found.dataset
        yield found.row
    for name in project.config.nanosets:
        yield from nanoset_rows(project, name, datasets, planning, busy=name in busy)
    for name in project.config.webdatasets:
        yield webdataset_row(project, name, datasets, busy=name in busy)
    for corpus in project.config.packed:
        yield packed_row(project, corpus, datasets[corpus], busy=corpus in busy)


def _corpora(project: Project) -> list[str]:
    """Every corpus that the raw folder holds, and those that are asked for but not there."""
    config = project.config
    specs = [*config.nanosets.values(), *config.webdatasets.values()]
    named = [corpus for spec in specs for corpus in spec.corpora]
    return sorted({*raw.corpora(project), *named, *config.packed})
