"""To make tars of tokens that stay in a bucket, the tokens are read once.

Their rows are stored in the bucket in shuffled order, for all groups of tars.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.s3_server import restore, total_bytes
from helpers.sample_project import tree
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.planning import settings_of, sources_of
from nanoset_core.stages.webdataset.stored_rows import StoredRows, is_worth_storing
from nanoset_core.storage.stores.s3.store import S3Store

CORPORA = ("web", "code", "books")
N_GROUPS = 3
MAX_CONTEXTS = 100
"""Most contexts of a part of stored rows, so that a plan has several parts."""


@pytest.fixture
def project(
    remote_project, place: S3Store, built_objects, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project in a bucket with its datasets, whose tokens are not copied to this machine."""
    config = remote_project()
    settings = config.read_text()
    engine = f"groups: {N_GROUPS}\n    engine: buckets"
    config.write_text(settings.replace(f"groups: {N_GROUPS}", engine))
    project = Project.open(config)
    outputs = {}
    for name, stored_object in built_objects.items():
        if not name.startswith("webdatasets/"):
            outputs[name] = stored_object
    restore(place, outputs)

    monkeypatch.setattr(shuffling, "_are_copied", lambda *_: False)
    original_of = StoredRows.of

    def stored_rows_of(store, contexts, max_contexts):
        return original_of(store, contexts, min(max_contexts, MAX_CONTEXTS))

    monkeypatch.setattr(StoredRows, "of", stored_rows_of)
    return project


def names_in_bucket(project: Project) -> list[str]:
    """Return the names of all objects of webdatasets."""
    return [stored.name for stored in project.outputs.access.store.list("webdatasets")]


def parts_in_bucket(project: Project) -> list[str]:
    """Return the names of the objects with stored rows."""
    return [name for name in names_in_bucket(project) if "/.rows/" in name]


def digests_of_tars_in_bucket(project: Project) -> dict[str, str]:
    """Return the sha256 of each tar in the bucket, by file name."""
    store = project.outputs.access.store
    digests: dict[str, str] = {}
    for name in names_in_bucket(project):
        if name.endswith(".tar"):
            digests[Path(name).name] = store.sha256(name)
    return digests


def digests_of_tars_in(folder: Path) -> dict[str, str]:
    """Return the sha256 of each tar in a local folder of webdatasets, by file name."""
    digests: dict[str, str] = {}
    for name, digest in tree(folder).items():
        path = Path(name)
        if path.suffix == ".tar" and "current" not in path.parent.parts:
            digests[path.name] = digest
    return digests


def total_token_bytes(project: Project) -> int:
    """Return the bytes of the tokens of all datasets."""
    n_bytes = 0
    for corpus in CORPORA:
        dataset = project.outputs.current("datasets", corpus)
        n_bytes += dataset.files[f"{dataset.facts['prefix']}.bin"].size
    return n_bytes


def write_all_groups(project: Project) -> None:
    """Write the tars of all groups, but do not finish the webdataset."""
    for group in range(N_GROUPS):
        shuffling.write_group(project, "shuffled", group)


def test_tokens_are_read_once_for_all_groups(project, ranges):
    shuffling.make_plan(project, "shuffled")
    ranges.clear()

    write_all_groups(project)

    # They are read by blocks of 4 KiB: such small datasets do not end at the end of a block.
    token_ranges = [read for read in ranges if read[0].endswith(".bin")]
    n_token_bytes = total_token_bytes(project)
    assert n_token_bytes <= total_bytes(token_ranges) <= 1.5 * n_token_bytes


def test_the_rows_of_tokens_are_stored_in_parts_and_each_row_is_read_once(project, ranges):
    shuffling.make_plan(project, "shuffled")
    ranges.clear()

    write_all_groups(project)

    assert len(parts_in_bucket(project)) > 3
    _, plan = shuffling.current_plan(project, "shuffled")
    row_ranges = [read for read in ranges if read[0].startswith(".tmp-")]
    assert total_bytes(row_ranges) == plan.contexts * plan.row_bytes


def test_tars_of_stored_rows_are_those_of_a_local_project(project, local_build):
    shuffling.make_plan(project, "shuffled")
    write_all_groups(project)

    shuffling.finish(project, "shuffled")

    local_tars = digests_of_tars_in(local_build.parent / "data" / "webdatasets")
    assert digests_of_tars_in_bucket(project) == local_tars


def test_stored_rows_are_removed_when_a_webdataset_is_finished(project):
    shuffling.make_plan(project, "shuffled")
    write_all_groups(project)

    shuffling.finish(project, "shuffled")

    assert not parts_in_bucket(project)


def test_rows_that_an_interrupted_build_has_stored_are_used_by_the_next_one(project, monkeypatch):
    original_put = StoredRows.put
    parts_stored: list[range] = []

    def put(rows: StoredRows, part: range, values: np.ndarray) -> None:
        parts_stored.append(part)
        original_put(rows, part, values)

    def put_two_parts(rows: StoredRows, part: range, values: np.ndarray) -> None:
        if len(parts_stored) == 2:
            raise KeyboardInterrupt
        put(rows, part, values)

    # The first build is interrupted after it has stored two parts.
    shuffling.make_plan(project, "shuffled")
    monkeypatch.setattr(StoredRows, "put", put_two_parts)
    with pytest.raises(KeyboardInterrupt):
        shuffling.write_group(project, "shuffled", 0)

    # The next one, even of another group, stores only the other parts.
    monkeypatch.setattr(StoredRows, "put", put)
    shuffling.write_group(project, "shuffled", 1)
    _, plan = shuffling.current_plan(project, "shuffled")
    contexts_stored: list[int] = []
    for part in parts_stored:
        contexts_stored.extend(part)
    assert sorted(contexts_stored) == list(range(plan.table.contexts))

    # A part that is lost is stored again.
    n_parts = len(parts_stored)
    project.outputs.access.store.delete(parts_in_bucket(project)[0])
    shuffling.write_group(project, "shuffled", 0)
    shuffling.write_group(project, "shuffled", 2)
    assert len(parts_stored) == n_parts + 1
    assert len(set(parts_stored)) == n_parts

    # Garbage collection removes the parts of a webdataset that is never finished.
    assert parts_in_bucket(project)
    collect(project, Policy(unfinished=True))
    assert not parts_in_bucket(project)


def test_only_the_missing_tar_of_a_complete_webdataset_is_written_again(project, monkeypatch):
    shuffling.make_plan(project, "shuffled")
    for group in range(N_GROUPS):
        shuffling.write_group(project, "shuffled", group)
    shuffling.finish(project, "shuffled")
    digests_before = digests_of_tars_in_bucket(project)
    store = project.outputs.access.store
    folder = next(Path(name).parent for name in names_in_bucket(project) if name.endswith(".tar"))
    # The last group has several tars. Delete one of them, also its local copy.
    _, plan = shuffling.current_plan(project, "shuffled")
    shards = shuffling.group_shards(plan, N_GROUPS, N_GROUPS - 1)
    assert len(shards) > 1
    missing_tar = shuffling.tar_name(shards[0])
    store.delete(f"{folder}/{missing_tar}")
    (project.outputs.folder / folder / missing_tar).unlink(missing_ok=True)
    written: list[list[int]] = []
    write_shards = shuffling.write_shards

    def noted_write_shards(plan, sources, shards, *arguments, **options):
        written.append(list(shards))
        return write_shards(plan, sources, shards, *arguments, **options)

    monkeypatch.setattr(shuffling, "write_shards", noted_write_shards)
    shuffling.write_group(project, "shuffled", N_GROUPS - 1)

    assert written == [[shards[0]]]
    assert digests_of_tars_in_bucket(project) == digests_before


@pytest.mark.parametrize(
    ("engine", "are_rows_stored"),
    [
        pytest.param("buckets", True, id="buckets: on request"),
        pytest.param("mmap", False, id="mmap: never"),
        pytest.param("auto", False, id="auto: not so few tokens, which a worker keeps"),
    ],
)
def test_rows_are_stored_only_if_that_saves_reading(
    remote_project, filled, engine, are_rows_stored
):
    project = Project.open(remote_project())
    datasets = {corpus: project.outputs.current("datasets", corpus) for corpus in CORPORA}
    sources = sources_of(project, datasets, are_copied=False)
    settings = settings_of(project, project.webdataset("shuffled"), datasets)
    plan = plan_shuffle(sources, settings)

    assert is_worth_storing(plan, sources, 1, engine) == are_rows_stored
