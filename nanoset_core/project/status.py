"""`nanoset status`: what is up to date, stale, missing or failing, without building and without reading text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.current import Reason
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.graph import Graph, inventory_node, named_corpora
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.inventory import stage as raw
from nanoset_core.stages.shards.stage import check_tokenizer
from nanoset_core.stages.stage import InParts, Node, Planned, ReadingBudget, Summary, settings_warnings
from nanoset_core.storage.leases import Work, under_way
from nanoset_core.text.contents import Contents, Notice
from nanoset_core.text.fingerprints import fingerprint, is_known_unread
from nanoset_core.text.pieces import Inventory, Piece
from nanoset_core.text.survey import no_text

READ_BYTES = 8 << 20
"""Files whose digests are not known are read up to this many bytes in all, such as files written lately."""
_COPIED = "copied or written again, which the next build reads to compare"
_Look = tuple[str | None, list[Notice]]
"""(Why a corpus's files cannot be read, notices on them)."""
State = Literal["up to date", "stale", "missing", "failing", "being built", "not read"]
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
    busy: Work | None = None
    """What a build makes of it now."""
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
            "building": self.busy is not None,
            **({} if self.busy is None else {"host": self.busy.host, "share": self.busy.share}),
            "rejects": list(self.rejects),
            "warnings": list(self.warnings),
            "notices": [notice.to_json() for notice in self.notices],
        }


def project_status(project: Project) -> Iterator[Row]:
    """Yield the state of every corpus, nanoset, webdataset and packed corpus, each as soon as it is known.

    Files are known by size, time and inode from earlier surveys; those of the current inventory that were written since
    are read where they are small (8 MiB in all). What is not up to date here, `nanoset build` would make; its history
    of runs is not looked at. Raises where the raw folder, or nanoset.yaml, is not as it must be.
    """
    check_tokenizer(project)
    busy = under_way(project.outputs.access)
    known: dict[Node, Recipe] = {}
    text = raw.names(project)
    graph = Graph(project, known, sorted({*text.corpora, *named_corpora(project.config)}))
    reading = ReadingBudget(READ_BYTES)
    for row in _rows(graph, text.aside, lambda root: survey_known(graph, known, root, reading)):
        yield row if (work := busy.get(row.name)) is None else _being_built(row, work)


def _being_built(row: Row, work: Work) -> Row:
    if row.state not in ("missing", "stale"):
        return replace(row, busy=work)
    return replace(row, busy=work, state="being built", why=(str(work),))


def graph_status(graph: Graph, aside: Mapping[str, str]) -> Iterator[Row]:
    """Yield the same rows where the graph knows the corpora's inventories, as after a build; no file is read.

    `aside` are the folders that are no corpora, see RawText.
    """

    def look(root: Node) -> _Look:
        with suppress(NanosetError, OSError):  # the corpus is gone by now
            return None, raw.notices(graph.listed(root), root.key.subject)
        return None, []

    yield from _rows(graph, aside, look)


def _rows(graph: Graph, aside: Mapping[str, str], look: Callable[[Node], _Look]) -> Iterator[Row]:
    for name, what in aside.items():
        yield Row("folder", name, None, "not read", (what,), {}, None)
    planning = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        root = inventory_node(nodes[0].key.subject)
        failure, notices = look(root) if root in nodes else (None, [])
        yield replace(row_of(graph, nodes, planning, failure), notices=tuple(notices))


def survey_known(graph: Graph, known: dict[Node, Recipe], root: Node, reading: ReadingBudget) -> _Look:
    """Add the present inventory of a corpus to the graph."""
    project, corpus, current = graph.project, root.key.subject, graph.current(root)
    whole = current.manifest if current.problem is None else None
    try:
        contents = raw.contents_now(project, corpus)
        if not contents.texts:
            raise no_text(raw.corpus_folder(project, corpus), contents)
        recipe, changes = _recipe_now(project, corpus, contents, whole, reading)
    except (NanosetError, OSError) as error:
        graph.reasons[root] = [Reason(one_line(error))]
        return one_line(error), []
    if recipe is not None:
        known[root] = recipe
    if recipe is None or whole is None or recipe.digest != whole.digest:
        graph.reasons[root] = [Reason(current.problem or changes or "the inventory's format changed")]
    return None, raw.notices(graph.listed(root), corpus, contents)


def row_of(graph: Graph, nodes: list[Node], planning: ReadingBudget, failure: str | None) -> Row:
    last = graph.current(nodes[-1])
    why = _reasons(graph, nodes) if failure is None else [failure]
    state: State = "up to date" if not why else "stale" if last.exists else "missing"
    if failure is None and why:
        failure = _first_refusal(graph, nodes, planning)
    warnings: list[str] = []
    for node in nodes:
        warnings += settings_warnings(node.stage, graph.project.config, node.key)
    rejects: list[str] = []
    figures: dict[str, int] = {}
    details: dict[str, str] = {}
    for node in nodes:
        manifest = graph.current(node).manifest
        if manifest is None:
            continue
        try:
            summary = node.stage.show(graph.project, manifest)
        except NanosetError as error:  # what it would show of other versions, such as its shards, cannot be read
            summary = Summary(warnings=[one_line(error)])
        added = {name: count for name, count in summary.figures.items() if name != "bytes"}
        if "bytes" in summary.figures:
            added["bytes"] = figures.pop("bytes", 0) + summary.figures["bytes"]
        figures |= added
        details |= summary.details
        rejects += summary.rejects
        if failure is None:
            warnings += summary.warnings
    return Row(
        *nodes[0].row,
        state if failure is None else "failing",
        tuple(why) if failure is None else (failure,),
        figures,
        last.made_at,
        rejects=tuple(rejects),
        warnings=tuple(warnings),
        details=details,
    )


def _first_refusal(graph: Graph, nodes: list[Node], planning: ReadingBudget) -> str | None:
    """Return why the first output of a row that cannot be made would fail, or None."""
    for node in nodes:
        recipe = graph.recipe(node)
        if recipe is not None and isinstance(node.stage, Planned):
            refusal = node.stage.refusal(graph.project, node.key, recipe, planning)
            if refusal is not None:
                return refusal
    return None


def _reasons(graph: Graph, nodes: list[Node]) -> list[str]:
    """Return why a row's outputs are not up to date, without reasons that follow from an earlier one of them.

    Where only parts of the last output are left to be made, how many are is the reason.
    """
    config, complete = graph.project.config, not graph.stale_reasons(nodes[-1])
    parts = [node for node in nodes if isinstance(node.stage, InParts)]
    # where the last output is complete, so are its parts, and need not be looked at
    reasons = {node: graph.stale_reasons(node) for node in nodes if not complete or node not in parts}
    stale = {node for node, found in reasons.items() if found}
    needs = {need for node in parts for need in node.inputs(config).values()}
    why: list[str] = []
    for node, found in reasons.items():
        inputs = node.inputs(config)
        if node not in parts:
            why += [one.text for one in found if one.input is None or inputs.get(one.input) not in stale]
        elif stale.isdisjoint(needs):
            why += [one.text for one in found if one != InParts.NOT_WRITTEN]
    if stale and parts and stale.isdisjoint(needs):
        written = len(parts) - len(stale.intersection(parts))
        why.append(f"{written:,} of {len(parts):,} {_parts_name(parts[0])} written")
    return list(dict.fromkeys(why))


def _parts_name(node: Node) -> str:
    return node.stage.parts_name if isinstance(node.stage, InParts) else "parts"


def _recipe_now(
    project: Project, corpus: str, contents: Contents, live: Manifest | None, budget: ReadingBudget
) -> tuple[Recipe | None, str]:
    """Return (recipe of the inventory of a corpus's files, how they differ from the current one).

    By digests that earlier surveys kept; no recipe where files would have to be read.
    """
    folder = project.config.corpus_folder(corpus)
    memory = raw.memory_of(project, folder)
    noted = raw.pieces_by_file(live)
    found = {stat.path: memory.recall(stat) for stat in contents.ordered}
    ends = {path: pieces[-1].end for path, pieces in noted.items()}
    unknown = [stat for stat in contents.ordered if found[stat.path] is None and ends.get(stat.path) == stat.size]
    size = 0 if is_known_unread(folder) else sum(stat.size for stat in unknown)
    if budget.spend(size):  # all or none: some would look as if they differed
        found |= {stat.path: fingerprint(folder, stat) for stat in unknown}
    changes = _changes(found, noted, {stat.path for stat in unknown})
    if live is not None and not changes and live.recipe["version"] == raw.VERSION:
        return Recipe(**live.recipe), changes
    if any(pieces is None for pieces in found.values()):
        return None, changes
    inventory = Inventory(corpus, tuple(piece for pieces in found.values() for piece in pieces or ()))
    return raw.inventory_recipe(inventory), changes


def _changes(found: Mapping[str, list[Piece] | None], noted: Mapping[str, list[Piece]], unknown: set[str]) -> str:
    """Describe how files differ from those that are noted; unknown: those that may be the same."""
    named: dict[str, list[str]] = {what: [] for what in ("added", "removed", "changed", _COPIED)}
    for path in dict.fromkeys((*found, *noted)):
        if path not in noted or path not in found:
            named["removed" if path in noted else "added"].append(path)
        elif found[path] != noted[path]:
            named[_COPIED if found[path] is None and path in unknown else "changed"].append(path)
    return "; ".join(
        f"{format_count(len(paths), 'file')} {what} ({', '.join(paths[:2])}{', …' * (len(paths) > 2)})"
        for what, paths in named.items()
        if paths
    )
