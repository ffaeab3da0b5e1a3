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
        # 1. Check the files of the view. If they are damaged, the other checks would only report
        # the same in other words.
        view = current_manifest(project, VIEW, key)
        report.copy_facts(view, ["documents", "sequences", "tokens"])
        check_files(report, view, deep=deep)
        is_fresh = check_freshness(report, project, VIEW, key, view)
        if not report.passed:
            return report

        # 2. Check that the documents are those of the corpus, in the version from which they were
        # chosen.
        dataset = dataset_of(project.outputs, view).corpus.manifest
        differences = Report(report.output)
        _check_sequences(differences, dataset, view)

        # 3. Choose again. If the view is not fresh, its rules or the documents have changed since,
        # and another choice would be right.
        is_small = dataset.facts["documents"] <= MAX_QUICK_DOCUMENTS
        if is_fresh and (deep or is_small):
            _check_choice(differences, project, dataset, view)

        # If there are differences, a file of the corpus may be damaged. Then only that is reported.
        include_differences(report, differences, [dataset], deep=deep)
    return report


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
    for start in range(0, len(view_index.sequence_lengths), CHUNK_SEQUENCES):  # some at a time
        chunk = slice(start, start + CHUNK_SEQUENCES)
        lengths = view_index.sequence_lengths[chunk]
        first_bytes = view_index.sequence_pointers[chunk]

        # Leave out sequences without tokens: the next one begins at the same byte.
        has_tokens = lengths > 0
        lengths = lengths[has_tokens]
        first_bytes = first_bytes[has_tokens]

        unknown = np.flatnonzero(~_has_sequences(dataset_index, first_bytes, lengths))
        if len(unknown) > 0:
            first = int(unknown[0])
            sequence = f"{int(lengths[first]):,} tokens from byte {int(first_bytes[first]):,} on"
            _report_unknown_sequence(report, dataset, view, sequence)
            return


def _report_unknown_sequence(
    report: Report, dataset: Manifest, view: Manifest, sequence: str
) -> None:
    """Report an error: a view has a sequence of tokens that is not one of its dataset.

    Args:
        report: Gets the error.
        dataset: The dataset that the view was chosen from.
        view: The view.
        sequence: The sequence in words, such as "12 tokens from byte 48 on".
    """
    report.error(
        "a view has a sequence of tokens that its dataset does not have",
        where=idx_path(view.folder / view.facts["prefix"]),
        found=sequence,
        expected=f"one of {dataset.url()}",
        remedy=remedy_for_bytes(view),
    )


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
    # Find the last sequence of the dataset that does not begin after the byte. No other one can be
    # the same.
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
    documents that are chosen now, and both must have the same checksum.

    Args:
        report: Gets an error if they differ.
        project: The project.
        dataset: The dataset that the view was chosen from.
        view: The view.
    """
    # Choose again, and write the index of the chosen documents. The temporary folder also gets
    # files that say which documents these are, so the index has to be written while it exists.
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as name:
        folder = Path(name)
        [chosen_view] = choose(project, dataset.name, [view.name], folder)  # only this view
        new_idx = folder / "again.idx"
        write_view_idx(new_idx, _read_index(dataset), chosen_view.selection.chunks)
        new_sha256 = sha256_file(new_idx)

    # Compare its checksum with the recorded one. The caller has checked that the view's own .idx
    # has the recorded one.
    idx_name = f"{view.facts['prefix']}.idx"
    report.compare(
        "a view does not hold the documents that its rules choose",
        where=view.folder / idx_name,
        found=f"sha256 {new_sha256}",
        expected=f"sha256 {view.files[idx_name].sha256}",
        remedy=remedy_for_bytes(view),
    )
