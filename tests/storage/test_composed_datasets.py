"""Datasets that a bucket puts together of the shards in it: the bytes of a local merge, which
nobody has brought.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from helpers import s3_server
from helpers.building import make_dataset, make_inventory, make_shards
from helpers.inspecting import current_output, current_shards, verify_at
from helpers.s3_server import root_in, total_bytes
from helpers.sample_project import WITH_PBIN, jsonl, outputs_of
from nanoset_core.errors import StorageError
from nanoset_core.project.gc import collect, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.storage import s3_joining
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.store import read_pieces

CORPUS = "noise"
DATASET = f"datasets/{CORPUS}"
SHARDS = f"tokenized/{CORPUS}"
SETTINGS = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {append_eod: true, range_mib: 2.8, workers: 1, audit: 0}
"""
BIN = f"{CORPUS}_text_document.bin"


def write(folder: Path, tokenizer_file: Path, settings: dict[str, str]) -> Path:
    """A project of one corpus, whose .bin is too large to pass through; → its nanoset.yaml."""
    chosen = random.Random(0)
    words = ["".join(chosen.choices("bcdfghjklmnpqrstvwxz", k=3)) for _ in range(2000)]
    (folder / "raw" / CORPUS).mkdir(parents=True)
    # two shards that can be copied, one that cannot
    for number, documents in enumerate((145, 145, 8)):
        rows = [{"text": " ".join(chosen.choices(words, k=5000))} for _ in range(documents)]
        (folder / "raw" / CORPUS / f"part-{number}.jsonl").write_bytes(jsonl(rows))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    text = SETTINGS
    for old, new in settings.items():
        text = text.replace(old, new)
    (folder / "nanoset.yaml").write_text(text)
    return folder / "nanoset.yaml"


def tokenize(config: Path) -> Project:
    project = Project.open(config)
    make_inventory(project, CORPUS)
    make_shards(project, CORPUS)
    return project


@pytest.fixture(scope="module")
def here(tmp_path_factory, tokenizer_file):
    """A local project, built up to its dataset."""
    config = write(tmp_path_factory.mktemp("here") / "project", tokenizer_file, {})
    make_dataset(tokenize(config), CORPUS)
    return config


@pytest.fixture(scope="module")
def shards(endpoint, tmp_path_factory, tokenizer_file):
    """The objects of a bucket in which the same corpus is tokenized."""
    place = s3_server.new_bucket(endpoint, "of/another")
    folder = tmp_path_factory.mktemp("there") / "project"
    tokenize(write(folder, tokenizer_file, root_in(place) | WITH_PBIN))
    return s3_server.snapshot(place)


@pytest.fixture
def project(here, place, shards, tmp_path) -> Project:
    """On a machine that has no copies."""
    s3_server.restore(place, shards)
    shutil.copytree(here.parent, tmp_path / "project", ignore=shutil.ignore_patterns("data"))
    config = tmp_path / "project" / here.name
    text = config.read_text()
    for old, new in (root_in(place) | WITH_PBIN).items():
        text = text.replace(old, new)
    config.write_text(text)
    return Project.open(config)


def forget_copies(project: Project) -> None:
    shutil.rmtree(project.outputs.folder, ignore_errors=True)


def names(place) -> set[str]:
    return {name for name in s3_server.objects(place) if name.startswith("datasets/")}


class Wire:
    """Bytes that this process sends and receives, by operation."""

    def __init__(self, place):
        self.bytes, self.events = Counter(), place.client().meta.events

    def _sent(self, request, event_name, **_):
        self.bytes[event_name.rpartition(".")[2]] += int(request.headers.get("Content-Length", 0))

    def _received(self, response_dict, event_name, **_):
        if not event_name.endswith("HeadObject"):
            self.bytes[event_name.rpartition(".")[2]] += int(
                response_dict["headers"].get("content-length", 0)
            )

    def __enter__(self):
        self.events.register("before-send.s3", self._sent)
        self.events.register("response-received.s3", self._received)
        return self.bytes

    def __exit__(self, *_):
        self.events.unregister("before-send.s3", self._sent)
        self.events.unregister("response-received.s3", self._received)


def test_the_bytes_of_a_local_merge_without_bringing_them(here, project, place):
    with Wire(place) as wire:
        made = make_dataset(project, CORPUS)
    size = made.files[BIN].size
    tokens = current_shards(project, CORPUS)
    sizes = [shard.files["tokens.bin"].size for shard in tokens]
    assert sizes[0] > s3_joining.LEAST_BYTES < sizes[1]
    assert size == sum(sizes)
    assert 2 * sizes[2] < sum(wire.values()) < 2 * sizes[2] + size / 50, wire
    assert not list(project.outputs.folder.rglob("*.bin"))
    stored, wanted = s3_server.objects(place), outputs_of(here)
    dataset = f"datasets/{CORPUS}/{made.digest}"
    assert stored.keys() == wanted.keys() | {f"{dataset}/{BIN}.pieces"}
    different = {name for name in wanted if stored[name] != wanted[name]}
    assert different == {f"{dataset}/manifest.json"}
    local = current_output(Project.open(here), DATASET)
    assert local.digest == made.digest
    assert (made.recipe, made.facts) == (local.recipe, local.facts)
    assert (made.files[BIN].sha256, made.files[BIN].size) == (None, local.files[BIN].size)
    pieces = [
        (shard.files["tokens.bin"].sha256, shard.files["tokens.bin"].size) for shard in tokens
    ]
    assert read_pieces(made.path(made.files[BIN].pieces)) == pieces
    with Wire(place) as wire:
        assert make_dataset(project, CORPUS).digest == made.digest
    assert not wire["CreateMultipartUpload"] + wire["CompleteMultipartUpload"]


def test_another_machine_brings_it_checked(project, place, here):
    make_dataset(project, CORPUS)
    forget_copies(project)
    made = project.outputs.current("datasets", CORPUS)
    assert verify_at(project, DATASET).passed
    assert (
        made.path(BIN).read_bytes()
        == (here.parent / f"data/datasets/{CORPUS}/{made.digest}/{BIN}").read_bytes()
    )
    store, name = project.outputs.access.store, project.outputs.access.name(made.folder / BIN)
    data = bytearray(store.read(name))
    data[6_000_000] ^= 1
    store.put(name, bytes(data))
    forget_copies(project)
    made = project.outputs.current("datasets", CORPUS)
    with pytest.raises(StorageError, match="other bytes"):
        made.path(BIN)
    assert not (made.folder / BIN).exists()
    found = verify_at(project, DATASET, deep=True)
    (wrong,) = (finding for finding in found.findings if "other bytes" in finding.what)
    assert wrong.where == store.url(name)
    assert "of bytes 5,6" in wrong.found


def test_deep_verification_reads_each_token_once_and_keeps_none(
    project, place, monkeypatch, ranges
):
    """In ranges side by side, with less room for copies than the dataset takes."""
    made = make_dataset(project, CORPUS)
    config = project.config.file
    config.write_text(config.read_text().replace("storage: {", "storage: {scratch_mib: 4, "))
    assert "scratch_mib: 4" in config.read_text()
    forget_copies(project)
    ranges.clear()
    small = Project.open(config)
    size = made.files[BIN].size
    assert size > 6 << 20
    monkeypatch.setattr("nanoset_core.stages.dataset.verify.SAMPLED_DOCUMENTS", 0)
    found = verify_at(small, DATASET, deep=True)
    assert found.passed
    assert found.figures["tokens_read"] == made.facts["tokens"]
    assert total_bytes(one for one in ranges if one[0].endswith(BIN)) == size
    assert not list(small.outputs.folder.rglob("*.bin"))


def test_a_local_copy_of_a_composed_dataset_verifies(project, place, tmp_path, here):
    """As `aws s3 sync` would make it."""
    made = make_dataset(project, CORPUS)
    store = project.outputs.access.store
    local = tmp_path / "synced"
    shutil.copytree(here.parent, local)
    for found in list(store.list()):
        store.fetch(found.name, local / "data" / found.name)
    twin = Project.open(local / here.name)
    assert twin.outputs.current("datasets", CORPUS).files == made.files
    assert verify_at(twin, DATASET, deep=True).passed
    path = local / "data/datasets" / CORPUS / made.digest / BIN
    with path.open("r+b") as file:
        file.seek(7_345_678)
        file.write(b"\xff\xff")
    assert any(
        "other bytes" in finding.what for finding in verify_at(twin, DATASET, deep=True).findings
    )


@pytest.mark.parametrize("moment", ["while it is joined", "before its manifest"])
def test_cut_short_nothing_looks_finished_and_gc_takes_the_rest(
    project, place, monkeypatch, moment
):
    class Killed(BaseException):
        pass

    put, delete, stat = S3Store.put, S3Store.delete, S3Store.stat

    def killed(*_, **__):
        raise Killed

    def killed_at_last(store, name, data, **how):
        return killed() if name.endswith("manifest.json") else put(store, name, data, **how)

    def killed_when_joined(store, name):
        found = stat(store, name)
        return killed() if found is not None and "/.tmp-" in name else found

    with monkeypatch.context() as patch:
        if moment == "before its manifest":
            patch.setattr(S3Store, "put", killed_at_last)
        else:
            patch.setattr(s3_joining, "MAX_PARTS", 2)
            patch.setattr(S3Store, "stat", killed_when_joined)
            patch.setattr(
                S3Store, "delete", lambda store, name: "/.tmp-" in name or delete(store, name)
            )
        with pytest.raises(Killed):
            make_dataset(project, CORPUS)
    left = names(place)
    assert left
    assert not [name for name in left if name.endswith("manifest.json")]
    assert project.outputs.current("datasets", CORPUS) is None
    planned = plan_gc(project)
    assert [item.kind for item in planned.garbage if item.output == f"datasets/{CORPUS}"] == [
        "unfinished"
    ]
    collect(project)
    assert not names(place)
    make_dataset(project, CORPUS)
    assert verify_at(project, DATASET, deep=True).passed


def test_made_again_over_what_was_cut_short_and_what_is_damaged(project, place, monkeypatch):
    made = make_dataset(project, CORPUS)
    store, name = project.outputs.access.store, project.outputs.access.name(made.folder / BIN)
    whole = store.sha256(name)
    store.put(name, b"x" * made.files[BIN].size)
    again = Project.open(project.config.file, rebuild=True)
    assert make_dataset(again, CORPUS) == made
    assert store.sha256(name) == whole


def test_a_shard_that_is_not_the_one_of_its_manifest_is_refused(project, place):
    shard = current_shards(project, CORPUS)[1]
    name = project.outputs.access.name(shard.folder / "tokens.bin")
    store = project.outputs.access.store
    store.put(name, b"\0" * shard.files["tokens.bin"].size)
    with pytest.raises(StorageError, match="other bytes") as caught:
        make_dataset(project, CORPUS)
    assert not names(place)
    assert caught.value.remedy.startswith("remove the object")
    store.delete(name)
    tokenize(project.config.file)
    make_dataset(project, CORPUS)


def test_dropped_tokens_are_ranges_that_an_append_joins_without_bringing_them(
    here, project, place, tmp_path
):
    """On each machine anew: what one dropped, the next one appends to, and verifies."""
    make_dataset(project, CORPUS)
    config = project.config.file
    config.write_text(config.read_text().replace("storage: {", "storage: {shards: drop, "))
    project = Project.open(config)
    planned, before = plan_gc(project), s3_server.objects(place)
    assert [item.kind for item in planned.garbage] == ["tokens"] * 3
    assert len(collect(project).garbage) == 3
    left = s3_server.objects(place)
    assert before.keys() - left.keys() == {name for name in before if name.endswith("/tokens.bin")}
    assert {name for name in left if left[name] != before[name]} == {
        name for name in before if name.startswith("shards/") and name.endswith("manifest.json")
    }
    forget_copies(project)
    local = shutil.copytree(here.parent, tmp_path / "local", symlinks=True) / here.name
    for one in (local, config):
        (one.parent / "raw" / CORPUS / "part-3.jsonl").write_bytes(jsonl([{"text": "late " * 40}]))
    make_dataset(tokenize(local), CORPUS)
    project = tokenize(config)
    with Wire(place) as wire:
        made = make_dataset(project, CORPUS)
    shards = current_shards(project, CORPUS)
    (new,) = (
        shard.files["tokens.bin"].size
        for shard in shards
        if shard.files["tokens.bin"].within is None
    )
    assert sum(wire.values()) < 2 * new + made.files[BIN].size / 50, (
        "only the new shard passed through"
    )
    wanted, name = outputs_of(local), f"datasets/{CORPUS}/{made.digest}/{BIN}"
    assert s3_server.objects(place)[name] == wanted[name]
    assert verify_at(project, DATASET, deep=True).passed
    assert verify_at(project, SHARDS, deep=True).passed
    old = {item.path for item in plan_gc(project).garbage}
    assert {item.path for item in collect(project).garbage} == old
    assert len({one.rpartition("/")[0] for one in names(place) if one.endswith(BIN)}) == 1
    assert not [one for one in s3_server.objects(place) if one.endswith("/tokens.bin")]
    again = Project.open(config, rebuild=True)
    assert make_dataset(again, CORPUS).files == made.files, "of ranges of itself"
    assert s3_server.objects(place)[name] == wanted[name]
    make_shards(again, CORPUS)
    make_dataset(again, CORPUS)
    assert s3_server.objects(place)[name] == wanted[name]
    assert collect(project).size == made.files[BIN].size, (
        "shards that were made again dropped theirs again"
    )
    assert verify_at(project, SHARDS, deep=True).passed
