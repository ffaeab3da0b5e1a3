"""The run that a nanoset goes on with: from a version of a handoff to what was read of its train split."""

from __future__ import annotations

import re
from dataclasses import replace

from nanoset_core.errors import ConfigError, one_of
from nanoset_core.loading.opening import BLEND, HANDOFF, MAPPINGS, PLAN_FILE, STAGE, read_split
from nanoset_core.outputs.erasures import missing_version
from nanoset_core.outputs.manifest import Manifest, is_digest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import config_from
from nanoset_core.records.parsing import read_yaml, yaml_value
from nanoset_core.sampling.orders import Read
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.mappings.settings import ContinueSpec

HANDOFF_FOLDER = re.compile(rf"(?:.*/)?{STAGE}/([^/]+)/{HANDOFF}/([^/]+)/?")
"""A handoff's folder, wherever its root lies: name of the nanoset, and digest or `current`."""


def handoff_named(given: ContinueSpec) -> tuple[str, str]:
    """Return (nanoset, digest) of the handoff that a run was started with; ConfigError where no version is named."""
    found = HANDOFF_FOLDER.fullmatch(given.handoff)
    if found is None or found[2] == "current":
        raise ConfigError(
            "this names no version of a handoff",
            where="continue_from.handoff",
            found=given.handoff,
            expected=f"…/{STAGE}/<nanoset>/{HANDOFF}/<digest>",
            remedy="give the folder that the run was started with; `current` may be another one by now",
        )
    return found[1], found[2]


def versions_before(outputs: OutputRoot, name: str, digest: str) -> dict[str, Manifest]:
    """Return "handoff" → a version of a handoff, split → its output; MissingError where one is gone."""
    handoff = _version(outputs, f"{name}/{HANDOFF}", digest)
    found = {HANDOFF: handoff}
    for split in SPLITS:
        places = [f"{name}/{split}/{last}" for last in (BLEND, MAPPINGS)]
        parent = handoff.recipe["parents"][split]
        folders = (outputs.folder / STAGE / place / parent for place in places)
        there = next((manifest for folder in folders if (manifest := outputs.manifest_at(folder))), None)
        found[split] = _version(outputs, places[-1], parent) if there is None else there
    return found


def read_before(outputs: OutputRoot, given: ContinueSpec) -> Read:
    """Return what a run has read of the train split of the nanoset that it was started with.

    Raises:
        ConfigError: the handoff is not named, or has no train split.
        MissingError: it, or its train split, is gone.
    """
    found = versions_before(outputs, *handoff_named(given))
    handoff, train = found[HANDOFF], found["train"]
    plan, config = train.load(PLAN_FILE, lambda value: read_split(value, outputs.folder))
    if plan is None:
        what, remedy = "the run has no train split to go on from", "name a handoff of a nanoset that has one"
        raise ConfigError(what, where=handoff.url(), remedy=remedy)
    options = handoff.recipe["options"]
    before = options["span"][0] * options["schedule"][1] if options.get("span") else 0
    return Read(plan, config, given.consumed_samples - before, before)


def going_on(project: Project, name: str, handoff: str, consumed_samples: int) -> tuple[Project, str]:
    """Return the project in which a nanoset goes on with a run, and the lines of nanoset.yaml that say so.

    Args:
        project: with the nanoset, and its new blend.
        name: of the nanoset.
        handoff: folder of the handoff that the run was started with; `current` of it, or the nanoset's name, is the
            version that is current now.
        consumed_samples: of train, by all ranks.

    Raises:
        ConfigError: there is no such nanoset, or it cannot go on.
        MissingError: there is no such handoff.
    """
    config, outputs = project.config, project.outputs
    project.nanoset(name)
    if (named := re.fullmatch(rf"(?:(?:.*/)?{STAGE}/)?([^/]+)(?:/{HANDOFF}/current)?/?", handoff)) is not None:
        place, remedy = f"{named[1]}/{HANDOFF}", "name the handoff that the run was started with"
        handoff = f"{STAGE}/{place}/{outputs.require(STAGE, place, remedy=remedy).digest}"
    handoff_named(ContinueSpec(handoff, consumed_samples))
    value, _ = read_yaml(config.file, remedy="correct the line")
    spec = value.get("nanosets", {}).get(name)
    if spec is None:
        what, remedy = "a phase goes on by `continue` alone", "name a nanoset of nanoset.yaml"
        raise ConfigError(what, where=f"{config.file}: nanosets.{name}", remedy=remedy)
    given = {"handoff": handoff, "consumed_samples": consumed_samples}
    changed = value | {"nanosets": value["nanosets"] | {name: spec | {"continue_from": given}}}
    lines = f"  {name}:\n    continue_from: {{handoff: {yaml_value(handoff)}, consumed_samples: {consumed_samples}}}"
    return replace(project, config=config_from(changed, config.file)), f"nanosets:\n{lines}"


def _version(outputs: OutputRoot, name: str, digest: str) -> Manifest:
    folder = outputs.folder / STAGE / name / digest
    if (found := outputs.manifest_at(folder)) is None:
        what, remedy = "what a run was started with is not there", "correct the name of its handoff, or restore it"
        expected = one_of(sorted(filter(is_digest, outputs.access.names(folder.parent))), "one that was built; none is")
        raise missing_version(outputs.access, (STAGE, name, digest), what, expected=expected, remedy=remedy)
    return found
