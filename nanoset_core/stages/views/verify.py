"""Does a view hold the documents that its rules choose, and no others?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.layout import CHUNK_SEQUENCES, idx_path, read_idx
from nanoset_core.formats.indexed.stream import places_upto
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key
from nanoset_core.stages.views.choosing import choose
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.storage.atomic import sha256_file

CHOSEN_AGAIN = 4_000_000
"""Documents of a corpus up to which a view of it is chosen again by every check; some seconds."""


def verify_view(project: Project, corpus: str, name: str, deep: bool = False) -> Report:
    """Check the current version of a view.

    Its files; each of its sequences is one of the dataset that it was chosen from; and, with `deep`
    or of a smaller corpus, chosen again by its rules it is the same, byte for byte: so no excluded
    document is in it, and none lacks.
    """

    def look(report: Report, view: Manifest, is_fresh: bool) -> None:
        if report.passed:
            base = dataset_of(project.outputs, view).corpus.manifest
            _check_sequences(report, base, view)
            if is_fresh and (deep or base.facts["documents"] <= CHOSEN_AGAIN):
                _choose_again(report, project, base, view)

    return check_current(
        project, VIEW, Key(corpus, name), look, "documents", "sequences", "tokens", deep=deep
    )


def _check_sequences(report: Report, base: Manifest, view: Manifest) -> None:
    """Check that every sequence of a view lies where one of its dataset does, and is as long."""
    whole, own = (read_idx(one.path(f"{one.facts['prefix']}.idx")) for one in (base, view))
    for begin in range(0, len(own.sequence_lengths), CHUNK_SEQUENCES):
        some = slice(begin, begin + CHUNK_SEQUENCES)
        pointers, lengths = own.sequence_pointers[some], own.sequence_lengths[some]
        # an empty one shares its place with others
        pointers, lengths = pointers[lengths > 0], lengths[lengths > 0]
        at = places_upto(whole.sequence_pointers, pointers)
        same = (whole.sequence_pointers[at] == pointers) & (whole.sequence_lengths[at] == lengths)
        if not same.all():
            bad = int(np.argmin(same))
            where = idx_path(view.folder / view.facts["prefix"])
            found = f"{int(lengths[bad]):,} tokens from byte {int(pointers[bad]):,} on"
            what = "a sequence of a view is none of its dataset"
            report.error(
                what, where, found, f"one of {base.url()}", f"delete {view.url()}, and {BUILD}"
            )
            return


def _choose_again(report: Report, project: Project, base: Manifest, view: Manifest) -> None:
    with tempfile.TemporaryDirectory(prefix="nanoset-view-") as scratch:
        folder = Path(scratch)
        (chosen,) = choose(project, base.name, [view.name], folder)
        write_view_idx(
            folder / "again.idx",
            read_idx(base.path(f"{base.facts['prefix']}.idx")),
            chosen.selection.chunks,
        )
        found, name = sha256_file(folder / "again.idx"), f"{view.facts['prefix']}.idx"
    what = "a view does not hold the documents that its rules choose"
    expected, remedy = view.files[name].sha256, f"delete {view.url()}, and {BUILD}"
    report.compare(what, view.folder / name, f"sha256 {found}", f"sha256 {expected}", remedy)
