"""How tars are written: with which engine, memory, scratch folder and processes.

None of these options changes the bytes of the tars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.stages.webdataset.settings import DEPRECATED_ENGINES, ShuffleEngine
from nanoset_core.storage.access import FileAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How tars are written."""

    engine: ShuffleEngine = "auto"
    memory_bytes: int | None = None
    """Memory of all workers together, without the system's cache of files.

    None: `choose_engine` decides.
    """
    scratch: Path | None = None
    """Folder in which a folder for bucket files is created. None: the folder of the tars."""
    workers: int = 1
    """Number of processes."""
    executor: Executor | None = None
    """Runs the work on other machines. Each of its workers gets `memory_bytes / workers`."""
    progress: Progress = SILENT
    """Receives the progress."""
    name: str = "shards"
    """Name of the output in progress reports."""
    access: FileAccess | None = None
    """Access to the folder of the tars. None: the folder is local.

    If the folder is in a store, the worker that made a tar sends it, and then its marker. Only tars
    that are in the store count as written.
    """
    stored_sizes: Mapping[str, int] | None = None
    """Tars that the store had before: name in the store → bytes.

    Other tars need not be looked up before they are sent. None: it is not known which there are.
    """

    @property
    def supported_engine(self) -> ShuffleEngine:
        """The engine that the user chose, or its replacement if that engine was removed."""
        return DEPRECATED_ENGINES.get(self.engine, self.engine)

    @property
    def has_bounded_disk(self) -> bool:
        """Whether there is a limit to the disk space for files of the output on this machine."""
        return self.access is not None and self.access.is_space_limited
