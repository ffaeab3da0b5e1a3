"""The stage `views`: datasets of documents that are chosen from a corpus by rules.

For example, `views: {clean: {of: web, where: "quality >= 3"}}` in nanoset.yaml demands a dataset
`clean`. Its rules and the version of the corpus that it is made from are its *recipe*: if one of
them changes, the view is rebuilt.

What chooses documents is imported in the methods that need it. Every command imports this module,
but few of them choose documents, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from nanoset_core.errors import InputError, MissingError, NanosetError, one_line
from nanoset_core.formats.indexed.layout import bin_path
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import PIECES_ENDING
from nanoset_core.stages.derived import DerivedStage
from nanoset_core.stages.given_files import given_files
from nanoset_core.stages.order_warnings import view_order_warnings
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    PART,
    Advising,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Summary,
    counted,
    current_version,
    require,
    size_bytes,
)
from nanoset_core.stages.views.names import FOLDER, VERSION
from nanoset_core.stages.views.settings import (
    ID_LIST_KEYS,
    ViewSpec,
    ViewSplitSpec,
    ViewTopSpec,
    base_of,
    chain_of,
)

_MISSING = "missing"
"""In recipes, the content digest of files of ids that do not exist."""


def unpacked_node(config: ProjectConfig, name: str) -> Node:
    """Return the dataset with the documents of a corpus, or of a view (a selection of documents).

    For the corpus `web` and its view `clean`:

        web      Node(DATASET, Key("web"))
        clean    Node(VIEW, Key("web", "clean"))

    (There may be another dataset of each, in which several documents are packed into one sample.)

    Args:
        config: The settings, which list the views.
        name: Name of the corpus or view.

    Returns:
        The stage of the pipeline that makes the dataset, and the key by which it is named there.
    """
    if name not in config.views:
        return Node(DATASET, Key(name))
    corpus = base_of(config.derived, name)
    return Node(VIEW, Key(corpus, name))


class ViewStage(DerivedStage, Planned, Advising):
    """Datasets of documents that are chosen from a corpus."""

    section = "views"
    layout = Layout(FOLDER, (PART,), uploaded_first=(".bin", ".idx", PIECES_ENDING))
    kind = "view"
    version = VERSION

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return what must be made before a view, which is a selection of a corpus's documents.

        For the rules `where: quality >= 3` and `clean_of: [mmlu]`:

            "dataset"          the documents of the corpus
            "attributes …"     the column `quality`
            "clean of mmlu"    a list of documents that contain texts of the evaluation mmlu

        Args:
            config: The settings of nanoset.yaml.
            key: Names the corpus (its `subject`) and the view.

        Returns:
            Name of the input → the stage of the pipeline that makes it, and its key there.
        """
        from nanoset_core.stages.attributes.column_sources import column_nodes
        from nanoset_core.stages.views.choosing import columns_used

        corpus = key.subject
        used_columns = columns_used(config, key.required_part)
        return {
            "dataset": Node(DATASET, Key(corpus)),
            **column_nodes(config, corpus, used_columns),
            **_evaluation_searches(config, key),
        }

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides which documents a view has, with a digest of it.

        For the view `best`, which is chosen from the view `english` of the corpus web:

            parents    {"dataset": "3f…"}                              the version of web
            options    {"of": ["english"],                             the view between web and best
                        "views.english.where": "lang = 'en'",
                        "views.best.tokens": 1e9}                      the rules of both

        Args:
            project: The project.
            key: Names the corpus and the view.
            parents: Name of each input → its digest.
        """
        name = key.required_part
        views = project.config.views
        chain = chain_of(views, name)  # [english, best]

        options: dict[str, Any] = {"of": chain[:-1]}
        for view in chain:
            options |= _options(project, view, views[view])
        return Recipe(FOLDER, name, VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.views.make import make_view

        return make_view(project, key.required_part)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        # Imported here, since the checks import this module.
        from nanoset_core.stages.views.verify import verify_view

        return verify_view(project, key.subject, key.required_part, deep=deep)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why a view cannot be made, such as a file of ids that is missing; None if it can.

        This is asked before a build starts, so that it does not fail after hours.

        Args:
            project: The project.
            key: Names the corpus and the view.
            recipe: What decides its bytes, with the digests of its inputs; None if these are not
                known yet.
            reading: How much may be read to find out; not needed here.
        """
        from nanoset_core.stages.views.choosing import (
            check_column_names,
            check_listed_files_exist,
            checked_schema,
            rule_of,
        )

        name = key.required_part
        try:
            check_column_names(project.config, name)
            if recipe is None:  # before the first build
                check_listed_files_exist(project, name)  # they may be large, so they are not read
                return None
            rule_of(project, name, inputs_exist=False)  # reads the rules and the files they name
            if self._inputs_are_current(project, key, recipe):
                dataset = require(project, DATASET, Key(key.subject))
                checked_schema(project, dataset, name)
        except NanosetError as error:
            return one_line(error)
        return None

    def _inputs_are_current(self, project: Project, key: Key, recipe: Recipe) -> bool:
        """Return whether all outputs exist that a build would make a view from.

        Otherwise, the build makes them first, perhaps with columns that are missing now.

        Args:
            project: The project.
            key: Names the corpus and the view.
            recipe: What decides the bytes of the view, with the digests of these outputs.
        """
        for name, node in self.inputs(project.config, key).items():
            manifest = current_version(project, node.stage, node.key).manifest
            if manifest is None or manifest.digest != recipe.parents[name]:
                return False
        return True

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        return view_order_warnings(config.views, key.required_part)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return what commands show about a view: how much it has, and warnings.

        Args:
            project: The project.
            manifest: What is recorded about the view.
        """
        figures = counted(manifest, "documents", "tokens")  # and the "bytes" of all files
        # On a disk, the .bin is a link to the dataset's file, and takes no space. In a bucket, it
        # is a copy.
        if not project.outputs.access.takes_requests:
            figures["bytes"] = index_bytes(manifest)
        return Summary(figures, warnings=_warnings(manifest))


def _evaluation_searches(config: ProjectConfig, key: Key) -> dict[str, Node]:
    """Return the searches for evaluation texts that the rules `clean_of` of a view need.

    The view may be chosen from another view, whose rules count as well.

    Args:
        config: The settings of nanoset.yaml.
        key: Names the corpus and the view.

    Returns:
        Such as `{"clean of mmlu": Node(CONTAMINATION, Key("mmlu", "web"))}`.
    """
    searches: dict[str, Node] = {}
    for view_name in chain_of(config.views, key.required_part):
        for evaluation in config.views[view_name].clean_of:
            node = Node(CONTAMINATION, Key(evaluation, key.subject))
            searches[f"clean of {evaluation}"] = node
    return searches


def index_bytes(manifest: Manifest) -> int:
    """Return the bytes of a view's files without its tokens, which are those of the corpus.

        web_text_document.bin    26,700    the tokens: not counted
        web_text_document.idx     4,762    which of them belong to the documents of the view

    Args:
        manifest: What is recorded about the view.
    """
    bin_name = bin_path(manifest.facts["prefix"]).name
    return size_bytes(manifest) - manifest.files[bin_name].size


def _warnings(manifest: Manifest) -> list[str]:
    """Return warnings about a view, a selection of documents, that is probably not as meant.

        a list of ids has unknown ones    "3 ids of views.clean.exclude: takedown.txt match no …"
        a column has no values            its name may be misspelt
        there are too few tokens          since the next document is too long, or because documents
                                          have no value of the column by which they are ranked

    Args:
        manifest: What is recorded about the view.
    """
    # Imported here, since every command imports this module, and few need it.
    from nanoset_core.stages.views.facts import (
        empty_column_warnings,
        gap_warnings,
        missing_id_warnings,
        top_warnings,
    )

    facts = manifest.facts
    warnings = [
        *missing_id_warnings(facts, manifest.name),
        *empty_column_warnings(facts),
        *gap_warnings(facts, manifest.name),
        *top_warnings(facts, manifest.name),
    ]
    if facts["documents"] == 0:
        warnings.append("it holds no document")
    return warnings


def _options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return the rules of a view, such as `{"views.clean.tokens": 5e9}`, to notice if they change.

    They are stored with the view, which is a selection of documents. Only the rules that it has are
    included. Of a rule that names a file, such as `exclude: takedown.txt`, a digest of the file's
    content is stored, so that a change of the file is noticed, too.

    Args:
        project: The project, whose folder has these files.
        name: Name of the view.
        spec: Its settings.
    """
    options = _id_list_options(project, name, spec)
    if spec.split is not None:
        options |= _split_options(spec.split)
    if spec.order != "stored":
        options["order"] = [spec.order.by, spec.order.descending, spec.order.seed]
    if spec.where is not None:
        options["where"] = spec.where
    options |= _size_options(spec)
    return {f"views.{name}.{key}": value for key, value in options.items()}


def _id_list_options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return digests of the files of ids that a view names by `include` and `exclude`.

    Such a file lists documents that the view must leave out, for example. The digest is that of its
    content, so if the file changes, the view is rebuilt.

    Args:
        project: The project, whose folder has the files.
        name: The view.
        spec: Its settings. They may name several files, or patterns such as "takedown-*.txt".

    Returns:
        A digest for each name or pattern: `{"exclude": ["3f…"]}`. If `include` names several, the
        result also says how they are combined.
    """
    options: dict[str, Any] = {}
    for key in ID_LIST_KEYS:  # include, exclude
        patterns = spec.files(key)
        if patterns is not None:
            setting = f"views.{name}.{key}"
            options[key] = [_content_digest(project, pattern, setting) for pattern in patterns]
    n_includes = len(options.get("include", ()))
    return options | _union_option(n_includes)


def _union_option(n_includes: int) -> dict[str, str]:
    """Return the option that says how several files of `include` are combined; or none.

    Up to version 0.2.0, a view with several such files had only the documents that all of them
    list. Now it has those that any of them lists, so such views must be rebuilt. The option changes
    their digests, and only theirs.

    Args:
        n_includes: How many files or patterns the view includes.
    """
    if n_includes > 1:
        return {"include.combined": "union"}
    return {}


def _split_options(spec: ViewSplitSpec) -> dict[str, Any]:
    """Return the rule `split` of a view as options of a recipe."""
    options: dict[str, Any] = {"split": [spec.by, *spec.keep]}
    if spec.seed is not None:
        options["split.seed"] = spec.seed
    return options


def _size_options(spec: ViewSpec) -> dict[str, Any]:
    """Return the rules that decide how large a view is as options of a recipe: `top` and others."""
    options: dict[str, Any] = {}
    if spec.top is not None:
        options |= _top_options(spec.top)
    if spec.documents is not None:
        options["documents"] = spec.documents
    if spec.tokens is not None:
        options["tokens"] = spec.tokens
    if spec.repeat != 1:
        options["repeat"] = spec.repeat
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
    """Return a digest of the content of files, or "missing" if they cannot be read."""
    # `make` and `refusal` report the error.
    with contextlib.suppress(MissingError, InputError):
        return given_files(project, pattern, key).digest
    return _MISSING


VIEW = ViewStage()
