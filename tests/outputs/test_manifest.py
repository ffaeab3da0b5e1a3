"""Outputs of a local root: their digests, their manifests, and which version is the current one.

tests/storage/test_outputs_conform.py specifies what holds for roots in buckets, too.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.differences import setting_differences
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    PackedManifests,
    Recipe,
    StoredManifest,
    Written,
    pack,
    read_manifest,
    unpack,
)
from nanoset_core.outputs.root import CURRENT, OutputRoot
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import (
    JsonForm,
    Record,
    canonical_json,
    dump,
    from_plain,
    to_plain,
)
from nanoset_core.storage.access import FileAccess

RECIPE = Recipe(
    "shards", "web", 1, {"source": "ab12"}, {"eod": 0, "text_key": "text", "fraction": 0.1}
)
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    """An empty root."""
    return OutputRoot(FileAccess(tmp_path))


@pytest.fixture
def manifest(root: OutputRoot) -> Manifest:
    """The manifest of the only output of the root."""
    return root.commit(RECIPE, write_output)


def write_output(folder: Path) -> Written:
    """Write the files of an output: some tokens, and an empty file in a folder."""
    (folder / "tokens.bin").write_bytes(b"tokens")
    (folder / "sub").mkdir()
    (folder / "sub" / "empty").touch()
    return Written({"documents": 2}, {"tokens.bin": "c0ffee"})


def edit_json(manifest: Manifest, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the content of a manifest.json, and return its path."""
    path = manifest.folder / MANIFEST
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))
    return path


# Digests


def test_a_digest_does_not_depend_on_the_order_of_options():
    reversed_options = dict(reversed(RECIPE.options.items()))

    recipe = Recipe("shards", "web", 1, RECIPE.parents, reversed_options)

    assert recipe.digest == RECIPE.digest


def test_digests_are_those_of_earlier_versions():
    """With another digest for the same recipe, all outputs of users would be rebuilt."""
    assert digest_of({}) == "44136fa355b3678a1146"
    assert RECIPE.digest == "26695a70b882ed085e94"
    assert Recipe("inventory", "web", 1).digest == "9b2bccb1f8ff1d0bd753"


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(dataclasses.replace(RECIPE, stage="shard"), id="stage"),
        pytest.param(dataclasses.replace(RECIPE, name="wib"), id="name"),
        pytest.param(dataclasses.replace(RECIPE, version=2), id="version"),
        pytest.param(dataclasses.replace(RECIPE, parents={"source": "ab13"}), id="parent"),
        pytest.param(dataclasses.replace(RECIPE, parents={"sources": "ab12"}), id="parent's name"),
        pytest.param(
            dataclasses.replace(RECIPE, options={**RECIPE.options, "eod": None}), id="option"
        ),
        pytest.param(
            dataclasses.replace(RECIPE, options={**RECIPE.options, "eod": 0.0}), id="option's type"
        ),
        pytest.param(
            dataclasses.replace(RECIPE, options={**RECIPE.options, "extra": None}),
            id="further option",
        ),
    ],
)
def test_a_digest_depends_on_everything_in_the_recipe(recipe):
    assert recipe.digest != RECIPE.digest


# The content of manifest.json


def test_a_manifest_has_the_same_bytes_as_in_earlier_versions():
    files = {"b": FileFact(2), "a": FileFact(1, "ff")}
    recipe = Recipe("s", "n", 1)
    checksummed = b'[{"a":2,"z":1},{"a":{"bytes":1,"sha256":"ff"},"b":{"bytes":2}}]'
    checksum = hashlib.sha256(checksummed).hexdigest()

    data = dump(StoredManifest.of(recipe, {"z": 1, "a": 2}, files))

    assert data == (
        b'{\n "digest": "%s",\n "facts": {\n  "a": 2,\n  "z": 1\n },\n "files": {\n'
        b'  "a": {\n   "bytes": 1,\n   "sha256": "ff"\n  },\n  "b": {\n   "bytes": 2\n  }\n },\n '
        b'"nanoset": 1,\n'
        b' "recipe": {\n  "name": "n",\n  "options": {},\n  "parents": {},\n  "stage": "s",\n  '
        b'"version": 1\n },\n'
        b' "sha256": "%s"\n}\n' % (recipe.digest.encode(), checksum.encode())
    )


def test_an_output_that_was_never_built_has_no_manifest(root):
    assert root.find(RECIPE) is None
    assert read_manifest(root.place(RECIPE)) is None


def test_a_manifest_describes_the_output(root, manifest):
    assert manifest.folder == root.folder / "shards" / "web" / RECIPE.digest
    assert manifest.stage == "shards"
    assert manifest.name == "web"
    assert manifest.digest == RECIPE.digest
    assert from_plain(Recipe, manifest.recipe) == RECIPE
    assert manifest.facts == {"documents": 2}
    assert manifest.files == {
        "tokens.bin": FileFact(6, "c0ffee"),
        "sub/empty": FileFact(0, EMPTY_SHA256),
    }
    assert manifest.path("tokens.bin").read_bytes() == b"tokens"


def test_a_committed_output_is_found_by_its_recipe(root, manifest):
    assert root.find(RECIPE) == manifest


def test_the_folder_of_an_output_has_nothing_but_its_files_and_the_manifest(manifest):
    names = sorted(path.name for path in manifest.folder.iterdir())

    assert names == [MANIFEST, "sub", "tokens.bin"]


def delete_file(folder: Path) -> None:
    """Delete a file of an output."""
    (folder / "sub" / "empty").unlink()


def truncate_manifest(folder: Path) -> None:
    """Cut off the end of a manifest."""
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes()[:-20])


def edit_recipe(folder: Path) -> None:
    """Change an option of the recipe in a manifest."""
    path = folder / MANIFEST
    path.write_text(path.read_text().replace('"eod": 0', '"eod": 1'))


@pytest.mark.parametrize("damage", [delete_file, truncate_manifest, edit_recipe])
def test_a_damaged_output_is_rebuilt(root, manifest, damage):
    damage(manifest.folder)
    assert root.find(RECIPE) is None

    rebuilt = root.commit(RECIPE, write_output)

    assert rebuilt == manifest
    assert rebuilt.damage() is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="no keys"),
        pytest.param(
            b'{"files": [], "recipe": {}, "digest": "x", "facts": {}}', id="files are a list"
        ),
        pytest.param(
            b'{"files": {"a": 1}, "recipe": {}, "digest": "x", "facts": {}}', id="file is a number"
        ),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(
            canonical_json(
                {"files": {}, "facts": {}, "digest": "0" * 20, "recipe": to_plain(RECIPE)}
            ),
            id="digest of another recipe",
        ),
        pytest.param(
            canonical_json(
                {"files": {}, "facts": {}, "digest": "0" * 20, "recipe": {"stage": "x"}}
            ),
            id="incomplete recipe",
        ),
    ],
)
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path, content):
    path = tmp_path / MANIFEST
    path.write_bytes(content)

    with pytest.raises(FormatError, match="not a manifest") as caught:
        read_manifest(tmp_path)

    assert caught.value.where == str(path)
    assert "delete the folder" in caught.value.remedy


def change_fact(value: dict[str, Any]) -> None:
    """Change a fact of a manifest."""
    value["facts"].update(documents=3)


def change_size(value: dict[str, Any]) -> None:
    """Change the size of a file in a manifest."""
    value["files"].update({"sub/empty": {"bytes": 1}})


def remove_file(value: dict[str, Any]) -> None:
    """Remove a file from a manifest."""
    value["files"].pop("sub/empty")


def misspell_checksum(value: dict[str, Any]) -> None:
    """Give the checksum of a manifest another key."""
    value.update({"sha255": value.pop("sha256")})


@pytest.mark.parametrize("change", [change_fact, change_size, remove_file, misspell_checksum])
def test_an_edited_manifest_is_refused(root, manifest, change):
    path = edit_json(manifest, change)

    with pytest.raises(FormatError, match="not a manifest") as caught:
        read_manifest(manifest.folder)

    assert caught.value.where == str(path)
    assert root.find(RECIPE) is None


def test_a_manifest_without_a_checksum_is_accepted(root, manifest):
    """Early versions wrote such manifests."""
    edit_json(manifest, lambda value: value.pop("sha256"))

    assert root.find(RECIPE) == manifest


FILES_ELSEWHERE = {
    "above the folder": {"../../x": {"bytes": 1}},
    "absolute": {"/etc/passwd": {"bytes": 1}},
    "above, by a folder": {"a/../../x": {"bytes": 1}},
    "without a name": {"": {"bytes": 1}},
    "with a zero byte": {"a\0b": {"bytes": 1}},
    "list of pieces is no file": {"tokens.bin": {"bytes": 6, "pieces": "nothing"}},
    "list of pieces is the file itself": {"tokens.bin": {"bytes": 6, "pieces": "tokens.bin"}},
    "list of pieces above the folder": {"tokens.bin": {"bytes": 6, "pieces": "../x"}},
}
"""Files of a manifest whose paths leave the folder of the output, or do not exist."""


@pytest.mark.parametrize("files", FILES_ELSEWHERE.values(), ids=FILES_ELSEWHERE.keys())
def test_a_manifest_that_names_files_elsewhere_is_refused(manifest, files):
    def add_files(value: dict[str, Any]) -> None:
        del value["sha256"]
        value["files"] |= files

    edit_json(manifest, add_files)

    with pytest.raises(FormatError, match="not a manifest"):
        read_manifest(manifest.folder)


def test_an_output_that_was_copied_to_another_digest_is_refused(root, manifest):
    copy = manifest.folder.parent / ("0" * 20)
    shutil.copytree(manifest.folder, copy)
    pointer = copy.parent / "current.json"
    pointer.write_text(json.dumps({"digest": copy.name}))

    with pytest.raises(FormatError, match="that of shards/web/") as caught:
        root.current("shards", "web")
    assert caught.value.expected == f"that of shards/web/{copy.name}"


def test_an_output_that_another_process_moves_away_is_made_again(root, monkeypatch):
    """Two processes that replace the same damaged output may take each other's folder for it."""
    n_writes = 0

    def write_and_count(folder: Path) -> Written:
        nonlocal n_writes
        n_writes += 1
        return write_output(folder)

    original_upload = OutputRoot._upload

    def upload_after_removal(root: OutputRoot, folder: Path, **options: bool) -> Manifest:
        if n_writes == 1:
            shutil.rmtree(folder)
        return original_upload(root, folder, **options)

    monkeypatch.setattr(OutputRoot, "_upload", upload_after_removal)

    manifest = root.commit(RECIPE, write_and_count)

    assert n_writes == 2
    assert root.find(RECIPE) == manifest


# The current version


def test_an_output_without_versions_has_no_current_one(root):
    assert root.current("shards", "web") is None


def test_the_current_version_is_the_one_that_was_made_current_last(root, manifest):
    newer = root.commit(dataclasses.replace(RECIPE, version=2), write_output)

    root.make_current(manifest)
    assert root.current("shards", "web") == manifest

    root.make_current(newer)
    assert root.current("shards", "web") == newer


def test_the_current_version_is_stored_as_a_pointer_and_as_a_link(root, manifest):
    root.make_current(manifest)

    folder = root.folder / "shards/web"
    pointer = (folder / "current.json").read_bytes()
    assert pointer == b'{"digest":"%s"}\n' % manifest.digest.encode()
    assert (folder / "current").resolve() == manifest.folder.resolve()


def test_a_folder_in_the_place_of_the_current_link_is_an_error(root, manifest):
    folder = manifest.folder.parent
    (folder / "current").mkdir()
    names_before = sorted(path.name for path in folder.iterdir())

    with pytest.raises(StorageError, match="a folder is where the link"):
        root.make_current(manifest)

    assert sorted(path.name for path in folder.iterdir()) == names_before
    assert root.current("shards", "web") is None


def test_an_output_whose_current_version_was_unset_has_only_its_versions(root, manifest):
    root.make_current(manifest)
    folder = manifest.folder.parent

    root.unset_current(folder)

    assert [path.name for path in folder.iterdir()] == [manifest.digest]
    assert root.current("shards", "web") is None


def lead_link_elsewhere(output: Path) -> None:
    """Let the link to the current version of an output lead to nothing."""
    (output / "current").unlink()
    (output / "current").symlink_to("0" * 20)


def remove_link(output: Path) -> None:
    """Remove the link to the current version of an output."""
    (output / "current").unlink()


def replace_link_by_folder(output: Path) -> None:
    """Replace the link by a copy of the version, as programs do that follow links."""
    version = (output / "current").resolve()
    (output / "current").unlink()
    shutil.copytree(version, output / "current")


def test_the_link_to_the_current_version_is_correct_after_it_was_set(root, manifest):
    root.check_link(root.make_current(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lead_link_elsewhere, "the link `current` leads to another version"),
        (remove_link, "the link `current` is missing"),
    ],
)
def test_a_wrong_link_is_an_error_until_the_version_is_made_current_again(
    root, manifest, change, message
):
    root.make_current(manifest)
    change(manifest.folder.parent)
    with pytest.raises(StorageError, match=message):
        root.check_link(manifest)

    root.make_current(manifest)

    root.check_link(manifest)


def test_the_command_of_the_error_deletes_all_folders_in_the_place_of_links(root):
    recipes = [RECIPE, Recipe("shards", "current", 1), Recipe("nanosets", "a b/train", 1)]
    manifests = [root.make_current(root.commit(recipe, write_output)) for recipe in recipes]
    for manifest in manifests:
        replace_link_by_folder(manifest.folder.parent)

    with pytest.raises(StorageError, match="a folder is where the link") as caught:
        root.check_link(manifests[0])
    command = re.search("`(find .*)`", caught.value.remedy)[1]
    subprocess.run(command, shell=True, check=True)

    for manifest in manifests:
        root.check_link(root.make_current(manifest))


def test_a_file_system_without_links_needs_none(root, manifest, monkeypatch):
    def refuse(self: Path, target: str) -> None:
        raise OSError(errno.EPERM, "not on this file system")

    monkeypatch.setattr(Path, "symlink_to", refuse)

    root.check_link(root.make_current(manifest))

    assert not (manifest.folder.parent / "current").exists()


def test_a_damaged_pointer_is_replaced(root, manifest):
    pointer = manifest.folder.parent / CURRENT
    pointer.write_bytes(b"{")

    root.make_current(manifest)

    assert root.current("shards", "web") == manifest


def test_a_correct_pointer_is_not_written_again(root, manifest):
    pointer = manifest.folder.parent / CURRENT
    root.make_current(manifest)
    inode_before = pointer.stat().st_ino

    root.make_current(manifest)

    assert pointer.stat().st_ino == inode_before


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"digest": 3}', b'{"digest": "../../elsewhere"}']
)
def test_a_file_that_is_not_a_pointer_is_refused(root, manifest, content):
    pointer = manifest.folder.parent / CURRENT
    pointer.write_bytes(content)

    with pytest.raises(FormatError, match="does not name a version") as caught:
        root.current("shards", "web")

    assert caught.value.where == str(pointer)
    assert "delete" in caught.value.remedy


@pytest.fixture
def four_versions(root: OutputRoot) -> list[Manifest]:
    """Versions of an output, the oldest first. The manifest of the second one is damaged."""
    manifests = []
    for version in range(4):
        recipe = dataclasses.replace(RECIPE, version=version)
        manifests.append(root.commit(recipe, write_output))
    (manifests[1].folder / MANIFEST).write_text("{")
    for number, manifest in enumerate(manifests, start=1):
        os.utime(manifest.folder / MANIFEST, (number, number))
    return manifests


def test_versions_are_read_from_the_newest_to_the_oldest_without_damaged_ones(root, four_versions):
    oldest, _damaged, third, newest = four_versions

    assert list(root.versions("shards", "web")) == [newest, third, oldest]


def test_the_previous_version_is_the_next_older_one_that_is_not_damaged(root, four_versions):
    oldest, _damaged, third, _newest = four_versions

    assert root.previous(third) == oldest


def test_a_strict_reading_of_versions_fails_at_a_damaged_one(root, four_versions):
    _oldest, _damaged, third, newest = four_versions
    versions = root.versions("shards", "web", strict=True)

    assert next(versions) == newest
    assert next(versions) == third
    with pytest.raises(FormatError, match="not a manifest"):
        next(versions)


def test_an_output_that_was_not_built_is_reported_as_missing(root):
    with pytest.raises(MissingError, match="has not been built") as caught:
        root.require("shards", "web", remedy="make them")

    assert caught.value.remedy == "make them"


def test_a_required_output_that_is_complete_is_returned(root, manifest):
    root.make_current(manifest)

    assert root.require("shards", "web", remedy="") == manifest


def test_a_required_output_that_is_damaged_is_reported_with_the_damage(root, manifest):
    root.make_current(manifest)
    (manifest.folder / "tokens.bin").write_bytes(b"token")

    assert manifest.damage() == "tokens.bin has 5 bytes instead of 6"
    assert root.current("shards", "web") is None
    with pytest.raises(MissingError, match="is damaged") as caught:
        root.require("shards", "web", remedy="make them again")
    assert "tokens.bin has 5 bytes instead of 6" in str(caught.value)


# Files of an output


@pytest.mark.parametrize(
    ("path", "fetched_names"),
    [
        pytest.param("a", ["a"], id="a file"),
        pytest.param("b", ["b.bin", "b.idx"], id="the prefix of a pair"),
        pytest.param("c", [], id="no file"),
    ],
)
def test_only_the_files_of_a_requested_path_are_fetched(root, monkeypatch, path, fetched_names):
    fetched = []
    monkeypatch.setattr(
        FileAccess, "fetch", lambda access, path, **facts: fetched.append(path.name)
    )
    files = {name: FileFact(0) for name in ("a", "a.bin", "b.bin", "b.idx", "bc")}
    manifest = Manifest(root.folder, {}, "", {}, files, root.access)

    assert manifest.path(path) == root.folder / path

    assert fetched == fetched_names


@dataclass(frozen=True, slots=True)
class Numbers(Record):
    """A record that an output has in a file."""

    json_form: ClassVar[JsonForm] = JsonForm("these are not numbers")

    a: tuple[int, ...]


@pytest.fixture
def output_with_records(root: OutputRoot) -> Manifest:
    """An output with a record in a.json, and something else in b.json."""

    def write_numbers(folder: Path) -> Written:
        (folder / "a.json").write_bytes(dump(Numbers((1,))))
        (folder / "b.json").write_bytes(b'{"b": 1}')
        return Written({})

    return root.commit(RECIPE, write_numbers)


def test_a_record_of_an_output_is_read(output_with_records):
    assert output_with_records.load("a.json", Numbers) == Numbers((1,))


def test_a_file_with_something_else_than_the_record_is_refused(output_with_records):
    with pytest.raises(FormatError, match="not as it was written") as caught:
        output_with_records.load("b.json", Numbers)

    assert caught.value.where == str(output_with_records.path("b.json"))
    assert caught.value.found == "these are not numbers: this key is not known: b"


def test_a_record_that_was_edited_is_refused(output_with_records):
    output_with_records.path("a.json").write_text('{"a": [2]}')

    with pytest.raises(FormatError, match="sha256"):
        output_with_records.load("a.json", Numbers)


def test_a_record_that_was_deleted_is_missing(output_with_records):
    output_with_records.path("a.json").unlink()

    with pytest.raises(MissingError, match=r"a\.json"):
        output_with_records.load("a.json", Numbers)


# Packed manifests: the many manifests of a corpus, in little memory


def shard_manifest(access: FileAccess, number: int, note: str = "ü" * 500) -> Manifest:
    """Return the manifest of a shard, which differs from those of others by its number."""
    recipe = Recipe(
        "shards",
        "web",
        2,
        {"source": f"{number:020x}"},
        {"tokenizer": "f" * 64, "note": note},
    )
    files = {
        "tokens.bin": FileFact(number, f"{number:064x}"),
        "tokens.idx": FileFact(5),
        "x.bin": FileFact(1, None, "x.bin.pieces"),
    }
    facts = {"tokens": number, "reasons": {"blank_line": 3}, "length_histogram": [999] * 32}
    folder = OutputRoot(access).place(recipe)
    return Manifest(folder, to_plain(recipe), recipe.digest, facts, files, access)


@pytest.fixture
def seven_manifests(root: OutputRoot) -> list[Manifest]:
    """Manifests of shards; neighbours have different notes."""
    manifests = []
    for number in range(7):
        note = "even" if number % 2 == 0 else "odd"
        manifests.append(shard_manifest(root.access, number, note))
    return manifests


def test_packed_manifests_are_equal_to_the_packed_ones(root, seven_manifests):
    packed = PackedManifests(map(pack, seven_manifests), root.access)

    assert list(packed) == seven_manifests
    assert len(packed) == 7
    assert packed[2].access is root.access


def test_packed_manifests_have_the_indices_of_a_list(root, seven_manifests):
    packed = PackedManifests(map(pack, seven_manifests), root.access)

    assert packed[-1] == seven_manifests[-1]
    assert list(packed[1:3]) == seven_manifests[1:3]
    with pytest.raises(IndexError):
        packed[7]


def test_an_unpacked_manifest_is_in_the_folder_of_this_root(root, seven_manifests, tmp_path):
    """A worker on another machine may have made it in another folder."""
    made_elsewhere = dataclasses.replace(seven_manifests[1], folder=tmp_path / "elsewhere")

    unpacked = unpack(pack(made_elsewhere), root.access)

    assert unpacked.folder == seven_manifests[1].folder


def test_a_packed_manifest_takes_less_than_a_kilobyte(root):
    n_manifests = 1000
    # Before the measurement, as Python keeps a table of the parts of all paths, which may grow.
    manifests = [shard_manifest(root.access, number) for number in range(n_manifests)]
    tracemalloc.start()

    packed = PackedManifests((pack(manifest) for manifest in manifests), root.access)
    n_bytes, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(packed) == n_manifests
    assert n_bytes < 1000 * n_manifests


# Differences of settings, as `nanoset status` shows them

TYPE = "--tokenizer-type T"
MODEL = "--tokenizer-model /a/b.json"
PATTERN_1 = "--tiktoken-pattern v1"
PATTERN_2 = "--tiktoken-pattern v2"


@pytest.mark.parametrize(
    ("before", "now", "start_of_line"),
    [
        pytest.param(
            {"t": [TYPE, MODEL, PATTERN_1]},
            {"t": [TYPE, MODEL, PATTERN_2]},
            f"t: ['{PATTERN_1}'] → ['{PATTERN_2}']",
            id="an item of a list changed",
        ),
        pytest.param(
            {"t": [TYPE, MODEL]},
            {"t": [TYPE, MODEL, PATTERN_2]},
            f"t: [] → ['{PATTERN_2}']",
            id="an item was added to a list",
        ),
        pytest.param(
            {"t": "/projects/language/models/llama/tokenizer-a"},
            {"t": "/projects/language/models/llama/tokenizer-b"},
            "t: …a/tokenizer-a → …a/tokenizer-b",
            id="long texts differ at their end",
        ),
        pytest.param(
            {"t": [TYPE, MODEL]},
            {"t": [MODEL, TYPE]},
            f"t: ['{TYPE}', '--tokenizer-mode…",
            id="the order of a list changed",
        ),
        pytest.param(
            {"ends": [0, 1]}, {"ends": (0, 2)}, "ends: [0, 1] → [0, 2]", id="a list of numbers"
        ),
        pytest.param({"a": {"b": 1}}, {}, "a.b: 1 → none", id="a key was removed"),
        pytest.param({"a": None}, {"a": "none"}, "a: not set → none", id="the text none"),
        pytest.param(
            {"a": {"c": [1]}, "d": None},
            {"a": {"c": (1,)}, "e": "x" * 50},
            f"e: none → {'x' * 40}…",
            id="lists and tuples are equal, null is no value, long texts are cut",
        ),
    ],
)
def test_each_setting_that_differs_is_shown_on_one_line(before, now, start_of_line):
    (line,) = setting_differences(before, now)

    assert line.startswith(start_of_line)
