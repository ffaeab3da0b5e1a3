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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from nanoset_core.errors import NanosetError, one_line, raised
from nanoset_core.outputs.differences import Reason
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import searches_before_training
from nanoset_core.stages.dataset_estimate import estimated_dataset_tokens
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.order_warnings import reordering_warnings
from nanoset_core.stages.report import CheckRunner, Report, run_here
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
from nanoset_core.stages.webdataset.names import FOLDER, PLANS_FOLDER, VERSION
from nanoset_core.stages.webdataset.recipes import plan_recipe, webdataset_recipe
from nanoset_core.stages.webdataset.settings import engine_warning
from nanoset_core.stages.webdataset.show import webdataset_summary
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sweep_abandoned


class PlanStage(Planned, Advising):
    """The plan of a webdataset, which says which context of which corpus goes into which tar."""

    layout = Layout(PLANS_FOLDER)
    kind = "webdataset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{FOLDER}.{name}.corpora") for name in config.webdatasets]

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
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_plan

        return verify_plan(project, key.subject)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why a shuffled dataset must not be planned: two of its corpora have the same file.

        A corpus is a collection of text files. If web and news both contain data/a.jsonl, its text
        would be in the dataset twice without anybody noticing. The lists of files of the corpora
        are compared before anything is built.

        Args:
            project: Has the lists of files.
            key: Its `subject` is the name of the shuffled dataset.
            recipe: Not used here.
            reading: Not used here, since little is read.

        Returns:
            A message of one line, or None.
        """
        from nanoset_core.stages.inventory.shared_files import check_webdataset_files

        errors = raised(check_webdataset_files, project, key.subject)  # the errors that it raises
        if not errors:
            return None
        return one_line(errors[0])

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterator[str]:
        """Yield warnings on settings of a shuffled dataset that have no effect.

        - The documents of a source may have been put into a certain order, such as by length. The
          shuffle does not keep it.
        - The engine, which is the way in which tar files are written, may not exist any more. Then
          another one is used in its place.

        Args:
            config: The settings of the project.
            key: Its `subject` is the name of the shuffled dataset.
        """
        spec = config.webdatasets[key.subject]
        shuffled = "its contexts are shuffled into the tars"
        yield from reordering_warnings(config.views, spec.names, shuffled)
        warning = engine_warning(spec.engine, f"{FOLDER}.{key.subject}.engine")
        if warning is not None:
            yield warning


class TarsStage(InParts, Estimated):
    """The tars of a webdataset, in groups that are written independently.

    They are parts of an output of `WebdatasetStage`, which completes it.
    """

    # A placeholder: groups are stored in the folder of the webdataset, not below this name.
    layout = Layout(FOLDER, (SUBJECT, "tars", PART))
    kind = "webdataset"
    version = VERSION
    parts_name = "groups of tars"
    listed_folder = PLANS_FOLDER
    estimated_as = "tars"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterator[Key]:
        """Yield a key for each group of tars of each webdataset."""
        for name, spec in config.webdatasets.items():
            for group in range(spec.groups):
                yield Key(name, str(group), requested_at=f"{FOLDER}.{name}.groups")

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"plan": Node(SHUFFLE_PLAN, Key(key.subject))}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return webdataset_recipe(key.subject, parents["plan"])

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Estimate how many bytes of disk one group of a shuffled dataset's tar files takes.

        Suppose that web has about 100 million tokens, and that a training sample of 500 tokens
        takes 1,800 bytes in a tar. Then all tars take 360 MB. If they are written in 4 groups, each
        group takes 90 MB.

        Args:
            project: Its nanoset.yaml has the settings of the dataset.
            key: Its `subject` is the name of the dataset, and its `part` the number of the group.
            text_of: Returns an estimate of the text of a corpus, such as web.
        """
        from nanoset_core.stages.webdataset.planning import estimated_tokens
        from nanoset_core.stages.webdataset.tars import estimated_member_bytes

        spec = project.webdataset(key.subject)
        tokens_by_name = {
            name: estimated_dataset_tokens(project, name, text_of) for name in spec.names
        }
        tokens = estimated_tokens(spec, tokens_by_name)

        token_bytes = project.tokenizer.dtype.itemsize
        sample_bytes = estimated_member_bytes(spec.member, spec.sequence_length, token_bytes)
        n_samples = tokens / spec.sequence_length
        return int(n_samples * sample_bytes / spec.groups)

    def part_digest(self, recipe: Recipe) -> str:
        return recipe.parents["plan"]

    def make(self, project: Project, key: Key) -> Manifest:
        """Write a group of tars; return the manifest of the plan, since the group has none."""
        from nanoset_core.stages.webdataset.make import current_plan, write_group

        write_group(project, key.subject, _group_number(key))
        plan, _ = current_plan(project, key.subject)
        return plan

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_group

        return verify_group(project, key.subject, key.required_part)

    def part_problem(self, project: Project, key: Key, recipe: Recipe) -> Reason | None:
        """Return why a group of tar files of a shuffled dataset has to be written, or None.

        The tars are made by a plan, which says which training sample goes into which tar. The
        reason is one of these; `nanoset status` shows its text:

            "plan changed"              there is another plan by now
            "it is not written yet"     a tar is missing
            the text of an error        the tars cannot be looked for: the plan is damaged, perhaps

        Args:
            project: Its outputs are searched for the tars.
            key: Its `subject` is the name of the dataset, and its `part` the number of the group.
            recipe: Says from which plan the tars should be made.
        """
        from nanoset_core.stages.webdataset.make import is_group_written

        plan_digest = recipe.parents["plan"]
        if not _is_current_plan(project, key.subject, plan_digest):
            return Reason("plan changed", input="plan")
        try:
            is_written = is_group_written(project, key.subject, _group_number(key))
        except NanosetError as error:
            # Write the tars again. That repairs the cause, or reports the error to the user.
            return Reason(error.what)
        return None if is_written else self.NOT_WRITTEN


def _group_number(key: Key) -> int:
    """Return the number of the group of tar files that a key names: 2 for `Key("web", "2")`."""
    return int(key.required_part)


def _is_current_plan(project: Project, name: str, digest: str) -> bool:
    """Return whether a plan is the current one of a shuffled dataset, and up to date.

    A plan says which training sample goes into which tar file. After a change of a source or of a
    setting there is another plan, with another digest.

    Args:
        project: Its outputs are searched.
        name: Name of the dataset.
        digest: Digest of the plan, such as "3f2a…".
    """
    plan = current_version(project, SHUFFLE_PLAN, Key(name)).whole_manifest
    return plan is not None and plan.digest == digest


class WebdatasetStage(Resumable):
    """A webdataset: shuffled tars with the lists that name them."""

    layout = Layout(FOLDER)
    kind = "webdataset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{FOLDER}.{name}") for name in config.webdatasets]

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
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_webdataset

        return verify_webdataset(project, key.subject, deep=deep, run=run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        return webdataset_summary(manifest)

    def unfinished_version(self, manifest: Manifest) -> str | None:
        """Return the name of the folder into which tar files are written by a plan.

        A build first makes a plan, which says which training sample goes into which tar. Then it
        writes the tars into another folder. Each folder is named by a digest of what its files are
        made from. Tars are made from their plan, so its digest decides the name of their folder:

            shuffle_plans/web/77b0…/plan.json           the plan
            webdatasets/web/3f2a…/shard-00000000.tar    3f2a… is a digest of "web" and "77b0…"

        `nanoset gc` calls this for each output. If a build was killed, nothing but the plan tells
        that the folder of the tars is still needed.

        Args:
            manifest: Record of an output, perhaps of a plan. Its `digest` is "77b0…".

        Returns:
            The name of the folder, "3f2a…". None if the output is no plan.
        """
        is_plan = manifest.stage == PLANS_FOLDER
        if not is_plan:
            return None
        recipe_of_tars = webdataset_recipe(manifest.name, plan_digest=manifest.digest)
        return recipe_of_tars.digest

    def sweep(self, outputs: OutputRoot) -> None:
        """Delete unfinished files in the folders of shuffled datasets that are complete.

        Two builds may write the tar files of the same dataset. If one completes it while the other
        is killed, the killed one leaves

        - tars that are written partly, under temporary names;
        - markers, which are small files that say that a tar is complete.

        Args:
            outputs: The folder with all outputs of the project.
        """
        from nanoset_core.stages.webdataset.markers import MARKERS, clear_markers

        # A dataset with a manifest is complete: webdatasets/<name>/<version>/manifest.json
        for manifest in (outputs.folder / FOLDER).glob(f"*/*/{MANIFEST}"):
            folder = manifest.parent
            if folder.is_symlink():
                continue  # such as `current`, a link to one of the other folders
            sweep_abandoned(folder)  # files with temporary names
            if (folder / MARKERS).is_dir():
                clear_markers(folder, outputs.access)

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return the files of a shuffled dataset whose build was killed, to delete them.

        The folder of a dataset is named by its version, a digest. For each finished tar, a build
        writes a marker, a small file that has the same digest:

            3f2a…/shard-00000000.tar
            3f2a…/<markers>/shard-00000000.json        {"made_from": "3f2a…", ...}

        If there are such markers, a build has made the folder. Otherwise, another program may have
        made it, and nothing must be deleted.

        Args:
            access: Access to the outputs of the project.
            folder: A folder without a manifest, which would say that the dataset is complete.

        Returns:
            Paths below the folder: the tars, the markers, and the lists of tars, whether these
            exist or not. None if nothing must be deleted.
        """
        from nanoset_core.stages.webdataset.lists import LISTS
        from nanoset_core.stages.webdataset.markers import MARKERS
        from nanoset_core.stages.webdataset.tars import is_tar_name

        marker_names = [name for name in access.names(folder / MARKERS) if name.endswith(".json")]
        markers = {f"{MARKERS}/{name}" for name in marker_names}

        # All markers must be of the version of the folder. (If there are none, this is empty.)
        versions = _versions_in_markers(access, [folder / marker for marker in markers])
        version_of_folder = folder.name
        if versions != {version_of_folder}:
            return None
        tars = {name for name in access.names(folder) if is_tar_name(name)}
        return tars | markers | set(LISTS)


def _versions_in_markers(access: FileAccess, markers: Iterable[Path]) -> set[object]:
    """Return which versions of a dataset the markers of tar files name.

    A marker is a small JSON file, such as {"made_from": "3f2a…", "shard": 0, ...}. The result has
    the values of "made_from", {"3f2a…"}. If another program has written a file with this key, its
    value is in the result, too, so that the caller notices it. A marker that was cut off when a
    build was killed is not valid JSON, and is ignored.

    Args:
        access: Access to the outputs of the project.
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
