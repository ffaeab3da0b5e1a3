"""Join, shuffle, filter and repair `.pbin` files, and index raw text: once, and also in buckets.

These are the operations of `nanoset pbin merge`, `shuffle`, `filter`, `repair` and `raw-index`:

    merge_pbin_once([Path("a.pbin"), Path("b.pbin")], Path("c.pbin"))

Files in a bucket are downloaded first. A receipt next to the output says what it was made from, so
that the same call does nothing the next time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.raw_index import create_raw_index
from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.outputs.deliver import make_once, replaced_file
from nanoset_core.outputs.receipts import hidden_receipt_name
from nanoset_core.outputs.recorded_tokenization import common_tokenizer, recorded_tokenizations
from nanoset_core.records.json_records import as_parsed, from_plain
from nanoset_core.stages.pbin.selection import (
    DocumentFilter,
    filter_pbin,
    merge_pbin,
    shuffle_pbin,
    shuffle_pbin_chunk,
)
from nanoset_core.stages.shards.standalone.inputs import check_different
from nanoset_core.storage.copies.temporary import downloaded
from nanoset_core.storage.location import Location
from nanoset_core.wording import format_count

Write: TypeAlias = Callable[[Sequence[Path], Path], PbinCounts]
"""Writes a `.pbin`: (paths of the sources on this machine, the file to write) → its counts."""


@dataclass(frozen=True, slots=True)
class MadePbin:
    """The `.pbin` that an operation has made, now or in an earlier call."""

    counts: PbinCounts
    """The numbers of documents and tokens in the file."""
    is_made_now: bool
    """Whether this call has made the file; False if it existed already."""


def merge_pbin_once(
    files: Sequence[Location],
    output: Location,
    progress: Progress = SILENT,
    *,
    overwrite: bool = False,
) -> MadePbin:
    """Join `.pbin` files of any layout into one with a correct index, unless that was done before.

    Args:
        files: The files, in the order of their documents.
        output: The file to write.
        progress: Shows how far the work has come.
        overwrite: Whether an output that was made from something else may be replaced.

    Raises:
        InputError: Two names lead to the same file, or the files contain no tokens.
        FormatError: A file is damaged, or the files are of different tokenizers.
        ConfigError: The output exists, and was made from something else.
    """

    def write(sources: Sequence[Path], target: Path) -> PbinCounts:
        """Write the joined file."""
        return merge_pbin(sources, target, progress=progress)

    _check_joinable(files)
    return _make_pbin("merge", output, files, {}, write, overwrite=overwrite)


def shuffle_pbin_once(
    file: Location,
    output: Location,
    seed: int,
    progress: Progress = SILENT,
    *,
    overwrite: bool = False,
) -> MadePbin:
    """Write the documents of a `.pbin` in random order, unless that was done before.

    Documents have the order that Modalities' `shuffle_tokenized_data` gives them.

    Args:
        file: The file to read.
        output: The file to write.
        seed: Decides the order: the same seed always gives the same one.
        progress: Shows how far the work has come.
        overwrite: Whether an output that was made from something else may be replaced.

    Raises:
        InputError: The file contains no tokens.
        ConfigError: The output exists, and was made from something else.
    """

    def write(sources: Sequence[Path], target: Path) -> PbinCounts:
        """Write the shuffled file."""
        return shuffle_pbin(sources[0], target, seed=seed, progress=progress)

    settings = {"seed": seed, "chunk": None, "chunks": None}
    return _make_pbin("shuffle", output, [file], settings, write, overwrite=overwrite)


def shuffle_pbin_chunk_once(
    files: Sequence[Location],
    output: Location,
    seed: int,
    chunk: int,
    chunks: int,
    progress: Progress = SILENT,
    *,
    overwrite: bool = False,
) -> MadePbin:
    """Shuffle the documents of one chunk of each `.pbin` together, unless that was done before.

    Data that is too large for one file can be shuffled like this, chunk by chunk. For example, of
    two files that are divided into 2 chunks each, chunk 0 is:

        a.pbin    documents 0 to 99 of 200     → taken
        b.pbin    documents 0 to 49 of 100     → taken; the new file has 150 documents

    Documents have the order that Modalities' `create_shuffled_dataset_chunk` gives them.

    Args:
        files: The files to read.
        output: The file to write.
        seed: Decides the order: the same seed always gives the same one.
        chunk: Number of the chunk, from 0.
        chunks: How many chunks each file is divided into.
        progress: Shows how far the work has come.
        overwrite: Whether an output that was made from something else may be replaced.

    Raises:
        InputError: Two names lead to the same file, or the chunk contains no tokens.
        FormatError: The files are of different tokenizers.
        ConfigError: There is no such chunk, or the output was made from something else.
    """

    def write(sources: Sequence[Path], target: Path) -> PbinCounts:
        """Write the chunk."""
        return shuffle_pbin_chunk(
            sources, target, chunk=chunk, chunks=chunks, seed=seed, progress=progress
        )

    _check_joinable(files)
    settings = {"seed": seed, "chunk": chunk, "chunks": chunks}
    return _make_pbin("shuffle", output, files, settings, write, overwrite=overwrite)


def filter_pbin_once(
    file: Location,
    output: Location,
    document_filter: DocumentFilter,
    progress: Progress = SILENT,
    *,
    say: Callable[[str], None] = lambda text: None,
    overwrite: bool = False,
) -> MadePbin:
    """Write the documents of a `.pbin` that meet all conditions, unless that was done before.

    Args:
        file: The file to read.
        output: The file to write.
        document_filter: The conditions, such as `DocumentFilter(min_tokens=16)`.
        progress: Shows how far the work has come.
        say: Called with a text such as "web.pbin: 5 of 7 documents are kept", before they are
            written.
        overwrite: Whether an output that was made from something else may be replaced.

    Raises:
        ConfigError: There is no condition; or the output exists, and was made from something else.
        InputError: No document is kept, or a list of documents is wrong.
    """
    # The conditions `keep` and `drop` name text files, which may be in a bucket, too.
    list_files = document_filter.list_files()  # such as {"drop": Path("bad.txt")}

    def write(sources: Sequence[Path], target: Path) -> PbinCounts:
        """Write the documents that are kept."""
        pbin_path, *list_paths = sources
        local_lists = dict(zip(list_files, list_paths, strict=True))
        local_filter = document_filter.with_list_files(local_lists)
        is_kept = local_filter.mask(PackedDataset(pbin_path))
        n_documents = format_count(len(is_kept), "document")
        say(f"{file}: {is_kept.sum():,} of {n_documents} are kept")
        return filter_pbin(pbin_path, target, is_kept, progress=progress)

    return _make_pbin(
        "filter",
        output,
        files=[file, *list_files.values()],
        settings=document_filter.plain_values(),
        write=write,
        overwrite=overwrite,
    )


def repair_pbin_once(
    file: Location,
    output: Location,
    progress: Progress = SILENT,
    *,
    say: Callable[[str], None] = lambda text: None,
    overwrite: bool = False,
) -> MadePbin:
    """Write a copy of a `.pbin` that the current Modalities can read, unless it exists already.

    The copy has the current layout and a correct index, which Modalities' own command for merging
    files does not write.

    Args:
        file: The file to read.
        output: The file to write.
        progress: Shows how far the work has come.
        say: Called with a text such as "web.pbin had layout C, with 3 faults in its index".
        overwrite: Whether an output that was made from something else may be replaced.

    Raises:
        FormatError: The file is too damaged to be repaired.
        ConfigError: The output exists, and was made from something else.
    """

    def write(sources: Sequence[Path], target: Path) -> PbinCounts:
        """Write the repaired copy."""
        say(_damage(file, PackedDataset(sources[0])))
        return merge_pbin(sources, target, progress=progress)

    return _make_pbin("repair", output, [file], {}, write, overwrite=overwrite)


def repair_pbin_in_place(
    file: Location,
    progress: Progress = SILENT,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> PbinCounts:
    """Replace a `.pbin` by a copy of it that the current Modalities can read.

    The copy is complete before it replaces the file, so nothing is lost if this is interrupted.

    Args:
        file: The file, on this machine or in a bucket.
        progress: Shows how far the work has come.
        say: Called with a text such as "web.pbin had layout C, with 3 faults in its index".

    Returns:
        The numbers of documents and tokens in the file.

    Raises:
        FormatError: The file is too damaged to be repaired.
    """
    with downloaded([file]) as sources, replaced_file(file) as target:
        say(_damage(file, PackedDataset(sources[0])))
        return merge_pbin(sources, target, progress=progress)


def _damage(file: Location, dataset: PackedDataset) -> str:
    """Return what is wrong with a `.pbin`: "web.pbin had layout C, with 3 faults in its index".

    Args:
        file: The file, as the user named it.
        dataset: The file, opened.
    """
    faults = format_count(dataset.index_facts.merge_faults, "fault")
    return f"{file} had layout {dataset.layout}, with {faults} in its index"


@dataclass(frozen=True, slots=True)
class RawIndexCounts:
    """Counts of the lines of a JSONL file, and of those that are in its index."""

    documents: int
    """Lines in the index."""
    lines: int
    """Lines of the JSONL file."""
    first_dropped: tuple[int, ...]
    """Number of the first line that was left out, from 1; empty if none was."""

    @property
    def n_dropped(self) -> int:
        """Lines that are not JSON, and were left out of the index."""
        return self.lines - self.documents


@dataclass(frozen=True, slots=True)
class MadeRawIndex:
    """The index of a JSONL file that was made, now or in an earlier call."""

    counts: RawIndexCounts
    is_made_now: bool
    """Whether this call has made the index; False if it existed already."""


def make_raw_index_once(
    text: Location,
    output: Location,
    progress: Progress = SILENT,
    *,
    drop_faulty: bool = False,
    overwrite: bool = False,
) -> MadeRawIndex:
    """Write the index that Modalities needs next to a JSONL file, unless that was done before.

    The index says where each line begins and ends.

    Args:
        text: The JSONL file, which is not compressed.
        output: The index to write, such as web.idx for web.jsonl.
        progress: Shows how far the work has come.
        drop_faulty: Whether lines that are not JSON are left out. If not, they are an error.
        overwrite: Whether an output that was made from something else may be replaced.

    Raises:
        InputError: A line is not JSON, and `drop_faulty` is False.
        ConfigError: The output exists, and was made from something else.
    """

    def make(target: Path) -> Mapping[str, object]:
        """Write the index, and return its counts for the receipt."""
        with downloaded([text]) as (local_text,):
            facts = create_raw_index(
                local_text, target, on_fault="drop" if drop_faulty else "raise", progress=progress
            )
        counts = RawIndexCounts(facts.documents, facts.lines, facts.first_dropped[:1])
        return asdict(counts)

    settings = {"drop_faulty": drop_faulty}
    result = make_once(
        _recorded_command("raw-index"), output, [text], settings, make, overwrite=overwrite
    )
    counts = from_plain(RawIndexCounts, as_parsed(result.facts))
    return MadeRawIndex(counts, result.is_made_now)


def notices_of_repeated_files(files: Sequence[Location]) -> list[str]:
    """Return a notice for each file that is named several times: "a.pbin is read 2 times, …".

    Args:
        files: The files that are to be joined, as the user named them.
    """
    notices: list[str] = []
    for file, times in Counter(files).items():
        if times > 1:
            notices.append(f"{file} is read {times:,} times, since it is named that many times")
    return notices


def _check_joinable(files: Sequence[Location]) -> None:
    """Check that no file has two different names, and that all have tokens of one tokenizer.

        a.pbin b.pbin              correct
        a.pbin a.pbin              correct: it is read twice
        a.pbin link_to_a.pbin      an error, since this looks like a mistake

    Args:
        files: The files as the user named them.

    Raises:
        InputError: Two names lead to the same file.
        FormatError: The receipts next to two files name different tokenizers.
    """
    check_different(list(dict.fromkeys(files)))
    receipts = [file.with_name(hidden_receipt_name(file.name)) for file in files]
    common_tokenizer(recorded_tokenizations(receipts))


def _make_pbin(
    operation: str,
    output: Location,
    files: Sequence[Location],
    settings: Mapping[str, object],
    write: Write,
    *,
    overwrite: bool,
) -> MadePbin:
    """Write a `.pbin` from other files, unless the same operation has written it before.

    Next to each output is a receipt of how it was made. For example, of these three operations, the
    first writes c.pbin and the receipt .c.pbin.made.json. The second finds that it has nothing to
    do. The third fails, since c.pbin is another output, which it must not replace:

        merge a.pbin and b.pbin to c.pbin
        merge a.pbin and b.pbin to c.pbin
        merge a.pbin and d.pbin to c.pbin

    Args:
        operation: What is done, such as "merge".
        output: The `.pbin` to write.
        files: The files that it is made from. Those in a bucket are downloaded.
        settings: Everything else that decides the content of the output, such as {"seed": 7}.
        write: Writes the output from the downloaded files.
        overwrite: Whether an output that was made from other files or settings may be replaced.
    """

    def make(target: Path) -> Mapping[str, object]:
        """Download the files and write the output, and return its counts for the receipt."""
        with downloaded(files) as sources:
            return asdict(write(sources, target))

    result = make_once(
        _recorded_command(operation), output, files, settings, make, overwrite=overwrite
    )
    return MadePbin(from_plain(PbinCounts, result.facts), result.is_made_now)


def _recorded_command(operation: str) -> str:
    """Return how receipts name an operation: "pack merge" for "merge".

    `nanoset pbin` was called `nanoset pack` in earlier versions. Receipts still say so, so that the
    outputs of those versions are recognised.

    Args:
        operation: The name of the subcommand.
    """
    return f"pack {operation}"
