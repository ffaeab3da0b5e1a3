"""Questions about locations, which callers ask without knowing disks from buckets."""

from pathlib import Path

import numpy as np
import pytest

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.copies.temporary import downloaded
from nanoset_core.storage.location import remote_location, store_of
from nanoset_core.storage.places import (
    by_place,
    common_bucket,
    common_folder,
    copy_within_bucket,
    location_seen_from,
    may_be_file,
    path_below,
    path_seen_from,
    with_ending,
)
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.settings import StorageSpec


def at(path: str, bucket: str = "texts") -> RemotePath:
    """Return a location in a bucket that is in memory."""
    return remote_location(f"memory://{bucket}/{path}", where="a test")


@pytest.mark.parametrize("folder", [Path("/data"), at("data")], ids=["disk", "bucket"])
def test_the_path_of_a_file_below_a_folder_is_found(folder):
    assert path_below(folder / "web" / "a.jsonl", folder) == "web/a.jsonl"
    assert path_below(folder, folder) is None
    assert path_below(folder.parent / "data-2" / "a.jsonl", folder) is None


def test_nothing_in_a_bucket_is_below_a_folder_of_this_machine():
    assert path_below(at("data/a.jsonl"), Path("data")) is None
    assert path_below(Path("data/a.jsonl"), at("data")) is None


def test_a_path_below_a_folder_is_found_through_a_link(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "link").symlink_to("raw")

    assert path_below(tmp_path / "link" / "out", tmp_path / "raw") == "out"


@pytest.mark.parametrize("prefix", [Path("/data/web.v1"), at("data/web.v1")])
def test_an_ending_is_added_after_the_whole_name(prefix):
    assert with_ending(prefix, ".bin").name == "web.v1.bin"


def test_an_ending_can_be_added_to_the_current_folder():
    assert with_ending(Path("."), ".bin") == Path("..bin")


@pytest.mark.parametrize(
    ("path", "file", "seen"),
    [
        pytest.param(Path("/a/raw/x"), Path("/a/out/y"), "../raw/x", id="both on disks"),
        pytest.param(Path("/a/raw/x"), at("y"), "/a/raw/x", id="seen from a bucket"),
        pytest.param(at("x"), Path("/a/out/y"), "memory://texts/x", id="in a bucket"),
    ],
)
def test_a_file_that_another_one_names_is_found_again(path, file, seen):
    assert path_seen_from(path, file) == seen
    assert str(location_seen_from(seen, file).absolute()).endswith(seen)


def test_locations_are_grouped_by_their_buckets_and_this_machine():
    web = at("web")
    other = at("web", bucket="more")
    local = Path("/data/web")

    groups = by_place([web, local, other, web / "a.jsonl"])

    assert groups == [[web, web / "a.jsonl"], [local], [other]]


def test_a_bucket_is_common_only_to_locations_in_it():
    assert common_bucket([at("a"), at("b/c")]) == at("").store
    assert common_bucket([at("a"), at("a", bucket="more")]) is None
    assert common_bucket([at("a"), Path("a")]) is None
    assert common_bucket([Path("a"), Path("b")]) is None


def test_the_folder_that_contains_all_files_is_found():
    assert common_folder([Path("/raw/web/a"), Path("/raw/books/b")]) == Path("/raw")
    assert common_folder([at("raw/web/a"), at("raw/books/b")]) == at("raw")
    assert common_folder([at("a"), at("web/b")]) == at("")


def test_an_address_with_a_slash_at_its_end_is_no_file_of_a_bucket():
    assert may_be_file("memory://texts/a", at("a"))
    assert not may_be_file("memory://texts/a/", at("a"))
    assert not may_be_file("memory://texts", at(""))
    assert may_be_file("a/", Path("a"))


def test_a_bucket_copies_a_file_without_a_download():
    source = at("web.bin", bucket="copied")
    source.store.put("web.bin", b"tokens")
    target = at("out/web.bin", bucket="copied")

    copy = copy_within_bucket(source, target)
    assert copy is not None
    copy()

    assert target.store.read("out/web.bin") == b"tokens"
    assert copy_within_bucket(source, at("web.bin", bucket="elsewhere")) is None
    assert copy_within_bucket(source, Path("web.bin")) is None


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_password_in_the_endpoint_of_the_environment_is_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "http://me:s3cret@127.0.0.1:9")

    with pytest.raises(ConfigError, match=f"{variable}: the endpoint holds") as caught:
        remote_location("s3://bucket/raw", where="raw")

    assert "s3cret" not in str(caught.value)


def test_the_endpoint_of_the_settings_replaces_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:s3cret@127.0.0.1:9")

    storage = StorageSpec(endpoint_url="http://localhost:9000")

    assert remote_location("s3://bucket/raw", where="raw", storage=storage).path == "raw"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endpoint_url", 9000),
        ("anonymous", "no"),
        ("fingerprint", "md5"),
        ("scratch_mib", "5"),
        ("scratch_mib", 0),
        ("shards", "delete"),
    ],
)
def test_a_storage_spec_of_python_is_checked(option, value):
    with pytest.raises(ConfigError, match=f"StorageSpec: {option}"):
        StorageSpec(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "plain_value"),
    [
        ("scratch_mib", np.int64(5), 5),
        ("anonymous", np.True_, True),
        ("region", np.str_("eu-west-1"), "eu-west-1"),
    ],
)
def test_a_storage_spec_stores_values_of_numpy_as_plain_ones(option, value, plain_value):
    storage = StorageSpec(**{option: value})

    stored_value = getattr(storage, option)
    assert stored_value == plain_value
    assert type(stored_value) is type(plain_value)


def test_a_storage_spec_refuses_a_fraction_of_numpy():
    with pytest.raises(ConfigError, match="StorageSpec: scratch_mib"):
        StorageSpec(scratch_mib=np.float64(5.5))


def test_the_folder_of_working_copies_may_be_a_path(tmp_path):
    assert StorageSpec(mirror=tmp_path).mirror == str(tmp_path)


def test_an_endpoint_of_the_environment_that_another_one_replaces_is_not_checked(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://localhost:9000")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:s3cret@127.0.0.1:9")  # of another service

    assert remote_location("s3://bucket/raw", where="raw").path == "raw"


def test_errors_about_copies_name_the_objects_also_of_many_folders():
    files = [at(f"{letter}/web.bin", bucket="many") for letter in "abcdefghijk"]
    for file in files:
        store_of(file.parent).put(file.name, b"tokens")

    with pytest.raises(FormatError) as caught, downloaded(files) as copies:
        raise FormatError("damaged", where=copies[10], found=f"not as in {copies[1]}")

    assert caught.value.where == str(files[10])
    assert caught.value.found == f"not as in {files[1]}"
