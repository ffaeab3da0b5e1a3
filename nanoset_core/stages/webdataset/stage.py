"""The three stages of a webdataset.

1. `PlanStage` plans from the datasets which context goes where: the output `shuffle_plans`.
2. `TarsStage` writes the tars of the plan, group by group. These are parts of the next output.
3. `WebdatasetStage` writes the lists that name all tars: the output `webdatasets`.

What plans, writes and reads tars is imported in the methods that need it. Every command imports
this module, but few of them do that, and `nanoset status` has to start quickly.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from nanoset_core.errors import NanosetError, one_line, raised
from nanoset_core.outputs.current import Reason
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.orders import reordering_warnings
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import searches_before_training
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.stage import (
    PART,
    SUBJECT,
    Advising,
    Estimated,
    InParts,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Resumable,
    Summary,
    current_version,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.stages.webdataset.recipes import (
    PLANS,
    STAGE,
    VERSION,
    plan_recipe,
    webdataset_recipe,
)
from nanoset_core.stages.webdataset.settings import engine_warning
from nanoset_core.stages.webdataset.show import webdataset_summary
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sweep_abandoned

_TAR = re.compile(r"shard-\d{8,}\.tar")
"""Name of a tar."""


class PlanStage(Planned, Advising):
    """The plan of a webdataset, which says which context of which corpus goes into which tar."""

    layout = Layout(PLANS)
    kind = "webdataset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{STAGE}.{name}.corpora") for name in config.webdatasets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        names = config.webdatasets[key.subject].names
        datasets = {corpus: dataset_node(config, corpus) for corpus in names}
        return datasets | searches_before_training(config, names)

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return plan_recipe(project, key.subject, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.webdataset.make import make_plan

        return make_plan(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_plan

        return verify_plan(project, key.subject)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe, reading: ReadingBudget
    ) -> str | None:
        """Return a message if two corpora of the webdataset contain the same file, or else None.

        Args:
            project: Its inventories, which list the files of each corpus, are compared.
            key: Its `subject` is the name of the webdataset.
            recipe: Not used.
            reading: Not used, since little is read.
        """
        from nanoset_core.stages.inventory.shared_files import check_webdataset_files

        errors = raised(check_webdataset_files, project, key.subject)
        return one_line(errors[0]) if errors else None

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterator[str]:
        """Yield warnings on views whose order is lost, and on the engine that writes the tars.

        Args:
            config: The settings of the project.
            key: Its `subject` is the name of the webdataset.
        """
        spec = config.webdatasets[key.subject]
        shuffled = "its contexts are shuffled into the tars"
        yield from reordering_warnings(config.views, spec.names, shuffled)
        warning = engine_warning(spec.engine, f"{STAGE}.{key.subject}.engine")
        if warning is not None:
            yield warning


class TarsStage(InParts, Estimated):
    """The tars of a webdataset, in groups that are written independently.

    They are parts of an output of `WebdatasetStage`, which completes it.
    """

    # A placeholder: groups are stored in the folder of the webdataset, not below this name.
    layout = Layout(STAGE, (SUBJECT, "tars", PART))
    kind = "webdataset"
    version = VERSION
    parts_name = "groups of tars"
    estimated_as = "tars"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterator[Key]:
        """Yield a key for each group of tars of each webdataset."""
        for name, spec in config.webdatasets.items():
            for group in range(spec.groups):
                yield Key(name, str(group), requested_at=f"{STAGE}.{name}.groups")

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"plan": Node(SHUFFLE_PLAN, Key(key.subject))}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return webdataset_recipe(key.subject, parents["plan"])

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate the size of one group of a webdataset's tars.

        Derived datasets count as empty: how many documents a view chooses is not known before it is
        built.

        Args:
            project: Its nanoset.yaml has the settings of the webdataset.
            key: Its `subject` is the name of the webdataset, and its `part` the number of the
                group.
            text_of: Returns an estimate of the text of a corpus.
        """
        from nanoset_core.stages.webdataset.planning import estimated_tokens

        spec = project.webdataset(key.subject)
        tokens_by_corpus = dict.fromkeys(spec.names, 0.0)
        for name in spec.names:
            if name not in project.config.derived:
                tokens_by_corpus[name] = text_of(name).tokens
        tokens = estimated_tokens(spec, tokens_by_corpus)
        return int(tokens * project.tokenizer.dtype.itemsize / spec.groups)

    def part_digest(self, recipe: Recipe) -> str:
        return recipe.parents["plan"]

    def make(self, project: Project, key: Key) -> Manifest:
        """Write a group of tars; return the manifest of the plan, since the group has none."""
        from nanoset_core.stages.webdataset.make import current_plan, write_group

        write_group(project, key.subject, int(key.part or 0))
        plan, _ = current_plan(project, key.subject)
        return plan

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_group

        return verify_group(project, key.subject, key.part or "0")

    def part_problem(self, project: Project, key: Key, recipe: Recipe) -> Reason | None:
        """Return why a group of tars has to be written, or None if it is complete.

        The tars of a webdataset are written in groups, which are tasks of their own.

        Args:
            project: Its outputs are searched for the tars.
            key: Its `subject` is the name of the webdataset, and its `part` the number of the
                group.
            recipe: Recipe of the webdataset, which names the plan that the tars should have.
        """
        from nanoset_core.stages.webdataset.make import is_group_written

        # If the plan has changed, the tars that exist belong to the earlier plan.
        if not _is_current_plan(project, key.subject, recipe.parents["plan"]):
            return Reason("plan changed", "plan")

        # If the tars cannot be looked up, such as with a damaged plan, writing them again repairs
        # that, or reports the error to the user.
        try:
            is_written = is_group_written(project, key.subject, int(key.part or 0))
        except NanosetError as error:
            return Reason(error.what)
        return None if is_written else self.NOT_WRITTEN


def _is_current_plan(project: Project, name: str, digest: str) -> bool:
    """Return whether a plan of a webdataset is the current one, and not out of date.

    Args:
        project: Its outputs are searched.
        name: Name of the webdataset.
        digest: Digest of the plan.
    """
    plan = current_version(project, SHUFFLE_PLAN, Key(name))
    if plan.manifest is None or plan.problem is not None:
        return False
    return plan.manifest.digest == digest


class WebdatasetStage(Resumable):
    """A webdataset: shuffled tars with the lists that name them."""

    layout = Layout(STAGE)
    kind = "webdataset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{STAGE}.{name}") for name in config.webdatasets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the plan of the webdataset, and each group of its tars."""
        inputs = {"plan": Node(SHUFFLE_PLAN, key)}
        for group in range(config.webdatasets[key.subject].groups):
            inputs[f"tars {group}"] = Node(SHUFFLED_TARS, Key(key.subject, str(group)))
        return inputs

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return webdataset_recipe(key.subject, parents["plan"])

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.webdataset.make import finish

        return finish(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_webdataset

        return verify_webdataset(project, key.subject, deep=deep, run=run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return webdataset_summary(manifest)

    def unfinished_version(self, manifest: Manifest) -> str | None:
        """Return the digest of the webdataset of a plan, some of whose tars may exist already.

        Args:
            manifest: Manifest of an output of the project.

        Returns:
            The digest; None if the output is no plan of a webdataset.
        """
        if manifest.stage != PLANS:
            return None
        return webdataset_recipe(manifest.name, manifest.digest).digest

    def sweep(self, outputs: OutputRoot) -> None:
        """Remove unfinished files next to complete webdatasets.

        Two builds may write the same webdataset. If one completes it and the other is killed, the
        killed one leaves partly written tars and markers. A marker is a small file that says that a
        tar is complete.

        Args:
            outputs: The output root.
        """
        from nanoset_core.stages.webdataset.markers import MARKERS, clear_markers

        # A webdataset that has a manifest is complete, and needs no unfinished files.
        for manifest in (outputs.folder / STAGE).glob(f"*/*/{MANIFEST}"):
            folder = manifest.parent
            if not folder.is_symlink():  # a link, such as `current`, leads to one of the folders
                sweep_abandoned(folder)  # files that a killed process was writing
                if (folder / MARKERS).is_dir():
                    clear_markers(folder, outputs.access)

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of an unfinished webdataset: tars, lists and markers.

        A marker is a small file that a build writes next to each tar, with the version of the
        webdataset. Without markers, another program may have written the tars.

        Args:
            access: Access to the output root.
            folder: A folder of a webdataset without a manifest, named by the digest of a version.

        Returns:
            Paths below the folder; None unless the markers name this version, and no other one.
        """
        from nanoset_core.stages.webdataset.lists import LISTS
        from nanoset_core.stages.webdataset.markers import MARKERS

        marker_names = [name for name in access.names(folder / MARKERS) if name.endswith(".json")]
        markers = {f"{MARKERS}/{name}" for name in marker_names}
        versions = _versions_in_markers(access, [folder / marker for marker in markers])
        if versions != {folder.name}:
            return None
        tars = {name for name in access.names(folder) if _TAR.fullmatch(name)}
        return tars | markers | set(LISTS)


def _versions_in_markers(access: FileAccess, markers: Iterable[Path]) -> set[object]:
    """Return the versions of webdatasets that markers of tars name.

    Only this key of a marker is read, so that files of another program that have the same key
    count, too. A marker that was cut off when a build was killed is not valid JSON, and is ignored.

    Args:
        access: Access to the output root.
        markers: Paths of the markers.
    """
    versions: set[object] = set()
    for marker in markers:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            content = json.loads(access.read_current(marker))
            versions.add(content["made_from"])
    return versions


SHUFFLE_PLAN = PlanStage()
SHUFFLED_TARS = TarsStage()
WEBDATASET = WebdatasetStage()
