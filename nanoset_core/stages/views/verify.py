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
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key
from nanoset_core.stages.views.choosing import choose
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.storage.atomic import sha256_file

MAX_QUICK_DOCUMENTS = 4_000_000
"""Documents of a corpus up to which every check chooses its views again: this takes seconds."""


def verify_view(project: Project, corpus: str, name: str, *, deep: bool = False) -> Report:
    """Check a view: an index of those documents of a corpus that rules have chosen.

    Its files must be whole, and each of its sequences must be one of the dataset that it was chosen
    from. The view is also chosen again by its rules, and must be the same byte for byte: this
    proves that no excluded document is in it, and that none is missing.

    Args:
        project: The project.
        corpus: The corpus of the view.
        name: The view.
        deep: Compare checksums, and choose again even if the corpus is large.
    """
    key = Key(corpus, name)
    report = Report(VIEW.report_name(key))
    with report.catching(remedy=BUILD):  # an error that is raised becomes part of the report
        view = current_manifest(project, VIEW, key)
        report.copy_facts(view, ["documents", "sequences", "tokens"])
        check_files(report, view, deep=deep)
        is_fresh = check_freshness(report, project, VIEW, key, view)
        # If files are damaged, further checks would only fail in other words.
        if not report.passed:
            return report

        # The version of the corpus's dataset that the view was chosen from.
        dataset = dataset_of(project.outputs, view).corpus.manifest
        _check_sequences(report, dataset, view)

        # If the view is not fresh, its rules or the documents have changed since it was chosen. To
        # choose again would then give another view.
        is_small = dataset.facts["documents"] <= MAX_QUICK_DOCUMENTS
        if is_fresh and (deep or is_small):
            _check_choice(report, project, dataset, view)
    return report


def _check_sequences(report: Report, dataset: Manifest, view: Manifest) -> None:
    """Check that each sequence of tokens of a view is a sequence of its dataset.

    Both have an .idx, which lists the first byte of each sequence in their common .bin (its
    pointer) and its number of tokens (its length).

    Args:
        report: Gets an error for the first sequence that the dataset does not have.
        dataset: Manifest of the dataset that the view was chosen from.
        view: Manifest of the view.
    """
    dataset_index = _read_index(dataset)
    view_index = _read_index(view)
    for start in range(0, len(view_index.sequence_lengths), CHUNK_SEQUENCES):
        chunk = slice(start, start + CHUNK_SEQUENCES)
        # Leave out sequences without tokens: others have the same pointer.
        has_tokens = view_index.sequence_lengths[chunk] > 0
        lengths = view_index.sequence_lengths[chunk][has_tokens]
        pointers = view_index.sequence_pointers[chunk][has_tokens]
        is_known = _has_sequences(dataset_index, pointers, lengths)  # (n_sequences,)
        if not is_known.all():
            row = int(np.argmin(is_known))  # the first that is not known
            sequence = f"{int(lengths[row]):,} tokens from byte {int(pointers[row]):,} on"
            _report_unknown_sequence(report, dataset, view, sequence)
            return


def _report_unknown_sequence(
    report: Report, dataset: Manifest, view: Manifest, sequence: str
) -> None:
    """Add to a report that a sequence of a view is not one of its dataset.

    Args:
        report: The report.
        dataset: Manifest of the dataset that the view was chosen from.
        view: Manifest of the view.
        sequence: The sequence in words, such as "12 tokens from byte 48 on".
    """
    report.error(
        "a sequence of a view is none of its dataset",
        where=idx_path(view.folder / view.facts["prefix"]),
        found=sequence,
        expected=f"one of {dataset.url()}",
        remedy=f"delete {view.url()}, and {BUILD}",
    )


def _has_sequences(
    index: Index, pointers: NDArray[np.int64], lengths: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which of some sequences an index has; shape (n_sequences,).

    For example, an index has sequences of 10 and 5 tokens at the bytes 0 and 40. It has one of 5
    tokens at byte 40, but none of 3 tokens there, and none at byte 20.

    Args:
        index: The index.
        pointers: First byte of each sequence in the .bin, shape (n_sequences,).
        lengths: Tokens of each sequence, above 0, shape (n_sequences,).
    """
    # Only the last sequence of the index that does not begin after the pointer can be the same.
    candidates = last_not_greater(index.sequence_pointers, pointers)

    # If all begin after the pointer, the candidate is -1. It stands for the last sequence below,
    # with which the pointer is compared in vain.
    exists = candidates >= 0
    has_same_start = index.sequence_pointers[candidates] == pointers
    has_same_length = index.sequence_lengths[candidates] == lengths
    has_sequence: NDArray[np.bool_] = exists & has_same_start & has_same_length
    return has_sequence


def _read_index(dataset: Manifest) -> Index:
    """Read the .idx of the dataset of a corpus or view."""
    return read_idx(dataset.path(f"{dataset.facts['prefix']}.idx"))


def _check_choice(report: Report, project: Project, dataset: Manifest, view: Manifest) -> None:
    """Choose the documents of a view again by its rules, and check that its .idx is the same.

    Args:
        report: Gets an error if the .idx differs.
        project: The project.
        dataset: Manifest of the dataset that the view was chosen from.
        view: Manifest of the view.
    """
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as name:
        folder = Path(name)
        # What is chosen is stored in the folder, and read from there by `chunks`.
        [chosen] = choose(project, dataset.name, [view.name], folder)
        new_idx = folder / "again.idx"
        write_view_idx(new_idx, _read_index(dataset), chosen.selection.chunks)
        new_sha256 = sha256_file(new_idx)

    # The recorded sha256 is that of the .idx, since the files were checked before.
    idx_name = f"{view.facts['prefix']}.idx"
    report.compare(
        "a view does not hold the documents that its rules choose",
        where=view.folder / idx_name,
        found=f"sha256 {new_sha256}",
        expected=f"sha256 {view.files[idx_name].sha256}",
        remedy=f"delete {view.url()}, and {BUILD}",
    )
