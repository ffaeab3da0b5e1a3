"""Say how much raw text a build would read, before it reads any.

If text was added to a corpus, a build only reads the new files, and keeps the tokens of the others.
If a setting such as the tokenizer was changed, it reads all of the text again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from nanoset_core.errors import FormatError, NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.known_files import KnownFiles, recall_files
from nanoset_core.stages.inventory.make import inventory_at
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Node, OutsideFiles, current_version


def text_bytes(
    project: Project,
    nodes: Collection[Node],
    *,
    known_files: Mapping[str, KnownFiles] | None = None,
    rebuild: bool = False,
) -> dict[str, int]:
    """Return how much raw text of each text collection (corpus) a build reads.

    For example, a build makes the tokens of `web`, the `.pbin` of `code` from tokens that exist,
    and training data from both. Then only text of `web` is read: {"web": 3200000000}.

    Args:
        project: The project, whose folder of raw text is listed.
        nodes: The outputs that the build writes.
        known_files: Corpus → its files, if the caller has just listed them. The files of other
            corpora are listed, which takes some seconds for 100,000 files.
        rebuild: Whether the build writes them even if they are up to date.

    Returns:
        Corpus → bytes of the files that are read. This may be too much, since the unchanged part of
        a file to which text was appended is not tokenized again, for example. A corpus that cannot
        be read counts as empty: the build will report why.
    """
    nodes_by_corpus: dict[str, list[Node]] = {}
    for node in nodes:
        if node.stage.reads_raw_text:  # such as the stage that makes tokens
            nodes_by_corpus.setdefault(node.key.subject, []).append(node)

    listed = {} if known_files is None else known_files
    size_by_corpus = dict.fromkeys(nodes_by_corpus, 0)
    for corpus, nodes_of_corpus in nodes_by_corpus.items():
        with suppress(NanosetError, OSError):
            files = listed.get(corpus)
            if files is None:
                files = recall_files(project, list_contents(project, corpus))
            if rebuild:
                size_by_corpus[corpus] = files.contents.size
            else:
                comparable_files = _ComparableFiles(project, corpus, files)
                sizes = [
                    _bytes_to_read(project, node, comparable_files) for node in nodes_of_corpus
                ]
                size_by_corpus[corpus] = max(sizes)  # each may read the same files
    return size_by_corpus


class _ComparableFiles:
    """The files of a text collection (corpus), to compare with its files at earlier times.

    Several outputs of the corpus were usually made from the same earlier list of files. It is read
    only once for all of them.
    """

    def __init__(self, project: Project, corpus: str, files: KnownFiles) -> None:
        """Keep what is needed to look up the earlier lists.

        Args:
            project: The project, which stores the lists.
            corpus: Name of the corpus.
            files: The present files of the corpus, with those hashes that are known.
        """
        self.total_bytes = files.contents.size
        """Size of all files."""
        self._project = project
        self._corpus = corpus
        self._files = files
        self._changed_bytes_by_digest: dict[str, int | None] = {}

    def bytes_changed_since(self, digest: str) -> int | None:
        """Return the size of the files that are new, changed, or may have changed.

            a.jsonl    size and time as when it was hashed, in the inventory    not counted
            b.jsonl    written since                                            counted
            c.jsonl    not in the inventory                                     counted

        Args:
            digest: Digest of the list of the files at an earlier time (inventory), which has their
                hashes.

        Returns:
            Bytes; None if the inventory was deleted.

        Raises:
            FormatError: The inventory is damaged.
        """
        if digest not in self._changed_bytes_by_digest:
            self._changed_bytes_by_digest[digest] = self._compare_with_inventory(digest)
        return self._changed_bytes_by_digest[digest]

    def _compare_with_inventory(self, digest: str) -> int | None:
        """Return the same as `bytes_changed_since`, which keeps the result."""
        inventory = inventory_at(self._project.outputs, self._corpus, digest)
        if inventory is None:
            return None

        recorded_pieces = inventory.pieces_by_file
        size = 0
        for file in self._files.contents.texts:
            pieces = self._files.pieces_by_path[file.path]
            is_unchanged = pieces is not None and pieces == recorded_pieces.get(file.path)
            if not is_unchanged:
                size += file.size
        return size


def _bytes_to_read(project: Project, node: Node, files: _ComparableFiles) -> int:
    """Return how many bytes of raw text are read to make an output of a text collection (corpus).

    The first line that applies decides:

        the output was never made, or a setting has changed    all files
        the list of files that it was made from is lost        all files
        files are new or have changed since                    these files
        the output is damaged                                  all files, at most
        none of these                                          nothing

    Args:
        project: The project.
        node: The output, such as the tokens of the corpus.
        files: The files of the corpus.

    Raises:
        NanosetError: The settings are wrong, such as the tokenizer.
    """
    version = current_version(project, node.stage, node.key).whole_manifest
    if version is None or _have_settings_changed(project, node, version):
        return files.total_bytes

    changed_bytes = None
    with suppress(FormatError):  # the list of files, or the record of the tokens, is damaged
        inventory_digest = _inventory_digest(project, node, version)
        if inventory_digest is not None:
            changed_bytes = files.bytes_changed_since(inventory_digest)
    if changed_bytes is None:
        return files.total_bytes

    if changed_bytes == 0 and _is_damaged(project, node, version):
        return files.total_bytes  # "at most", as only the text of damaged shards is read
    return changed_bytes


def _have_settings_changed(project: Project, node: Node, version: Manifest) -> bool:
    """Return whether an output would be made in another way today, even from the same text.

    Args:
        project: The project, with the settings of today.
        node: The output.
        version: Manifest of its current version.
    """
    if node.stage is INVENTORY:
        return False  # it has no settings, and its recipe would read the text
    # A recipe has the digests of what the output is made from, its parents, and the settings. With
    # the old parents, its digest only differs if the settings do.
    recipe_today = node.stage.recipe(project, node.key, version.recipe["parents"])
    return bool(recipe_today.digest != version.digest)


def _inventory_digest(project: Project, node: Node, version: Manifest) -> str | None:
    """Return the digest of the list of files (inventory) that a version of an output was made from.

        output                               its list of text files
        a list of text files (inventory)     the output itself
        the tokens of the text               its parent: tokens are made from such a list
        the other columns of the text        the parent of its parent: columns are made with tokens

    Args:
        project: The project.
        node: The output.
        version: Manifest of the version.

    Returns:
        The digest; None if it is not known, since the parent of the output was deleted.

    Raises:
        FormatError: The manifest of the parent is damaged.
    """
    if node.stage is INVENTORY:
        return version.digest

    outputs = project.outputs
    parents: Mapping[str, str] = version.recipe["parents"]  # kind of parent → digest
    if "inventory" in parents:
        return parents["inventory"]

    # The columns: look up the tokens that they were made with.
    folder_of_tokens = outputs.folder / TOKENIZED.layout.folder / node.key.subject
    tokens = outputs.manifest_at(folder_of_tokens / parents["tokenized"])
    if tokens is None:
        return None
    inventory_digest: str = tokens.recipe["parents"]["inventory"]
    return inventory_digest


def _is_damaged(project: Project, node: Node, version: Manifest) -> bool:
    """Return whether files that an output consists of, such as shards, are missing or damaged.

    Args:
        project: The project.
        node: The output.
        version: Manifest of its current version.
    """
    if not isinstance(node.stage, OutsideFiles):
        return False
    return node.stage.fault(project, node.key, version) is not None
