"""The stage `views`: datasets of documents that are chosen from a corpus by rules."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import InputError, MissingError, NanosetError, one_line
from nanoset_core.formats.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe, Written
from nanoset_core.project.orders import view_order_warnings
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.attributes.column_sources import column_nodes
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import PIECES_ENDING, copy_tokens
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.stage import (
    PART,
    Advising,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Stage,
    Summary,
    counted,
    require,
)
from nanoset_core.stages.views.choosing import (
    ID_LIST_KEYS,
    STAGE,
    ChosenView,
    choose,
    columns_used,
    existing_columns,
    rule_of,
)
from nanoset_core.stages.views.facts import MISSING_IDS, gap_warnings
from nanoset_core.stages.views.settings import ViewSpec, base_of, chain_of
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.storage.atomic import claim_scratch, sha256_file, sweep_abandoned
from nanoset_core.storage.leases import leased

VERSION = 1
_MISSING = "missing"
"""In recipes, the content digest of files of ids that do not exist."""
FileFacts = dict[str, str | FileFact]
"""File name → its sha256; for a file that was linked or copied, the facts of the original."""


@holding
def make_view(project: Project, name: str) -> Manifest:
    """Choose a view's documents, write its dataset, and make it the current version.

    Other views of the same corpus that are out of date are made in the same pass, since reading the
    tables of a large corpus takes longer than choosing from them.

    Args:
        project: The project.
        name: The view.

    Returns:
        Manifest of the view.

    Raises:
        MissingError: The dataset of the corpus, its tables, columns, or a file of ids is missing.
        ConfigError: A condition does not fit the columns.
        InputError: A file of ids is not text.
    """
    corpus = base_of(project.config.views, name)
    dataset = require(project, DATASET, Key(corpus))
    recipe = _recipe_of(project, name, dataset)
    existing = None if project.rebuild else project.outputs.find(recipe)
    if existing is not None:
        return project.outputs.make_current(existing)

    # Prepare a folder for scratch files, and remove those that killed processes left behind.
    recipes = {name: recipe, **_recipes_of_stale_views(project, dataset, except_for=name)}
    folder = project.outputs.folder / STAGE
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)

    # The lease keeps `nanoset gc` from deleting what the views are made from meanwhile.
    manifests: dict[str, Manifest] = {}
    with (
        leased(project.outputs.access, set(recipes), corpus),
        claim_scratch(folder / "choosing") as scratch,
    ):
        for chosen in choose(project, corpus, list(recipes), scratch):
            writer = _ViewWriter(project, dataset, recipes[chosen.name], chosen)
            manifest = project.outputs.commit(recipes[chosen.name], writer.write)
            manifests[chosen.name] = project.outputs.make_current(manifest)
    return manifests[name]


def _recipe_of(project: Project, name: str, dataset: Manifest) -> Recipe:
    """Return the recipe of a view: everything that decides its bytes.

    Args:
        project: The project.
        name: The view.
        dataset: The dataset that it is chosen from. The versions of its other inputs, such as
            columns, are the current ones.

    Raises:
        MissingError: Another input has not been built.
    """
    key = Key(dataset.name, name)
    parents = {"dataset": dataset.digest}
    for input_name, node in VIEW.inputs(project.config, key).items():
        if input_name != "dataset":
            parents[input_name] = require(project, node.stage, node.key).digest
    return VIEW.recipe(project, key, parents)


def _recipes_of_stale_views(
    project: Project, dataset: Manifest, except_for: str
) -> dict[str, Recipe]:
    """Return the recipes of the other views of a corpus that have not been made from a dataset yet.

    Views with a mistake in their rules are left out, so that the mistake does not keep other views
    from being made. It is reported when the view itself is made.

    Args:
        project: The project.
        dataset: The dataset of the corpus.
        except_for: A view to leave out.
    """
    views = project.config.views
    recipes = {}
    for name in views:
        if name == except_for or base_of(views, name) != dataset.name:
            continue
        with contextlib.suppress(NanosetError):
            recipe = _recipe_of(project, name, dataset)
            if project.outputs.find(recipe) is None:
                # Both raise an error if choosing would fail.
                rule_of(project, name)
                existing_columns(project, dataset, name)
                recipes[name] = recipe
    return recipes


@dataclass(frozen=True, slots=True)
class _ViewWriter:
    """Writes the dataset of a view into a folder."""

    project: Project
    dataset: Manifest
    """The dataset of the corpus."""
    recipe: Recipe
    chosen: ChosenView

    def write(self, folder: Path) -> Written:
        """Write the files of a version of the view: its .idx, and a .bin with the corpus's tokens.

        Args:
            folder: The folder of the version.

        Returns:
            Facts about the view for its manifest, and checksums of the files.
        """
        prefix = self._prefix
        base_name = f"{self.dataset.facts['prefix']}.idx"
        base_index = read_idx(self.dataset.path(base_name), validate=False)
        view_idx = idx_path(folder / prefix)
        size = write_view_idx(view_idx, base_index, self.chosen.selection.chunks)

        files: FileFacts = {view_idx.name: sha256_file(view_idx)}
        files |= self._place_tokens(folder)
        facts = {
            "prefix": prefix,
            "corpus": self.dataset.name,
            "documents": size.documents,
            "sequences": size.sequences,
            "tokens": self.chosen.selection.tokens,
            "dtype": self.dataset.facts["dtype"],
            **self.chosen.facts,
        }
        return Written(facts, files)

    @property
    def _prefix(self) -> str:
        """File name of the dataset, without an ending."""
        config = self.project.config
        text_key = config.documents_of(self.dataset.name).text_key
        return pair_name(config.tokenization.preset, self.chosen.name, text_key)

    def _place_tokens(self, folder: Path) -> dict[str, FileFact]:
        """Make the corpus's .bin appear next to the view's .idx, where trainers expect it.

        Args:
            folder: The folder that is being written, which is renamed when it is complete.

        Returns:
            Name of the .bin → its size and checksum, which are those of the corpus's file.
        """
        outputs = self.project.outputs
        bin_name = f"{self._prefix}.bin"
        is_in_bucket = outputs.access.has_copies
        if is_in_bucket:
            # Buckets have no links, but copy files without a download.
            return copy_tokens(outputs, self.dataset, self.recipe, folder, bin_name)
        base_name = f"{self.dataset.facts['prefix']}.bin"
        link(
            source=self.dataset.folder / base_name,
            target=folder / bin_name,
            final_folder=outputs.place(self.recipe),
        )
        return {bin_name: self.dataset.files[base_name]}


def link(source: Path, target: Path, final_folder: Path) -> None:
    """Make a file appear at another path, by a hard link or else a relative symbolic link.

    Args:
        source: The file.
        target: The other path.
        final_folder: The folder that the folder of `target` will be renamed to. A symbolic link is
            relative to it.
    """
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        target.symlink_to(os.path.relpath(source, final_folder))


def unpacked_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that holds the dataset of a corpus or view."""
    if name in config.views:
        return Node(VIEW, Key(base_of(config.derived, name), name))
    return Node(DATASET, Key(name))


class DerivedStage(Stage):
    """A stage of named datasets that are made of a corpus's documents: views and packed datasets.

    The folder of the stage's outputs has the name of its section in nanoset.yaml.
    """

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the key of each dataset that the section of nanoset.yaml names."""
        section = self.layout.folder
        return [
            Key(base_of(config.derived, name), name, requested_at=f"{section}.{name}.of")
            for name in getattr(config, section)
        ]


class ViewStage(DerivedStage, Planned, Advising):
    """Datasets of documents that are chosen from a corpus."""

    layout = Layout(STAGE, (PART,), uploaded_first=(".bin", ".idx", PIECES_ENDING))
    kind = "view"
    version = VERSION

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the outputs that a view is made from.

        Args:
            config: The settings of nanoset.yaml.
            key: The view: its subject is the corpus, its part the name of the view.

        Returns:
            The dataset of the corpus, tables of columns that the rules name, and the contamination
            reports on texts that `clean_of` names.
        """
        name = self.layout.name_of(key)
        inputs = {"dataset": Node(DATASET, Key(key.subject))}
        inputs |= column_nodes(config, key.subject, columns_used(config, name))
        for view in chain_of(config.views, name):
            for section in config.views[view].clean_of:
                inputs[f"clean of {section}"] = Node(CONTAMINATION, Key(section, key.subject))
        return inputs

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides the bytes of a view.

        Its rules do, those of the views from which it is chosen, and the content of all files of
        ids that these rules name.

        Args:
            project: The project.
            key: The view.
            parents: Name of each input → its digest.
        """
        # A view of a view of a corpus has a chain of two views; the view itself is last.
        name = self.layout.name_of(key)
        chain = chain_of(project.config.views, name)
        options: dict[str, Any] = {"of": chain[:-1]}
        for view in chain:
            options |= _options(project, view, project.config.views[view])
        return Recipe(STAGE, name, VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return make_view(project, self.layout.name_of(key))

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        # Imported here, since the checks import this module.
        from nanoset_core.stages.views.verify import verify_view

        return verify_view(project, key.subject, key.part or "", deep=deep)

    def refusal(
        self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return why the view cannot be made, such as a missing file of ids; None if it can."""
        try:
            rule_of(project, self.layout.name_of(key), is_built=False)
        except NanosetError as error:
            return one_line(error)
        return None

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        return view_order_warnings(config.views, self.layout.name_of(key))

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return the counts of a view, and warnings on unknown ids, budgets and empty views."""
        warnings = []
        for key, count in manifest.facts[MISSING_IDS].items():
            warnings.append(f"{count:,} ids of {key} match no document")
        warnings += gap_warnings(manifest.facts, manifest.name)
        if manifest.facts["documents"] == 0:
            warnings.append("it holds no document")

        # The .bin is a link to that of the dataset, and takes no additional space.
        figures = counted(manifest, "documents", "tokens")
        figures["bytes"] -= manifest.files[bin_path(manifest.facts["prefix"]).name].size
        return Summary(figures, warnings=warnings)


def _options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return the rules of one view as options of a recipe, without those that it does not set.

    Args:
        project: The project.
        name: The view.
        spec: Its settings.

    Returns:
        Key of nanoset.yaml → value. The value of `include` and `exclude` is a digest of what the
        files contain.
    """
    options: dict[str, Any] = {}
    for key in ID_LIST_KEYS:
        patterns = spec.files(key)
        if patterns is not None:
            setting = f"views.{name}.{key}"
            options[key] = [_content_digest(project, pattern, setting) for pattern in patterns]
    if spec.split is not None:
        options["split"] = [spec.split.by, *spec.split.keep]
    if not isinstance(spec.order, str):
        options["order"] = [spec.order.by, spec.order.descending, spec.order.seed]
    if spec.where is not None:
        options["where"] = spec.where
    if spec.documents is not None:
        options["documents"] = spec.documents
    if spec.tokens is not None:
        options["tokens"] = spec.tokens
    if spec.repeat != 1:
        options["repeat"] = spec.repeat
    return {f"views.{name}.{key}": value for key, value in options.items()}


def _content_digest(project: Project, pattern: str, key: str) -> str:
    """Return the digest of the files that a pattern names, or "missing" if they cannot be read."""
    # `make` and `refusal` report the error.
    with contextlib.suppress(MissingError, InputError):
        return given_files(project, pattern, key).digest
    return _MISSING


VIEW = ViewStage()
