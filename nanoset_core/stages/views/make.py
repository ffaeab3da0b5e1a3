"""Make views: choose their documents, and write their datasets.

A dataset of a view is a folder with a new .idx, which lists the chosen documents, and with the .bin
of the corpus, which is linked instead of copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.layout import Index, idx_path, read_idx
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe, Written
from nanoset_core.project.project import Project, holding
from nanoset_core.records.json_records import to_plain
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import bin_name, copy_tokens
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.views.choosing import ChosenView, check_rules, choose
from nanoset_core.stages.views.names import FOLDER
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.writing import ViewSize, view_lengths, write_view_idx
from nanoset_core.storage.atomic import claim_scratch, sha256_file, sweep_abandoned
from nanoset_core.storage.in_use.leases import leased

FileFacts = dict[str, str | FileFact]
"""File name → its sha256; for a file that was linked or copied, the facts of the original."""


@holding
def make_view(project: Project, name: str) -> Manifest:
    """Make a dataset of those documents of a corpus that the rules of a view choose.

    For example, the view `clean: {of: web, where: "quality >= 3"}` chooses from the corpus `web`.
    Reading the columns of a large corpus takes longer than choosing. So other views of the same
    corpus that are out of date are made at the same time.

    Args:
        project: The project.
        name: The view.

    Returns:
        Manifest of the view, which becomes the current version.

    Raises:
        MissingError: The dataset of the corpus, its tables, columns, or a file of ids is missing.
        ConfigError: A condition does not fit the columns.
        InputError: A file of ids is not text.
    """
    corpus = base_of(project.config.views, name)  # web
    dataset = require(project, DATASET, Key(corpus))
    recipe = _recipe_of(project, name, dataset)  # the documents and the rules
    if not project.rebuild:
        existing = project.outputs.find(recipe)  # made from the same
        if existing is not None:
            return project.outputs.make_current(existing)

    recipes = {name: recipe, **_recipes_of_stale_views(project, dataset, except_for=name)}
    manifests = _make_views(project, dataset, recipes)
    return manifests[name]


def _make_views(
    project: Project, dataset: Manifest, recipes: Mapping[str, Recipe]
) -> dict[str, Manifest]:
    """Choose the documents of some views of a corpus together, and write each view.

    A lease keeps `nanoset gc` from deleting what they are made from meanwhile.

    Args:
        project: The project.
        dataset: The current dataset of the corpus.
        recipes: Name of each view → what it is made from.

    Returns:
        Name of each view → its manifest, which becomes the current version.
    """
    folder = project.outputs.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)  # scratch files of processes that were killed

    manifests: dict[str, Manifest] = {}
    with (
        leased(project.outputs.access, set(recipes), dataset.name),
        claim_scratch(folder / "choosing") as scratch,
    ):
        for chosen in choose(project, dataset.name, list(recipes), scratch):
            recipe = recipes[chosen.name]
            writer = _ViewWriter(project, dataset, recipe, chosen)
            manifest = project.outputs.commit(recipe, writer.write)
            manifests[chosen.name] = project.outputs.make_current(manifest)
    return manifests


def manifest_if_built(project: Project, chosen: ChosenView, reader: LengthReader) -> Manifest:
    """Return what will be recorded about a view, before it is built, to plan a training run.

    Args:
        project: The project.
        chosen: What the view chooses.
        reader: Gets the lengths of documents for the rest of the plan. It is given those of the
            view, which it could not read yet.

    Returns:
        The manifest that the view will have, without files.

    Raises:
        MissingError: Something that the view is made from was not built.
    """
    recipe = _recipe_of(project, chosen.name, chosen.dataset)
    writer = _ViewWriter(project, chosen.dataset, recipe, chosen)
    lengths = view_lengths(writer.corpus_index(), chosen.selection.chunks)
    manifest = Manifest(
        folder=project.outputs.place(recipe),
        recipe=to_plain(recipe),
        digest=recipe.digest,
        facts=writer.facts(ViewSize(len(lengths), chosen.selection.documents)),
        files={},
        access=project.outputs.access,
    )
    reader.suppose(str(manifest.folder / manifest.facts["prefix"]), lengths)
    return manifest


def _recipe_of(project: Project, name: str, dataset: Manifest) -> Recipe:
    """Return what a view is made from: its rules, and the current versions of its inputs.

    A view is a selection of documents of a corpus. By comparing this with what it was made from,
    one sees whether it is out of date.

    Args:
        project: The project.
        name: The view.
        dataset: The version of the corpus from which documents are chosen.

    Raises:
        MissingError: Another input, such as a table with the column `quality`, was not built.
    """
    key = Key(dataset.name, name)
    digest_by_input = {"dataset": dataset.digest}
    for input_name, output in VIEW.inputs(project.config, key).items():
        if input_name != "dataset":
            current_version = require(project, output.stage, output.key)
            digest_by_input[input_name] = current_version.digest
    return VIEW.recipe(project, key, digest_by_input)


def _recipes_of_stale_views(
    project: Project, dataset: Manifest, except_for: str
) -> dict[str, Recipe]:
    """Find the views that are out of date and can be made at the same time as a requested one.

    All of them select documents of the same corpus, which is then read only once.

    Args:
        project: The project.
        dataset: The current dataset of the corpus.
        except_for: The view that was requested, which is left out.

    Returns:
        Name of the view → its recipe: the rules and versions that it must be made from. Views with
        a mistake in their rules are left out, so that they do not stop the requested one.
    """
    views = project.config.views
    recipes = {}
    for name in views:
        if name != except_for and base_of(views, name) == dataset.name:
            recipe = _recipe_if_stale(project, name, dataset)
            if recipe is not None:
                recipes[name] = recipe
    return recipes


def _recipe_if_stale(project: Project, name: str, dataset: Manifest) -> Recipe | None:
    """Return the recipe of a view that must be made again; None if it is up to date.

    It is also None if the rules of the view have a mistake, which is reported when the view itself
    is requested.

    Args:
        project: The project.
        name: The view.
        dataset: The current dataset of the corpus.
    """
    try:
        recipe = _recipe_of(project, name, dataset)
        is_up_to_date = project.outputs.find(recipe) is not None  # a version with this recipe
        if is_up_to_date:
            return None
        check_rules(project, dataset, name)
    except NanosetError:
        return None
    return recipe


@dataclass(frozen=True, slots=True)
class _ViewWriter:
    """Writes the dataset of a view into a folder."""

    project: Project
    dataset: Manifest
    """The dataset of the corpus."""
    recipe: Recipe
    chosen: ChosenView

    def write(self, folder: Path) -> Written:
        """Write the two files of a view, a dataset with some documents of a corpus.

            .idx    an index that says for each document where its tokens are
            .bin    the tokens of the whole corpus: a link to the file of the corpus

        Args:
            folder: The folder in which they are written.

        Returns:
            What is recorded about the view, and the checksums of the files.
        """
        # Write the .idx: copy the entries of the chosen documents from the index of the corpus. It
        # is written in several passes, so it gets the function that yields these documents.
        selection = self.chosen.selection
        view_idx = idx_path(folder / self._prefix)
        size = write_view_idx(view_idx, self.corpus_index(), selection.chunks)

        files: FileFacts = {view_idx.name: sha256_file(view_idx)}
        files |= self._place_tokens(folder)  # the .bin
        return Written(self.facts(size), files)

    def corpus_index(self) -> Index:
        """Return the index of the corpus, which says where the tokens of each document are."""
        corpus_idx = self.dataset.path(f"{self.dataset.facts['prefix']}.idx")
        return read_idx(corpus_idx, validate=False)

    def facts(self, size: ViewSize) -> dict[str, Any]:
        """Return what is recorded about the view.

        Args:
            size: How many sequences and documents it has.
        """
        return {
            "prefix": self._prefix,  # names of the files, without .idx and .bin
            "corpus": self.dataset.name,
            "documents": size.documents,
            "sequences": size.sequences,
            "tokens": self.chosen.selection.tokens,
            "dtype": self.dataset.facts["dtype"],
            **self.chosen.facts,  # how the documents were chosen
        }

    @property
    def _prefix(self) -> str:
        """File name of the dataset, without an ending."""
        config = self.project.config
        text_key = config.documents_of(self.dataset.name).text_key
        return pair_name(config.tokenization.preset, self.chosen.name, text_key)

    def _place_tokens(self, folder: Path) -> dict[str, FileFact]:
        """Put the tokens of a view next to its index, without copying them.

        A view has some documents of a corpus, so all its tokens are in the corpus's file of tokens.
        To save space, that file is linked. In a bucket, which has no links, it is copied.

        Args:
            folder: The temporary folder in which the view is written.

        Returns:
            Name of the file → its size and checksum, which are those of the corpus's file.
        """
        outputs = self.project.outputs
        target_name = f"{self._prefix}.bin"
        if outputs.access.takes_requests:  # a bucket
            return copy_tokens(outputs, self.dataset, self.recipe, folder, target_name)

        corpus_bin_name = bin_name(self.dataset)
        link(
            source=self.dataset.folder / corpus_bin_name,
            target=folder / target_name,
            final_folder=outputs.place(self.recipe),  # what `folder` is renamed to at the end
        )
        return {target_name: self.dataset.files[corpus_bin_name]}


def link(source: Path, target: Path, final_folder: Path) -> None:
    """Make a file appear at a second path without copying it: by a hard link, or a symbolic link.

    Args:
        source: The file.
        target: The second path. It is in a temporary folder, which will be renamed.
        final_folder: The path of this folder after that. A symbolic link has the path of the file
            from there, such as "../../../datasets/web/8a…/web.bin", so that it stays right if the
            whole project is moved.
    """
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        path_from_link = os.path.relpath(source, final_folder)
        target.symlink_to(path_from_link)
