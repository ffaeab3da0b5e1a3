"""Recipes, manifests and local roots; what holds for buckets too is in
tests/storage/test_outputs_conform.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tracemalloc
from dataclasses import dataclass
from typing import ClassVar

import pytest

from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    PackedManifests,
    Recipe,
    StoredManifest,
    Written,
    digest_of,
    pack,
    read_manifest,
    unpack,
)
from nanoset_core.outputs.root import CURRENT, OutputRoot
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


@pytest.fixture
def root(tmp_path):
    return OutputRoot(FileAccess(tmp_path))


def write(folder, text=b"tokens"):
    (folder / "tokens.bin").write_bytes(text)
    (folder / "sub").mkdir()
    (folder / "sub" / "empty").touch()
    return Written({"documents": 2}, {"tokens.bin": "c0ffee"})


def test_the_order_of_options_does_not_reach_the_digest():
    options = dict(reversed(RECIPE.options.items()))
    assert Recipe("shards", "web", 1, RECIPE.parents, options).digest == RECIPE.digest


def test_digests_never_change():
    """Literal vectors: another digest for the same recipe would make every user's outputs anew."""
    assert digest_of({}) == "44136fa355b3678a1146"
    assert RECIPE.digest == "26695a70b882ed085e94"
    assert Recipe("inventory", "web", 1).digest == "9b2bccb1f8ff1d0bd753"


@pytest.mark.parametrize(
    "other",
    [
        Recipe("shard", "web", 1, RECIPE.parents, RECIPE.options),
        Recipe("shards", "wib", 1, RECIPE.parents, RECIPE.options),
        Recipe("shards", "web", 2, RECIPE.parents, RECIPE.options),
        Recipe("shards", "web", 1, {"source": "ab13"}, RECIPE.options),
        Recipe("shards", "web", 1, {"sources": "ab12"}, RECIPE.options),
        Recipe("shards", "web", 1, RECIPE.parents, {**RECIPE.options, "eod": None}),
        Recipe("shards", "web", 1, RECIPE.parents, {**RECIPE.options, "eod": 0.0}),
        Recipe("shards", "web", 1, RECIPE.parents, {**RECIPE.options, "extra": None}),
    ],
)
def test_everything_in_a_recipe_reaches_its_digest(other):
    assert other.digest != RECIPE.digest


def test_manifest_bytes_are_literal():
    files = {"b": FileFact(2), "a": FileFact(1, "ff")}
    content = b'[{"a":2,"z":1},{"a":{"bytes":1,"sha256":"ff"},"b":{"bytes":2}}]'
    assert dump(StoredManifest.of(Recipe("s", "n", 1), {"z": 1, "a": 2}, files)) == (
        b'{\n "digest": "%s",\n "facts": {\n  "a": 2,\n  "z": 1\n },\n "files": {\n'
        b'  "a": {\n   "bytes": 1,\n   "sha256": "ff"\n  },\n  "b": {\n   "bytes": 2\n  }\n },\n '
        b'"nanoset": 1,\n'
        b' "recipe": {\n  "name": "n",\n  "options": {},\n  "parents": {},\n  "stage": "s",\n  '
        b'"version": 1\n },\n'
        b' "sha256": "%s"\n}\n'
        % (Recipe("s", "n", 1).digest.encode(), hashlib.sha256(content).hexdigest().encode())
    )


def test_publish_and_find(root):
    assert root.find(RECIPE) is None
    assert read_manifest(root.place(RECIPE)) is None
    manifest = root.commit(RECIPE, write)
    assert manifest.folder == root.folder / "shards" / "web" / RECIPE.digest
    assert (manifest.stage, manifest.name, manifest.digest) == ("shards", "web", RECIPE.digest)
    assert manifest.facts == {"documents": 2}
    nothing = hashlib.sha256(b"").hexdigest()
    assert manifest.files == {
        "tokens.bin": FileFact(6, "c0ffee"),
        "sub/empty": FileFact(0, nothing),
    }
    assert manifest.path("tokens.bin").read_bytes() == b"tokens"
    assert from_plain(Recipe, manifest.recipe) == RECIPE
    assert root.find(RECIPE) == manifest
    assert sorted(path.name for path in manifest.folder.iterdir()) == [
        MANIFEST,
        "sub",
        "tokens.bin",
    ]


def truncate(folder):
    (folder / "tokens.bin").write_bytes(b"token")


def lose(folder):
    (folder / "sub" / "empty").unlink()


def tear_manifest(folder):
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-20])


def edit_manifest(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"eod": 0', '"eod": 1'))


@pytest.mark.parametrize("harm", [lose, tear_manifest, edit_manifest])
def test_damaged_output_is_made_again(root, harm):
    manifest = root.commit(RECIPE, write)
    harm(manifest.folder)
    assert root.find(RECIPE) is None
    mended = root.commit(RECIPE, write)
    assert mended == manifest
    assert mended.damage() is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"files": [], "recipe": {}, "digest": "x", "facts": {}}',
        b'{"files": {"a": 1}, "recipe": {}, "digest": "x", "facts": {}}',
        b"\xff\xfe",
        canonical_json({"files": {}, "facts": {}, "digest": "0" * 20, "recipe": to_plain(RECIPE)}),
        canonical_json({"files": {}, "facts": {}, "digest": "0" * 20, "recipe": {"stage": "x"}}),
    ],
)
def test_foreign_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_bytes(text)
    with pytest.raises(FormatError, match="not a manifest") as caught:
        read_manifest(tmp_path)
    assert caught.value.where == str(tmp_path / MANIFEST)
    assert "delete the folder" in caught.value.remedy


def test_current_follows_the_pointer(root):
    assert root.current("shards", "web") is None
    one = root.commit(RECIPE, write)
    two = root.commit(Recipe("shards", "web", 2), write)
    root.make_current(one)
    assert root.current("shards", "web") == one
    root.make_current(two)
    assert root.current("shards", "web") == two
    assert (
        root.folder / "shards/web/current.json"
    ).read_bytes() == b'{"digest":"%s"}\n' % two.digest.encode()
    assert (root.folder / "shards/web/current").resolve() == two.folder.resolve()


def test_a_folder_in_the_place_of_the_current_link_is_named_and_nothing_changes(root):
    one = root.commit(RECIPE, write)
    (one.folder.parent / "current").mkdir()
    before = sorted(path.name for path in one.folder.parent.iterdir())
    with pytest.raises(StorageError, match="a folder is where the link"):
        root.make_current(one)
    assert sorted(path.name for path in one.folder.parent.iterdir()) == before
    assert root.current("shards", "web") is None


def test_a_pointer_is_written_only_where_it_must_be(root):
    manifest = root.commit(RECIPE, write)
    pointer = manifest.folder.parent / CURRENT
    pointer.write_bytes(b"{")
    root.make_current(manifest)
    assert root.current("shards", "web") == manifest
    before = pointer.stat().st_ino
    root.make_current(manifest)
    assert pointer.stat().st_ino == before


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"digest": 3}', b'{"digest": "../../elsewhere"}']
)
def test_foreign_pointer_is_refused(root, text):
    manifest = root.commit(RECIPE, write)
    pointer = manifest.folder.parent / CURRENT
    pointer.write_bytes(text)
    with pytest.raises(FormatError, match="does not name a version") as caught:
        root.current("shards", "web")
    assert caught.value.where == str(pointer)
    assert "delete" in caught.value.remedy


def test_versions_are_read_as_they_are_asked_for(root):
    made = [
        root.commit(dataclasses.replace(RECIPE, version=version), write) for version in range(4)
    ]
    for number, manifest in enumerate(made):
        os.utime(manifest.folder / MANIFEST, (number + 1, number + 1))
    (made[1].folder / MANIFEST).write_text("{")
    os.utime(made[1].folder / MANIFEST, (2, 2))
    assert list(root.versions("shards", "web")) == [made[3], made[2], made[0]]
    assert root.previous(made[2]) == made[0]
    strictly = root.versions("shards", "web", strict=True)
    assert [next(strictly), next(strictly)] == [made[3], made[2]]
    with pytest.raises(FormatError, match="not a manifest"):
        next(strictly)


def test_the_path_of_a_file_fetches_that_file_alone(root, monkeypatch):
    fetched = []
    monkeypatch.setattr(
        FileAccess, "fetch", lambda access, path, **facts: fetched.append(path.name)
    )
    facts = {name: FileFact(0) for name in ("a", "a.bin", "b.bin", "b.idx", "bc")}
    manifest = Manifest(root.folder, {}, "", {}, facts, root.access)
    for name, wanted in (("a", ["a"]), ("b", ["b.bin", "b.idx"]), ("c", [])):
        assert manifest.path(name) == root.folder / name
        assert fetched == wanted
        fetched.clear()


def test_require_tells_missing_from_damaged(root):
    with pytest.raises(MissingError, match="has not been built") as caught:
        root.require("shards", "web", remedy="make them")
    assert caught.value.remedy == "make them"
    manifest = root.commit(RECIPE, write)
    root.make_current(manifest)
    assert root.require("shards", "web", remedy="") == manifest
    truncate(manifest.folder)
    assert manifest.damage() == "tokens.bin has 5 bytes instead of 6"
    assert root.current("shards", "web") is None
    with pytest.raises(MissingError, match="is damaged") as caught:
        root.require("shards", "web", remedy="make them again")
    assert "tokens.bin has 5 bytes instead of 6" in str(caught.value)


def altered(manifest, change):
    path = manifest.folder / MANIFEST
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["facts"].update(documents=3),
        lambda value: value["files"].update({"sub/empty": {"bytes": 1}}),
        lambda value: value["files"].pop("sub/empty"),
        lambda value: value.update({"sha255": value.pop("sha256")}),
    ],
)
def test_an_altered_manifest_is_noticed(root, change):
    manifest = root.commit(RECIPE, write)
    path = altered(manifest, change)
    with pytest.raises(FormatError, match="not a manifest") as caught:
        read_manifest(manifest.folder)
    assert caught.value.where == str(path)
    assert root.find(RECIPE) is None


def test_manifests_without_a_checksum_count(root):
    manifest = root.commit(RECIPE, write)
    altered(manifest, lambda value: value.pop("sha256"))
    assert root.find(RECIPE) == manifest


@pytest.mark.parametrize(
    "more",
    [
        *({name: {"bytes": 1}} for name in ("../../x", "/etc/passwd", "a/../../x", "", "a\0b")),
        *(
            {"tokens.bin": {"bytes": 6, "pieces": name}}
            for name in ("nothing", "tokens.bin", "../x")
        ),
    ],
)
def test_files_of_a_manifest_and_lists_of_their_pieces_lie_in_its_folder(root, more):
    manifest = root.commit(RECIPE, write)

    def change(value):
        del value["sha256"]
        value["files"] |= more

    altered(manifest, change)
    with pytest.raises(FormatError, match="not a manifest"):
        read_manifest(manifest.folder)


def test_a_manifest_counts_in_its_own_place_only(root):
    manifest = root.commit(RECIPE, write)
    other = manifest.folder.parent / ("0" * 20)
    shutil.copytree(manifest.folder, other)
    (other.parent / "current.json").write_text(json.dumps({"digest": other.name}))
    with pytest.raises(FormatError, match="that of shards/web/"):
        root.current("shards", "web")


@dataclass(frozen=True, slots=True)
class Numbers(Record):
    json_form: ClassVar[JsonForm] = JsonForm("these are not numbers")

    a: tuple[int, ...]


@pytest.fixture
def with_numbers(root):
    def write_numbers(folder):
        (folder / "a.json").write_bytes(dump(Numbers((1,))))
        (folder / "b.json").write_bytes(b'{"b": 1}')
        return Written({})

    return root.commit(RECIPE, write_numbers)


def test_a_record_of_an_output_is_read(with_numbers):
    assert with_numbers.load("a.json", Numbers) == Numbers((1,))


def test_a_file_with_something_else_than_the_record_is_refused(with_numbers):
    with pytest.raises(FormatError, match="not as it was written") as caught:
        with_numbers.load("b.json", Numbers)
    assert caught.value.where == str(with_numbers.path("b.json"))
    assert caught.value.found == "these are not numbers: this key is not known: b"


def test_a_record_that_was_altered_is_refused(with_numbers):
    with_numbers.path("a.json").write_text('{"a": [2]}')
    with pytest.raises(FormatError, match="sha256"):
        with_numbers.load("a.json", Numbers)


def test_a_record_that_was_deleted_is_missing(with_numbers):
    with_numbers.path("a.json").unlink()
    with pytest.raises(MissingError, match=r"a\.json"):
        with_numbers.load("a.json", Numbers)


def shard(access: FileAccess, number: int, **options) -> Manifest:
    recipe = Recipe(
        "shards",
        "web",
        2,
        {"source": f"{number:020x}"},
        {"tokenizer": "f" * 64, "note": "ü" * 500} | options,
    )
    files = {
        "tokens.bin": FileFact(number, f"{number:064x}"),
        "tokens.idx": FileFact(5),
        "x.bin": FileFact(1, None, "x.bin.pieces"),
    }
    facts = {"tokens": number, "reasons": {"blank_line": 3}, "length_histogram": [999] * 32}
    return Manifest(
        OutputRoot(access).place(recipe), to_plain(recipe), recipe.digest, facts, files, access
    )


def test_packed_manifests_are_the_same_again(root, tmp_path):
    access = root.access
    made = [shard(access, number, note=f"{number % 2}") for number in range(7)]
    kept = PackedManifests(map(pack, made), access)
    assert list(kept) == made
    assert (kept[-1], list(kept[1:3]), len(kept)) == (made[-1], made[1:3], len(made))
    assert kept[2].access is access
    with pytest.raises(IndexError):
        kept[len(made)]
    elsewhere = dataclasses.replace(made[1], folder=tmp_path / "elsewhere")
    assert unpack(pack(elsewhere), access).folder == made[1].folder, (
        "another process made it in a folder of its own"
    )


def test_little_is_kept_of_each_packed_manifest(root):
    tracemalloc.start()
    kept = PackedManifests(
        (pack(shard(root.access, number)) for number in range(1000)), root.access
    )
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 1000 * len(kept)


TYPE, MODEL, PATTERN = "--tokenizer-type T", "--tokenizer-model /a/b.json", "--tiktoken-pattern v"


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (
            {"t": [TYPE, MODEL, f"{PATTERN}1"]},
            {"t": [TYPE, MODEL, f"{PATTERN}2"]},
            f"t: ['{PATTERN}1'] → ['{PATTERN}2']",
        ),
        ({"t": [TYPE, MODEL]}, {"t": [TYPE, MODEL, f"{PATTERN}2"]}, f"t: [] → ['{PATTERN}2']"),
        ({"t": [TYPE, MODEL]}, {"t": [MODEL, TYPE]}, f"t: ['{TYPE}', '--tokenizer-mod…"),
        ({"ends": [0, 1]}, {"ends": (0, 2)}, "ends: [0, 1] → [0, 2]"),
        ({"a": {"b": 1}}, {}, "a.b: 1 → none"),
        ({"a": {"c": [1]}, "d": None}, {"a": {"c": (1,)}, "e": "x" * 50}, f"e: none → {'x' * 39}…"),
    ],
)
def test_settings_that_differ_are_told_on_one_line(before, now, told):
    (found,) = setting_differences(before, now)
    assert found.startswith(told)
