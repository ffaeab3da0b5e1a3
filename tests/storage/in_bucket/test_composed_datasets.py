"""A bucket joins shards into a dataset itself: with the bytes of a local merge, but no download."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers import buckets, s3_server
from helpers.buckets import root_in
from helpers.building import make_dataset, make_inventory, make_shards
from helpers.chosen_server import LEAST_BYTES, small_parts
from helpers.inspecting import current_output, current_shards, verify_at
from helpers.s3_server import total_bytes
from helpers.sample_project import jsonl, outputs_of
from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.project.gc.collect import collect, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.store import Store, read_pieces
from nanoset_core.storage.stores.s3 import joining as s3_joining
from nanoset_core.storage.stores.s3.store import S3Store

CORPUS = "noise"
DATASET = f"datasets/{CORPUS}"
SHARDS = f"tokenized/{CORPUS}"
BIN = f"{CORPUS}_text_document.bin"
DOCUMENTS_OF_FILES = (145, 145, 8)
"""Two files whose shards are large enough to be copied within a bucket, and one that is not."""
WORDS_OF_DOCUMENT = LEAST_BYTES // 1048
RANGE_MIB = 0.57 * LEAST_BYTES / (1 << 20)
"""More than the text of a file."""
SETTINGS = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "<|endoftext|>"}}
tokenization: {{append_eod: true, range_mib: {RANGE_MIB}, workers: 1, audit: 0}}
"""


@pytest.fixture(scope="module", autouse=True)
def _small_datasets() -> Iterator[None]:
    """Let buckets join small shards, to datasets that would otherwise be merged on this machine."""
    with small_parts(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoset_core.stages.dataset.merging._SMALL_BYTES", LEAST_BYTES)
        yield


def write_project(folder: Path, tokenizer_file: Path, replacements: Mapping[str, str]) -> Path:
    """Write a project of one corpus of random text, and return its nanoset.yaml.

    Args:
        folder: Folder of the project, which does not exist yet.
        tokenizer_file: The tokenizer.
        replacements: Text in the settings → what replaces it.
    """
    rng = random.Random(0)
    words = ["".join(rng.choices("bcdfghjklmnpqrstvwxz", k=3)) for _ in range(2000)]
    raw_folder = folder / "raw" / CORPUS
    raw_folder.mkdir(parents=True)
    for number, n_documents in enumerate(DOCUMENTS_OF_FILES):
        rows = [
            {"text": " ".join(rng.choices(words, k=WORDS_OF_DOCUMENT))} for _ in range(n_documents)
        ]
        (raw_folder / f"part-{number}.jsonl").write_bytes(jsonl(rows))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    config = folder / "nanoset.yaml"
    config.write_text(SETTINGS)
    change_settings(config, replacements)
    return config


def change_settings(config: Path, replacements: Mapping[str, str]) -> None:
    """Replace texts in a nanoset.yaml, each of which it must contain."""
    settings = config.read_text()
    for old, new in replacements.items():
        assert old in settings
        settings = settings.replace(old, new)
    config.write_text(settings)


def tokenize(config: Path) -> Project:
    """Tokenize the corpus of a project, and return the project."""
    project = Project.open(config)
    make_inventory(project, CORPUS)
    make_shards(project, CORPUS)
    return project


@pytest.fixture(scope="module")
def local_config(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a local project with a dataset; tests must not write to it."""
    config = write_project(tmp_path_factory.mktemp("local") / "project", tokenizer_file, {})
    make_dataset(tokenize(config), CORPUS)
    return config


class StoredObjects(NamedTuple):
    """The objects that another machine has written to a bucket."""

    shards: dict[str, s3_server.StoredObject]
    """After it tokenized the corpus."""
    dataset: dict[str, s3_server.StoredObject]
    """After it made the dataset as well."""


@pytest.fixture(scope="module")
def stored_objects(
    endpoint: str, tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path
) -> StoredObjects:
    """The objects of a bucket in which another machine has built the project."""
    place = s3_server.new_bucket(endpoint, "of/another")
    folder = tmp_path_factory.mktemp("another") / "project"
    project = tokenize(write_project(folder, tokenizer_file, root_in(place)))
    shards = s3_server.snapshot(place)
    make_dataset(project, CORPUS)
    return StoredObjects(shards, s3_server.snapshot(place))


@pytest.fixture
def config(local_config: Path, place: S3Store, tmp_path: Path) -> Path:
    """The nanoset.yaml of the project with its outputs in an empty bucket."""
    folder = tmp_path / "project"
    shutil.copytree(local_config.parent, folder, ignore=shutil.ignore_patterns("data"))
    config = folder / local_config.name
    change_settings(config, root_in(place))
    return config


@pytest.fixture
def project(config: Path, place: S3Store, stored_objects: StoredObjects) -> Project:
    """The project with its shards in a bucket, on a machine that has no copies of them."""
    s3_server.restore(place, stored_objects.shards)
    return Project.open(config)


@pytest.fixture
def project_with_dataset(config: Path, place: S3Store, stored_objects: StoredObjects) -> Project:
    """The project with its dataset in a bucket, on a machine that has no copies of it."""
    s3_server.restore(place, stored_objects.dataset)
    return Project.open(config)


def current_dataset(project: Project) -> Manifest:
    """Return the current dataset of a project."""
    dataset = project.outputs.current("datasets", CORPUS)
    assert dataset is not None
    return dataset


def without_copies(project: Project) -> Project:
    """Return the project as a machine without copies of its outputs sees it."""
    shutil.rmtree(project.outputs.folder, ignore_errors=True)
    return Project.open(project.config.file)


def store_of(project: Project) -> Store:
    """Return the store of the outputs of a project."""
    return project.outputs.access.store


def name_of_bin(project: Project, dataset: Manifest) -> str:
    """Return the name of the .bin of a dataset in the store of its project."""
    return project.outputs.access.name(dataset.folder / BIN)


def tokens_of_shards(project: Project) -> list[FileFact]:
    """Return what the manifests of the current shards say about their tokens, in order."""
    return [shard.files["tokens.bin"] for shard in current_shards(project, CORPUS)]


def dataset_objects(place: S3Store) -> set[str]:
    """Return the names of all objects of datasets in a bucket."""
    return {name for name in buckets.objects(place) if name.startswith("datasets/")}


@contextmanager
def count_traffic(place: S3Store) -> Iterator[Counter[str]]:
    """Count the bytes that this process sends to and receives from a bucket, by operation."""
    traffic: Counter[str] = Counter()
    events = place.client().meta.events

    def note_sent(request: Any, event_name: str, **_: object) -> None:
        operation = event_name.rpartition(".")[2]
        traffic[operation] += int(request.headers.get("Content-Length", 0))

    def note_received(response_dict: Any, event_name: str, **_: object) -> None:
        operation = event_name.rpartition(".")[2]
        if operation != "HeadObject":  # it names the length of the object, which is not sent
            traffic[operation] += int(response_dict["headers"].get("content-length", 0))

    events.register("before-send.s3", note_sent)
    events.register("response-received.s3", note_received)
    try:
        yield traffic
    finally:
        events.unregister("before-send.s3", note_sent)
        events.unregister("response-received.s3", note_received)


# The dataset, and what passes through this process


def test_only_the_small_shard_passes_through_this_process(project, place):
    sizes = [tokens.size for tokens in tokens_of_shards(project)]
    large_sizes = sizes[:2]
    small_size = sizes[2]
    assert small_size < LEAST_BYTES < min(large_sizes)

    with count_traffic(place) as traffic:
        dataset = make_dataset(project, CORPUS)

    # The small one is downloaded and uploaded; indices and manifests are a few kilobytes more.
    dataset_size = dataset.files[BIN].size
    n_bytes = sum(traffic.values())
    assert dataset_size == sum(sizes)
    assert 2 * small_size < n_bytes < 2 * small_size + dataset_size / 50, traffic
    assert not list(project.outputs.folder.rglob("*.bin"))


def test_a_composed_dataset_has_the_bytes_of_a_local_one(local_config, project_with_dataset, place):
    dataset = current_dataset(project_with_dataset)

    digests = buckets.objects(place)
    local_digests = outputs_of(local_config)
    folder = f"datasets/{CORPUS}/{dataset.digest}"
    assert digests.keys() == local_digests.keys() | {f"{folder}/{BIN}.pieces"}
    changed_names = {name for name in local_digests if digests[name] != local_digests[name]}
    assert changed_names == {f"{folder}/manifest.json"}


def test_the_manifest_of_a_composed_dataset_has_the_digests_of_its_pieces(
    local_config, project_with_dataset
):
    """The digest of the whole file is unknown, since no process has read it."""
    dataset = current_dataset(project_with_dataset)

    local_dataset = current_output(Project.open(local_config), DATASET)
    assert dataset.digest == local_dataset.digest
    assert dataset.recipe == local_dataset.recipe
    assert dataset.facts == local_dataset.facts

    tokens_file = dataset.files[BIN]
    assert tokens_file.sha256 is None
    assert tokens_file.size == local_dataset.files[BIN].size
    pieces = [(tokens.sha256, tokens.size) for tokens in tokens_of_shards(project_with_dataset)]
    assert read_pieces(dataset.path(tokens_file.pieces)) == pieces


def test_a_composed_dataset_is_not_composed_again(project, place):
    dataset = make_dataset(project, CORPUS)

    with count_traffic(place) as traffic:
        assert make_dataset(project, CORPUS).digest == dataset.digest

    assert traffic["CreateMultipartUpload"] == 0
    assert traffic["CompleteMultipartUpload"] == 0


# Checks


def test_another_machine_downloads_a_composed_dataset(project_with_dataset, local_config):
    dataset = current_dataset(project_with_dataset)

    assert verify_at(project_with_dataset, DATASET).passed

    local_dataset = current_output(Project.open(local_config), DATASET)
    assert dataset.path(BIN).read_bytes() == local_dataset.path(BIN).read_bytes()


@pytest.fixture
def project_with_damaged_dataset(project: Project) -> Project:
    """The project with a dataset of which one bit is damaged, in the tokens of the second shard."""
    dataset = make_dataset(project, CORPUS)
    name = name_of_bin(project, dataset)
    data = bytearray(store_of(project).read(name) or b"")
    first_tokens = tokens_of_shards(project)[0]
    data[first_tokens.size + 1000] ^= 1
    store_of(project).put(name, bytes(data))
    return without_copies(project)


def test_a_damaged_dataset_is_not_downloaded(project_with_damaged_dataset):
    dataset = current_dataset(project_with_damaged_dataset)

    with pytest.raises(StorageError, match="other bytes"):
        dataset.path(BIN)

    assert not (dataset.folder / BIN).exists()


def test_deep_verification_names_the_damaged_piece(project_with_damaged_dataset):
    project = project_with_damaged_dataset

    report = verify_at(project, DATASET, deep=True)

    [finding] = [finding for finding in report.findings if "other bytes" in finding.what]
    name = name_of_bin(project, current_dataset(project))
    assert finding.where == store_of(project).url(name)
    first_tokens = tokens_of_shards(project)[0]
    assert f"of bytes {first_tokens.size:,}" in finding.found


def test_deep_verification_reads_each_token_once_and_keeps_no_copy(
    project_with_dataset, monkeypatch, ranges
):
    """Ranges are read in parallel, with less space for copies than the dataset takes."""
    monkeypatch.setattr("nanoset_core.stages.dataset.verify.SAMPLED_DOCUMENTS", 0)
    monkeypatch.setattr("nanoset_core.stages.dataset.token_check._READ_BYTES", 200_000)
    dataset = current_dataset(project_with_dataset)
    size = dataset.files[BIN].size
    monkeypatch.setattr(StorageSpec, "capacity", size // 2)
    project = without_copies(project_with_dataset)
    ranges.clear()

    report = verify_at(project, DATASET, deep=True)

    assert report.passed
    assert report.figures["tokens_read"] == dataset.facts["tokens"]
    ranges_of_bin = [(name, start, stop) for name, start, stop in ranges if name.endswith(BIN)]
    assert len(ranges_of_bin) > 1
    assert total_bytes(ranges_of_bin) == size
    assert not list(project.outputs.folder.rglob("*.bin"))


@pytest.fixture
def synced_project(project_with_dataset: Project, local_config: Path, tmp_path: Path) -> Project:
    """A local project with all outputs from the bucket, as `aws s3 sync` downloads them."""
    folder = tmp_path / "synced"
    shutil.copytree(local_config.parent, folder)
    store = store_of(project_with_dataset)
    for stored in list(store.list()):
        store.fetch(stored.name, folder / "data" / stored.name)
    return Project.open(folder / local_config.name)


def test_a_synced_copy_of_a_composed_dataset_is_verified(project_with_dataset, synced_project):
    dataset = current_dataset(project_with_dataset)

    assert current_dataset(synced_project).files == dataset.files
    assert verify_at(synced_project, DATASET, deep=True).passed


def test_a_damaged_synced_copy_of_a_composed_dataset_is_found(synced_project):
    dataset = current_dataset(synced_project)
    with (dataset.folder / BIN).open("r+b") as file:
        file.seek(dataset.files[BIN].size - 100_000)
        file.write(b"\xff\xff")

    report = verify_at(synced_project, DATASET, deep=True)

    assert any("other bytes" in finding.what for finding in report.findings)


# Interrupted and damaged datasets


class KilledError(BaseException):
    """Ends a build as if its process were killed."""


def kill_before_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process when it is about to write the manifest of an output."""
    real_put = S3Store.put

    def put(store: S3Store, name: str, data: bytes, **options: object) -> object:
        if name.endswith("manifest.json"):
            raise KilledError
        return real_put(store, name, data, **options)

    monkeypatch.setattr(S3Store, "put", put)


def kill_while_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process when the first temporary object of several is complete."""
    real_stat = S3Store.stat
    real_delete = S3Store.delete

    def stat(store: S3Store, name: str) -> object:
        stored = real_stat(store, name)
        if stored is not None and "/.tmp-" in name:
            raise KilledError
        return stored

    def delete(store: S3Store, name: str) -> None:
        if "/.tmp-" not in name:  # a killed process deletes nothing
            real_delete(store, name)

    monkeypatch.setattr(s3_joining, "MAX_PARTS", 2)
    monkeypatch.setattr(S3Store, "stat", stat)
    monkeypatch.setattr(S3Store, "delete", delete)


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(kill_while_joining, id="while it is joined"),
        pytest.param(kill_before_manifest, id="before its manifest"),
    ],
)
def test_an_unfinished_dataset_is_not_used_and_removed_by_gc(
    project, place, local_config, monkeypatch, kill
):
    with monkeypatch.context() as patch:
        kill(patch)
        with pytest.raises(KilledError):
            make_dataset(project, CORPUS)

    # Nothing looks finished.
    names = dataset_objects(place)
    assert names
    assert not [name for name in names if name.endswith("manifest.json")]
    assert project.outputs.current("datasets", CORPUS) is None

    # A collection removes it.
    garbage = [item for item in plan_gc(project).garbage if item.output == DATASET]
    assert [item.kind for item in garbage] == ["unfinished"]
    collect(project)
    assert not dataset_objects(place)

    # The next build makes it.
    dataset = make_dataset(project, CORPUS)
    bin_name = name_of_bin(project, dataset)
    assert buckets.objects(place)[bin_name] == outputs_of(local_config)[bin_name]


def test_a_damaged_dataset_is_replaced_by_a_rebuild(project):
    dataset = make_dataset(project, CORPUS)
    name = name_of_bin(project, dataset)
    sha256 = store_of(project).sha256(name)
    store_of(project).put(name, b"x" * dataset.files[BIN].size)

    rebuilding_project = Project.open(project.config.file, rebuild=True)
    assert make_dataset(rebuilding_project, CORPUS) == dataset

    assert store_of(project).sha256(name) == sha256


def test_a_shard_with_other_bytes_than_its_manifest_says_is_refused(project, place):
    shard = current_shards(project, CORPUS)[1]
    name = project.outputs.access.name(shard.folder / "tokens.bin")
    store_of(project).put(name, b"\0" * shard.files["tokens.bin"].size)

    with pytest.raises(StorageError, match="other bytes") as caught:
        make_dataset(project, CORPUS)
    assert not dataset_objects(place)
    assert caught.value.remedy.startswith("remove the object")

    # The remedy works.
    store_of(project).delete(name)
    tokenize(project.config.file)
    make_dataset(project, CORPUS)


# Shards whose tokens were dropped


@pytest.fixture
def dropping_project(project: Project) -> Project:
    """The project with a dataset, and settings by which gc drops the tokens of its shards."""
    make_dataset(project, CORPUS)
    change_settings(project.config.file, {"storage: {": "storage: {shards: drop, "})
    return Project.open(project.config.file)


def test_gc_drops_the_tokens_of_shards_that_are_in_the_dataset(dropping_project, place):
    digests_before = buckets.objects(place)
    assert [item.kind for item in plan_gc(dropping_project).garbage] == ["tokens"] * 3

    assert len(collect(dropping_project).garbage) == 3

    # Only the tokens are deleted, and only the manifests of shards are changed.
    digests = buckets.objects(place)
    tokens = {name for name in digests_before if name.endswith("/tokens.bin")}
    shard_manifests = {
        name
        for name in digests_before
        if name.startswith("shards/") and name.endswith("manifest.json")
    }
    changed_names = {name for name in digests if digests[name] != digests_before[name]}
    assert digests_before.keys() - digests.keys() == tokens
    assert changed_names == shard_manifests


def test_text_can_be_appended_after_the_tokens_of_shards_were_dropped(
    local_config, dropping_project, place, tmp_path
):
    """The dataset is composed of ranges of the old dataset, and of new shards.

    Each step is done by a machine without copies: one drops, the next one appends and verifies.
    """
    collect(dropping_project)
    without_copies(dropping_project)
    config = dropping_project.config.file

    # Append a file to this project, and to a local one as an example of the expected bytes.
    local_folder = shutil.copytree(local_config.parent, tmp_path / "local", symlinks=True)
    appended_local_config = local_folder / local_config.name
    for project_folder in (local_folder, config.parent):
        new_file = project_folder / "raw" / CORPUS / "part-3.jsonl"
        new_file.write_bytes(jsonl([{"text": "late " * 40}]))
    make_dataset(tokenize(appended_local_config), CORPUS)
    local_digests = outputs_of(appended_local_config)

    # Only the tokens of the new shard are downloaded and uploaded.
    project = tokenize(config)
    with count_traffic(place) as traffic:
        dataset = make_dataset(project, CORPUS)
    [new_tokens] = [tokens for tokens in tokens_of_shards(project) if tokens.within is None]
    dataset_size = dataset.files[BIN].size
    assert sum(traffic.values()) < 2 * new_tokens.size + dataset_size / 50
    bin_name = f"datasets/{CORPUS}/{dataset.digest}/{BIN}"
    assert buckets.objects(place)[bin_name] == local_digests[bin_name]
    assert verify_at(project, DATASET, deep=True).passed
    assert verify_at(project, SHARDS, deep=True).passed

    # A collection drops the tokens of the new shard as well, and removes the old dataset.
    planned_paths = {item.path for item in plan_gc(project).garbage}
    removed_paths = {item.path for item in collect(project).garbage}
    assert removed_paths == planned_paths
    names = buckets.objects(place)
    bin_names = [name for name in names if name.startswith("datasets/") and name.endswith(BIN)]
    assert bin_names == [bin_name]
    assert not [name for name in names if name.endswith("/tokens.bin")]

    # The dataset is rebuilt from ranges of itself.
    rebuilding_project = Project.open(config, rebuild=True)
    assert make_dataset(rebuilding_project, CORPUS).files == dataset.files
    assert buckets.objects(place)[bin_name] == local_digests[bin_name]

    # It is rebuilt from shards that were rebuilt as well. A collection drops their tokens again.
    make_shards(rebuilding_project, CORPUS)
    make_dataset(rebuilding_project, CORPUS)
    assert buckets.objects(place)[bin_name] == local_digests[bin_name]
    assert collect(project).size == dataset_size
    assert verify_at(project, SHARDS, deep=True).passed
