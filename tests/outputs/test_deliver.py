"""Outputs of commands without a project: an output that exists is found, refused, or replaced."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nanoset_core.errors import ConfigError, FormatError, StorageError
from nanoset_core.outputs.apart import check_apart
from nanoset_core.outputs.deliver import Delivery, make_once
from nanoset_core.outputs.receipts import Receipt, describe_call, hidden_receipt_name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that commands read."""
    path = tmp_path / "source"
    path.write_bytes(b"in")
    return path


def write_once(
    target: Path,
    source: Path,
    text: str = "out",
    options: Mapping[str, object] | None = None,
    *,
    overwrite: bool = False,
) -> tuple[Any, bool]:
    """Run a tool that writes its option `text` to a file.

    Returns:
        (facts of the output, whether the file was written by this call).
    """

    def write(path: Path) -> dict[str, int]:
        path.write_text(text)
        return {"length": len(text)}

    all_options = {"text": text, **(options or {})}
    return make_once("tool", target, [source], all_options, write, overwrite=overwrite)


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return sorted(path.name for path in folder.iterdir())


# The same call again


def test_a_first_call_writes_the_output_and_its_receipt(tmp_path, source):
    assert write_once(tmp_path / "x", source) == ({"length": 3}, True)

    assert names_in(tmp_path) == [".x.made.json", "source", "x"]


def test_the_same_call_does_not_write_again(tmp_path, source):
    write_once(tmp_path / "x", source)
    status_before = (tmp_path / "x").stat()

    assert write_once(tmp_path / "x", source) == ({"length": 3}, False)

    assert (tmp_path / "x").stat() == status_before


def test_an_output_that_was_removed_is_written_again(tmp_path, source):
    write_once(tmp_path / "x", source)
    (tmp_path / "x").unlink()

    _, is_new = write_once(tmp_path / "x", source)

    assert is_new
    assert names_in(tmp_path) == [".x.made.json", "source", "x"]


def test_a_folder_with_inputs_and_output_may_be_moved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "source").write_bytes(b"in")
    write_once(tmp_path / "a" / "x", tmp_path / "a" / "source")
    (tmp_path / "a").rename(tmp_path / "b")

    _, is_new = write_once(tmp_path / "b" / "x", tmp_path / "b" / "source")

    assert not is_new


# Outputs of other calls are refused


def test_an_output_of_other_options_is_refused_with_the_options_that_differ(tmp_path, source):
    write_once(tmp_path / "x", source)

    with pytest.raises(ConfigError, match="other input or settings") as caught:
        write_once(tmp_path / "x", source, "other", {"most_seen": 3})

    assert caught.value.found == "--text: out → other; --most-seen: none → 3"
    assert "--overwrite" in caught.value.remedy
    assert (tmp_path / "x").read_text() == "out"


def test_an_output_of_an_input_that_changed_is_refused(tmp_path, source):
    write_once(tmp_path / "x", source)
    source.write_bytes(b"changed")

    with pytest.raises(ConfigError, match="source was another file, or written again since"):
        write_once(tmp_path / "x", source)

    assert (tmp_path / "x").read_text() == "out"


def test_an_output_of_other_inputs_is_refused_with_their_names(tmp_path, source):
    write_once(tmp_path / "x", source)
    (tmp_path / "more").write_bytes(b"")

    with pytest.raises(
        ConfigError, match="more was not among the files; source was one of the files"
    ):
        write_once(tmp_path / "x", tmp_path / "more")

    assert (tmp_path / "x").read_text() == "out"


def test_an_output_of_other_options_is_replaced_on_request(tmp_path, source):
    write_once(tmp_path / "x", source)

    assert write_once(tmp_path / "x", source, "other", overwrite=True) == ({"length": 5}, True)

    assert (tmp_path / "x").read_text() == "other"


@pytest.mark.parametrize(
    "receipt",
    [
        pytest.param(None, id="no receipt"),
        pytest.param(b"", id="empty receipt"),
        pytest.param(b"[]", id="list as receipt"),
        pytest.param(b'{"files": {}}', id="incomplete receipt"),
    ],
)
def test_a_file_without_a_valid_receipt_is_replaced_only_on_request(tmp_path, source, receipt):
    (tmp_path / "x").write_bytes(b"of another tool")
    if receipt is not None:
        (tmp_path / hidden_receipt_name("x")).write_bytes(receipt)

    with pytest.raises(ConfigError, match="nothing says what it was made from"):
        write_once(tmp_path / "x", source)

    _, is_new = write_once(tmp_path / "x", source, overwrite=True)
    assert is_new


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"another length", id="another size"),
        pytest.param(b"OUT", id="the same size, but another time"),
    ],
)
def test_an_output_that_was_edited_is_replaced_only_on_request(tmp_path, source, text):
    write_once(tmp_path / "x", source)
    (tmp_path / "x").write_bytes(text)

    with pytest.raises(ConfigError, match="changed since it was made"):
        write_once(tmp_path / "x", source)

    _, is_new = write_once(tmp_path / "x", source, overwrite=True)
    assert is_new


def test_a_folder_is_never_replaced(tmp_path, source):
    (tmp_path / "x").mkdir()

    with pytest.raises(ConfigError, match="a folder of this name"):
        write_once(tmp_path / "x", source, overwrite=True)


@pytest.mark.parametrize("output", ["source", "folder/../source", "link"])
def test_an_output_that_would_overwrite_an_input_is_refused(tmp_path, source, output):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(source)

    with pytest.raises(ConfigError, match="an input would be overwritten"):
        check_apart([tmp_path / output], [source])
    with pytest.raises(ConfigError, match="an input would be overwritten"):
        write_once(tmp_path / output, source, overwrite=True)


def test_an_output_that_an_input_links_to_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "missing")

    with pytest.raises(ConfigError, match="an input would be overwritten"):
        check_apart([tmp_path / "missing"], [tmp_path / "link"])


def test_an_output_apart_from_the_inputs_is_accepted(tmp_path, source):
    check_apart([tmp_path / "new"], [source])


# Failures


def test_a_failed_call_leaves_everything_unchanged(tmp_path, source):
    write_once(tmp_path / "x", source)
    names_before = names_in(tmp_path)

    def fill_the_disk(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="the disk is full"):
        make_once("tool", tmp_path / "x", [source], {}, fill_the_disk, overwrite=True)

    assert (tmp_path / "x").read_text() == "out"
    assert names_in(tmp_path) == names_before
    _, is_new = write_once(tmp_path / "x", source)
    assert not is_new


def test_errors_name_the_place_of_the_output_and_not_of_its_draft(tmp_path, source):
    def refuse(path: Path) -> None:
        raise FormatError("it is not possible", where=path, expected=f"something else than {path}")

    with pytest.raises(FormatError) as caught:
        make_once("tool", tmp_path / "x", [source], {}, refuse)

    assert caught.value.where == str(tmp_path / "x")
    assert caught.value.expected == f"something else than {tmp_path / 'x'}"


@pytest.mark.parametrize("place", ["/proc/none/x", "file/x"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, source, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StorageError, match="the folder cannot be made") as caught:
        write_once(tmp_path / place, source)

    assert caught.value.where == str((tmp_path / place).parent)


# Outputs of several files: a pair, with a list of rejected lines that readers can do without


def delivery_of_pair(folder: Path, source: Path, **options: object) -> Delivery:
    """Describe a pair in a folder that a tool makes from a file, with some options."""
    made_from = describe_call("tool", folder / "x", [source], options)
    return Delivery(
        folder=folder,
        receipt=Receipt(name=".x.made.json", made_from=made_from),
        files=("x.bin", "x.idx"),
        optional=("x.rejects",),
        completing_files=("x.idx",),
    )


def write_pair(
    delivery: Delivery, text: str, *, overwrite: bool = False, has_rejects: bool = False
) -> None:
    """Deliver a pair whose files all have the same text."""
    names = ["x.bin", "x.idx"]
    if has_rejects:
        names.append("x.rejects")
    with delivery.drafting(overwrite=overwrite) as draft:
        for name in names:
            (draft.folder / name).write_text(text)


def text_by_ending(folder: Path) -> dict[str, str]:
    """Return the texts of the files of a pair, by their endings."""
    return {path.suffix: path.read_text() for path in folder.glob("x.*")}


def test_an_optional_file_that_was_not_delivered_is_not_overwritten(tmp_path, source):
    delivery = delivery_of_pair(tmp_path, source)
    write_pair(delivery, "one")
    (tmp_path / "x.rejects").write_text("mine")
    assert delivery.find()

    # The pair must be written again, and the file is in the way.
    (tmp_path / "x.idx").unlink()
    with pytest.raises(ConfigError, match=r"x\.rejects was not there"):
        write_pair(delivery, "one")

    assert text_by_ending(tmp_path) == {".bin": "one", ".rejects": "mine"}


def test_an_optional_file_that_was_edited_is_an_error(tmp_path, source):
    delivery = delivery_of_pair(tmp_path, source)
    write_pair(delivery, "one", has_rejects=True)
    assert delivery.find()

    (tmp_path / "x.rejects").write_text("mine")

    with pytest.raises(ConfigError, match=r"x\.rejects has 4 bytes, and had 3"):
        delivery.find()


def test_an_optional_file_may_be_deleted(tmp_path, source):
    delivery = delivery_of_pair(tmp_path, source)
    write_pair(delivery, "one", has_rejects=True)

    (tmp_path / "x.rejects").unlink()

    assert delivery.find()


@pytest.mark.parametrize("name", ["x.bin", "x.rejects"])
def test_other_bytes_of_the_same_size_are_noticed_by_their_checksum(tmp_path, source, name):
    delivery = replace(delivery_of_pair(tmp_path, source), is_hashed=True)
    write_pair(delivery, "one", has_rejects=True)
    assert delivery.find()
    (tmp_path / name).write_bytes(bytes(3))

    with pytest.raises(ConfigError, match=f"{name} has other bytes"):
        delivery.find()

    assert delivery.find(overwrite=True) is None
    write_pair(delivery, "one", overwrite=True, has_rejects=True)
    assert text_by_ending(tmp_path) == {".bin": "one", ".idx": "one", ".rejects": "one"}


STEPS_OF_REPLACEMENT = 6
"""Files that are renamed or removed while a pair with a list of rejected lines is replaced."""


def exit_code_if_killed(step: int, call: Callable[[], object]) -> int:
    """Call a function in a process that is killed before it renames or removes a file.

    Args:
        step: Number of the file, from 0, that is not renamed or removed any more.
        call: The function.

    Returns:
        The exit code of the process: 9 if it was killed, 0 if the call ended before that.
    """
    child = os.fork()
    if child == 0:
        steps = iter(range(1000))

        def killed_at_step(original: Callable[..., object]) -> Callable[..., object]:
            def replacement(*arguments: Any, **keywords: Any) -> object:
                if next(steps) == step:
                    os._exit(9)
                return original(*arguments, **keywords)

            return replacement

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", killed_at_step(os.replace))
            patch.setattr(Path, "unlink", killed_at_step(Path.unlink))
            call()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.fixture(params=range(10))
def interrupted_replacement(request, tmp_path: Path, source: Path) -> Delivery:
    """A pair `old` that a process was replacing by the returned pair `new` when it was killed.

    With the last parameters, the replacement ends before the process would be killed.
    """
    step = request.param
    old = delivery_of_pair(tmp_path, source, text="old")
    write_pair(old, "old", has_rejects=True)
    new = delivery_of_pair(tmp_path, source, text="new")

    exit_code = exit_code_if_killed(step, lambda: write_pair(new, "new", overwrite=True))

    assert exit_code == (9 if step < STEPS_OF_REPLACEMENT else 0)
    return new


def test_a_killed_replacement_never_mixes_the_files_of_two_pairs(interrupted_replacement, tmp_path):
    texts = text_by_ending(tmp_path)

    # The tokens exist at any moment. The index may be missing: without it, nobody reads the pair.
    assert ".bin" in texts
    assert texts.get(".idx") in (texts[".bin"], None)
    if texts.get(".idx") == "old":
        assert texts[".rejects"] == "old"


def test_a_killed_replacement_is_completed_by_the_next_call(interrupted_replacement, tmp_path):
    new = interrupted_replacement
    receipt = json.loads((tmp_path / ".x.made.json").read_text())

    if receipt["options"] == {"text": "new"}:
        # The same call resumes, and need not be allowed to overwrite once more.
        write_pair(new, "new")
    else:
        with pytest.raises(ConfigError, match="other input or settings"):
            new.find()
        write_pair(new, "new", overwrite=True)

    assert text_by_ending(tmp_path) == {".bin": "new", ".idx": "new"}
    assert new.find()
    assert not list(tmp_path.glob(".tmp-*"))


def test_of_two_calls_at_once_the_second_one_fails(tmp_path, source):
    first = delivery_of_pair(tmp_path, source, text="one")
    second = delivery_of_pair(tmp_path, source, text="two")

    # The second call delivers its pair while the first one is still writing.
    with pytest.raises(ConfigError, match="text: two → one"), first.drafting() as draft:
        for name in ("x.bin", "x.idx"):
            (draft.folder / name).write_text("one")
        write_pair(second, "two")

    assert text_by_ending(tmp_path) == {".bin": "two", ".idx": "two"}


def test_temporary_files_of_a_killed_call_are_removed_but_not_those_of_others(tmp_path, source):
    for name in (".tmp-mine", ".tmp-x.idx-old", ".tmp-x-mine", ".tmp-other.idx-old"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1e9, 1e9))

    write_pair(delivery_of_pair(tmp_path, source), "new")

    remaining = sorted(path.name for path in tmp_path.glob(".tmp-*"))
    assert remaining == [".tmp-mine", ".tmp-other.idx-old", ".tmp-x-mine"]


# Outputs whose files are written in place, so that an interrupted call can be resumed


def delivery_of_samples(folder: Path, made_from: Mapping[str, Any], **more: Any) -> Delivery:
    """Describe numbered files in a folder; readers look for the file `index`."""
    return Delivery(
        folder=folder,
        receipt=Receipt(name="receipt.json", made_from=made_from, **more),
        files=("0", "1", "index"),
        completing_files=("index",),
        resumes_interrupted=True,
    )


def deliver_samples(
    delivery: Delivery, text: str, *, overwrite: bool = False, stop_at: str | None = None
) -> list[str]:
    """Write the files that are missing, all with the same text.

    Args:
        delivery: The files.
        text: Content of each file.
        overwrite: Whether files of another call may be replaced.
        stop_at: Name of the file at which the call is interrupted; None for no interruption.

    Returns:
        Names of the files that were written.
    """
    written = []

    def write_if_missing(name: str) -> None:
        if name == stop_at:
            raise KeyboardInterrupt
        path = delivery.folder / name
        if not path.exists():
            path.write_text(text)
            written.append(name)

    with delivery.drafting(overwrite=overwrite) as draft:
        draft.writers |= {name: partial(write_if_missing, name) for name in delivery.files}
    return written


def test_an_interrupted_call_keeps_the_files_that_it_wrote_in_place(tmp_path):
    delivery = delivery_of_samples(tmp_path, {"text": "new"})
    with pytest.raises(KeyboardInterrupt):
        deliver_samples(delivery, "new", stop_at="1")
    assert delivery.find() is None

    written = deliver_samples(delivery, "new")

    assert written == ["1", "index"]
    assert delivery.find() is not None


def test_files_of_another_call_are_not_taken_for_those_of_an_interrupted_one(tmp_path):
    deliver_samples(delivery_of_samples(tmp_path, {"text": "old"}), "old")

    written = deliver_samples(delivery_of_samples(tmp_path, {"text": "new"}), "new", overwrite=True)

    assert written == ["0", "1", "index"]
    assert (tmp_path / "0").read_text() == "new"


def test_an_opening_receipt_with_another_name_is_deleted_at_the_end(tmp_path):
    delivery = delivery_of_samples(tmp_path, {"text": "new"}, opening_name=".begun")
    with pytest.raises(KeyboardInterrupt):
        deliver_samples(delivery, "new", stop_at="1")
    assert not (tmp_path / "receipt.json").exists()
    assert (tmp_path / ".begun").exists()

    deliver_samples(delivery, "new")

    assert names_in(tmp_path) == ["0", "1", "index", "receipt.json"]
