"""What of an edited nanoset.yaml is not seen until the definitions are loaded again.

Values are read anew by every run and tick. Which assets there are, their partitions, the lines between them, and when
sensors and schedule tick, belong to the definitions, which Dagster holds as they were loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline.graph import asked_nodes
from nanoset_core.pipeline.stage import Node

RELOAD = "choose Reload on the page Deployment, Code locations"
_Shape = dict[str, set[tuple[Node, frozenset[Node]]]]
"""Nanoset, webdataset, or asset of all corpora → its outputs, each with what it is made from."""


def not_loaded(loaded: ProjectConfig, now: ProjectConfig) -> str | None:
    """What changed in nanoset.yaml that the definitions do not show, and what to do; None where they show it all."""
    if loaded == now:
        return None
    changes = ", ".join(_changes(loaded, now))
    return f"{now.file.name} {changes}: {RELOAD}" if changes else None


def _changes(loaded: ProjectConfig, now: ProjectConfig) -> Iterator[str]:
    before, after = _shape(loaded), _shape(now)
    for what in sorted(before.keys() | after.keys()):
        if what not in before:
            yield f"has the new {what}"
        elif what not in after:
            yield f"no longer has the {what}"
        elif before[what] != after[what]:
            yield f"has other corpora or parts of the {what}"
    if replace(loaded.automation, settle_seconds=now.automation.settle_seconds) != now.automation:
        yield "has other settings of automation"
    if loaded.dagster != now.dagster:
        yield "gives other names in Dagster"
    if (loaded.raw, loaded.root) != (now.raw, now.root):
        yield "has another place of raw or root"


def _shape(config: ProjectConfig) -> _Shape:
    shape: _Shape = {}
    for node in asked_nodes(config):
        if node.stage.by_corpus:
            shape[f"asset {node.stage.asset}"] = set()  # its partitions are the corpora, whichever they are
        else:
            outputs = shape.setdefault(f"{node.stage.kind} {node.key.subject!r}", set())
            outputs.add((node, frozenset(node.inputs(config).values())))
    return shape
