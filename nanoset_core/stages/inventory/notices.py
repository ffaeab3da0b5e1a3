"""Notices on files of a corpus that a user may not expect.

There are notices on files that are not read, empty, copies of others, or named as validation or
test data, and on files that became smaller or disappeared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from nanoset_core.errors import NanosetError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.make import STAGE, pieces_by_file
from nanoset_core.stages.shards.settings import CorpusSpec
from nanoset_core.text.choice import held_out
from nanoset_core.text.contents import Contents
from nanoset_core.text.notices import Notice, abbreviated
from nanoset_core.text.pieces import Piece


def corpus_notices(project: Project, corpus: str, contents: Contents | None = None) -> list[Notice]:
    """Return notices on the present files of a corpus, such as files that shrank or disappeared.

    To find these, a file is compared with the current inventory if it has changed since then.
    Otherwise it is compared with the previous inventory, so that the notice on a lost file is also
    shown after the next build.

    Args:
        project: The project.
        corpus: Name of the corpus.
        contents: The files of the corpus, if they were listed already.

    Raises:
        MissingError: The folder of the corpus does not exist.
        InputError: The files cannot be listed.
    """
    if contents is None:
        contents = list_contents(project, corpus)
    notices = _held_out_notices(project.config, corpus, contents)
    try:
        current = project.outputs.current(STAGE, corpus)
        previous = None
        if current is not None:
            previous = project.outputs.previous(current)
        current_pieces = pieces_by_file(current)
        previous_pieces = pieces_by_file(previous)
    except NanosetError:
        # The inventory is damaged, which other checks report.
        return notices + contents.notices()

    # Divide the files of the current inventory into files that changed since then and others. A
    # change of the size is enough, since the notices below are about sizes.
    size_by_path = {file.path: file.size for file in contents.texts}
    changed_sizes: dict[str, int] = {}  # path → bytes in the current inventory
    unchanged_pieces: dict[str, Sequence[Piece]] = {}
    for path, pieces in current_pieces.items():
        size = _size(pieces)
        if size_by_path.get(path) != size:
            changed_sizes[path] = size
        elif size:
            unchanged_pieces[path] = pieces

    # A few copies are normal, such as licences. Only a large share of the text is worth a notice.
    originals = _originals_of_copies(unchanged_pieces)
    copied_bytes = sum(size_by_path[path] for path in originals)
    if copied_bytes > project.config.documents.max_duplicate_fraction * contents.size:
        pairs = [f"{path} ({original})" for path, original in originals.items()]
        notices.append(Notice("copies", len(pairs), abbreviated(pairs)))

    previous_sizes = {path: _size(pieces) for path, pieces in previous_pieces.items()}
    return notices + contents.notices(previous_sizes | changed_sizes)


def _size(pieces: Sequence[Piece]) -> int:
    """Return the stored bytes of some pieces."""
    return sum(piece.size for piece in pieces)


def _originals_of_copies(pieces_by_path: Mapping[str, Sequence[Piece]]) -> dict[str, str]:
    """Find files with the same bytes as an earlier file.

    Args:
        pieces_by_path: Path of each file → its pieces, whose digests are compared.

    Returns:
        Path of the copy → path of the first file with these bytes.
    """
    path_by_digests: dict[tuple[str, ...], str] = {}
    originals: dict[str, str] = {}
    for path, pieces in pieces_by_path.items():
        digests = tuple(piece.digest for piece in pieces)
        original = path_by_digests.setdefault(digests, path)
        if original != path:
            originals[path] = original
    return originals


def _held_out_notices(config: ProjectConfig, corpus: str, contents: Contents) -> list[Notice]:
    """Return a notice if train reads files that are named like validation or test data.

    For example, `valid-0001.jsonl` is probably for validation. There is no notice if all files of
    the corpus have such names, or if the user has chosen the files by the key `files` of
    nanoset.yaml.

    Args:
        config: The settings of nanoset.yaml.
        corpus: Name of the corpus.
        contents: The files of the corpus.

    Returns:
        A list with the notice, or an empty list.
    """
    spec = config.corpora.get(corpus, CorpusSpec())
    if spec.files is not None or not config.trains_on(corpus):
        return []

    # Find files with such names, and a pattern for each kind of name, such as `valid-*`.
    held_out_paths: list[str] = []
    patterns_by_split: dict[str, list[str]] = {}
    for file in contents.ordered:
        held_out_name = held_out(file.path)
        if held_out_name is None:
            continue
        split, pattern = held_out_name
        held_out_paths.append(file.path)
        patterns = patterns_by_split.setdefault(split, [])
        if pattern not in patterns:
            patterns.append(pattern)

    # If all files have such names, the user has put them into a corpus of their own.
    n_files = len(contents.texts)
    is_mixed = 0 < len(held_out_paths) < n_files
    if not is_mixed:
        return []
    lines = _separated_corpora(config.folder_name(corpus), corpus, spec, patterns_by_split)
    text = f"{abbreviated(held_out_paths)}; to separate them write {lines}"
    return [Notice("held_out", len(held_out_paths), text)]


def _separated_corpora(
    folder: str, corpus: str, spec: CorpusSpec, patterns_by_split: Mapping[str, Sequence[str]]
) -> str:
    """Return a line for nanoset.yaml that makes separate corpora of held-out files.

    For example, for a corpus `web` with files for validation:

        corpora: {web: {exclude: ["valid*"]}, web_valid: {folder: web, files: ["valid*"]}}

    Args:
        folder: The corpus's folder in the raw folder.
        corpus: Name of the corpus.
        spec: The section of nanoset.yaml on the corpus.
        patterns_by_split: Split → patterns of the names of the files that belong to the split.
    """
    excluded = list(spec.exclude)
    for patterns in patterns_by_split.values():
        excluded += patterns

    sections = [f"{corpus}: {{exclude: {json.dumps(excluded)}}}"]
    for split, patterns in patterns_by_split.items():
        sections.append(f"{corpus}_{split}: {{folder: {folder}, files: {json.dumps(patterns)}}}")
    return f"corpora: {{{', '.join(sections)}}}"
