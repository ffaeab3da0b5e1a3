"""Asset checks: what was just made is verified before anything is made of it."""

import warnings
from collections.abc import Callable, Sequence

import dagster as dg

from nanoset_assets.asset_table import SHAPES, asset_path
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.instance_state import CHECK
from nanoset_assets.stages_table import key_of, partitions_of, subjects_of
from nanoset_assets.ui.metadata import table, visible_metadata
from nanoset_core.errors import NanosetError
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.report import Report
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, Node, Stage, require, settings_warnings
from nanoset_core.untrusted import Multiline, visible

LOSSES = "losses"
"""The name of the check that warns of text that did not become tokens."""
TRAINER = "trainer"
"""The name of the check that warns of a trainer that will not find what was made."""
_WARNINGS = {
    LOSSES: (TOKENIZED, "Warns of text that was lost, or that is there twice; blocks nothing."),
    "joined": (
        ATTRIBUTES,
        "Warns of documents without a row, or with several, and of rows without one; blocks nothing.",
    ),
    "contaminated": (CONTAMINATION, "Warns of documents that hold texts of evaluations; blocks nothing."),
    "held_out_in_train": (HELD_OUT, "Warns of documents that are held out and in train; blocks nothing."),
    TRAINER: (
        TRAINER_FILES,
        "Warns if the trainer will not find the index files, or if the order of a view is lost; blocks nothing.",
    ),
}


_Find = Callable[[dg.AssetCheckExecutionContext, ProjectDefs, Stage, Key], dg.AssetCheckResult]


class VerificationError(NanosetError, ValueError):
    """A check found errors in what was just made."""


def checks_for(hosted: ProjectDefs) -> list[dg.AssetChecksDefinition]:
    """Make one blocking check for each asset whose faults would spoil what is made of it, and those that warn.

    Warnings are apart, since Dagster's conditions wait for what a failed check is about.
    """
    checks = [(stage, CHECK, shape.check, _verified) for stage, shape in SHAPES.items() if shape.check is not None]
    warn = [(stage, name, description, _warned) for name, (stage, description) in _WARNINGS.items()]
    return [
        _check(stage, hosted, subject, keys, name, description, find)
        for stage, name, description, find in [*checks, *warn]
        for subject, keys in subjects_of(stage, hosted.config).items()
    ]


def _check(
    stage: Stage, hosted: ProjectDefs, subject: str, keys: Sequence[Key], name: str, description: str, find: _Find
) -> dg.AssetChecksDefinition:
    with warnings.catch_warnings():
        # Dagster calls checks by partition a preview; without them a failed corpus could not be told from another.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)

        @dg.asset_check(
            asset=hosted.names.asset(asset_path(Node(stage, Key(subject)))),
            name=name,
            description=description,
            blocking=name == CHECK,
            partitions_def=partitions_of(stage, hosted, keys),
        )
        def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            return find(context, hosted, stage, key_of(context, stage, subject))

    return check


def _verified(
    context: dg.AssetCheckExecutionContext, hosted: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Return what a check found: errors fail it and block, warnings are described."""
    report = stage.verify(hosted.load_in_step(context), key)
    if not report.passed:
        hosted.failures.append((Node(stage, key), _failure(report)))
    for finding in report.findings:
        (context.log.error if finding.severity == "error" else context.log.warning)(visible(Multiline(finding)))
    names = ("severity", "output", "what", "where", "found", "expected", "remedy")
    rows = [{name: getattr(finding, name) or "" for name in names} for finding in report.findings]
    return dg.AssetCheckResult(
        passed=not report.errors,
        description=visible("; ".join(finding.what for finding in report.findings) or "nothing is wrong"),
        metadata={**visible_metadata(report.figures), **({"findings": table(rows)} if rows else {})},
    )


def _failure(report: Report) -> VerificationError:
    """Make the error that says what a check found."""
    first, *others = report.errors
    more = f" (and {len(others):,} more: run `nanoset verify`)" if others else ""
    where = f"{first.output}: {first.where}" if first.where is not None else first.output
    details = {"where": where, "found": first.found, "expected": first.expected, "remedy": first.remedy}
    return VerificationError(f"what was made is not right: {first.what}{more}", **details)


def _warned(context: dg.AssetCheckExecutionContext, hosted: ProjectDefs, stage: Stage, key: Key) -> dg.AssetCheckResult:
    """Return the warnings of an output that a stage has for it."""
    project = hosted.load_in_step(context)
    manifest = require(project, stage, key)
    warnings_ = [*stage.show(project, manifest).warnings, *settings_warnings(stage, project.config, key)]
    return dg.AssetCheckResult(
        passed=not warnings_,
        severity=dg.AssetCheckSeverity.WARN,
        description=visible("; ".join(warnings_) or "nothing is wrong"),
    )
