"""Write the receipt of a purge: a JSON file that lists what was erased, and what replaced it.

The receipt is written before anything is erased, under a name that begins with a dot, and gets its
final name once everything is erased. A purge that is run again after an interruption finds in it
what the earlier one erased.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoset_core.outputs.erasures import RECEIPTS, ErasedDocument, PurgeRecord
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.purge.plan import PurgePlan, own_files
from nanoset_core.project.stored_outputs import all_outputs
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import dump, load
from nanoset_core.stages.shards import purged
from nanoset_core.storage.removing.removals import remove_file
from nanoset_core.storage.writing.uploads import write_small_file


class PurgeReceipt:
    """The receipt of one purge."""

    def __init__(self, outputs: OutputRoot, ids: Iterable[str], corpora: Iterable[str]) -> None:
        """Prepare the receipt of a purge, which erases documents from all outputs.

        The name of its file is a hash of what is erased. So if the same purge is run again, because
        it was interrupted, it finds the receipt.

        Args:
            outputs: The outputs of the project.
            ids: Ids of the documents. They may be personal, so the receipt contains only their
                hashes.
            corpora: Names of the text collections that are searched; empty for all.
        """
        self._outputs = outputs
        self._ids = tuple(sorted(purged.id_digest(identity) for identity in ids))
        self._corpora = tuple(sorted(corpora))
        self.path: Path = (
            outputs.folder / RECEIPTS / f"{digest_of([self._ids, self._corpora])}.json"
        )
        """Path of the receipt once the purge is complete."""
        self.unfinished_path: Path = self.path.with_name(f".{self.path.name}")
        """Its path until then."""

    def is_unfinished(self) -> bool:
        """Return whether an earlier purge of the same ids was interrupted.

        Raises:
            FormatError: The unfinished receipt is damaged.
        """
        return self._read(self.unfinished_path) is not None

    def write_unfinished(self, plan: PurgePlan, day: str) -> PurgeRecord:
        """Write down what a purge is about to erase, before it begins.

        If the purge is interrupted and run again, the files that it has deleted are not found any
        more. But this receipt, a JSON file, lists them. At the end, the final receipt replaces it.

        Args:
            plan: The documents and files to erase.
            day: Date of the purge.

        Returns:
            The content of the receipt. It also lists what earlier purges of the same document ids
            have erased, since they have the same receipt.
        """
        earlier = self._earlier_record(day)
        all_documents = _each_document_once([*earlier.documents, *_documents_of(plan)])
        all_files = {**earlier.erased, **_files_by_path(plan)}  # with their sizes and checksums
        record = replace(earlier, documents=all_documents, erased=all_files)
        write_small_file(self._outputs.access, self.unfinished_path, dump(record))
        return record

    def _earlier_record(self, day: str) -> PurgeRecord:
        """Return the content of the receipt so far, to which this purge adds what it erases.

        All purges of the same documents write to one receipt, a JSON file.

        Args:
            day: Date of this purge, for a new receipt.

        Returns:
            The content. Its field `existing` lists the versions (builds) of outputs that existed
            when the purge began. By it, the purge knows at its end which versions are new.
        """
        interrupted = self._read(self.unfinished_path)
        if interrupted is not None:
            # This purge resumes an interrupted one, so what existed at the start of that one
            # counts.
            return interrupted

        record = self._read(self.path)  # of an earlier purge, which has ended
        if record is None:
            record = PurgeRecord(day, self._ids, self._corpora)
        existing_digests = tuple(self._existing_digests())
        return replace(record, existing=existing_digests)

    def complete(self, unfinished: PurgeRecord, plan: PurgePlan) -> None:
        """Write the final receipt of a purge, after all documents were erased.

        The receipt is a JSON file that lists what was erased, and what was built in its place:

            erased    datasets/web/3f9c…    (with the sizes and checksums of its files)
            made      datasets/web/81aa…

        Args:
            unfinished: The content of the unfinished receipt, which was written at the start. Its
                field `existing` names all versions (builds) of outputs at that time.
            plan: What was erased. It may be more than the unfinished receipt lists, since another
                build may have made more from the documents in the meantime.
        """
        digests_at_start = set(unfinished.existing or ())
        new_versions = _new_versions(self._outputs, digests_at_start)
        record = replace(
            unfinished,
            erased={**unfinished.erased, **_files_by_path(plan)},
            made=new_versions,
            existing=None,  # only an unfinished receipt needs it
        )
        write_small_file(self._outputs.access, self.path, dump(record))
        remove_file(self._outputs.access, self.unfinished_path)

    def _existing_digests(self) -> list[str]:
        """Return the digests of all versions of all outputs that exist now, sorted."""
        digests: list[str] = []
        for output in all_outputs(self._outputs.access.with_store_listing()):
            digests += output.versions
        return sorted(digests)

    def _read(self, path: Path) -> PurgeRecord | None:
        """Read a receipt, the JSON file in which a purge lists which documents and files it erased.

        Args:
            path: Path of the file.

        Returns:
            The content; None if there is no such file.

        Raises:
            FormatError: The file is not a receipt.
        """
        try:
            return load(PurgeRecord, self._outputs.access.read_current(path), where=path)
        except FileNotFoundError:
            return None


def _files_by_path(plan: PurgePlan) -> dict[str, Mapping[str, Any]]:
    """Return the folder of each version that a purge erases → size and checksum of its files."""
    return {version.path: version.files for version in plan.versions}


def is_unfinished(project: Project, ids: Iterable[str], corpora: Iterable[str]) -> bool:
    """Return whether an earlier attempt to erase these documents was interrupted, and has to go on.

    The command `nanoset purge` erases documents from all outputs. When it begins, it writes a
    receipt with a dot in front of its name, `.5e8f….json`, and when it ends, one without. So if the
    first one exists, the purge did not end. The name is a hash of the arguments.

    Args:
        project: The project.
        ids: Ids of the documents, such as ["http://a.org/1"].
        corpora: Names of the text collections that were searched; empty for all.

    Raises:
        FormatError: The unfinished receipt is damaged.
    """
    return PurgeReceipt(project.outputs, ids, corpora).is_unfinished()


def _documents_of(plan: PurgePlan) -> Iterator[ErasedDocument]:
    """Yield the places of the documents that a purge erases, for its receipt.

    For example, `a.jsonl, line 1005, 31 tokens` of the text collection `web`. The id of a document
    may be personal, and is left out.

    Args:
        plan: The purge. Only documents in use are listed: old copies are of the same documents.
    """
    for corpus, documents in plan.current.items():
        for document in documents:
            yield ErasedDocument(corpus, document.file, document.line, document.tokens)


def _each_document_once(documents: Iterable[ErasedDocument]) -> tuple[ErasedDocument, ...]:
    """Return documents without repetitions; of the same file and line, the last entry counts.

    Args:
        documents: Documents that this purge and earlier ones erased, in this order.
    """
    document_by_place: dict[tuple[str, str, int], ErasedDocument] = {}
    for document in documents:
        document_by_place[document.corpus, document.file, document.line] = document
    return tuple(document_by_place.values())


def _new_versions(
    outputs: OutputRoot, digests_before: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    """Return the versions (builds) of outputs that exist now, but did not exist before.

    Args:
        outputs: The output folder of the project.
        digests_before: Digests that name the versions which existed before.

    Returns:
        Folder of each new version → its files, each with its size and checksum, such as
        {"datasets/web/81aa…": {"web.bin": {"bytes": 62, "sha256": "5e8f…"}}}.
    """
    files_by_version: dict[str, Mapping[str, Any]] = {}
    for output in all_outputs(outputs.access.with_store_listing()):
        new_digests = output.versions.difference(digests_before)
        for digest in sorted(new_digests):
            manifest = outputs.manifest_at(output.folder / digest)
            if manifest is not None:  # None: it was not completed
                files_by_version[manifest.location] = own_files(manifest)
    return files_by_version
