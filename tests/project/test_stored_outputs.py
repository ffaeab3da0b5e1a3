"""Listing the outputs that exist below a root."""

from nanoset_core.outputs.manifest import Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.stored_outputs import all_outputs
from nanoset_core.storage.access import FileAccess


def write_one_file(folder):
    """Write the files of an output."""
    (folder / "tokens.bin").write_bytes(b"tokens")
    return Written({}, {})


def test_outputs_of_a_corpus_that_is_called_current_are_listed(tmp_path):
    root = OutputRoot(FileAccess(tmp_path))
    manifest = root.make_current(root.commit(Recipe("shards", "current", 1), write_one_file))

    shards = [output for output in all_outputs(root.access) if output.stage_folder == "shards"]

    assert [output.name for output in shards] == ["current"]
    assert shards[0].versions == {manifest.digest}
