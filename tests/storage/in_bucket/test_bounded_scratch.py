"""Builds with outputs in a bucket, on machines that have less room for working copies than all
outputs take (`storage.scratch_mib`), or whose working copies are deleted meanwhile.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.buckets import objects
from helpers.building import (
    build_all,
    make_dataset,
    make_inventory,
    make_mappings,
    make_shards,
    make_tars,
)
from helpers.dask_cluster import OWN_MOUNTS, can_hide
from helpers.inspecting import node_at, read_dataset, verify_at
from helpers.progress import RecordingDisplay
from helpers.sample_project import WITH_PBIN, jsonl, outputs_of, sentences
from nanoset_core.errors import MissingError, StorageError
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import current_manifest
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.stores.s3.store import S3Store

SCRATCH_MIB = 4
BUILD_AND_VERIFY = r"""
import sys
from helpers.building import build_all
from nanoset_core.project.verify import verify_project

project = build_all(sys.argv[1])
errors = []
for deep in (False, True):
    for report in verify_project(project, deep=deep):
        errors.extend(report.errors)
sys.exit("\n".join(str(error) for error in errors))
"""
"""Builds the project of a nanoset.yaml, verifies it, and writes the errors to stderr."""


def limit_copies(config: Path, mib: int = 1) -> None:
    """Limit the room for working copies in a nanoset.yaml."""
    settings = config.read_text()
    config.write_text(settings.replace("storage: {", f"storage: {{scratch_mib: {mib}, "))


def run_on_a_small_disk(code: str, config: Path, n_bytes: int) -> str:
    """Run Python code with working copies and temporary files on a small disk; return its stderr.

    Args:
        code: Receives the path of the nanoset.yaml as its only argument.
        config: The nanoset.yaml.
        n_bytes: Size of the disk.
    """
    disk = config.parent / ".nanoset"
    disk.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o size={n_bytes} none "{disk}" && mkdir "$TMPDIR" && exec "$0" "$@"'
    tests_folder = Path(__file__).parents[2]
    import_paths = [str(tests_folder), *filter(None, sys.path)]
    environment = os.environ | {
        "TMPDIR": str(disk / "tmp"),
        "PYTHONPATH": os.pathsep.join(import_paths),
    }
    command = [*OWN_MOUNTS, mount, sys.executable, "-c", code, str(config)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    return process.stderr.strip()


def enlarge_web(config: Path) -> None:
    """Give the project a larger corpus web, longer contexts, and two workers."""
    settings = config.read_text()
    for old, new in {
        "range_mib: 0.02, workers: 1": "range_mib: 0.5, workers: 2",
        "groups: 3": "groups: 1",
        ", samples: {train: 400}": "",
        "sequence_length: 33": "sequence_length: 4097",
        "shard: 128": "shard: 16",
    }.items():
        settings = settings.replace(old, new)
    config.write_text(settings)

    rows: list[dict[str, str]] = []
    for number in range(160):
        rows.extend(sentences(f"web{number}", 240))
    n_files = 48
    web = config.parent / "raw" / "web"
    shutil.rmtree(web)
    web.mkdir()
    for number in range(n_files):
        (web / f"{number}.jsonl").write_bytes(jsonl(rows[number::n_files]))


@pytest.mark.slow
def test_a_build_and_its_verification_need_no_more_room_than_allowed(
    make_project, remote_project, place
):
    """The disk is as large as `storage.scratch_mib` says, and the tokens of each stage take twice
    as much. Temporary files without a name take room on it, too.
    """
    if not can_hide():
        pytest.skip("processes cannot mount file systems of their own on this machine")
    local = make_project("large", WITH_PBIN)
    remote = remote_project("remote")
    limit_copies(remote, SCRATCH_MIB)
    enlarge_web(local)
    enlarge_web(remote)

    errors = run_on_a_small_disk(BUILD_AND_VERIFY, remote, SCRATCH_MIB << 20)
    assert errors == ""

    # The outputs are those of a build with enough room, except that large files were uploaded in
    # pieces. Manifests of datasets name the lists of these pieces, and so differ.
    build_all(local)
    digests = outputs_of(local)
    digests_in_bucket = objects(place)
    lists_of_pieces = {name for name in digests_in_bucket if name.endswith(".bin.pieces")}
    assert digests.keys() == digests_in_bucket.keys() - lists_of_pieces
    differing = {name for name in digests if digests_in_bucket[name] != digests[name]}
    assert {Path(name).name for name in differing} <= {"manifest.json"}
    assert {Path(name).parts[0] for name in differing} <= {"datasets"}


class CopyRemover:
    """Deletes all working copies before some of the requests to a bucket."""

    MAX_REMOVALS = 10

    def __init__(self, folder: Path) -> None:
        """Create a remover of the working copies in a folder."""
        self.n_removals = 0
        self._folder = folder
        self._random = random.Random(0)

    def before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the store that may delete all copies, and then calls `method`."""

        def request(*arguments, **options):
            if self.n_removals < self.MAX_REMOVALS and self._random.random() < 0.04:
                self.n_removals += 1
                shutil.rmtree(self._folder, ignore_errors=True)
            return method(*arguments, **options)

        return request


@pytest.mark.slow
def test_a_build_succeeds_although_its_copies_are_deleted_meanwhile(
    remote_project, place, local_build, monkeypatch
):
    config = remote_project()
    remover = CopyRemover(config.parent / ".nanoset" / "mirror")
    for name in ("put_file", "list", "fetch", "put"):
        monkeypatch.setattr(S3Store, name, remover.before(getattr(S3Store, name)))

    build_all(config)

    assert remover.n_removals == remover.MAX_REMOVALS
    monkeypatch.undo()
    assert objects(place) == outputs_of(local_build)


def test_outputs_are_not_kept_on_the_disk_after_they_were_uploaded(remote_project):
    config = remote_project()
    limit_copies(config)
    project = Project.open(config)

    make_inventory(project, "web")
    make_shards(project, "web")

    copies = [path for path in project.outputs.folder.rglob("*") if path.is_file()]
    assert not [copy for copy in copies if copy.suffix in (".bin", ".idx", ".parquet")]


# Copies on a small disk. Three quarters of the room are for them, the rest is for blocks of files.

CAPACITY = 1 << 20
COPY_BYTES = 200_000
"""Three such copies fit, but not four."""


def fetch(access: FileAccess, name: str) -> Path:
    """Download a file, and return the path of its copy."""
    return access.fetch(access.folder / name)


def test_a_new_copy_takes_the_room_of_the_oldest_one(place, tmp_path):
    access = FileAccess(tmp_path / "mirror", place, capacity=CAPACITY)
    names = ["oldest", "second", "third", "newest"]
    for name in names:
        place.put(f"a/{name}", bytes(COPY_BYTES))

    for name in names:
        assert fetch(access, f"a/{name}").is_file()

    copies = sorted(path.name for path in (access.folder / "a").iterdir())
    assert copies == ["newest", "second", "third"]


def test_a_file_that_is_no_copy_takes_room_but_is_not_removed(place, tmp_path):
    access = FileAccess(tmp_path / "mirror", place, capacity=CAPACITY)
    marker = access.folder / ".in-use" / "web"
    marker.parent.mkdir(parents=True)
    marker.write_bytes(bytes(COPY_BYTES))
    names = ["oldest", "second", "newest"]
    for name in names:
        place.put(f"a/{name}", bytes(COPY_BYTES))

    for name in names:
        assert fetch(access, f"a/{name}").is_file()

    copies = sorted(path.name for path in (access.folder / "a").iterdir())
    assert copies == ["newest", "second"]
    assert marker.is_file()


def test_a_file_that_is_larger_than_the_room_is_refused(place, tmp_path):
    place.put("a/large", bytes(2 * CAPACITY))
    access = FileAccess(tmp_path / "mirror", place, capacity=CAPACITY)

    with pytest.raises(StorageError, match="larger than the room") as caught:
        fetch(access, "a/large")

    assert "storage.scratch_mib" in caught.value.remedy


def test_a_large_file_is_fetched_if_the_room_is_not_limited(place, tmp_path):
    place.put("a/large", bytes(2 * CAPACITY))
    access = FileAccess(tmp_path / "mirror", place)

    assert fetch(access, "a/large").is_file()


# Builds with too little room


class TooLittleRoom(NamedTuple):
    """Something that needs more room than there is."""

    capacity: int
    """Bytes of the room for working copies."""
    make: Callable[[Project], object]
    message: str
    """What the error says is too large."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            TooLittleRoom(
                capacity=10_000,
                make=lambda project: make_shards(project, "web"),
                message="a shard is larger",
            ),
            id="shard",
        ),
        pytest.param(
            TooLittleRoom(
                capacity=2_000,
                make=lambda project: make_dataset(project, "web"),
                message="the .idx of web",
            ),
            id="dataset",
        ),
        pytest.param(
            TooLittleRoom(
                capacity=10_000,
                make=lambda project: make_mappings(project, "pretrain", "train"),
                message="the index files of a dataset",
            ),
            id="index mappings",
        ),
        pytest.param(
            TooLittleRoom(
                capacity=24_000,
                make=lambda project: make_tars(project, "shuffled", 0),
                message="a tar of 128 samples",
            ),
            id="tar",
        ),
        pytest.param(
            TooLittleRoom(
                capacity=400,
                make=lambda project: read_dataset(project, "web"),
                message="web_text_document.idx",
            ),
            id="reading a dataset",
        ),
    ],
)
def test_what_is_larger_than_the_room_is_refused_with_the_setting_to_change(
    remote_project, filled, monkeypatch, case
):
    monkeypatch.setattr(StorageSpec, "capacity", case.capacity)
    project = Project.open(remote_project(), rebuild=True)

    with pytest.raises(StorageError, match="larger than the room for working copies") as caught:
        case.make(project)

    assert case.message in str(caught.value)
    assert "storage.scratch_mib" in caught.value.expected
    assert "set storage.scratch_mib to more" in caught.value.remedy


@pytest.mark.parametrize("deep", [False, True], ids=["quick", "deep"])
def test_a_check_of_index_files_that_do_not_fit_says_which_setting_to_change(
    remote_project, filled, monkeypatch, deep
):
    # Each of these files fits, but all of them together do not.
    monkeypatch.setattr(StorageSpec, "capacity", 10_000)

    report = verify_at(
        Project.open(remote_project()), "nanosets/pretrain/train/index_mappings", deep=deep
    )

    assert report.errors
    for error in report.errors:
        assert "larger than the room for working copies" in error.what
        assert "the index files of a dataset" in error.where
        assert "storage.scratch_mib" in error.expected


def test_shards_are_made_by_fewer_workers_if_there_is_little_room(remote_project, monkeypatch):
    config = remote_project()
    config.write_text(config.read_text().replace("workers: 1", "workers: 3"))
    monkeypatch.setattr(StorageSpec, "capacity", 100_000)
    display = RecordingDisplay()
    project = Project.open(config, display.progress)
    make_inventory(project, "web")

    make_shards(project, "web")

    notes = "\n".join(display.notes)
    assert "of 3 workers: storage.scratch_mib" in notes


# Outputs that have not been built


def test_a_stage_whose_input_was_not_built_names_the_place_in_the_bucket(remote_project, place):
    project = Project.open(remote_project())

    with pytest.raises(MissingError, match="has not been built") as caught:
        make_shards(project, "web")

    assert str(caught.value.where).startswith(place.url())


def test_an_output_that_was_not_built_is_reported_with_its_place_in_the_bucket(
    remote_project, place
):
    project = Project.open(remote_project())
    dataset = node_at("datasets/web")

    with pytest.raises(MissingError, match="has not been built") as caught:
        current_manifest(project, dataset.stage, dataset.key)

    assert caught.value.where == place.url("datasets/web")
