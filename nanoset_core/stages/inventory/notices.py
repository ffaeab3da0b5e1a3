"""Notices on files of a corpus that a user may not expect.

There are notices on files that are not read, empty, copies of others, or named as validation or
test data, and on files that became smaller or disappeared. For example, for the files a.jsonl,
b.jsonl and valid-0001.jsonl, a notice says that train reads valid-0001.jsonl, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nanoset_core.errors import NanosetError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.make import pieces_by_file
from nanoset_core.stages.inventory.names import FOLDER
from nanoset_core.stages.shards.settings import CorpusSpec
from nanoset_core.text.files.choice import held_out
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.notices import Notice
from nanoset_core.text.inventory.pieces import Piece
from nanoset_core.wording import abbreviated


def corpus_notices(project: Project, corpus: str, contents: Contents | None = None) -> list[Notice]:
    """Return notices on the text files of a corpus that may be there, or have changed, by mistake.

        1 file is smaller than in the previous version: a.jsonl
        2 files hold the same bytes as others, …

    Args:
        project: The project.
        corpus: Name of the corpus, a folder of texts.
        contents: The files of the corpus, if they were listed already.

    Returns:
        The notices, each of one kind with the names of the first few files.

    Raises:
        MissingError: The folder of the corpus does not exist.
        InputError: The files cannot be listed.
    """
    if contents is None:
        contents = list_contents(project, corpus)
    held_out_notices = _held_out_notices(project.config, corpus, contents)
    try:
        inventories = _LastInventories.of(project, corpus)  # the files of the last two builds
    except NanosetError:
        # A damaged list is reported elsewhere. Without it, nothing is said about earlier files.
        return held_out_notices + contents.notices()

    changes = _SizeChanges.of(contents, inventories.current)
    copy_notices = _copy_notices(project.config, contents, changes.unchanged_pieces)
    earlier_sizes = _earlier_sizes(inventories.previous, changes.changed_sizes)
    return held_out_notices + copy_notices + contents.notices(earlier_sizes)


def _earlier_sizes(
    previous_files: Mapping[str, Sequence[Piece]], changed_sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes with which the present files are compared, to see which became smaller.

    Normally, a file is compared with its size at the last build. But if it has not changed since,
    it is compared with the build before that. So the user is told that a file became smaller until
    two builds have read the smaller file:

        build before    last build    now      result
        5,000           5,000         1,000    5,000: the file is smaller now
        5,000           1,000         1,000    5,000: it still is, after one build
        1,000           1,000         1,000    1,000

    Args:
        previous_files: Path of each file of the build before → its pieces.
        changed_sizes: Path of each file that has changed since the last build → its bytes then.

    Returns:
        Path of each file → bytes.
    """
    sizes = {path: _size(pieces) for path, pieces in previous_files.items()}
    sizes.update(changed_sizes)
    return sizes


@dataclass(frozen=True, slots=True)
class _LastInventories:
    """The files that the last two builds of a corpus have read; path → pieces of the file."""

    current: Mapping[str, Sequence[Piece]]
    """Files of the last build; empty if there was none."""
    previous: Mapping[str, Sequence[Piece]]
    """Files of the build before; empty if there was none."""

    @staticmethod
    def of(project: Project, corpus: str) -> _LastInventories:
        """Read which files of a corpus the last two builds have read, with their sizes.

        Each build stores a list of the files (an inventory). Large files are divided into pieces:

            current list      a.jsonl: 1,000 bytes
            previous list     a.jsonl: 5,000 bytes, b.jsonl: 300 bytes

        Args:
            project: The project.
            corpus: Name of the corpus, a folder of texts.

        Returns:
            Both lists. They are empty before the first build.

        Raises:
            NanosetError: One of them is damaged.
        """
        current = project.outputs.current(FOLDER, corpus)
        previous = None
        if current is not None:
            previous = project.outputs.previous(current)
        return _LastInventories(pieces_by_file(current), pieces_by_file(previous))


@dataclass(frozen=True, slots=True)
class _SizeChanges:
    """Which files of an inventory have another size now. Notices are only about sizes."""

    changed_sizes: Mapping[str, int]
    """Each file whose size changed, or that was deleted → its bytes in the inventory."""
    unchanged_pieces: Mapping[str, Sequence[Piece]]
    """Each other file that is not empty → its pieces."""

    @staticmethod
    def of(contents: Contents, recorded: Mapping[str, Sequence[Piece]]) -> _SizeChanges:
        """Compare the sizes of a corpus's files with those at the last build.

            file         now       last build
            a.jsonl      4,096     4,096        unchanged
            b.jsonl      100       2,000        changed: the user should know that it shrank
            c.jsonl      –         500          changed: it was deleted
            d.jsonl      300       –            new, and in neither result

        Args:
            contents: The files.
            recorded: Path of each file in the inventory of that build → its pieces.

        Returns:
            The sizes of files that changed, and the pieces of those that did not.
        """
        present_sizes = {file.path: file.size for file in contents.texts}
        changed_sizes: dict[str, int] = {}
        unchanged_pieces: dict[str, Sequence[Piece]] = {}
        for path, pieces in recorded.items():
            recorded_size = _size(pieces)
            if present_sizes.get(path) != recorded_size:
                changed_sizes[path] = recorded_size
            elif recorded_size > 0:  # empty files have no content to compare
                unchanged_pieces[path] = pieces
        return _SizeChanges(changed_sizes, unchanged_pieces)


def _copy_notices(
    config: ProjectConfig, contents: Contents, pieces_of_file: Mapping[str, Sequence[Piece]]
) -> list[Notice]:
    """Return a notice if a large share of a corpus is copies of other files of the corpus.

        b.jsonl (a.jsonl), d.jsonl (c.jsonl)      b is a copy of a, and d of c

    Args:
        config: The settings, which say how large the share may be.
        contents: The files of the corpus.
        pieces_of_file: Path of each file that was hashed → its pieces, which have digests. Files
            with the same digests are copies.
    """
    original_by_copy = _originals_of_copies(pieces_of_file)  # {"b.jsonl": "a.jsonl"}
    size_by_path = {file.path: file.size for file in contents.texts}
    copied_bytes = sum(size_by_path[path] for path in original_by_copy)
    allowed_bytes = config.documents.max_duplicate_fraction * contents.size
    if copied_bytes <= allowed_bytes:
        return []
    pairs = [f"{copy} ({original})" for copy, original in original_by_copy.items()]
    return [Notice("copies", len(pairs), abbreviated(pairs))]


def _size(pieces: Sequence[Piece]) -> int:
    """Return the stored bytes of some pieces."""
    return sum(piece.size for piece in pieces)


def _originals_of_copies(pieces_by_path: Mapping[str, Sequence[Piece]]) -> dict[str, str]:
    """Find files with the same bytes as an earlier file: `{"b.jsonl": "a.jsonl"}`.

    Args:
        pieces_by_path: Path of each file → its pieces, whose digests are compared.

    Returns:
        Path of the copy → path of the first file with these bytes.
    """
    path_by_digests: dict[tuple[str, ...], str] = {}
    originals: dict[str, str] = {}
    for path, pieces in pieces_by_path.items():
        # Equal files have equal pieces: where a file is cut depends only on its bytes.
        digests = tuple(piece.digest for piece in pieces)
        original = path_by_digests.setdefault(digests, path)
        if original != path:
            originals[path] = original
    return originals


def _held_out_notices(config: ProjectConfig, corpus: str, contents: Contents) -> list[Notice]:
    """Warn if a model may be trained on files that are named like validation or test data.

    A corpus is a folder of texts. If it is not for evaluation alone, and only some of its files
    have such names, they are probably there by mistake:

        train-0.jsonl, valid-0.jsonl     a notice, with a setting that separates valid-0.jsonl
        valid-0.jsonl, valid-1.jsonl     none: the corpus is meant for validation

    There is no notice if the user has chosen the files by the key `files` of nanoset.yaml.

    Args:
        config: The settings of nanoset.yaml.
        corpus: Name of the corpus.
        contents: The files of the corpus.
    """
    spec = config.corpora.get(corpus, CorpusSpec())
    if spec.files is not None or not config.may_train_on(corpus):
        return []

    # If all files have such names, the user has put them into a corpus of their own.
    held_out_names = _held_out_names(contents)
    is_mixed = 0 < len(held_out_names) < len(contents.texts)
    if not is_mixed:
        return []

    # Show which lines of nanoset.yaml would make them a corpus of their own.
    patterns = _patterns_by_split(held_out_names.values())
    yaml_lines = _separated_corpora(config.folder_name(corpus), corpus, spec, patterns)
    text = f"{abbreviated(list(held_out_names))}; to separate them write {yaml_lines}"
    return [Notice("held_out", len(held_out_names), text)]


def _held_out_names(contents: Contents) -> dict[str, tuple[str, str]]:
    """Find the files of a corpus that are named like data for validation or tests.

    Users should not train on such files by accident, so they are warned of them:

        valid-0001.jsonl    → ("valid", "valid-*")
        test/a.jsonl        → ("test", "test/")
        train.jsonl         is no such file

    Args:
        contents: The files of the corpus, a folder of texts.

    Returns:
        Path of the file → the split that it is probably for, and a pattern for such names.
    """
    names: dict[str, tuple[str, str]] = {}
    for file in contents.ordered:
        split_and_pattern = held_out(file.path)
        if split_and_pattern is not None:
            names[file.path] = split_and_pattern
    return names


def _patterns_by_split(splits_and_patterns: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group patterns of file names by the split of the data that the files are for.

        ("valid", "valid-*"), ("valid", "dev-*"), ("valid", "valid-*"), ("test", "test-*")
        →  {"valid": ["valid-*", "dev-*"], "test": ["test-*"]}

    Args:
        splits_and_patterns: A pair for each file that is named like validation or test data.
    """
    patterns_by_split: dict[str, list[str]] = {}
    for split, pattern in dict.fromkeys(splits_and_patterns):
        patterns_by_split.setdefault(split, []).append(pattern)
    return patterns_by_split


def _separated_corpora(
    folder: str, corpus: str, spec: CorpusSpec, patterns_by_split: Mapping[str, Sequence[str]]
) -> str:
    """Suggest a line of nanoset.yaml that separates validation and test data from training data.

    A corpus is a folder of texts. If `web` also has the files valid-0.jsonl and valid-1.jsonl, its
    model would be trained on them. With this line, they are a corpus of their own, `web_valid`:

        corpora: {web: {exclude: ["valid*"]}, web_valid: {folder: web, files: ["valid*"]}}

    Args:
        folder: The corpus's folder in the raw folder.
        corpus: Name of the corpus.
        spec: The section of nanoset.yaml on the corpus. Patterns that it excludes stay excluded.
        patterns_by_split: Split → patterns of the names of its files, such as {"valid":
            ["valid*"]}.
    """
    excluded = list(spec.exclude)
    for patterns in patterns_by_split.values():
        excluded += patterns

    settings = "{exclude: " + json.dumps(excluded) + "}"
    sections = [f"{corpus}: {settings}"]
    for split, patterns in patterns_by_split.items():
        settings = "{folder: " + folder + ", files: " + json.dumps(patterns) + "}"
        sections.append(f"{corpus}_{split}: {settings}")
    return "corpora: {" + ", ".join(sections) + "}"
