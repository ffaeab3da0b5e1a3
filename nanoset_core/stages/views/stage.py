"""views: a corpus's dataset and the tables of its documents → datasets of documents that were
chosen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.errors import InputError, MissingError, NanosetError, one_line
from nanoset_core.formats.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
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
    LISTS,
    STAGE,
    Chosen,
    choose,
    columns_kept,
    columns_used,
    gap_warnings,
    rule_of,
)
from nanoset_core.stages.views.settings import ViewSpec, base_of, chain_of
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.storage.atomic import claim_scratch, sha256_file, sweep_abandoned
from nanoset_core.storage.leases import leased

VERSION = 1
_MISSING = "missing"


@holding
def make_view(project: Project, name: str) -> Manifest:
    """Choose a view's documents and publish its dataset; other stale views of the corpus are made
    in the same pass.

    Raises as `choose`, for this view.
    """
    corpus = base_of(project.config.views, name)
    dataset = require(project, DATASET, Key(corpus))
    wanted = VIEW.recipe(project, Key(corpus, name), _parents(project, Key(corpus, name), dataset))
    found = None if project.rebuild else project.outputs.find(wanted)
    if found is not None:
        return project.outputs.make_current(found)
    recipes, made = (
        {name: wanted, **_stale(project, corpus, dataset, {name})},
        dict[str, Manifest](),
    )
    folder = project.outputs.folder / STAGE
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    with (
        leased(project.outputs.access, {*recipes}, corpus),
        claim_scratch(folder / "choosing") as scratch,
    ):
        for chosen in choose(project, corpus, [*recipes], scratch):
            write = _writer(project, dataset, recipes, chosen)
            made[chosen.name] = project.outputs.make_current(
                project.outputs.commit(recipes[chosen.name], write)
            )
    return made[name]


def _stale(
    project: Project, corpus: str, dataset: Manifest, done: Collection[str]
) -> dict[str, Recipe]:
    """Return the recipes of the other views of a corpus that are not there, as far as their rules
    can be read.
    """
    found = {}
    for name in project.config.views:
        if name not in done and base_of(project.config.views, name) == corpus:
            with contextlib.suppress(NanosetError):
                recipe = VIEW.recipe(
                    project, Key(corpus, name), _parents(project, Key(corpus, name), dataset)
                )
                if project.outputs.find(recipe) is None:
                    rule_of(project, name)
                    columns_kept(project, dataset, name)
                    found[name] = recipe
    return found


def _parents(project: Project, key: Key, dataset: Manifest) -> dict[str, str]:
    """Return name → digest of what a view is made from now."""
    inputs = VIEW.inputs(project.config, key)
    others = {
        name: require(project, node.stage, node.key).digest
        for name, node in inputs.items()
        if name != "dataset"
    }
    return {"dataset": dataset.digest} | others


def _writer(
    project: Project, dataset: Manifest, recipes: Mapping[str, Recipe], chosen: Chosen
) -> Callable[[Path], tuple[dict[str, Any], dict[str, str | FileFact]]]:
    config, corpus = project.config, dataset.name
    prefix = pair_name(
        config.tokenization.preset, chosen.name, config.documents_of(corpus).text_key
    )

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
        base = read_idx(
            idx_path(dataset.path(f"{dataset.facts['prefix']}.idx").with_suffix("")), validate=False
        )
        index = idx_path(folder / prefix)
        sequences, documents = write_view_idx(index, base, chosen.selection.chunks)
        counts = {"documents": documents, "sequences": sequences, "tokens": chosen.selection.tokens}
        facts = {
            "prefix": prefix,
            "corpus": corpus,
            **counts,
            "dtype": dataset.facts["dtype"],
            **chosen.facts,
        }
        files: dict[str, str | FileFact] = {index.name: sha256_file(index)}
        return facts, files | _tokens(project, dataset, recipes[chosen.name], folder, prefix)

    return write


def _tokens(
    project: Project, dataset: Manifest, recipe: Recipe, folder: Path, prefix: str
) -> dict[str, FileFact]:
    """Put the dataset's .bin beside a view's .idx: a link on this machine, in a bucket a copy that
    it makes itself.
    """
    own = f"{prefix}.bin"
    if project.outputs.access.has_copies:
        return copy_tokens(project.outputs, dataset, recipe, folder, own)
    name = f"{dataset.facts['prefix']}.bin"
    link(dataset.folder / name, folder / own, project.outputs.place(recipe))
    return {own: dataset.files[name]}


def link(source: Path, target: Path, place: Path) -> None:
    """Make a file appear at another path: by a hard link, or where these are refused by a relative
    symbolic one.

    `place`: the folder that the target's will become.
    """
    try:
        os.link(source, target)
    except OSError:
        target.symlink_to(os.path.relpath(source, place))


def unpacked_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that holds the dataset of a corpus or view."""
    if name in config.views:
        return Node(VIEW, Key(base_of(config.derived, name), name))
    return Node(DATASET, Key(name))


class DerivedStage(Stage):
    """Datasets with names of their own that are made of a corpus's documents: views and packs."""

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        section = self.layout.folder  # both are called as their section of nanoset.yaml
        return [
            Key(base_of(config.derived, name), name, requested_at=f"{section}.{name}.of")
            for name in getattr(config, section)
        ]


class ViewStage(DerivedStage, Planned, Advising):
    """Datasets of documents that were chosen from a corpus."""

    layout = Layout(STAGE, (PART,), uploaded_first=(".bin", ".idx", PIECES_ENDING))
    kind = "view"
    version = VERSION

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        name = self.layout.name_of(key)
        columns = column_nodes(config, key.subject, columns_used(config, name))
        chain = chain_of(config.views, name)
        sections = dict.fromkeys(section for one in chain for section in config.views[one].clean_of)
        found = {f"clean of {one}": Node(CONTAMINATION, Key(one, key.subject)) for one in sections}
        return {"dataset": Node(DATASET, Key(key.subject)), **columns, **found}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe: the rules of the view and of those that it is of, and the content of
        their files.
        """
        name = self.layout.name_of(key)
        options: dict[str, Any] = {}
        chain = chain_of(project.config.views, name)
        for one in chain:
            options |= _options(project, one, project.config.views[one])
        return Recipe(STAGE, name, VERSION, parents, {"of": chain[:-1], **options})

    def make(self, project: Project, key: Key) -> Manifest:
        return make_view(project, self.layout.name_of(key))

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.views.verify import verify_view

        return verify_view(project, key.subject, key.part or "", deep)

    def refusal(
        self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return that a file of ids is not there."""
        try:
            rule_of(project, self.layout.name_of(key), is_made=False)
        except NanosetError as error:
            return one_line(error)
        return None

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        return view_order_warnings(config.views, self.layout.name_of(key))

    def show(self, project: Project, manifest: Manifest) -> Summary:
        missing_ids = manifest.facts["missing_ids"]
        warnings = [
            f"{count:,} ids of {key} are of no document" for key, count in missing_ids.items()
        ]
        warnings += gap_warnings(manifest.facts, manifest.name)
        if not manifest.facts["documents"]:
            warnings.append("it holds no document")

        # The .bin is a link to the dataset's, and takes no room of its own.
        figures = counted(manifest, "documents", "tokens")
        figures["bytes"] -= manifest.files[bin_path(manifest.facts["prefix"]).name].size
        return Summary(figures, warnings=warnings)


def _options(project: Project, name: str, spec: ViewSpec) -> dict[str, Any]:
    """Return one view's rules as JSON, without those that it has not: of files of ids their
    content.
    """
    options: dict[str, Any] = {}
    for key in LISTS:
        if (patterns := spec.files(key)) is not None:
            options[key] = [
                _content(project, pattern, f"views.{name}.{key}") for pattern in patterns
            ]
    if spec.split is not None:
        options["split"] = [spec.split.by, *spec.split.keep]
    if not isinstance(spec.order, str):
        options["order"] = [spec.order.by, spec.order.descending, spec.order.seed]
    repeat = None if spec.repeat == 1 else spec.repeat
    given = {
        "where": spec.where,
        "documents": spec.documents,
        "tokens": spec.tokens,
        "repeat": repeat,
    }
    options |= {key: value for key, value in given.items() if value is not None}
    return {f"views.{name}.{key}": value for key, value in options.items()}


def _content(project: Project, pattern: str, key: str) -> str:
    with contextlib.suppress(MissingError, InputError):  # `make` and `refusal` say what is wrong
        return given_files(project, pattern, key).digest
    return _MISSING


VIEW = ViewStage()
