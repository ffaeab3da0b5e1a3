"""Write the receipt of a purge: a JSON file that lists what was erased, and what replaced it.

The receipt is written before anything is erased, under a name that begins with a dot, and gets its
final name once everything is erased. A purge that is run again after an interruption finds in it
what the earlier one erased.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.outputs.erasures import RECEIPTS
from nanoset_core.outputs.manifest import digest_of
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.existing import all_outputs
from nanoset_core.project.project import Project
from nanoset_core.project.purge_plan import PurgePlan, own_files, version_path
from nanoset_core.stages.shards import purged
from nanoset_core.storage.removals import remove_file
from nanoset_core.storage.uploads import write_small_file

_EXISTING = "there"
"""Key of an unfinished receipt: digests of all versions that existed when the purge began."""


class PurgeReceipt:
    """The receipt of one purge."""

    def __init__(self, outputs: OutputRoot, ids: Iterable[str], corpora: Iterable[str]) -> None:
        """Decide the name of the receipt: purges of the same ids and corpora share it.

        Args:
            outputs: The output root.
            ids: Ids of the documents. The receipt contains only their digests.
            corpora: The corpora that are searched; empty for all.
        """
        self._outputs = outputs
        self._ids = sorted(purged.id_digest(identity) for identity in ids)
        self._corpora = sorted(corpora)
        self.path: Path = (
            outputs.folder / RECEIPTS / f"{digest_of([self._ids, self._corpora])}.json"
        )
        """Path of the receipt once the purge is complete."""
        self._unfinished_path = self.path.with_name(f".{self.path.name}")

    def is_unfinished(self) -> bool:
        """Return whether an earlier purge of the same ids was interrupted."""
        return self._read(self._unfinished_path) is not None

    def begin(self, plan: PurgePlan, day: str) -> dict[str, Any]:
        """Write the unfinished receipt, which lists what is about to be erased, and return it.

        It also has what earlier purges of the same ids recorded, complete or interrupted ones.

        Args:
            plan: What is about to be erased.
            day: Date of the purge.
        """
        outputs = self._outputs
        receipt: dict[str, Any] = {
            "nanoset_purge": 1,
            "day": day,
            "ids": self._ids,
            "corpora": self._corpora,
        }
        # Continue the receipt of an earlier purge, or that of an interrupted one.
        receipt |= self._read(self.path) or {"documents": [], "erased": {}}

        # Record which versions exist now, so that `complete` can tell which were made since. After
        # an interruption, what the interrupted purge recorded takes precedence.
        existing: list[str] = []
        for output in all_outputs(outputs.access.listing()):
            existing += output.versions
        receipt[_EXISTING] = sorted(existing)
        receipt |= self._read(self._unfinished_path) or {}

        # List each document once, by corpus, file and line.
        documents: dict[tuple[str, str, int], dict[str, Any]] = {}
        for recorded in receipt["documents"]:
            documents[recorded["corpus"], recorded["file"], recorded["line"]] = recorded
        for corpus, in_corpus in plan.current.items():
            for document in in_corpus:
                documents[corpus, document.file, document.line] = {
                    "corpus": corpus,
                    "file": document.file,
                    "line": document.line,
                    "tokens": document.tokens,
                }
        receipt["documents"] = list(documents.values())
        receipt["erased"] |= {version.path: version.files for version in plan.versions}

        write_small_file(outputs.access, self._unfinished_path, _to_bytes(receipt))
        return receipt

    def complete(self, receipt: Mapping[str, Any], plan: PurgePlan) -> None:
        """Write the final receipt, and remove the unfinished one, after everything was erased.

        Args:
            receipt: The unfinished receipt, which `begin` returned.
            plan: What was erased.
        """
        # Versions that did not exist before replace those that were erased.
        outputs = self._outputs
        existing_before = set(receipt[_EXISTING])
        new_versions: dict[str, Any] = {}
        for output in all_outputs(outputs.access.listing()):
            for digest in sorted(output.versions - existing_before):
                manifest = outputs.manifest_at(output.folder / digest)
                if manifest is not None:
                    new_versions[version_path(manifest)] = own_files(manifest)

        values = {key: value for key, value in receipt.items() if key != _EXISTING}
        values["erased"] = receipt["erased"] | {
            version.path: version.files for version in plan.versions
        }
        values["made"] = new_versions
        write_small_file(outputs.access, self.path, _to_bytes(values))
        remove_file(outputs.access, self._unfinished_path)

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a receipt, or None if there is none."""
        try:
            return dict(json.loads(self._outputs.access.read_current(path)))
        except FileNotFoundError:
            return None


def _to_bytes(receipt: Mapping[str, Any]) -> bytes:
    """Return a receipt as it is stored: as indented JSON with sorted keys."""
    return json.dumps(receipt, indent=1, sort_keys=True).encode() + b"\n"


def is_unfinished(project: Project, ids: Iterable[str], corpora: Iterable[str]) -> bool:
    """Return whether an earlier purge of these ids was interrupted."""
    return PurgeReceipt(project.outputs, ids, corpora).is_unfinished()
