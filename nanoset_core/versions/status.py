"""`nanoset status`: what is up to date, stale, missing or failing, without building and without reading text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.current import Reason
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.graph import Graph, inventory_node, named_corpora
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Budget, Node, Stage
from nanoset_core.pipeline.tokenization import check_tokenizer
from nanoset_core.raw.contents import Notice
from nanoset_core.storage.leases import leased_names
from nanoset_core.versions.file_changes import READ_BYTES, survey_stats

State = Literal["up to date", "stale", "missing", "failing", "not read"]
PLANNED_BYTES = 64 << 20
"""Splits that are not built are planned, to learn whether they can be, until so many bytes of .idx files were read."""


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one corpus, split, handoff, webdataset or packed corpus; or a folder that is no corpus."""

    kind: str
    """Corpus, nanoset, webdataset or packed; folder for what is not read."""
    name: str
    """Of the corpus, nanoset or webdataset."""
    part: str | None
    """Of a nanoset: a split, or handoff."""
    state: State
    """What a build would find."""
    why: tuple[str, ...]
    """What has to change, or did; empty when up to date. Of what is not read: what it is."""
    figures: Mapping[str, int]
    """Of the current version: files, documents, tokens, rejected, samples, shards, bytes… as far as they apply."""
    made_at: float | None
    """When the current version was made, seconds since 1970."""
    busy: bool = False
    """Whether a build works on it now."""
    rejects: tuple[str, ...] = field(default=())
    """Files that hold rejected lines."""
    warnings: tuple[str, ...] = field(default=())
    """Faults that are allowed: clauses that name the files."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What only tables show: column → text, such as epochs and tokens dropped."""
    notices: tuple[Notice, ...] = ()
    """Of a corpus: notices on its files."""

    @property
    def label(self) -> str:
        """Kind and name, as one."""
        return f"{self.kind} {self.name}" + (f" {self.part}" if self.part else "")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "part": self.part,
            "state": self.state,
            "why": list(self.why),
            **self.figures,
            "made_at": self.made_at,
            "building": self.busy,
            "rejects": list(self.rejects),
            "warnings": list(self.warnings),
            "notices": [notice.to_json() for notice in self.notices],
        }


def project_status(project: Project) -> Iterator[Row]:
    """Yield the state of every corpus, nanoset, webdataset and packed corpus, each as soon as it is known.

    Files are known by size, time and inode from earlier surveys; those of the current inventory that were written since
    are read where they are small (8 MiB in all). What is not up to date here, `nanoset build` would make; its history
    of runs is not looked at.

    Raises:
        MissingError, InputError, ConfigError: the raw folder, or nanoset.yaml, is not as it must be.
    """
    check_tokenizer(project)
    busy = leased_names(project.outputs.access)
    known: dict[Node, Recipe] = {}
    corpora = sorted({*raw.corpora(project), *named_corpora(project.config)})
    graph = Graph(project, known, corpora)
    yield from _aside(project)
    reading, planning = Budget(READ_BYTES), Budget(PLANNED_BYTES)
    for nodes in graph.rows():
        roots = [node for node in nodes if node == inventory_node(node.key.subject)]
        failure, notices = _survey(graph, known, roots[0], reading) if roots else (None, [])
        row = _row(graph, nodes, planning, failure, busy=nodes[0].key.subject in busy)
        yield replace(row, notices=tuple(notices))


def graph_status(graph: Graph) -> Iterator[Row]:
    """Yield the same rows where the graph knows the corpora's inventories, as after a build; no file is read."""
    yield from _aside(graph.project)
    planning = Budget(PLANNED_BYTES)
    for nodes in graph.rows():
        row = _row(graph, nodes, planning, None, busy=False)
        if nodes[0] == inventory_node(row.name):
            with suppress(NanosetError, OSError):  # the corpus is gone by now
                row = replace(row, notices=tuple(raw.notices(graph.project, row.name)))
        yield row


def _aside(project: Project) -> Iterator[Row]:
    for name, what in raw.aside(project).items():
        yield Row("folder", name, None, "not read", (what,), {}, None)


def _survey(graph: Graph, known: dict[Node, Recipe], root: Node, reading: Budget) -> tuple[str | None, list[Notice]]:
    """Add the present inventory of a corpus to the graph; return (why its files cannot be read, notices on them)."""
    current = graph.current(root)
    whole = current.manifest if current.problem is None else None
    try:
        survey = survey_stats(graph.project, root.key.subject, whole, reading)
    except (NanosetError, OSError) as error:
        graph.reasons[root] = [Reason(one_line(error))]
        return one_line(error), []
    if survey.recipe is not None:
        known[root] = survey.recipe
    if survey.recipe is None or whole is None or survey.recipe.digest != whole.digest:
        graph.reasons[root] = [Reason(current.problem or survey.changes or "the inventory's format changed")]
    return None, raw.notices(graph.project, root.key.subject, survey.contents)


def _row(graph: Graph, nodes: list[Node], planning: Budget, failure: str | None, *, busy: bool) -> Row:
    last = graph.current(nodes[-1])
    why = _reasons(graph, nodes) if failure is None else [failure]
    state: State = "up to date" if not why else "stale" if last.exists else "missing"
    if failure is None and why:
        wanted = ((node, graph.recipe(node)) for node in nodes)
        refusals = (one.stage.refusal(graph.project, one.key, recipe, planning) for one, recipe in wanted if recipe)
        failure = next(filter(None, refusals), None)
    if failure is not None:
        state, why = "failing", [failure]
    made = [(node.stage, manifest) for node in nodes if (manifest := graph.current(node).manifest) is not None]
    figures, sizes = dict[str, int](), []
    for stage, manifest in made:
        figures |= stage.figures(manifest)
        sizes += [figures.pop("bytes")] if "bytes" in figures else []
    return Row(
        *nodes[0].row,
        state,
        tuple(why),
        figures | ({"bytes": sum(sizes)} if sizes else {}),
        last.made_at,
        busy,
        tuple(file for stage, manifest in made for file in stage.rejects(graph.project, manifest)),
        tuple(_warnings(graph.project, made)) if failure is None else (),
        {column: text for stage, manifest in made for column, text in stage.details(manifest).items()},
    )


def _warnings(project: Project, made: Sequence[tuple[Stage, Manifest]]) -> Iterator[str]:
    for stage, manifest in made:
        try:
            yield from stage.warnings(project, manifest)
        except NanosetError as error:
            yield one_line(error)


def _reasons(graph: Graph, nodes: list[Node]) -> list[str]:
    """Return why a row's outputs are not up to date, without reasons that follow from an earlier one of them.

    Where only parts of the last output are left to be made, how many are is the reason.
    """
    complete = not graph.stale_reasons(nodes[-1])  # so are its parts then, and need not be looked at
    reasons = {node: graph.stale_reasons(node) for node in nodes if node.stage.counted_as is None or not complete}
    stale = {node for node, found in reasons.items() if found}
    why: list[str] = []
    parts = [node for node in nodes if node.stage.counted_as is not None]
    for node in nodes:
        if node.stage.counted_as is None:
            inputs = node.inputs(graph.project.config)
            why += [one.text for one in reasons[node] if one.input is None or inputs.get(one.input) not in stale]
    if stale and parts:
        stage, needs = parts[0].stage, {one for node in parts for one in node.inputs(graph.project.config).values()}
        if stale.isdisjoint(needs):
            texts = (reason.text for node in parts for reason in reasons.get(node, ()))
            why += [text for text in texts if text != stage.to_be_made]
            why.append(f"{len(parts) - len(stale.intersection(parts)):,} of {len(parts):,} {stage.counted_as} written")
    return list(dict.fromkeys(why))
