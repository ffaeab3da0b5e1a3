"""Find the run that a nanoset continues, and what it has read of its train split.

A run is named by the handoff that it was started with: a version of a folder with the arguments for
the trainer. Its plan has the order of all samples. So if the run has consumed 1,200 samples, it is
known which documents these were from, and the nanoset does not read them again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nanoset_core.errors import ConfigError, MissingError, one_of
from nanoset_core.loading.layout import BLEND, HANDOFF, MAPPINGS, NANOSETS_FOLDER
from nanoset_core.loading.plan_file import read_split
from nanoset_core.outputs.erasures import missing_version
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, config_from
from nanoset_core.records.digests import is_digest
from nanoset_core.records.yaml_text import read_yaml, yaml_value
from nanoset_core.sampling.orders import Read
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.mappings.settings import ContinueSpec, recorded_batch_size

HANDOFF_FOLDER = re.compile(rf"(?:.*/)?{NANOSETS_FOLDER}/([^/]+)/{HANDOFF}/([^/]+)/?")
"""The folder of a handoff, below any root: name of the nanoset, and digest or `current`."""
_CURRENT_HANDOFF = re.compile(rf"(?:(?:.*/)?{NANOSETS_FOLDER}/)?([^/]+)(?:/{HANDOFF}/current)?/?")
"""The current handoff of a nanoset: its folder, or the name of the nanoset alone."""


class HandoffVersion(NamedTuple):
    """A version of a handoff."""

    nanoset: str
    digest: str


def handoff_named(folder: str, key: str = "continue_from.handoff") -> HandoffVersion:
    """Return which version of a handoff a training run was started with.

    A handoff is a folder with the arguments that a trainer is started with. To continue a run with
    other data, nanoset.yaml names this folder, as the handoff records which data the run has read.

        …/nanosets/pretrain/handoff/0a1b         → nanoset "pretrain", digest "0a1b"
        …/nanosets/pretrain/handoff/current      an error: it may be a newer version by now

    Args:
        folder: The folder, as nanoset.yaml names it.
        key: The key of nanoset.yaml, for the error.

    Raises:
        ConfigError: The folder is no version of a handoff.
    """
    # The groups of the pattern: the name of the nanoset, and a digest or `current`.
    match = HANDOFF_FOLDER.fullmatch(folder)
    if match is None or match[2] == "current":
        raise ConfigError(
            "this names no version of a handoff",
            where=key,
            found=folder,
            expected=f"…/{NANOSETS_FOLDER}/<nanoset>/{HANDOFF}/<digest>",
            remedy=(
                "name the folder that the run was started with; "
                "`current` may be another version by now"
            ),
        )
    return HandoffVersion(nanoset=match[1], digest=match[2])


def handoff_and_splits(outputs: OutputRoot, nanoset: str, digest: str) -> dict[str, Manifest]:
    """Return the records of a training run: of its arguments, and of the data that it reads.

    A handoff is a folder with the arguments for the trainer. Its record names the data of train,
    valid and test by digests. So all records can be found:

        "handoff"    nanosets/pretrain/handoff/0a1b
        "train"      nanosets/pretrain/train/blend/77cd
        "valid"      nanosets/pretrain/valid/index_mappings/30f2
        "test"       nanosets/pretrain/test/index_mappings/9e41

    Args:
        outputs: The output root, which contains all of these folders.
        nanoset: Name of the data of the run, such as "pretrain".
        digest: Digest of the handoff, such as "0a1b".

    Returns:
        The four records, by these names.

    Raises:
        MissingError: One of the folders was deleted.
    """
    handoff = _find_version(outputs, [f"{nanoset}/{HANDOFF}"], digest)
    manifests = {HANDOFF: handoff}
    for split in SPLITS:
        manifests[split] = split_of_handoff(outputs, handoff, split)
    return manifests


def split_of_handoff(outputs: OutputRoot, handoff: Manifest, split: SplitName) -> Manifest:
    """Return the record of the data of a split that a training run reads.

    Args:
        outputs: The output root, which contains the folder of the data.
        handoff: The record of the arguments of the run.
        split: `train`, `valid` or `test`.

    Raises:
        MissingError: The folder was deleted.
    """
    nanoset = handoff.name.removesuffix(f"/{HANDOFF}")
    digest = handoff.recipe["parents"][split]
    # A split that mixes several datasets has a folder in `blend`, and others do not.
    folders = [f"{nanoset}/{split}/{BLEND}", f"{nanoset}/{split}/{MAPPINGS}"]
    return _find_version(outputs, folders, digest)


def mappings_of_handoff(outputs: OutputRoot, handoff: Manifest, split: SplitName) -> Manifest:
    """Return the record of the index files of datasets that a training run reads.

    If a split reads several datasets, the record of the split is that of the blend, which was made
    from these index files. The options of the result are the settings of the split.

    Args:
        outputs: The output root, which contains the folder of the index files.
        handoff: The record of the arguments of the run.
        split: `train`, `valid` or `test`.

    Raises:
        MissingError: The folder, or that of the blend, was deleted.
    """
    manifest = split_of_handoff(outputs, handoff, split)
    is_blend = manifest.name.endswith(f"/{BLEND}")
    if not is_blend:
        return manifest
    mappings_name = f"{manifest.name.removesuffix(f'/{BLEND}')}/{MAPPINGS}"
    return _find_version(outputs, [mappings_name], manifest.recipe["parents"][MAPPINGS])


def _find_version(outputs: OutputRoot, names: Sequence[str], digest: str) -> Manifest:
    """Return the record of an output whose digest is known, but not its folder.

    For ["pretrain/train/blend", "pretrain/train/index_mappings"] and the digest "77cd", it may be
    nanosets/pretrain/train/blend/77cd, or nanosets/pretrain/train/index_mappings/77cd.

    Args:
        outputs: The output root, which contains the folders.
        names: The folders to search, in order, without "nanosets/".
        digest: Digest of the output.

    Raises:
        MissingError: No folder has it.
    """
    for name in names:
        manifest = outputs.manifest_at(outputs.folder / NANOSETS_FOLDER / name / digest)
        if manifest is not None:
            return manifest
    raise _missing_version_error(outputs, names[-1], digest)


def _missing_version_error(outputs: OutputRoot, name: str, digest: str) -> MissingError:
    """Return the error for an output that a training run was started with, and that is missing.

    To continue a run, the user names the folder that it was started with (its handoff). Perhaps the
    name is misspelt. So the error lists the versions that exist:

        missing                            nanosets/pretrain/handoff/0a1b
        in nanosets/pretrain/handoff       30f2, 77cd, current
        the error expects                  "one of 30f2, 77cd"

    Args:
        outputs: The output root.
        name: The folder of the output without "nanosets/": "pretrain/handoff".
        digest: The version that is missing: "0a1b".
    """
    names_in_folder = outputs.access.names(outputs.folder / NANOSETS_FOLDER / name)
    existing_digests = sorted(entry for entry in names_in_folder if is_digest(entry))
    expected = one_of(existing_digests, nothing="one that was built; none is")
    return missing_version(
        outputs.access,
        (NANOSETS_FOLDER, name, digest),
        "what a run was started with is missing",
        expected=expected,
        remedy=(
            "correct the name of its handoff; or build it again: restore the text and nanoset.yaml "
            "that it was made from, and run `nanoset build`"
        ),
    )


def read_since_handoff(outputs: OutputRoot, continue_from: ContinueSpec) -> Read:
    """Return which samples a training run has read of the data that it was started with.

    So they are not read again when the run continues with other data. The user names the folder
    with the arguments that the run was started with (its handoff), and how many samples it has
    read:

        continue_from: {handoff: nanosets/pretrain/handoff/0a1b, consumed_samples: 1200}

    If the run has phases, this may be the data of a later one. Here it is the second:

        samples of the run     0 to 1,000        data of the first phase
                               1,000 to 1,200    data of this handoff: its first 200 samples

    Args:
        outputs: The output root, which has all handoffs and their data.
        continue_from: This setting.

    Returns:
        The plan with the order of all samples of this data, of which the run has read the first
        200.

    Raises:
        ConfigError: The setting names no handoff, or one without training data.
        MissingError: The handoff, or its training data, was deleted.
    """
    nanoset, digest = handoff_named(continue_from.handoff)  # "pretrain" and "0a1b"
    manifests = handoff_and_splits(outputs, nanoset, digest)
    handoff = manifests[HANDOFF]
    train = manifests["train"]
    plan, config = read_split(train, outputs.folder)
    if plan is None:
        raise ConfigError(
            "the run has no train split to continue from",
            where=handoff.url(),
            remedy="name a handoff of a nanoset that has one",
        )

    samples_before = _samples_before(handoff)  # 1,000
    samples_of_handoff = continue_from.consumed_samples - samples_before  # 200
    return Read(plan, config, end=samples_of_handoff, before=samples_before)


def _samples_before(handoff: Manifest) -> int:
    """Return how many samples a training run reads before one of its phases begins.

    For example, the phase begins at iteration 600, and each iteration reads 8 samples: 4,800.

    Args:
        handoff: A record of the phase. Its options have the iterations at which the phase begins
            and ends, and the schedule of the run: {"span": [600, 1000], "schedule": [1000, 8, …]}.
    """
    options = handoff.recipe["options"]
    if not options.get("span"):
        return 0  # the run has no phases
    first_iteration, _ = options["span"]
    return int(first_iteration) * recorded_batch_size(options["schedule"])


class ContinuedProject(NamedTuple):
    """A project in which a nanoset continues a run."""

    project: Project
    """The project, with the key `continue_from` in the settings of the nanoset."""
    yaml: str
    """The lines of nanoset.yaml that make this permanent."""


def continued_project(
    project: Project, name: str, handoff: str, consumed_samples: int
) -> ContinuedProject:
    """Return a project in which a nanoset continues a run, as if nanoset.yaml said so.

    It is for the command by which users try this out, before they edit nanoset.yaml. The setting is

        continue_from: {handoff: nanosets/pretrain/handoff/0a1b…, consumed_samples: 2000}

    Args:
        project: The project, with the nanoset and its new blend.
        name: Name of the nanoset.
        handoff: The handoff that the run was started with, which is a folder with the arguments of
            the trainer. It is given by its folder, by a path that ends in `current`, or by the name
            of its nanoset. The latter two mean the version that is current now.
        consumed_samples: Samples of train that the run has consumed, of all ranks.

    Raises:
        ConfigError: There is no such nanoset, or it cannot continue a run.
        MissingError: There is no such handoff.
    """
    project.nanoset(name)  # an error if there is no such nanoset
    handoff_version = _with_digest(project.outputs, handoff)
    handoff_named(handoff_version)  # an error if this is not the folder of a handoff

    continue_from = {"handoff": handoff_version, "consumed_samples": consumed_samples}
    changed_config = _config_that_continues(project.config, name, continue_from)
    return ContinuedProject(
        project=replace(project, config=changed_config),
        yaml=_continue_lines(name, handoff_version, consumed_samples),
    )


def _config_that_continues(
    config: ProjectConfig, name: str, continue_from: Mapping[str, object]
) -> ProjectConfig:
    """Return the settings of a project as if nanoset.yaml had `continue_from` in a nanoset.

    They are read from the changed content of the file, so that the key is checked in the same way.

    Args:
        config: The settings, which name the file. It is not changed.
        name: Name of the nanoset.
        continue_from: Value of the key.

    Raises:
        ConfigError: The settings are not valid with this key. Or the nanoset is a phase of another
            one, and so has no section in nanoset.yaml.
    """
    content, _ = read_yaml(config.file, remedy="correct the line")
    nanosets = content.get("nanosets", {})
    if name not in nanosets:
        raise ConfigError(
            "a phase continues by `continue` alone",
            where=f"{config.file}: nanosets.{name}",
            remedy="name a nanoset of nanoset.yaml",
        )
    changed_nanoset = {**nanosets[name], "continue_from": continue_from}
    changed_nanosets = {**nanosets, name: changed_nanoset}
    return config_from({**content, "nanosets": changed_nanosets}, config.file)


def _continue_lines(name: str, handoff_version: str, consumed_samples: int) -> str:
    """Return the lines of nanoset.yaml by which a nanoset continues a run.

        nanosets:
          pretrain:
            continue_from: {handoff: nanosets/pretrain/handoff/0a1b…, consumed_samples: 2000}

    Args:
        name: Name of the nanoset.
        handoff_version: Folder of the handoff that the run was started with.
        consumed_samples: Samples of train that the run has consumed, of all ranks.
    """
    handoff = yaml_value(handoff_version)
    lines = [
        "nanosets:",
        f"  {name}:",
        f"    continue_from: {{handoff: {handoff}, consumed_samples: {consumed_samples}}}",
    ]
    return "\n".join(lines)


def _with_digest(outputs: OutputRoot, handoff: str) -> str:
    """Return the folder of one version of a handoff, whatever form its name has.

    A handoff is a folder with the arguments that a trainer is started with. Each build makes a
    version of it, with a digest as its name. If 0a1b is the newest version for the training run
    "pretrain":

        "pretrain"                            → "nanosets/pretrain/handoff/0a1b"
        "nanosets/pretrain/handoff/current"   → "nanosets/pretrain/handoff/0a1b"
        "nanosets/pretrain/handoff/77cd"      stays as it is: it names a version

    Args:
        outputs: The output root of the project, which has all versions of outputs.
        handoff: A name of one of these forms.

    Raises:
        MissingError: No handoff was built for this name.
    """
    match = _CURRENT_HANDOFF.fullmatch(handoff)
    if match is None:  # neither of the first two forms
        return handoff
    nanoset = match[1]
    output = f"{nanoset}/{HANDOFF}"
    current = outputs.require(
        NANOSETS_FOLDER, output, remedy="name the handoff that the run was started with"
    )
    return f"{NANOSETS_FOLDER}/{output}/{current.digest}"
