"""A small dataset in a bucket is made on this machine, from its copies of the shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import s3_server
from helpers.buckets import count_shard_requests, objects, remove_copies, root_in
from helpers.building import make_dataset, make_inventory, make_shards
from helpers.inspecting import current_shards, verify_at
from helpers.sample_project import outputs_of, write_project
from nanoset_core.errors import MissingError, StorageError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.storage.stores.s3.store import S3Store

N_SHARDS = 4
FILES = ("tokens.bin", "tokens.idx")
"""The files of a shard that a dataset is made from."""


class TokenizedCorpus(NamedTuple):
    """A project whose corpus web was tokenized on a machine."""

    config: Path
    """Its nanoset.yaml."""
    objects: dict[str, s3_server.StoredObject]
    """What the machine sent to the bucket."""
    copies: Path
    """The folder of its working copies."""


@pytest.fixture(scope="module")
def tokenized(endpoint, tmp_path_factory, tokenizer_file) -> TokenizedCorpus:
    """The project, which tests copy; they must not write to it."""
    place = s3_server.new_bucket(endpoint, "of/another")
    folder = tmp_path_factory.mktemp("tokenized") / "project"
    config = write_project(folder, tokenizer_file, root_in(place))
    project = Project.open(config)
    make_inventory(project, "web")
    make_shards(project, "web")
    assert len(current_shards(project, "web")) == N_SHARDS
    return TokenizedCorpus(config, s3_server.snapshot(place), project.outputs.folder)


@pytest.fixture
def config(tokenized: TokenizedCorpus, remote_project, place: S3Store) -> Path:
    """The nanoset.yaml of a project whose corpus web was tokenized on this machine."""
    config: Path = remote_project()
    s3_server.restore(place, tokenized.objects)
    copies = Project.open(config).outputs.folder
    shutil.copytree(tokenized.copies, copies, symlinks=True, dirs_exist_ok=True)
    return config


def local_digests(local_build: Path) -> dict[str, str]:
    """Return the sha256 of the files of the dataset web in a local folder, by name."""
    digests = outputs_of(local_build)
    return {name: digest for name, digest in digests.items() if name.startswith("datasets/web/")}


def stored_digests(place: S3Store) -> dict[str, str]:
    """Return the sha256 of the objects of datasets in a bucket, by name."""
    digests = objects(place)
    return {name: digest for name, digest in digests.items() if name.startswith("datasets/")}


def test_the_machine_that_tokenized_a_small_corpus_reads_no_shards(config, place, local_build):
    with count_shard_requests(place) as n_requests:
        make_dataset(Project.open(config), "web")

    assert n_requests == {"ListObjectsV2": 1}
    assert stored_digests(place) == local_digests(local_build)


def test_another_machine_reads_each_shard_once(config, place, local_build):
    remove_copies(config)

    with count_shard_requests(place) as n_requests:
        make_dataset(Project.open(config), "web")

    assert n_requests == {"ListObjectsV2": 1, "GetObject": N_SHARDS * (1 + len(FILES))}
    assert stored_digests(place) == local_digests(local_build)


def test_it_is_made_within_the_bucket_if_there_is_little_room_for_copies(
    config, place, local_build
):
    text = config.read_text()
    config.write_text(text.replace("storage: {", "storage: {scratch_mib: 16, "))

    make_dataset(Project.open(config), "web")

    assert stored_digests(place) == local_digests(local_build)
    assert not list(Project.open(config).outputs.folder.glob("datasets/web/*/*.bin"))


@pytest.mark.parametrize("has_copies", [True, False], ids=["with copies", "without copies"])
@pytest.mark.parametrize("file", FILES)
def test_a_shard_that_was_damaged_in_the_bucket_is_refused(config, place, has_copies, file):
    shard = current_shards(Project.open(config), "web")[1]
    copy = shard.folder / file
    data = copy.read_bytes()
    place.put(f"shards/web/{shard.digest}/{file}", b"x" * len(data))
    if not has_copies:
        remove_copies(config)

    with pytest.raises(StorageError, match="other bytes"):
        make_dataset(Project.open(config), "web")

    assert not stored_digests(place)
    if has_copies:
        assert copy.read_bytes() == data, "the copy is not replaced by damaged bytes"


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_copy_of_a_shard_is_replaced(config, place, local_build, file):
    shard = current_shards(Project.open(config), "web")[1]
    copy = shard.folder / file
    data = copy.read_bytes()
    copy.write_bytes(b"x" * len(data))

    make_dataset(Project.open(config), "web")

    assert copy.read_bytes() == data
    assert stored_digests(place) == local_digests(local_build)


@pytest.mark.parametrize("file", FILES)
def test_a_shard_that_was_deleted_in_the_bucket_is_missing(config, place, file):
    shard = current_shards(Project.open(config), "web")[1]
    place.delete(f"shards/web/{shard.digest}/{file}")

    with pytest.raises(MissingError, match="a shard is not whole"):
        make_dataset(Project.open(config), "web")

    assert not stored_digests(place)


def test_shards_whose_tokens_were_dropped_are_merged_within_the_bucket(config, place, local_build):
    """Their tokens are only in the dataset, which may be large."""
    dataset = make_dataset(Project.open(config), "web")
    text = config.read_text()
    config.write_text(text.replace("storage: {", "storage: {shards: drop, "))
    collect(Project.open(config))
    assert all(
        shard.files["tokens.bin"].within for shard in current_shards(Project.open(config), "web")
    )

    remade_dataset = make_dataset(Project.open(config, rebuild=True), "web")

    assert remade_dataset == dataset
    assert stored_digests(place) == local_digests(local_build)
    assert verify_at(Project.open(config), "datasets/web", deep=True).passed
