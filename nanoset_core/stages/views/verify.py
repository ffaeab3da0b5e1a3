"""Check that a view contains the documents that its rules choose, and no others.

A view consists of an .idx, which lists the sequences of the chosen documents, and of the .bin with
all tokens of its corpus, which the corpus's dataset has, too. An .idx names a sequence by its first
byte in the .bin, its *pointer*, and by its length in tokens.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import CHUNK_SEQUENCES, Index, idx_path, read_idx
from nanoset_core.formats.indexed.stream import last_not_greater
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import (
    check_files,
    check_freshness,
    current_manifest,
    remedy_for_bytes,
)
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key
from nanoset_core.stages.views.choosing import choose
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.storage.atomic import sha256_file

MAX_QUICK_DOCUMENTS = 4_000_000
"""Documents of a corpus up to which every check chooses its views again: this takes seconds."""


def verify_view(project: Project, corpus: str, name: str, *, deep: bool) -> Report:
    """Check a view: a selection of a corpus's documents, which were chosen by rules.

    Its files must be whole, and its documents must be documents of the corpus. The view is also
    chosen again by its rules, and must be the same byte for byte. This proves that no document is
    in it that must be left out, and that none is missing.

    Args:
        project: The project.
        corpus: The corpus of the view.
        name: The view.
        deep: Compare checksums, and choose again even if the corpus is large.

    Returns:
        The errors, and what was checked.
    """
    key = Key(corpus, name)
    report = Report(VIEW.report_name(key))
    with report.catching(remedy=BUILD):  # an error that is raised becomes part of the report
        view = current_manifest(project, VIEW, key)
        report.copy_facts(view, ["documents", "sequences", "tokens"])
        check_files(report, view, deep=deep)
        is_fresh = check_freshness(report, project, VIEW, key, view)
        if report.passed:
            # If the view is not fresh, its rules or the documents have changed since it was
            # chosen: another choice would be right.
            _check_documents(report, project, view, deep=deep, choose_again=is_fresh)
    return report


def _check_documents(
    report: Report, project: Project, view: Manifest, *, deep: bool, choose_again: bool
) -> None:
    """Check that a view has documents of its corpus, and those that its rules choose.

    If it has not, a file of the corpus may be damaged. If so, only that is reported.

    Args:
        report: Gets the errors.
        project: The project.
        view: The view, whose files are whole.
        deep: Compare checksums, and choose again even if the corpus is large.
        choose_again: Whether the documents may be chosen again for comparison.
    """
    dataset = dataset_of(project.outputs, view).corpus.manifest
    differences = Report(report.output)
    _check_sequences(differences, dataset, view)

    is_quick = dataset.facts["documents"] <= MAX_QUICK_DOCUMENTS
    if choose_again and (deep or is_quick):
        _check_choice(differences, project, dataset, view)
    include_differences(report, differences, [dataset], deep=deep)


def _check_sequences(report: Report, dataset: Manifest, view: Manifest) -> None:
    """Check that each sequence of tokens in a view is one of the dataset that it was chosen from.

    A view has no tokens of its own. Its index says where each sequence begins in the file of tokens
    of the dataset, and how long it is. The same must be in the index of the dataset.

    Args:
        report: Gets an error for the first sequence that the dataset does not have.
        dataset: The record of the dataset.
        view: The record of the view.
    """
    dataset_index = _read_index(dataset)
    view_index = _read_index(view)
    unknown = _first_unknown_sequence(dataset_index, view_index)
    if unknown is not None:
        length = int(view_index.sequence_lengths[unknown])
        first_byte = int(view_index.sequence_pointers[unknown])
        report.error(
            "a view has a sequence of tokens that its dataset does not have",
            where=idx_path(view.folder / view.facts["prefix"]),
            found=f"{length:,} tokens from byte {first_byte:,} on",
            expected=f"one of {dataset.url()}",
            remedy=remedy_for_bytes(view),
        )


def _first_unknown_sequence(dataset_index: Index, view_index: Index) -> int | None:
    """Return the number of the first sequence of a view that its dataset does not have, or None.

    Sequences without tokens are not looked up: they begin at the same byte as another one.

    Args:
        dataset_index: Where each sequence of the dataset begins, and how long it is.
        view_index: The same for the view. Some sequences at a time are compared.
    """
    for start in range(0, len(view_index.sequence_lengths), CHUNK_SEQUENCES):
        chunk = slice(start, start + CHUNK_SEQUENCES)
        lengths = view_index.sequence_lengths[chunk]
        first_bytes = view_index.sequence_pointers[chunk]
        has_tokens = np.flatnonzero(lengths)
        is_known = _has_sequences(dataset_index, first_bytes[has_tokens], lengths[has_tokens])
        if not is_known.all():
            return start + int(has_tokens[~is_known][0])
    return None


def _has_sequences(
    index: Index, first_bytes: NDArray[np.int64], lengths: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """For each of some sequences of tokens, return whether a dataset has exactly this sequence.

    A sequence is known by its first byte in the file of tokens, and by its number of tokens. If a
    dataset has two sequences, from byte 0 and from byte 40 on, of 10 and 5 tokens:

        first byte    40      40       20
        tokens         5       3        5
        result        True    False    False

    Args:
        index: The index of the dataset: where each sequence begins, ascending, and how long it is.
        first_bytes: First byte of each sequence to look up, shape (n_sequences,).
        lengths: Tokens of each sequence, above 0, shape (n_sequences,).

    Returns:
        bool, shape (n_sequences,).
    """
    candidates = last_not_greater(index.sequence_pointers, first_bytes)  # [1, 1, 0]
    # The number is -1 if all sequences begin after the byte. Compare with any one then: it differs.
    candidates = np.maximum(candidates, 0)
    has_same_start = index.sequence_pointers[candidates] == first_bytes
    has_same_length = index.sequence_lengths[candidates] == lengths
    has_sequence: NDArray[np.bool_] = has_same_start & has_same_length
    return has_sequence


def _read_index(dataset: Manifest) -> Index:
    """Read the .idx of the dataset of a corpus or view."""
    return read_idx(dataset.path(f"{dataset.facts['prefix']}.idx"))


def _check_choice(report: Report, project: Project, dataset: Manifest, view: Manifest) -> None:
    """Choose the documents of a view again by its rules, and check that they are the same.

    The view has an index file (.idx) that lists its documents. Another one is written for the
    documents that are chosen now, and must have the checksum that is recorded for the view's. The
    caller has checked that the view's has it, too.

    Args:
        report: Gets an error if they differ.
        project: The project.
        dataset: The dataset that the view was chosen from.
        view: The view.
    """
    idx_name = f"{view.facts['prefix']}.idx"
    report.compare(
        "a view does not hold the documents that its rules choose",
        where=view.folder / idx_name,
        found=f"sha256 {_sha256_of_new_choice(project, dataset, view)}",
        expected=f"sha256 {view.files[idx_name].sha256}",
        remedy=remedy_for_bytes(view),
    )


def _sha256_of_new_choice(project: Project, dataset: Manifest, view: Manifest) -> str:
    """Choose the documents of a view by its rules, and return the sha256 of their index file.

    Args:
        project: The project, which has the rules.
        dataset: The dataset that the documents are chosen from.
        view: The view.

    Returns:
        64 hex digits.
    """
    # The chosen documents are listed in temporary files, so their index is written in this block.
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as folder_name:
        folder = Path(folder_name)
        [chosen_view] = choose(project, dataset.name, [view.name], folder)
        new_idx = folder / "again.idx"
        write_view_idx(new_idx, _read_index(dataset), chosen_view.selection.chunks)
        return sha256_file(new_idx)
