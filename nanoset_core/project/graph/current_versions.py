"""The current versions of the outputs of a project, each of which is read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import InParts, Node, Stage, current_version


class CurrentVersions:
    """The current version of each output of a project, read once and then remembered."""

    def __init__(self, project: Project, corpora: Sequence[str]) -> None:
        """Begin without having read a version.

        Args:
            project: The project, whose output folder has the versions.
            corpora: Names of the corpora (text collections) of the raw folder.
        """
        self.project = project
        self.corpora = corpora
        self._versions: dict[Node, CurrentVersion] = {}  # output → its current version
        # The outputs whose last check has found an error; None until they are read.
        self._failed_checks: FailedChecks | None = None
        # Folder, such as datasets → the project with a list of the files in it; see `project_of`.
        self._project_by_folder: dict[str, Project] = {}

    def of(self, node: Node) -> CurrentVersion:
        """Return the current version of an output: the build that other programs read now.

        It is looked up once, and then remembered.

        Args:
            node: The output.

        Returns:
            The version, or the reason why there is no usable one.
        """
        if node in self._versions:
            return self._versions[node]

        project = self.project_of(node)
        is_in_bucket = project.outputs.access.takes_requests
        if node.is_of_corpus and is_in_bucket:
            # A request takes long. Callers usually ask about all text collections in turn. So
            # request this kind of output of all of them at the same time.
            self._versions.update(self._read_for_all_corpora(node.stage, project))

        if node not in self._versions:
            self._versions[node] = current_version(project, node.stage, node.key)
        return self._versions[node]

    def _read_for_all_corpora(self, stage: Stage, project: Project) -> dict[Node, CurrentVersion]:
        """Return the current versions of one kind of output, such as the datasets, of all corpora.

        They are requested from a bucket at the same time, since one request after another would
        take long.

        Args:
            stage: What makes the outputs, such as the stage that makes datasets.
            project: The project, with a listing of the folder with these outputs.

        Returns:
            Output → its current version, without those that are known from earlier calls.
        """
        nodes = [Node(stage, key) for key in stage.keys(project.config, self.corpora)]
        unknown_nodes = [node for node in nodes if node not in self._versions]
        names = [node.name for node in unknown_nodes]  # the text collections: ["web", "code"]
        versions = project.outputs.current_versions(stage.layout.folder, names)
        return dict(zip(unknown_nodes, versions, strict=True))

    def project_of(self, node: Node) -> Project:
        """Return the project, prepared to look at an output and similar ones with a single request.

        If the outputs are in a bucket, each look at a file is a request, which takes some time, and
        there may be thousands of files. The returned project lists a whole folder by one request
        when it is first used, and then answers from that list. Listings are remembered:

            asked for the dataset of web     lists datasets
            asked for the dataset of code    uses the same list
            asked for the index of pretrain  lists nanosets/pretrain

        Args:
            node: The output.
        """
        folder = self._folder_to_list(node)
        if folder not in self._project_by_folder:
            self._project_by_folder[folder] = self.project.with_listing(folder)
        return self._project_by_folder[folder]

    def _folder_to_list(self, node: Node) -> str:
        """Return which folder to list in order to look at an output, and at similar ones.

            dataset of the corpus web        "datasets", which has the datasets of all corpora
            index of the nanoset pretrain    "nanosets/pretrain"
            some tars of a webdataset        the folder of the plan, which says what is in the tars

        Args:
            node: The output.
        """
        folder = node.stage.layout.folder
        if isinstance(node.stage, InParts) and node.stage.listed_folder is not None:
            folder = node.stage.listed_folder
        if node.is_of_corpus:
            return folder
        return f"{folder}/{node.key.subject}"

    @property
    def failed_checks(self) -> FailedChecks:
        """The outputs whose last check has found an error. They are read once, and remembered."""
        if self._failed_checks is None:
            self._failed_checks = FailedChecks.read(self.project.outputs)
        return self._failed_checks

    def forget(self, nodes: Iterable[Node]) -> None:
        """Forget the versions of some outputs, such as those that a build has just made.

        Listings of folders and the results of checks are forgotten as well, for all outputs.

        Args:
            nodes: The outputs.
        """
        for node in nodes:
            self._versions.pop(node, None)  # nothing happens if it was never read
        self._failed_checks = None
        self._project_by_folder.clear()
