"""Say how much raw text a build would read, before it reads any.

If text was added to a corpus, a build only reads the new files, and keeps the tokens of the others.
If a setting such as the tokenizer was changed, it reads all of the text again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from nanoset_core.errors import NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.make import (
    fingerprint_memory,
    inventory_of,
    load_inventory,
)
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Node, OutsideFiles, current_version
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import Inventory


def text_bytes(
    project: Project, nodes: Collection[Node], *, rebuild: bool = False
) -> dict[str, int]:
    """Return how much raw text of each text collection (corpus) a build reads.

    For example, a build makes the tokens of `web`, the `.pbin` of `code` from tokens that exist,
    and training data from both. Then only text of `web` is read: {"web": 3200000000}.

    Args:
        project: The project, whose folder of raw text is listed.
        nodes: The outputs that the build writes.
        rebuild: Whether the build writes them even if they are up to date.

    Returns:
        Corpus → bytes of the files that are read. This may be too much, since the unchanged part of
        a file to which text was appended is not tokenized again, for example. A corpus that cannot
        be read counts as empty: the build will report why.
    """
    size_by_corpus: dict[str, int] = {}
    for node in nodes:
        if not node.stage.reads_raw_text:  # unlike the stage that makes tokens, for example
            continue
        corpus = node.key.subject
        size_by_corpus.setdefault(corpus, 0)
        with suppress(NanosetError, OSError):
            size = _bytes_to_read(project, node, rebuild=rebuild)
            size_by_corpus[corpus] = max(size, size_by_corpus[corpus])
    return size_by_corpus


def _bytes_to_read(project: Project, node: Node, *, rebuild: bool) -> int:
    """Return how many bytes of raw text are read to make an output of a text collection (corpus).

    Args:
        project: The project.
        node: The output, such as the tokens of the corpus.
        rebuild: Whether nothing of its current version is used.

    Raises:
        NanosetError, OSError: The text cannot be listed, or what is stored of it cannot be read.
    """
    contents = list_contents(project, node.key.subject)
    if rebuild:
        return contents.size
    version = current_version(project, node.stage, node.key).whole_manifest
    if version is None or _have_settings_changed(project, node, version):
        return contents.size
    inventory = _inventory_of_version(project, node, version)
    if inventory is None:
        return contents.size

    size = _size_of_new_files(project, node.key.subject, contents.ordered, inventory)
    if size == 0 and _is_damaged(project, node, version):
        return contents.size  # at most: only the text of damaged shards is read
    return size


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


def _inventory_of_version(project: Project, node: Node, version: Manifest) -> Inventory | None:
    """Return the list of the files (inventory) that a version of an output was made from.

        the inventory          is this list
        the tokens             were made from an inventory
        the columns of text    were made along with tokens, which were made from an inventory

    Args:
        project: The project.
        node: The output.
        version: Manifest of the version.

    Returns:
        The inventory; None if it was deleted.

    Raises:
        FormatError: It is damaged.
    """
    if node.stage is INVENTORY:
        return load_inventory(version)
    outputs = project.outputs
    parents: Mapping[str, str] = version.recipe["parents"]
    if "inventory" in parents:
        return inventory_of(outputs, version)
    folder_of_tokens = outputs.folder / TOKENIZED.layout.folder / node.key.subject
    tokenized = outputs.manifest_at(folder_of_tokens / parents["tokenized"])
    return None if tokenized is None else inventory_of(outputs, tokenized)


def _size_of_new_files(
    project: Project, corpus: str, files: Sequence[FileStat], inventory: Inventory
) -> int:
    """Return the size of the files that are new, changed, or may have changed since an inventory.

        a.jsonl    size and time as when it was hashed, in the inventory    not counted
        b.jsonl    written since                                            counted
        c.jsonl    not in the inventory                                     counted

    Args:
        project: The project, which remembers the hashes of files.
        corpus: Name of the text collection.
        files: Its files as they are now.
        inventory: The list of its files at an earlier time, with their hashes.
    """
    memory = fingerprint_memory(project, project.config.corpus_folder(corpus))
    recorded_pieces = inventory.pieces_by_file
    size = 0
    for file in files:
        present_pieces = memory.recall(file)  # None if the file has to be hashed
        is_unchanged = present_pieces is not None and present_pieces == recorded_pieces.get(
            file.path
        )
        if not is_unchanged:
            size += file.size
    return size


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
