"""Tars of tokens that stay in a bucket: their rows are stored there once, for all groups."""

import numpy as np
import pytest

from helpers.building import make_corpora
from helpers.sample_project import tree
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.planning import settings_of, sources_of
from nanoset_core.stages.webdataset.stored_rows import StoredRows, is_worth_storing


@pytest.fixture
def project(remote_project, monkeypatch) -> Project:
    """A project in a bucket whose datasets are made, and whose tokens are not copied; parts are of
    100 contexts.
    """
    file = remote_project()
    file.write_text(file.read_text().replace("groups: 3", "groups: 3\n    engine: buckets"))
    project = Project.open(file)
    make_corpora(project)
    monkeypatch.setattr(shuffling, "_are_copied", lambda *_: False)
    of = StoredRows.of
    monkeypatch.setattr(
        StoredRows, "of", lambda store, contexts, most: of(store, contexts, min(most, 100))
    )
    return project


def tars(folder) -> dict[str, str]:
    return {
        name: sha
        for name, sha in tree(folder).items()
        if name.endswith(".tar") and "/current/" not in f"/{name}"
    }


def in_bucket(project: Project) -> list[str]:
    return [found.name for found in project.outputs.access.store.list("webdatasets")]


def test_tokens_are_read_once_for_all_groups_and_the_tars_are_the_same(project, built_here, ranges):
    shuffling.make_plan(project, "shuffled")
    del ranges[:]
    for group in range(3):
        shuffling.write_group(project, "shuffled", group)
    size = sum(fact.size for fact in (one for one in datasets(project)))
    read = sum(end - begin for name, begin, end in ranges if name.endswith(".bin"))
    assert size <= read <= 1.5 * size  # by blocks of 4 KiB
    plan = shuffling.current_plan(project, "shuffled")[1]
    parts = [name for name in in_bucket(project) if "/.rows/" in name]
    assert len(parts) > 3
    stored = sum(end - begin for name, begin, end in ranges if name.startswith(".tmp-"))
    assert stored == plan.contexts * plan.row_bytes
    shuffling.finish(project, "shuffled")
    assert not [name for name in in_bucket(project) if "/.rows/" in name]
    here = {
        name.rpartition("/")[2]: sha
        for name, sha in tars(built_here.parent / "data" / "webdatasets").items()
    }
    store = project.outputs.access.store
    there = {
        name.rpartition("/")[2]: store.sha256(name)
        for name in in_bucket(project)
        if name.endswith(".tar")
    }
    assert there == here


def datasets(project: Project):
    for corpus in ("web", "code", "books"):
        dataset = project.outputs.current("datasets", corpus)
        yield dataset.files[f"{dataset.facts['prefix']}.bin"]


def test_a_killed_build_goes_on_and_gc_removes_what_another_left(project, monkeypatch):
    put, made = StoredRows.put, list[range]()

    def put_two(rows: StoredRows, part: range, values: np.ndarray) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(part)
        put(rows, part, values)

    shuffling.make_plan(project, "shuffled")
    monkeypatch.setattr(StoredRows, "put", put_two)
    with pytest.raises(KeyboardInterrupt):
        shuffling.write_group(project, "shuffled", 0)
    monkeypatch.setattr(
        StoredRows, "put", lambda rows, part, values: (made.append(part), put(rows, part, values))
    )
    shuffling.write_group(project, "shuffled", 1)
    contexts = shuffling.current_plan(project, "shuffled")[1].table.contexts
    assert sorted(number for part in made for number in part) == [*range(contexts)]
    project.outputs.access.store.delete(
        next(name for name in in_bucket(project) if "/.rows/" in name)
    )
    shuffling.write_group(project, "shuffled", 0)
    shuffling.write_group(project, "shuffled", 2)
    assert len(made) == len(set(made)) + 1
    assert [name for name in in_bucket(project) if "/.rows/" in name]
    collect(project, unfinished=True)
    assert not [name for name in in_bucket(project) if "/.rows/" in name]


def test_rows_are_stored_only_where_that_saves_reading(project):
    datasets = {
        corpus: project.outputs.current("datasets", corpus) for corpus in ("web", "code", "books")
    }
    sources = sources_of(project, datasets, is_stored=True)
    plan = plan_shuffle(sources, settings_of(project, project.webdataset("shuffled"), datasets))
    assert is_worth_storing(plan, sources, 1, "buckets")
    assert not is_worth_storing(plan, sources, 1, "mmap")
    assert not is_worth_storing(plan, sources, 1, "auto")  # so few tokens stay with a worker
