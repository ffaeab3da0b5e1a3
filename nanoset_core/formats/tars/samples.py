"""Group the members of a tar into samples, as webdataset does, and find those that hold tokens.

webdataset (`base_plus_ext` and `group_by_keys`) splits a member's path at the first dot of its file
name: the part before it is the sample's key, and the part after it is the extension. Consecutive
members with the same key are one sample. Folders, links, names without a dot, and hidden files such
as `.DS_Store` have no key, and belong to no sample. For example:

    member              key        extension
    text/0001.npy       text/0001  npy
    text/0001.meta.json text/0001  meta.json
    text/.DS_Store      none
    text/0002.npy       text/0002  npy
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nanoset_core.errors import FormatError
from nanoset_core.formats.tars.tar import Archive, TarMember, iterate_entries

MANIFEST_NAME = "manifest.jsonl"
"""OpenLM's list of the tars of a folder, stored next to them."""
DATA_KEYS = ("npy", "json.gz", "json", "txt")
"""Extensions that can hold tokens. If a sample has several, the first of these is read."""
_META = re.compile(r"__[^/]*__(\.|$)")
"""Names of members that describe a tar, such as `__meta__.json`."""


@dataclass(frozen=True, slots=True)
class TarSample:
    """The members of one sample, or one member that belongs to no sample."""

    key: str
    """The beginning of their paths; the whole path of a member that belongs to no sample."""
    members: Mapping[str, TarMember]
    """Extension in lower case → member. Empty if the member belongs to no sample."""

    @property
    def data_key(self) -> str | None:
        """The extension of the member with the tokens: the first of `DATA_KEYS`, or None."""
        for data_key in DATA_KEYS:
            if data_key in self.members:
                return data_key
        return None

    @property
    def member_count(self) -> int:
        """Number of entries of the archive; 1 for a member that belongs to no sample."""
        return max(len(self.members), 1)

    @property
    def name(self) -> str:
        """Path of its first member, for messages."""
        for member in self.members.values():
            return member.name
        return self.key


def iterate_samples(archive: Archive, where: object) -> Iterator[TarSample]:
    """Yield the samples of an archive, each when its last member was read.

    A sample is a sequence of members with the same key, the name without the extension: `0001.npy`
    and `0001.json`. An entry that belongs to no sample, such as a folder, is yielded as a sample
    without members.

    Args:
        archive: Bytes of the archive.
        where: Name of the archive, for messages.

    Raises:
        FormatError: The archive is damaged, or two members of one sample have the same extension.
    """
    # The current sample, which ends at the first member with another key.
    key = ""
    members: dict[str, TarMember] = {}  # extension → member
    for entry in iterate_entries(archive, where):
        parts = _key_and_extension(entry)
        if parts is None:
            # It may be between two members of a sample: macOS adds entries such as `._0.npy`.
            yield TarSample(entry.name, {})
            continue

        entry_key, extension = parts
        if members and entry_key != key:
            yield TarSample(key, members)
            members = {}
        key = entry_key
        if extension in members:
            raise _same_extension_error(members[extension], entry, where)
        members[extension] = entry
    if members:
        yield TarSample(key, members)


def _same_extension_error(first: TarMember, second: TarMember, where: object) -> FormatError:
    """Return the error for two members of one sample that have the same extension."""
    return FormatError(
        "two members of a sample have the same extension",
        where=f"{where}, offset {second.offset}",
        found=f"{first.name!r} and {second.name!r}",
        expected="samples with different names, or different extensions",
        remedy="make the tar again with a name for each sample; webdataset refuses it, too",
    )


def iterate_token_members(archive: Archive, where: object) -> Iterator[TarMember]:
    """Yield the files with tokens in a tar that this project has written.

    In such a tar, each training sample has one file, `00000000_00000000.npy` or `….json.gz`.
    Others, such as a README.md that somebody has added, are skipped.

    Args:
        archive: Bytes of the archive.
        where: Name of the archive, for messages.

    Raises:
        FormatError: As for `iterate_samples`.
    """
    for sample in iterate_samples(archive, where):
        for extension, member in sample.members.items():
            if extension in DATA_KEYS:
                yield member


def _key_and_extension(entry: TarMember) -> tuple[str, str] | None:
    """Return the key of a member's sample, and the member's extension in lower case.

    For example, "text/0001.Meta.json" gives ("text/0001", "meta.json").

    Returns:
        (key, extension), or None if the member belongs to no sample.
    """
    # The extension starts at the first dot of the file name. Hidden files have nothing before it.
    folder, slash, name = entry.name.rpartition("/")
    stem, dot, extension = name.partition(".")
    has_both = bool(stem and dot)
    describes_tar = _META.match(name) is not None  # such a file is about all samples
    if not entry.is_file or not has_both or describes_tar:
        return None
    return f"{folder}{slash}{stem}", extension.lower()
