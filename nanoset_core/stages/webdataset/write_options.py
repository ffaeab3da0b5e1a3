"""How tars are written: engine, memory, scratch and processes. Nothing of it reaches their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.stages.webdataset.settings import DEPRECATED_ENGINES, ShuffleEngine
from nanoset_core.storage.access import FileAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How tars are written."""

    engine: ShuffleEngine = "auto"
    memory_bytes: int | None = None
    """For all workers together, without the system's cache of files. None: see `choose_engine`."""
    scratch: Path | None = None
    """Where bucket files go, in a folder of this run's own. None: within the folder of the tars."""
    workers: int = 1
    executor: Executor | None = None
    """If given, it does the work; each of its workers then gets the memory of one of `workers`."""
    listener: ProgressCallback = silent
    name: str = "shards"
    """What progress reports call the output."""
    access: FileAccess | None = None
    """How the folder is reached. None: as a local one.

    If outputs are in a store, each tar is sent there, and then its marker, by the worker that made
    it, and only what the store has counts as written.
    """

    @property
    def present_engine(self) -> ShuffleEngine:
        """The engine, or the one that took its place."""
        return DEPRECATED_ENGINES.get(self.engine, self.engine)

    @property
    def has_bounded_disk(self) -> bool:
        """Whether files of the output may take only so much of this machine's disk."""
        return self.access is not None and self.access.capacity is not None
