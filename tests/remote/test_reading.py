"""Objects read like files, and token files read by blocks."""

from __future__ import annotations

import os
import pickle
import time

import numpy as np
import pytest

from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import InputError, MissingError, SourceChangedError
from nanoset_core.remote.blocks import BlockFile
from nanoset_core.remote.bucket import Bucket
from nanoset_core.remote.folder import RemoteFolder
from nanoset_core.remote.mirror import Mirror
from nanoset_core.remote.spec import S3Place

NAMES = ("plain.jsonl", "a folder/ünï 漢.jsonl", "100%+&=#?versions=1.jsonl", "a*b[1].jsonl")


@pytest.fixture
def data(tmp_path, place):
    content = os.urandom((9 << 20) + 5)
    (tmp_path / "file").write_bytes(content)
    for name in NAMES:
        Bucket(place).upload(tmp_path / "file", name)
    return content


@pytest.mark.parametrize("name", NAMES)
def test_read_from_anywhere(place, data, name):
    with (RemoteFolder(place) / name).open() as file:
        assert file.read() == data
        file.seek(8 << 20)
        assert file.read(1 << 20) == data[8 << 20 : 9 << 20]
        assert file.seek(-3, os.SEEK_END) == len(data) - 3
        assert file.read() == data[-3:]


def test_an_object_that_is_replaced_while_it_is_read_is_refused(place, data):
    with (RemoteFolder(place) / NAMES[0]).open() as file:
        file.read(10)
        Bucket(place).put(data[::-1], NAMES[0])
        with pytest.raises(SourceChangedError, match=r"plain\.jsonl"):
            file.seek(9 << 20)  # beyond what was read ahead
            file.read()


def test_what_is_not_there_is_said(place):
    with pytest.raises(FileNotFoundError):
        (RemoteFolder(place) / "nothing").open()


def test_blocks_come_once_and_are_the_bytes(place, data, tmp_path, monkeypatch):
    asked = []
    real = Bucket.read_range
    monkeypatch.setattr(Bucket, "read_range", lambda self, *span: asked.append(span[1:3]) or real(self, *span))
    blocks = BlockFile(Mirror(tmp_path / "mirror", place), tmp_path / "mirror" / NAMES[0], block_bytes=4096)
    assert blocks[5000:5010] == data[5000:5010]
    assert blocks[5010:5020] == data[5010:5020]
    assert asked == [(4096, 8192)]
    begins = np.random.default_rng(0).integers(0, len(data) - 9000, 40)
    blocks.bring(begins, begins + 9000)
    before = len(asked)
    for begin in begins.tolist():
        assert blocks[begin : begin + 9000] == data[begin : begin + 9000]
    assert len(asked) == before
    assert blocks[len(data) - 7 : len(data)] == data[-7:]
    assert not list((tmp_path / "mirror").rglob("*")) or not any(path.is_file() for path in tmp_path.rglob("*.jsonl"))


def test_blocks_of_an_object_that_is_replaced_are_refused(place, data, tmp_path):
    blocks = BlockFile(Mirror(tmp_path / "mirror", place), tmp_path / "mirror" / NAMES[0])
    Bucket(place).put(b"other", NAMES[0])
    with pytest.raises(SourceChangedError):
        blocks[0:10]
    with pytest.raises(MissingError):
        BlockFile(Mirror(tmp_path / "mirror", place), tmp_path / "mirror" / "nothing")


def test_folders_are_listed_fresh(place, data):
    folder = RemoteFolder(place)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted({name.split("/")[0] for name in NAMES})
    Bucket(place).put(b"x", "later/new.jsonl")
    assert (folder / "later").is_dir()
    assert [found[:2] for found in (folder / "later").files()] == [("new.jsonl", 1)]
    Bucket(place).remove("later/new.jsonl")
    assert not (folder / "later").is_dir()


def test_keys_that_no_folder_could_hold_are_refused(place):
    Bucket(S3Place(place.bucket, "", place.endpoint_url)).put(b"x", f"{place.prefix}/web/../../out.jsonl")
    with pytest.raises(InputError, match=r"no path of a file"):
        list(RemoteFolder(place).files())


def test_a_dataset_by_its_url_is_that_of_its_files(place, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.endpoint_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    written = []
    for number in (300, 200):
        prefix = tmp_path / f"of-{number}"
        builder = MMapIndexedDatasetBuilder(prefix, dtype=np.uint16)
        for length in range(number):
            builder.add_document(np.arange(length, dtype=np.uint16), [length])
        builder.finalize()
        for end in ("bin", "idx"):
            Bucket(place).upload(tmp_path / f"of-{number}.{end}", f"text_document.{end}")
        dataset = MMapIndexedDataset(f"{place.url}/text_document")
        local = MMapIndexedDataset(prefix)
        assert len(dataset) == len(local) == number
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(dataset, local, strict=True))
        assert np.array_equal(dataset.tokens, local.tokens)
        assert len(pickle.loads(pickle.dumps(dataset))) == number
        written.append(dataset)
        time.sleep(1.1)  # times in buckets are whole seconds
    with pytest.raises(MissingError):
        MMapIndexedDataset(f"{place.url}/nothing")
    assert not list((tmp_path / "cache").rglob("*.bin"))
