"""The files of a corpus, with those digests that are known without reading the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import fingerprint_memory
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.inventory.pieces import Piece


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """The present files of a corpus (a folder of texts), and what is known of their content."""

    contents: Contents
    """The files, with their sizes and times."""
    pieces_by_path: Mapping[str, list[Piece] | None]
    """Path of each file → its pieces, each with a digest; None if the file has to be read for that.
    Only a large file has several pieces.
    """


def recall_files(project: Project, contents: Contents) -> KnownFiles:
    """Look up what is known of the files of a corpus without reading them.

    Whenever a file is read, its digests are stored, together with its size, times and inode. While
    the file has these, it is taken to have the same bytes. For example:

        a.jsonl     has the size and times of when it was read     [piece 3f9c…, piece 81aa…]
        b.jsonl     was written since                              None

    Args:
        project: The project, which stores the digests.
        contents: The files of the corpus.
    """
    folder = project.config.corpus_folder(contents.corpus)
    memory = fingerprint_memory(project, folder)
    return KnownFiles(contents, {stat.path: memory.recall(stat) for stat in contents.ordered})
