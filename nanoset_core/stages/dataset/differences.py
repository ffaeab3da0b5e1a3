"""Report how an output differs from its dataset, or that this dataset is damaged.

An output such as a `.pbin` is checked by a comparison with the dataset that it was made from. If
they differ, either of them may be damaged. The user must not delete a sound output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.checking import check_files, remedy_for_bytes
from nanoset_core.stages.dataset.tokens import bin_name
from nanoset_core.stages.report import Report
from nanoset_core.storage.store import PieceCheck, PieceDigest, read_pieces

_QUICK_BYTES = 64 << 20
"""Size of a token file up to which a quick check reads all of it."""


def include_differences(
    report: Report, differences: Report, datasets: Sequence[Manifest], *, deep: bool
) -> None:
    """Add to a report how an output differs from its datasets, unless one of these is damaged.

        the datasets are as they were written    the differences are errors of the output
        a dataset has other bytes                the error says that this dataset is damaged

    If there are differences, all of the datasets is read to find that out. A quick check reads only
    small ones.

    Args:
        report: Report on the output.
        differences: Report on its comparison with the datasets. Its figures are added, too.
        datasets: Manifests of the datasets.
        deep: Whether large datasets may be read.
    """
    if not differences.passed:
        for dataset in datasets:
            if not deep and dataset.files[bin_name(dataset)].size > _QUICK_BYTES:
                differences.mark_uncertain()  # this dataset may be the damaged one
                continue
            if _report_damage(report, dataset):
                return
    report.include(differences)


def _report_damage(report: Report, dataset: Manifest) -> bool:
    """Report that the dataset of an output is damaged, if it is.

    Args:
        report: Report on the output; gets an error with the first damaged file.
        dataset: Manifest of the dataset.

    Returns:
        Whether it is damaged.
    """
    dataset_report = Report(f"{dataset.stage}/{dataset.name}")
    check_files(dataset_report, dataset, deep=True)
    if dataset_report.passed:
        _check_pieces(dataset_report, dataset)
    if dataset_report.passed:
        return False

    damage = dataset_report.errors[0]
    report.add(
        f"the output {dataset_report.output} is damaged, so this one cannot be compared with it",
        where=damage.where,
        found=damage.found,
        expected=damage.expected,
        remedy=damage.remedy,
        severity="error",
        is_damage=False,  # of this output, which need not be made again
    )
    return True


def _check_pieces(report: Report, dataset: Manifest) -> None:
    """Compare the token file of a dataset with digests of its pieces, if it was made of pieces.

    A bucket can make a large token file by itself, from smaller objects, the pieces. Then nobody
    has computed a digest of the whole file, and `check_files` compares only its size. Instead, a
    list with the size and the sha256 of each piece is stored next to the file.

    Args:
        report: Report on the dataset; gets an error if a piece has other bytes.
        dataset: Manifest of the dataset.
    """
    name = bin_name(dataset)
    list_name = dataset.files[name].pieces
    if list_name is None:  # the file was not made of pieces
        return

    # Read all of the file, piece by piece.
    check = PieceCheck(_download_piece_list(dataset, list_name))
    access = dataset.access
    for block in access.store.blocks(access.stored(dataset.folder / name)):
        check.add(block)

    fault = check.fault()  # "sha256 b113… of bytes 4,096 to 5,120 instead of a07e…"
    if fault is not None:
        report.error(
            "a file has other bytes than when it was written",
            where=dataset.url(name),
            found=fault,
            remedy=remedy_for_bytes(dataset),
        )


def _download_piece_list(dataset: Manifest, list_name: str) -> Sequence[PieceDigest]:
    """Return the size and the digest of each piece that a token file was made of, in order.

    Args:
        dataset: Manifest of the dataset with the file.
        list_name: Name of the file with the list: "web.bin.pieces".
    """
    access = dataset.access
    with tempfile.TemporaryDirectory(prefix="nanoset-pieces-") as folder:
        list_copy = Path(folder, list_name)
        access.store.fetch(access.name(dataset.folder / list_name), list_copy)
        return read_pieces(list_copy)
