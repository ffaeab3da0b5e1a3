"""Estimate how much disk space a build takes, and warn or refuse it if there is too little.

The estimate follows from the size of the raw text and the settings. For example, 40 GB of text may
give 20 GB of shards and 20 GB of datasets: a build with 30 GB of free space is refused.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.graph import Graph, graph_over
from nanoset_core.project.graph.nodes import walk_inputs
from nanoset_core.project.project import Project
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.dataset_estimate import built_share
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import (
    Estimated,
    InParts,
    Key,
    Node,
    Stage,
    current_version,
    require,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.paths import nearest_existing
from nanoset_core.text.files.endings import is_compressed
from nanoset_core.text.sampling import expansion
from nanoset_core.wording import abbreviated, format_bytes, format_count

LEAST_BYTES = 256 << 20
"""Builds that take less space than this are never refused, and reported only if it may not fit."""
_MAX_SAMPLED_CORPORA = 16
"""How many corpora are sampled at most, to see how well their files compress."""
_MAX_NAMED_VIEWS = 5
"""Views that the error of a refused build names at most."""
_REQUIRED_SHARE = 0.9
"""This share of the estimate has to be free, because an estimate may be slightly too high."""


def disk_need(project: Project, nodes: Collection[Node]) -> dict[str, int]:
    """Estimate how many bytes a build will write, so that it does not fill the disk.

    Args:
        project: The project, whose folder of raw text is listed.
        nodes: The outputs that will be made. Only kinds of outputs that are large are counted.

    Returns:
        Kind of output → bytes, such as {"shards": 600000000, "datasets": 600000000}, in the order
        of the stages. Kinds that take no space are left out.
    """
    estimates = _OutputEstimates(project)
    # A stage makes outputs of one kind, such as "shards".
    bytes_by_kind = {stage.estimated_as: 0 for stage in stages() if isinstance(stage, Estimated)}
    for node in nodes:
        if isinstance(node.stage, Estimated):
            bytes_by_kind[node.stage.estimated_as] += estimates.bytes_of(node.stage, node.key)
    return {kind: size for kind, size in bytes_by_kind.items() if size > 0}


class _OutputEstimates:
    """Estimates how many bytes each output of a project will take.

    Args:
        project: The project, whose raw text and outputs are looked at.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._text_estimates = _TextEstimates(project)
        # A stage, and the output whose parts it makes → bytes of each part.
        self._part_bytes: dict[tuple[Stage, str], int] = {}

    def bytes_of(self, stage: Estimated, key: Key) -> int:
        """Return how many bytes an output will take.

        An output may be a part of another one, such as some of the tars of a dataset. There may be
        thousands of parts. All count as equally large, so only the first one is estimated.

        Args:
            stage: The stage that makes the output.
            key: The output.
        """
        if not isinstance(stage, InParts):
            return self._estimate(stage, key)

        whole_output = (stage, key.subject)
        if whole_output not in self._part_bytes:
            self._part_bytes[whole_output] = self._estimate(stage, key)
        return self._part_bytes[whole_output]

    def _estimate(self, stage: Estimated, key: Key) -> int:
        """Return how many bytes an output will take, by an estimate of the text it is made from."""
        return stage.disk_bytes(self._project, key, self._text_estimates.of)


class _TextEstimates:
    """Estimates how much text the text collections (corpora) of a project have.

    From the size of the text follows the number of tokens. Suppose that an earlier build made 250
    million tokens of 1 GB of text, and that there are 2 GB now: then there will be about 500
    million tokens.

    Args:
        project: The project, whose raw text and outputs are looked at.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        # Several outputs are made from a corpus, so each estimate is used several times.
        self._estimate_by_corpus: dict[str, TextEstimate] = {}
        # For each corpus whose compressed files were sampled: bytes of text for a stored byte.
        self._expansions: list[float] = []

    def of(self, corpus: str) -> TextEstimate:
        """Return what is known of the size of a corpus's text.

        Args:
            corpus: Name of the corpus.

        Returns:
            The size of the files, and the earlier build if there is one, or else how well the files
            compress. Nothing is known if the folder of the corpus cannot be listed, which the build
            will report.
        """
        if corpus not in self._estimate_by_corpus:
            self._estimate_by_corpus[corpus] = self._estimate(corpus)
        return self._estimate_by_corpus[corpus]

    def _estimate(self, corpus: str) -> TextEstimate:
        """Return the estimate of a corpus of which there is none yet."""
        try:
            contents = list_contents(self._project, corpus)
        except NanosetError:
            return TextEstimate()
        try:
            earlier_build = current_version(self._project, TOKENIZED, Key(corpus)).manifest
        except NanosetError:
            earlier_build = None
        if earlier_build is not None:
            return TextEstimate(contents.size, earlier_build)

        # Nothing is known of the tokens of this text.
        return TextEstimate(contents.size, expansion=self._expansion(corpus, contents.texts))

    def _expansion(self, corpus: str, files: Sequence[FileStat]) -> float:
        """Return how many bytes of text a stored byte of a corpus has; more than 1 if compressed.

        To find this out, the beginnings of some files are read. In a bucket, each takes a request.
        A project may have thousands of corpora, so only the first ones are sampled. The others are
        taken to compress as well as these on average.

        Args:
            corpus: Name of the corpus.
            files: Its files.
        """
        has_compressed_files = any(is_compressed(file.path) for file in files)
        if not has_compressed_files:
            return 1.0
        if len(self._expansions) >= _MAX_SAMPLED_CORPORA:
            return statistics.fmean(self._expansions)

        value = expansion(self._project.config.corpus_folder(corpus), files)
        self._expansions.append(value)
        return value


def check_disk(project: Project, nodes: Collection[Node], say: Callable[[str], None]) -> None:
    """Report how much disk space a build takes, and stop it if there is too little.

    For example: "takes about 1.2 GB of disk (shards 600 MB, datasets 600 MB); 40 GB are free". If
    not all of it is free, a warning follows, or an error:

        at least 90 % is free    a warning, since the estimate may be too high
        less                     an error; only a warning for builds of less than 256 MiB

    Nothing is said of a build of less than 256 MiB that fits, and of outputs in a bucket.

    Args:
        project: The project, whose outputs are on the disk.
        nodes: The outputs that will be made.
        say: Prints a line for the user.

    Raises:
        StorageError: Less than 90 % of the estimate is free, or the disk cannot be queried.
    """
    free = free_bytes(project)
    if not nodes or free is None:  # None: outputs are in a bucket
        return

    # Compare the need with the free space.
    need = disk_need(project, nodes)
    total = sum(need.values())
    if is_refused(total, free):
        unbuilt_views = _views_without_known_size(project, nodes)
        raise _too_little_room_error(project.outputs.folder, free, need, unbuilt_views)

    warning = room_warning(total, free)
    if total < LEAST_BYTES and warning is None:
        return
    sizes = _sizes_text(need)
    say(f"takes about {format_bytes(total)} of disk ({sizes}); {format_bytes(free)} are free")
    if warning is not None:
        say(f"warning: {warning}")


def room_warning(needed: int, free: int | None) -> str | None:
    """Return the warning for a build that may not fit on the disk, as a clause; None if it fits.

    Args:
        needed: Bytes that the build takes, by estimate.
        free: Bytes that are free on the disk; None if outputs are in a bucket.
    """
    if free is None or free >= needed:
        return None
    if is_refused(needed, free):
        return "the disk is too small for this build, which would not start"
    return "the disk may be too small for this build"


def is_refused(needed: int, free: int | None) -> bool:
    """Return whether a build is refused because it would fill the disk.

    Args:
        needed: Bytes that the build takes, by estimate.
        free: Bytes that are free on the disk; None if outputs are in a bucket.
    """
    if free is None:
        return False
    return needed >= LEAST_BYTES and free < _REQUIRED_SHARE * needed


def _sizes_text(need: Mapping[str, int]) -> str:
    """Return sizes as text, such as "shards 1.2 GB, datasets 1.1 GB".

    Args:
        need: Kind of output → bytes.
    """
    return ", ".join(f"{kind} {format_bytes(size)}" for kind, size in need.items())


def _views_without_known_size(project: Project, nodes: Collection[Node]) -> list[str]:
    """Return the views that may make an estimate too high, since they were never built.

    How many documents the rules of a view choose is only known when it is built. Until then, large
    outputs that are made from it, such as tars, are estimated as if it had its whole corpus.

    Args:
        project: The project, whose outputs are searched for views.
        nodes: The outputs whose size is estimated.

    Returns:
        Corpus and view of each, such as "web/clean", sorted.
    """
    large_outputs = [node for node in nodes if isinstance(node.stage, Estimated)]
    names: list[str] = []
    for node in walk_inputs(large_outputs, lambda output: output.read_inputs(project.config)):
        corpus = node.key.subject
        if node.stage is VIEW and built_share(project, corpus, node.name) is None:
            names.append(f"{corpus}/{node.name}")
    return sorted(names)


def _too_little_room_error(
    folder: Path, free: int, need: Mapping[str, int], unbuilt_views: Sequence[str]
) -> StorageError:
    """Return the error with which a build stops at its start if it would fill the disk.

    For example: "500 MB free; about 1.2 GB: shards 600 MB, datasets 600 MB".

    Args:
        folder: Folder of the outputs.
        free: Bytes that are free on its disk.
        need: Kind of output → bytes that the build would take, by estimate.
        unbuilt_views: Views that may make the estimate too high, such as "web/clean".
    """
    total = sum(need.values())
    remedy = (
        "run `nanoset gc --yes`, give `root` a larger disk or a bucket, "
        "or build less at once (--select)"
    )
    if unbuilt_views:
        names = abbreviated(unbuilt_views, _MAX_NAMED_VIEWS)
        remedy += (
            f". The estimate may be too high, since these views were not built yet: {names}. Build "
            "them first (`nanoset build --select '*/views'`), since the estimate then counts only "
            "what they choose"
        )
    return StorageError(
        "the disk has too little room for this build",
        where=folder,
        found=f"{format_bytes(free)} free",
        expected=f"about {format_bytes(total)}: {_sizes_text(need)}",
        remedy=remedy,
    )


def free_bytes(project: Project) -> int | None:
    """Return how many bytes are free on the disk of the outputs; None for a bucket.

    Args:
        project: The project. Its folder of outputs need not exist yet: for /data/new/outputs, the
            disk of the nearest folder that exists counts, such as /data.

    Raises:
        StorageError: The disk cannot be queried.
    """
    if project.config.root_place is not None:
        return None
    existing = nearest_existing(project.outputs.folder)
    try:
        return shutil.disk_usage(existing).free
    except OSError as error:
        raise StorageError(
            "the free space on the disk of the outputs cannot be read", where=existing, found=error
        ) from error


def plan_line(step_count: int, size_by_corpus: Mapping[str, int]) -> str:
    """Return the first line that a build prints: how many steps it has, and how much text it reads.

    For example, with 12 steps, and two collections of texts (corpora) that are read:

        plan: 12 steps, from 3.2 GB of text in 2 corpora

    Args:
        step_count: Number of steps; each makes one output.
        size_by_corpus: Corpus → bytes of text that are read, such as {"web": 3000000000, "code":
            200000000}.
    """
    steps = format_count(step_count, "step")
    n_corpora = len(size_by_corpus)
    if n_corpora == 0:
        return f"plan: {steps}"
    corpora = "1 corpus" if n_corpora == 1 else f"{n_corpora:,} corpora"
    size = format_bytes(sum(size_by_corpus.values()))
    return f"plan: {steps}, from {size} of text in {corpora}"


def stale_outputs(project: Project, corpus: str) -> set[Node]:
    """Return which outputs of a text collection (corpus) a build is about to write.

    A build calls this to check whether the disk has room for them. It has just listed the files of
    the corpus, and stored the list. Everything else is made from this list. For example, after a
    file was added:

        list of files    has just been made
        tokens           made from an older list          returned
        dataset          made from tokens that change     returned

    Args:
        project: The project, whose outputs are looked at. The raw text is not read.
        corpus: Name of the corpus.

    Raises:
        MissingError: There is no list of the files.
    """
    graph = _graph_from_file_list(project, corpus)
    stale_nodes = []
    for node in graph.nodes():
        is_of_this_corpus = node.is_of_corpus and node.key.subject == corpus
        if is_of_this_corpus and graph.stale_reasons(node):
            stale_nodes.append(node)
    return set(graph.nodes_to_write(stale_nodes))  # without those that only lack a link


def _graph_from_file_list(project: Project, corpus: str) -> Graph:
    """Return the graph of the outputs that are made from the stored list of a corpus's files.

    The list is up to date. So the recipe by which it was made (its inputs and settings) is also the
    one by which it should be made. From it, the graph derives the recipes of all other outputs. An
    output that was made by another recipe is stale.

    Args:
        project: The project, whose outputs are looked at.
        corpus: Name of the corpus (a text collection).

    Raises:
        MissingError: There is no list of the files.
    """
    file_list = require(project, INVENTORY, Key(corpus))
    recipe_of_list = from_plain(Recipe, file_list.recipe)
    return graph_over(project, {corpus: recipe_of_list}, [corpus])
