"""A notebook: notes that processes add below a root, and that every process reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from nanoset_core.errors import FormatError
from nanoset_core.outputs import notebook as notebook_module
from nanoset_core.outputs.notebook import Note, Notebook
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.json_records import JsonForm
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore

FOLDER = "findings"


@dataclass(frozen=True, slots=True)
class Finding(Note):
    """A note about a subject, of which one is enough."""

    json_form: ClassVar = JsonForm("this is not a finding", remedy="restore it")

    subject: str
    text: str = ""

    def identity(self):
        return self.subject


@dataclass(frozen=True, slots=True)
class CountingStore(LocalStore):
    """A store that counts the listings and readings that it is asked for."""

    requests: tuple[list[str], ...] = ([],)

    def read_stored(self, name):
        self.requests[0].append(name)
        return LocalStore.read_stored(self, name)

    def level(self, folder):
        self.requests[0].append(f"{folder}/")
        return LocalStore.level(self, folder)


@pytest.fixture
def notebook():
    return Notebook(FOLDER, Finding, skips_damaged=False)


@pytest.fixture
def local_root(tmp_path):
    return OutputRoot(FileAccess(tmp_path / "data"))


@pytest.fixture
def store(tmp_path):
    (tmp_path / "bucket").mkdir()
    return CountingStore(tmp_path / "bucket", requests=([],))


@pytest.fixture
def bucket_root(store, tmp_path):
    return OutputRoot(FileAccess(tmp_path / "copies", store))


@pytest.fixture(params=["local_root", "bucket_root"])
def root(request):
    return request.getfixturevalue(request.param)


def files_of(root):
    return sorted(path.name for path in (root.folder / FOLDER).rglob("*.json"))


def requests_of(store, look):
    """What the store is asked for while `look` is called."""
    store.requests[0].clear()
    look()
    return list(store.requests[0])


def test_a_notebook_without_notes_is_empty(notebook, root):
    assert notebook.read(root) == []
    assert notebook.read(root, "web") == []


def test_notes_are_read_by_other_processes(notebook, root):
    notebook.add(root, Finding("a", "first"))
    notebook.add(root, Finding("b", "second"))

    other_process = Notebook(FOLDER, Finding, skips_damaged=False)

    notes = other_process.read(root)
    assert sorted(note.text for note in notes) == ["first", "second"]
    assert notebook.read(root) == notes


def test_notes_with_one_identity_share_a_file(notebook, root):
    notebook.add(root, Finding("a", "first"))
    notebook.add(root, Finding("a", "first"))
    assert len(files_of(root)) == 1

    notebook.add(root, Finding("b", "second"))
    assert len(files_of(root)) == 2


def test_sections_are_separate(notebook, root):
    notebook.add(root, Finding("a"), "web")
    notebook.add(root, Finding("b"), "code")

    assert notebook.read(root, "web") == [Finding("a")]
    assert notebook.read(root, "code") == [Finding("b")]
    assert notebook.read(root, "books") == []


def test_files_that_are_not_json_are_left_alone(notebook, local_root):
    notebook.add(local_root, Finding("a"))
    (local_root.folder / FOLDER / "README.txt").write_text("by hand")

    assert notebook.read(local_root) == [Finding("a")]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"{}", b'{"subject": 1}', b'{"subject": "a", "x": 1}']
)
def test_a_damaged_note_is_an_error_that_names_its_file(notebook, local_root, damage):
    notebook.add(local_root, Finding("a"))
    (name,) = files_of(local_root)
    path = local_root.folder / FOLDER / name
    path.write_bytes(damage)

    with pytest.raises(FormatError, match="this is not a finding") as error:
        notebook.read(local_root)

    assert error.value.where == str(path)
    assert error.value.remedy == "restore it"


def test_a_damaged_note_is_skipped_with_a_warning_if_that_is_harmless(local_root, caplog):
    notebook = Notebook(FOLDER, Finding, skips_damaged=True)
    notebook.add(local_root, Finding("a"))
    (local_root.folder / FOLDER / "x.json").write_bytes(b"{")

    assert notebook.read(local_root) == [Finding("a")]
    assert "x.json is skipped" in caplog.text


def test_notes_that_others_add_to_a_folder_are_seen_at_once(notebook, local_root):
    assert notebook.read(local_root) == []
    Notebook(FOLDER, Finding, skips_damaged=False).add(local_root, Finding("a"))

    assert notebook.read(local_root) == [Finding("a")]


def test_a_bucket_is_listed_once_for_all_sections(notebook, bucket_root, store):
    notebook.add(bucket_root, Finding("a"), "web")

    requests = requests_of(
        store, lambda: [notebook.read(bucket_root, f"corpus-{number}") for number in range(20)]
    )
    assert requests == [f"{FOLDER}/"]

    requests = requests_of(store, lambda: notebook.read(bucket_root, "web"))
    assert requests[0] == f"{FOLDER}/web/"
    assert requests_of(store, lambda: notebook.read(bucket_root, "web")) == []


def test_a_bucket_is_looked_at_again_on_request_and_after_some_seconds(
    notebook, bucket_root, store, monkeypatch
):
    assert notebook.read(bucket_root) == []
    Notebook(FOLDER, Finding, skips_damaged=False).add(bucket_root, Finding("a"))

    assert notebook.read(bucket_root) == []
    assert notebook.read(bucket_root, refresh=True) == [Finding("a")]

    Notebook(FOLDER, Finding, skips_damaged=False).add(bucket_root, Finding("b"))
    monkeypatch.setattr(notebook_module, "SEEN_SECONDS", -1.0)
    assert len(notebook.read(bucket_root)) == 2


def test_a_process_sees_its_own_notes_at_once(notebook, bucket_root):
    assert notebook.read(bucket_root) == []

    notebook.add(bucket_root, Finding("a"))

    assert notebook.read(bucket_root) == [Finding("a")]


def test_changing_a_list_of_notes_changes_no_later_one(notebook, bucket_root):
    notebook.add(bucket_root, Finding("a"))

    notebook.read(bucket_root).clear()

    assert notebook.read(bucket_root) == [Finding("a")]
