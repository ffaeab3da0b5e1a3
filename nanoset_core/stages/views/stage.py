"""The stage `views`: datasets of documents that are chosen from a corpus by rules.

For example, `views: {clean: {of: web, where: "quality >= 3"}}` in nanoset.yaml demands a dataset
`clean`. Its rules and the version of the corpus that it is made from are its *recipe*: if one of
them changes, the view is rebuilt.

What chooses documents is imported in the methods that need it. Every command imports this module,
but few of them choose documents, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from nanoset_core.errors import InputError, MissingError, NanosetError, one_line
from nanoset_core.formats.indexed.layout import bin_path
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.orders import view_order_warnings
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import PIECES_ENDING
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.report import Report, Run, run_here
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
)
from nanoset_core.stages.views.settings import (
    ID_LIST_KEYS,
    STAGE,
    ViewSpec,
    ViewSplitSpec,
    ViewTopSpec,
    base_of,
    chain_of,
)

VERSION = 1
_MISSING = "missing"
"""In recipes, the content digest of files of ids that do not exist."""


def unpacked_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that holds the documents of a corpus, or of a view, one sequence for each.

    A view is a dataset of documents that are chosen from a corpus.

    Args:
        config: Its views say which of the two the name stands for.
        name: Name of a corpus or view.

    Returns:
        The stage that makes the output, and its key.
    """
    if name in config.views:
        return Node(VIEW, Key(base_of(config.derived, name), name))
    return Node(DATASET, Key(name))


class DerivedStage(Stage):
    """A stage of named datasets that are made of a corpus's documents: views and packed datasets.

    The folder of the stage's outputs has the name of its section in nanoset.yaml.
    """

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the key of each dataset that the stage makes: what it is made from, and its name.

        For the setting `views: {clean: {of: web}}`, the key is that of the dataset `clean`, which
        is made from the corpus `web`.

        Args:
            config: The settings of nanoset.yaml. The section is named like the folder of the stage.
            corpora: All corpora, which are not needed here.
        """
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
        """Return the outputs of other stages that a view is made from.

        These are the dataset of the corpus, tables with the columns that the view's rules name, and
        contamination reports. A view may be chosen from another view, whose rules then count, too.

        Args:
            config: The settings of nanoset.yaml.
            key: Names the view and its corpus.

        Returns:
            Name of the input, such as "dataset" → the output: the stage that makes it, and its key.
        """
        from nanoset_core.stages.attributes.column_sources import column_nodes
        from nanoset_core.stages.views.choosing import columns_used

        corpus = key.subject
        name = self.layout.name_of(key)
        inputs = {"dataset": Node(DATASET, Key(corpus))}

        # Columns that users add to documents, such as `quality`, are in other outputs.
        columns = columns_used(config, name)
        inputs |= column_nodes(config, corpus, columns)

        # The rule `clean_of` names evaluation files in the section `contamination`. For each, a
        # report lists the documents of the corpus that contain one of its texts.
        for view in chain_of(config.views, name):  # the views from the corpus to this one
            for section in config.views[view].clean_of:
                report = Node(CONTAMINATION, Key(section, corpus))
                inputs[f"clean of {section}"] = report
        return inputs

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides the bytes of a view; if it changes, the view is rebuilt.

        These are its rules, its inputs, and the content of the files of ids that its rules name. If
        it is chosen from another view, the rules of that one belong to it, too.

        Args:
            project: The project.
            key: Names the view and its corpus.
            parents: Name of each input → its digest.
        """
        # A view may be chosen from another view. If `b` is a view of `a`, and `a` is a view of a
        # corpus, the chain of `b` is `a`, `b`.
        name = self.layout.name_of(key)
        views = project.config.views
        chain = chain_of(views, name)

        options: dict[str, Any] = {"of": chain[:-1]}  # the views between the corpus and this one
        for view in chain:
            # The keys contain the name of the view, such as `views.english.where`.
            options |= _options(project, view, views[view])
        return Recipe(STAGE, name, VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.views.make import make_view

        return make_view(project, self.layout.name_of(key))

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        # Imported here, since the checks import this module.
        from nanoset_core.stages.views.verify import verify_view

        return verify_view(project, key.subject, key.part or "", deep=deep)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return why the view cannot be made, such as a missing file of ids; None if it can."""
        from nanoset_core.stages.views.choosing import rule_of

        try:
            rule_of(project, self.layout.name_of(key), inputs_exist=False)
        except NanosetError as error:
            return one_line(error)
        return None

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        return view_order_warnings(config.views, self.layout.name_of(key))

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return the counts of a view, and warnings on unknown ids, budgets and empty views."""
        # The size of a view is that of its files without the .bin, which is a link to the dataset's
        # file, and takes no space.
        figures = counted(manifest, "documents", "tokens")  # and the "bytes" of all files
        bin_name = bin_path(manifest.facts["prefix"]).name
        figures["bytes"] -= manifest.files[bin_name].size
        return Summary(figures, warnings=_warnings(manifest))


def _warnings(manifest: Manifest) -> list[str]:
    """Return warnings about a view, in words: what its rules did not find.

    Args:
        manifest: The manifest of the view.
    """
    # Imported here, since every command imports this module, and few need it.
    from nanoset_core.stages.views.facts import MISSING_IDS, gap_warnings, top_warnings

    warnings = []
    for key, count in manifest.facts[MISSING_IDS].items():
        warnings.append(f"{count:,} ids of {key} match no document")
    # Budgets far from full, since the next document does not fit, or since documents have no
    # value by which `top` could rank them.
    warnings += gap_warnings(manifest.facts, manifest.name)
    warnings += top_warnings(manifest.facts, manifest.name)
    if manifest.facts["documents"] == 0:
        warnings.append("it holds no document")
    return warnings


def _options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return the rules of one view as options of a recipe, without those that it does not set.

    If an option of the recipe changes, the view is rebuilt. For a view `clean` with the settings
    {of: web, exclude: takedown.txt, tokens: 5e9}, they are

        views.clean.exclude    [digest of what takedown.txt contains]
        views.clean.tokens     5e9

    Args:
        project: The project.
        name: The view.
        spec: Its settings.
    """
    options = _id_list_options(project, name, spec)
    if spec.split is not None:
        options |= _split_options(spec.split)
    if not isinstance(spec.order, str):  # the text "stored": as the corpus has the documents
        options["order"] = [spec.order.by, spec.order.descending, spec.order.seed]
    if spec.where is not None:
        options["where"] = spec.where
    if spec.top is not None:
        options |= _top_options(spec.top)
    if spec.documents is not None:
        options["documents"] = spec.documents
    if spec.tokens is not None:
        options["tokens"] = spec.tokens
    if spec.repeat != 1:
        options["repeat"] = spec.repeat
    return {f"views.{name}.{key}": value for key, value in options.items()}


def _id_list_options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return the rules `include` and `exclude` of a view as options of a recipe.

    They name files of ids. A recipe has the digests of what these contain, so that the view is
    rebuilt if a file changes.
    """
    options: dict[str, Any] = {}
    for key in ID_LIST_KEYS:
        patterns = spec.files(key)
        if patterns is not None:
            setting = f"views.{name}.{key}"
            options[key] = [_content_digest(project, pattern, setting) for pattern in patterns]
    return options


def _split_options(spec: ViewSplitSpec) -> dict[str, Any]:
    """Return the rule `split` of a view as options of a recipe."""
    options: dict[str, Any] = {"split": [spec.by, *spec.keep]}
    if spec.seed is not None:
        options["split.seed"] = spec.seed
    return options


def _top_options(spec: ViewTopSpec) -> dict[str, Any]:
    """Return the rule `top` of a view as options of a recipe, without keys that it does not set."""
    options: dict[str, Any] = {}
    for name, value in asdict(spec).items():
        is_set = value is not None and value is not False
        if is_set:
            options[f"top.{name}"] = value
    return options


def _content_digest(project: Project, pattern: str, key: str) -> str:
    """Return the digest of the files that a pattern names, or "missing" if they cannot be read."""
    # `make` and `refusal` report the error.
    with contextlib.suppress(MissingError, InputError):
        return given_files(project, pattern, key).digest
    return _MISSING


VIEW = ViewStage()
