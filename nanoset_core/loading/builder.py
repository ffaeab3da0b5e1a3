"""Build the splits of a nanoset, or open what was built before."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading.blended_nanoset import BlendedNanoset, open_split
from nanoset_core.loading.nanoset import Nanoset, open_nanoset
from nanoset_core.sampling.cache import (
    FileSet,
    blend_set,
    cache_dir_of,
    index_sets,
    member_set,
    open_blend,
)
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import LengthReader, plan_split
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.splits import SPLITS

Split = Nanoset | BlendedNanoset
Splits = tuple[Split | None, Split | None, Split | None]


class NanosetBuilder:
    """Builds train, valid and test of a configuration.

    Index files come from `path_to_cache`, or from the trainer's own place beside the data; what is
    missing there, or was made from something else, is built and written. Without a cache folder
    that can be written, indices stay in memory. Processes that build at the same time write the
    same bytes, each file whole.
    """

    def __init__(self, config: NanosetConfig) -> None:
        """Take the configuration to build."""
        self.config = config

    def build(self) -> Splits:
        """Return (train, valid, test), None for a split without a share; raises as `plan_split`."""
        # every split is planned before anything is built
        plans = self._plan()
        train, valid, test = (None if plan is None else self._build(plan) for plan in plans)
        return train, valid, test

    def wait(self, timeout_seconds: float = 3600.0, poll_seconds: float = 0.5) -> Splits:
        """Wait for another process to build the splits; return (train, valid, test).

        For training jobs: one process calls `build`, the others `wait`; they share nothing but the
        cache folder.

        Args:
            timeout_seconds: how long to wait.
            poll_seconds: between two checks.

        Raises:
            ConfigError: the configuration has no `path_to_cache`.
            MissingError: the time is up.
        """
        folder = self.config.path_to_cache
        if folder is None:
            raise ConfigError(
                "waiting needs a shared cache folder",
                where="path_to_cache",
                remedy="set path_to_cache",
            )
        plans = self._plan()
        deadline = time.monotonic() + timeout_seconds
        while missing := self._missing(plans):
            if time.monotonic() > deadline:
                what, remedy = (
                    f"index files did not appear within {timeout_seconds:g} s",
                    "see why its builder stopped",
                )
                raise MissingError(what, where=folder, expected=missing, remedy=remedy)
            time.sleep(poll_seconds)
        train, valid, test = (
            None if plan is None else open_split(plan, self.config, folder) for plan in plans
        )
        return train, valid, test

    def _plan(self) -> list[SplitPlan | None]:
        reader = LengthReader()
        return [plan_split(self.config, split, reader) for split in SPLITS]

    def _missing(self, plans: Sequence[SplitPlan | None]) -> str | None:
        sets = (
            files for plan in plans if plan is not None for files in index_sets(plan, self.config)
        )
        return next(
            (
                list(files.files.values())[-1]
                for files in sets
                if files.complete(deep=False) is None
            ),
            None,
        )

    def _build(self, plan: SplitPlan) -> Split:
        datasets = [self._member(member) for member in plan.members]
        if plan.blend is None:
            return datasets[0]
        folder = self.config.path_to_cache
        if folder is not None and _is_ready(blend_set(plan, plan.blend, folder)):
            return BlendedNanoset(datasets, plan, self.config, open_blend(plan, folder), folder)
        return BlendedNanoset(datasets, plan, self.config, build_blend_indices(plan))

    def _member(self, member: MemberPlan) -> Nanoset:
        folder = cache_dir_of(member, self.config)
        if _is_ready(member_set(member, self.config, folder)):
            return open_nanoset(member, self.config, folder)
        dataset = MMapIndexedDataset(member.prefix)
        indices = build_member_indices(member, self.config, dataset.sequence_lengths)
        return Nanoset(dataset, member, self.config, indices)


def _is_ready(files: FileSet) -> bool:
    """Write a set of index files that is not complete; return False where its folder cannot be made
    or written.
    """
    if files.complete(deep=False) is not None:
        return True
    folder = files.folder
    while not folder.exists():
        folder = folder.parent
    if writable := folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        files.write()
    return writable
