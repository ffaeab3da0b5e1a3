"""A notebook: notes that processes add below a root, and that every process reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from nanoset_core.errors import FormatError
from nanoset_core.outputs import notebook as notebook_module
from nanoset_core.outputs.notebook import Note, Notebook
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.json_records import JsonForm
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.local import LocalStore

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
    """A store that records which objects are read, and which folders are listed."""

    requests: list[str] = field(default_factory=list)
    """Names of objects, and of folders with a slash at the end."""

    def read_stored(self, name):
        self.requests.append(name)
        return LocalStore.read_stored(self, name)

    def level(self, folder):
        self.requests.append(f"{folder}/")
        return LocalStore.level(self, folder)


def open_notebook(*, skips_damaged: bool = False) -> Notebook:
    """Open the notebook of findings, as another process would do it."""
    return Notebook(FOLDER, Finding, skips_damaged=skips_damaged)


@pytest.fixture
def notebook():
    """The notebook of findings."""
    return open_notebook()


@pytest.fixture
def local_root(tmp_path):
    """A root in a local folder."""
    return OutputRoot(FileAccess(tmp_path / "data"))


@pytest.fixture
def store(tmp_path):
    """A store in place of a bucket."""
    (tmp_path / "bucket").mkdir()
    return CountingStore(tmp_path / "bucket")


@pytest.fixture
def bucket_root(store, tmp_path):
    """A root in a bucket."""
    return OutputRoot(FileAccess(tmp_path / "copies", store))


@pytest.fixture(params=["local_root", "bucket_root"])
def root(request):
    """A root of each kind."""
    return request.getfixturevalue(request.param)


def files_of(root):
    """Return the names of the files with notes."""
    return sorted(path.name for path in (root.folder / FOLDER).rglob("*.json"))


def test_a_notebook_without_notes_is_empty(notebook, root):
    assert notebook.read(root) == []
    assert notebook.read(root, "web") == []


def test_notes_are_read_by_other_processes(notebook, root):
    notebook.add(root, Finding("a", "first"))
    notebook.add(root, Finding("b", "second"))

    notes = open_notebook().read(root)

    assert sorted(note.text for note in notes) == ["first", "second"]
    assert notebook.read(root) == notes


def test_notes_with_the_same_identity_share_a_file(notebook, root):
    notebook.add(root, Finding("a", "first"))
    notebook.add(root, Finding("a", "first"))

    assert len(files_of(root)) == 1


def test_notes_with_different_identities_have_different_files(notebook, root):
    notebook.add(root, Finding("a", "first"))
    notebook.add(root, Finding("b", "second"))

    assert len(files_of(root)) == 2


def test_the_notes_of_each_section_are_read_separately(notebook, root):
    notebook.add(root, Finding("a"), "web")
    notebook.add(root, Finding("b"), "code")

    assert notebook.read(root, "web") == [Finding("a")]
    assert notebook.read(root, "code") == [Finding("b")]
    assert notebook.read(root, "books") == []


def test_files_that_are_not_json_are_ignored(notebook, local_root):
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
    notebook = open_notebook(skips_damaged=True)
    notebook.add(local_root, Finding("a"))
    (local_root.folder / FOLDER / "x.json").write_bytes(b"{")

    notes = notebook.read(local_root)

    assert notes == [Finding("a")]
    assert "x.json is skipped" in caplog.text


def test_notes_that_other_processes_add_to_a_folder_are_read_at_once(notebook, local_root):
    assert notebook.read(local_root) == []

    open_notebook().add(local_root, Finding("a"))

    assert notebook.read(local_root) == [Finding("a")]


def test_a_bucket_is_listed_once_for_all_sections(notebook, bucket_root, store):
    notebook.add(bucket_root, Finding("a"), "web")
    store.requests.clear()

    for number in range(20):
        notebook.read(bucket_root, f"corpus-{number}")

    assert store.requests == [f"{FOLDER}/"]


def test_a_section_in_a_bucket_is_listed_when_it_is_read_first(notebook, bucket_root, store):
    notebook.add(bucket_root, Finding("a"), "web")
    notebook.read(bucket_root, "code")
    store.requests.clear()

    notebook.read(bucket_root, "web")

    assert store.requests[0] == f"{FOLDER}/web/"


def test_a_section_in_a_bucket_is_not_requested_again_soon(notebook, bucket_root, store):
    notebook.add(bucket_root, Finding("a"), "web")
    notebook.read(bucket_root, "web")
    store.requests.clear()

    notebook.read(bucket_root, "web")

    assert store.requests == []


def test_notes_that_other_processes_add_to_a_bucket_are_read_on_request(notebook, bucket_root):
    assert notebook.read(bucket_root) == []

    open_notebook().add(bucket_root, Finding("a"))

    assert notebook.read(bucket_root) == []
    assert notebook.read(bucket_root, refresh=True) == [Finding("a")]


def test_notes_that_other_processes_add_to_a_bucket_are_read_after_some_seconds(
    notebook, bucket_root, monkeypatch
):
    open_notebook().add(bucket_root, Finding("a"))
    assert len(notebook.read(bucket_root)) == 1

    open_notebook().add(bucket_root, Finding("b"))
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
