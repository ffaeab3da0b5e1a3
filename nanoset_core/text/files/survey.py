"""Scan the raw folder for corpora, by the names, sizes and times of files, without reading any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nanoset_core.errors import InputError, MissingError, NanosetError, combined
from nanoset_core.outputs.names import CorpusNameError, check_corpus_name
from nanoset_core.storage.location import Location
from nanoset_core.storage.places import entries_in
from nanoset_core.text.files.contents import Contents, contents_of
from nanoset_core.text.files.endings import (
    ACCEPTED,
    ARROW,
    PARQUET,
    is_companion,
    is_text,
    is_txt_or_csv,
    with_compressions,
)
from nanoset_core.text.files.listing import walk
from nanoset_core.wording import abbreviated, format_count

_TEXT_ENDINGS = (*with_compressions([".jsonl"]), PARQUET, ARROW)
"""A file outside of all corpora with one of these endings is an error, since it is nearly always
text. Other endings, such as .json, may be anything.
"""
_MAX_FUTURE_NS = 3600 * 10**9
"""If the time of a file is further in the future than this, the clock that wrote it is wrong, and
the time says nothing.
"""
_MAX_FILES_NAMED = 5
_MAX_WRONG_NAMES = 50
"""An error names at most this many folders whose names are wrong; it counts the others."""


@dataclass(frozen=True, slots=True)
class RawText:
    """Everything below the raw folder, as a scan found it."""

    corpora: Mapping[str, Contents]
    """Name → contents, sorted by name; only corpora with at least one file that would be read."""
    faults: Mapping[str, NanosetError]
    """Folder or file → why it cannot be read, or cannot be a corpus."""
    unread_entries: Mapping[str, str] = field(default_factory=dict)
    """Name of a folder or file that is no corpus, since nothing in it is read → what it is."""

    @property
    def files(self) -> int:
        """How many files would be read."""
        return sum(len(contents.texts) for contents in self.corpora.values())


def list_corpora(raw: Location, *, names_only: bool = False) -> RawText:
    """List the corpora in the raw folder, each with its files.

    An error in one corpus is recorded, so that it does not hide the others.

    Args:
        raw: The raw folder.
        names_only: Whether only the names of the corpora are needed. Then a folder is searched only
            until a file is found that would be read, and the contents list no files. A folder that
            cannot be listed counts as a corpus; taking its inventory reports the error.

    Returns:
        The corpora, the errors, and the entries of the raw folder that are no corpora.

    Raises:
        MissingError: The folder does not exist.
        InputError: The folder cannot be listed.
    """
    entries, faults = _entries(raw)
    corpora: dict[str, Contents] = {}
    unread_entries: dict[str, str] = {}
    for entry in entries:
        name = entry.name
        try:
            # A file is in no corpus. A README.md, for example, is normal here.
            if not entry.is_dir():
                _check_not_text(raw, entry)
                if not is_companion(name):
                    unread_entries[name] = _unread_file(name)
                continue

            # A folder is a corpus if at least one file in it is read.
            if names_only and _may_hold_text(entry):
                contents = Contents(corpus=name)
            else:
                contents = replace(contents_of(entry, raw), corpus=name)
                if not contents.texts:
                    unread_entries[name] = _why_unread(contents)
                    continue
            check_corpus_name(name, entry, remedy="rename the folder")
            corpora[name] = contents
        except NanosetError as error:
            faults[name] = error
    return RawText(corpora, faults, unread_entries)


def check_raw_text(raw: Location, text: RawText) -> None:
    """Check that nothing is wrong with any folder or file in the raw folder.

    All faults are reported at once, so that the user can correct them together:

        /data/raw: the names of 28 folders cannot name a corpus
          found: 'a+b', 'with space', 'été' and 25 more …

    Args:
        raw: The raw folder.
        text: What it holds.

    Raises:
        NanosetError: There are faults. A single one is raised unchanged.
    """
    # A corpus of nanoset.yaml has the same fault as its folder: report it once.
    fault_by_id = {id(fault): fault for fault in text.faults.values()}
    errors = list(fault_by_id.values())

    name_errors = [error for error in errors if isinstance(error, CorpusNameError)]
    if len(name_errors) > 1:
        others = [error for error in errors if not isinstance(error, CorpusNameError)]
        errors = [_wrong_names(raw, name_errors), *others]
    if errors:
        raise combined(errors, raw)


def _wrong_names(raw: Location, errors: Sequence[CorpusNameError]) -> CorpusNameError:
    """Return the error for several folders with names that no corpus can have.

    Args:
        raw: The folder that they are in.
        errors: The error for each folder.
    """
    names = [str(error.found) for error in errors]  # in quotes
    return CorpusNameError(
        f"the names of {len(names):,} folders cannot name a corpus",
        where=raw,
        found=abbreviated(names, _MAX_WRONG_NAMES),
        expected=errors[0].expected,
        remedy="rename the folders",
    )


def _unread_file(name: str) -> str:
    """Return what a file in the raw folder is, outside of all corpora, and what can be done."""
    if is_txt_or_csv(name):
        return "a file in no corpus, which is not read: move it into a folder, its corpus"
    return "a file in no corpus, which is not read"


def is_quiescent(
    contents: Contents, previous_signature: str | None, *, now_ns: int, settle_seconds: float
) -> bool:
    """Return whether nobody is writing to a corpus at the moment, so that it can be built.

    Two things must hold: the folder was listed twice and has not changed in between, and the newest
    file is older than, say, a minute.

    Args:
        contents: The files of the corpus, as they were listed now.
        previous_signature: Hash of their names, sizes and times when they were listed before; None
            if they never were.
        now_ns: The present time, nanoseconds since 1970.
        settle_seconds: How old the newest file must be.
    """
    if contents.signature != previous_signature:
        return False
    newest_ns = max((file.mtime_ns for file in contents.texts), default=0)
    return is_settled(newest_ns, now_ns, settle_seconds)


def is_settled(written_ns: int, now_ns: int, settle_seconds: float) -> bool:
    """Return whether a file was not written for some time, so its upload is probably complete.

    Args:
        written_ns: When the file was last written, in nanoseconds since 1970.
        now_ns: The present time, in nanoseconds since 1970.
        settle_seconds: How long the file must not have been written.

    Returns:
        True also if the file was written more than an hour in the future: then a clock is wrong,
        and the time says nothing.
    """
    age_ns = now_ns - written_ns
    has_wrong_time = age_ns < -_MAX_FUTURE_NS
    return has_wrong_time or age_ns >= settle_seconds * 1e9


def no_text(folder: Location, contents: Contents, what: str = "the corpus is empty") -> InputError:
    """Return the error for a folder in which there is nothing to read.

    The message says what the folder has instead, since most users expect that it has text:

        only other files            found "2 other files: a.pdf, b.pdf"
        nothing at all              found "no files"
        files that are left out     the settings `files` and `exclude` leave no file: correct them

    Args:
        folder: The folder.
        contents: What is in the folder: files that are not read, that the settings leave out, and
            so on.
        what: First words of the message. Other words are used if the settings leave out files.
    """
    # There are files, but the settings of the corpus leave them out.
    if contents.left_out:
        n_left_out = format_count(len(contents.left_out), "file")
        remedy = "correct corpora.<name>.files or exclude in nanoset.yaml"
        if contents.unmatched_patterns:
            remedy += f": no file fits {abbreviated(contents.unmatched_patterns)}"
        return InputError(
            "the corpus's files and exclude leave no file to read",
            where=folder,
            found=f"{n_left_out} left out: {abbreviated(contents.left_out)}",
            expected=f"at least one file ending in {ACCEPTED} that they take",
            remedy=remedy,
        )

    # There is no text. Say what else there is.
    found = "no files"
    if contents.unread:
        n_others = format_count(len(contents.unread), "other file")
        found = f"{n_others}: {', '.join(contents.unread[:_MAX_FILES_NAMED])}"
    if contents.misnamed_folders:
        n_misnamed = format_count(len(contents.misnamed_folders), "folder")
        names = abbreviated(contents.misnamed_folders)
        found += f", and {n_misnamed} named like a file of text: {names}"
    return InputError(
        what,
        where=folder,
        found=found,
        expected=f"at least one file ending in {ACCEPTED}",
        remedy="add files, convert or rename the existing ones, or name another folder",
    )


def _entries(raw: Location) -> tuple[list[Location], dict[str, NanosetError]]:
    """List what is directly in the folder of raw text, without hidden files and folders.

    Each folder in it is a corpus, such as `raw/web`.

    Returns:
        (paths of the folders and files, sorted by name; name → error of each entry whose name is
        not valid, which only a bucket can have).

    Raises:
        MissingError: The folder does not exist.
        InputError: The folder cannot be listed.
    """
    paths, errors_of_names = _listed(raw)
    error_by_name: dict[str, NanosetError] = {**errors_of_names}
    visible_paths = [path for path in paths if not path.name.startswith(".")]
    # A folder of a bucket that does not exist is listed as an empty one. To find out takes another
    # request, so ask only in this case.
    if not visible_paths and not error_by_name and not raw.is_dir():
        raise _no_raw_folder(raw)
    visible_paths.sort(key=lambda path: path.name)
    return visible_paths, error_by_name


def _listed(raw: Location) -> tuple[Sequence[Location], Mapping[str, InputError]]:
    """List the folder of raw text, with an error that says what to do if that fails.

    Returns:
        (paths of the folders and files, name → error of each entry whose name is not valid).

    Raises:
        MissingError: The folder does not exist on this machine.
        InputError: The folder cannot be listed.
    """
    try:
        return entries_in(raw)
    except OSError as error:
        if not raw.is_dir():
            raise _no_raw_folder(raw) from error
        raise InputError(
            "the folder of raw text cannot be listed",
            where=raw,
            found=error.strerror,
            remedy="give this user the right to read it",
        ) from error


def _no_raw_folder(raw: Location) -> MissingError:
    """Return the error for a folder of raw text that does not exist, or that is a file.

    Args:
        raw: Where the folder should be.
    """
    message = "the folder of raw text does not exist"
    if raw.is_file():
        message = "a file is where the folder of raw text should be"
    return MissingError(
        message,
        where=raw,
        remedy=(
            "name a folder, mount or restore it, or create it "
            "with one folder of text for each corpus"
        ),
    )


def _check_not_text(raw: Location, file: Location) -> None:
    """Refuse a file of text that is in no corpus, since it would not be read.

    Each corpus is a folder in the folder of raw text, here `raw`:

        raw/web/a.jsonl    a file of the corpus `web`
        raw/b.jsonl        refused: the user should move it, for example to raw/b/b.jsonl
        raw/README.md      not refused, since it is no text to train on

    Args:
        raw: The folder of raw text.
        file: A file directly in it.

    Raises:
        InputError: The file has the name of a file of text.
    """
    # These endings are those of texts for certain: .json is not among them, as such a file may be
    # anything. `is_text` leaves out tables that Hugging Face's library has cached.
    looks_like_text = is_text(file.name) and file.name.endswith(_TEXT_ENDINGS)
    if looks_like_text and file.is_file():
        corpus = file.name.partition(".")[0]
        raise InputError(
            "a file of text belongs to no corpus",
            where=file,
            expected="each file inside the folder of its corpus",
            remedy=f"move it, for example to {raw / corpus / file.name}",
        )


def _may_hold_text(folder: Location) -> bool:
    """Return whether a folder contains a file of text, such as a.jsonl.

    True also if the folder cannot be listed: then a later step reports the error.

    Args:
        folder: The folder.
    """
    try:
        for file in walk(folder, folder.parent):
            # Either of them makes the folder a corpus: .txt and .csv are read if nothing else is.
            if is_text(file.path) or is_txt_or_csv(file.path):
                return True
        return False
    except NanosetError:
        return True


def _why_unread(contents: Contents) -> str:
    """Return why nothing in a folder is read: what it contains instead of text.

    For example: "a folder in which nothing is read: 2 files are not read: a.pdf, b.pdf".

    Args:
        contents: What the folder contains.
    """
    notices = "; ".join(notice.text for notice in contents.notices())
    return f"a folder in which nothing is read: {notices or 'it is empty'}"
