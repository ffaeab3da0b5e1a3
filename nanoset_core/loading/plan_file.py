"""`plan.json` of a split: what its index files are, and the settings that they were built by.

The output root may be moved, or be mounted elsewhere on another machine. So the file stores the
prefixes of datasets relative to the root: `datasets/web/1a2b/web`, and not
`/data/outputs/datasets/web/1a2b/web`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.json_records import JsonForm, Record
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import BlendIndices, MemberIndices
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.storage.paths import is_inside

PLAN_FILE = "plan.json"
"""Name of the file in the output of a split."""


@dataclass(frozen=True, slots=True)
class StoredSplit(Record):
    """The content of plan.json. All prefixes of datasets in it are relative to the root."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not the plan of a split", indent=1, ends_with_newline=True
    )
    ignores_unknown_keys: ClassVar[bool] = True

    plan: SplitPlan | None
    """None for a split without samples."""
    config: NanosetConfig
    """Settings of the nanoset."""

    @classmethod
    def of(cls, root: Path, plan: SplitPlan | None, config: NanosetConfig) -> StoredSplit:
        """Return what is stored about a split, such as train, with paths that survive a move.

        The paths of datasets become relative to the folder of all outputs, the root. For example,
        if the root is /data, "datasets/web/1a2b/web" is stored for /data/datasets/web/1a2b/web. So
        the root can be moved, or be mounted elsewhere on another machine.

        Args:
            root: The output root, which contains all datasets.
            plan: Which samples the split has, or None for a split without samples.
            config: Settings of the nanoset.
        """
        relative_paths: dict[str, str] = {}
        for path in _dataset_paths(plan, config):
            relative_paths[path] = Path(path).relative_to(root).as_posix()

        relative_plan = _plan_with_paths(plan, relative_paths)
        relative_config = _config_with_paths(config, relative_paths)
        # The folder of the index files is left out: it is always the same one below the root.
        return cls(relative_plan, replace(relative_config, path_to_cache=None))

    def check(self, value: dict[str, Any]) -> None:
        """Check a plan that was just read from a file, since the file may come from elsewhere.

        The paths of datasets in it are relative to the folder of all outputs, such as
        `datasets/web/1a2b/web`. A path such as `../../etc/secret` would let a reader open any file,
        so it is refused.

        Args:
            value: The JSON object that the record was read from, which is not needed here.

        Raises:
            ValueError: A path leads out of the folder of all outputs, or the plan is not complete.
        """
        for path in _dataset_paths(self.plan, self.config):
            if not is_inside(path):
                raise ValueError(f"the prefix {path!r} is not below the output root")
        if self.plan is not None:
            _check_index_files(self.plan)

    def below(self, root: Path) -> BuiltPlan:
        """Return what was stored about a split, with paths of datasets on this machine.

        For example, "datasets/web/1a2b/web" was stored, and the outputs are in /mnt/data now. Then
        the path is /mnt/data/datasets/web/1a2b/web.

        Args:
            root: The folder of all outputs, wherever it is now.
        """
        absolute_paths: dict[str, str] = {}
        for path in _dataset_paths(self.plan, self.config):
            absolute_paths[path] = str(root / path)

        plan = _plan_with_paths(self.plan, absolute_paths)
        config = _config_with_paths(self.config, absolute_paths)
        return BuiltPlan(plan, config)


class BuiltPlan(NamedTuple):
    """The plan of a split and the settings it was made with, with absolute paths of datasets."""

    plan: SplitPlan | None
    """None for a split without samples."""
    config: NanosetConfig


def read_split(manifest: Manifest, root: Path) -> BuiltPlan:
    """Read the plan of a split, such as train, and the settings with which it was built.

    The plan says which samples the split has. It is a file of the build's output.

    Args:
        manifest: The record of the split's output, which lists its files.
        root: Folder of all outputs. Paths in the file are relative to it; the result has absolute
            ones.

    Raises:
        MissingError: The output has no plan file.
        FormatError: The plan file is not as it was written, or a path leads out of the root.
    """
    stored_split = manifest.load(PLAN_FILE, StoredSplit)
    return stored_split.below(root)


def _check_index_files(plan: SplitPlan) -> None:
    """Check that a plan that was read from a file names its datasets and their index files.

    The index files say which samples a split (such as train) has. There are some for each dataset
    and, if there are several datasets, some for the blend that mixes them.

    Raises:
        ValueError: The plan has no dataset, or an index file is not named or is outside of its
            folder.
    """
    if not plan.members:
        raise ValueError("no datasets")
    arrays_of_member = [field.name for field in fields(MemberIndices)]  # "shuffle_index", ...
    for member in plan.members:
        _check_files(member.files, member.receipt_name, arrays_of_member)
    if plan.blend is not None:
        arrays_of_blend = [field.name for field in fields(BlendIndices)]  # "dataset_index", ...
        _check_files(plan.blend.files, plan.blend.receipt_name, arrays_of_blend)


def _check_files(files: Mapping[str, str], receipt_name: str, required: Sequence[str]) -> None:
    """Check that a plan names all files that are needed, and that they are in its own folder.

    A plan is a file that may come from elsewhere. A name such as `../../other.npy` would let a
    reader open any file, so it is refused.

    Args:
        files: Name of each array → file name: {"shuffle_index": "web-shuffle_index.npy"}.
        receipt_name: Name of the file that says what they were made from.
        required: Names of the arrays that are needed.

    Raises:
        ValueError: A file is not named, or is outside of the folder.
    """
    for array in required:
        if array not in files:
            raise ValueError("an index file is not named")
    for file_name in (*files.values(), receipt_name):
        if not is_inside(file_name):
            raise ValueError("an index file that is not below its folder")


def _dataset_paths(plan: SplitPlan | None, config: NanosetConfig) -> list[str]:
    """Return the paths of all datasets that a plan and the settings of its nanoset name.

    A path may occur several times.

    Args:
        plan: The plan, with the datasets of a split; None for a split without samples.
        config: The settings, with the datasets of all splits, and further values for some datasets.
    """
    paths: list[str] = []
    if plan is not None:
        paths += [member.prefix for member in plan.members]
    for blend in (config.data_path, *(config.blend_per_split or ())):
        paths += _paths_of_blend(blend)
    paths += config.trainer_paths
    paths += config.orders
    return paths


def _paths_of_blend(blend: Any) -> list[str]:
    """Return the paths of the datasets that a split reads.

        "web"                         ["web"]
        ["web", "books"]              ["web", "books"]
        {"web": 0.7, "books": 0.3}    ["web", "books"]
        None                          []

    Args:
        blend: Data of the split in one of these forms.
    """
    if not blend:
        return []
    if isinstance(blend, str):
        return [blend]
    return list(blend)


def _plan_with_paths(plan: SplitPlan | None, new_paths: Mapping[str, str]) -> SplitPlan | None:
    """Return a plan with the path of each dataset replaced.

    Args:
        plan: The plan, or None, which is returned unchanged.
        new_paths: Path in the plan → new path.
    """
    if plan is None:
        return None
    members: list[MemberPlan] = []
    for member in plan.members:
        members.append(replace(member, prefix=new_paths[member.prefix]))
    return replace(plan, members=tuple(members))


def _config_with_paths(config: NanosetConfig, new_paths: Mapping[str, str]) -> NanosetConfig:
    """Return the settings of a nanoset with the path of each dataset replaced.

    Args:
        config: The settings. Four of them name datasets by their paths.
        new_paths: Path in the settings → new path: {"datasets/web/1a2b/web":
            "/mnt/data/datasets/web/1a2b/web"}.
    """
    blends = config.blend_per_split  # the datasets of train, valid and test, if they differ
    if blends is not None:
        blends = [_blend_with_paths(blend, new_paths) for blend in blends]
    return replace(
        config,
        data_path=_blend_with_paths(config.data_path, new_paths),
        blend_per_split=blends,
        # Where a dataset is on the machine that trains, and how earlier phases read it.
        trainer_paths=_with_paths_as_keys(config.trainer_paths, new_paths),
        orders=_with_paths_as_keys(config.orders, new_paths),
    )


def _with_paths_as_keys(values: Mapping[str, Any], new_paths: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping with each key, the path of a dataset, replaced by its new path."""
    return {new_paths[path]: value for path, value in values.items()}


def _blend_with_paths(blend: Any, new_paths: Mapping[str, str]) -> Any:
    """Return the data of a split with the path of each dataset replaced.

    The data may have three forms. For example, with new paths that have /mnt/ in front:

        "web"                      "/mnt/web"
        ["web", "books"]           ["/mnt/web", "/mnt/books"]
        {"web": 0.7, "books": 0.3} {"/mnt/web": 0.7, "/mnt/books": 0.3}    with weights
        None                       None    (a split without data)

    Args:
        blend: The data.
        new_paths: Path → new path.
    """
    if not blend:
        return blend
    if isinstance(blend, str):
        return new_paths[blend]
    if isinstance(blend, Mapping):
        return _with_paths_as_keys(blend, new_paths)
    return [new_paths[path] for path in blend]
