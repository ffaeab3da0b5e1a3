"""Recipes and manifests: what an output is made from, and which files it has.

The folder of an output is named by the digest of its recipe, so that two outputs of one recipe
cannot differ, and a change of any input or setting leads to another folder. `manifest.json` is
written last: a folder without it is an output that was never completed. For example, if the seed of
a nanoset is changed from 7 to 8, the next build makes `nanosets/pretrain/train/3b0c…`, next to the
version `91fe…` of the earlier seed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, overload

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import (
    JsonForm,
    Record,
    RecordType,
    as_parsed,
    canonical_json,
    load,
    to_plain,
)
from nanoset_core.records.stored_fields import stored
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that can change an output's bytes, and nothing else."""

    stage: str
    """Folder of the stage, below the root: inventory, shards, datasets, nanosets and so on."""
    name: str
    """Name of the output: a corpus, a split of a nanoset, or a webdataset, for example."""
    version: int
    """Version of the algorithm, which is raised if the same inputs would result in other bytes."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Name → digest of each output that this one is made from."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings that can change the bytes."""

    @property
    def digest(self) -> str:
        """Digest of the recipe, which is the name of the output's folder."""
        return digest_of(to_plain(self))


@dataclass(frozen=True, slots=True)
class Written:
    """What a function that wrote the files of an output knows about them."""

    facts: Mapping[str, Any]
    """Counts and findings, which the manifest stores."""
    files: Mapping[str, str | FileFact] = field(default_factory=dict)
    """File name → the sha256 that was computed while the file was written, or a `FileFact`.

    A `FileFact` is for files that are stored elsewhere, or that need no sha256. Files that are not
    named here are hashed when the output is committed.
    """


@dataclass(frozen=True, slots=True)
class FileFact:
    """Size, checksum and location of one file of an output, as manifests store them."""

    ignores_unknown_keys: ClassVar[bool] = True

    size: int = field(metadata=stored("bytes"))
    """Bytes."""
    sha256: str | None = field(default=None, metadata=stored(omit_default=True))
    """Checksum of its bytes, or None if computing it would need another pass over the data."""
    pieces: str | None = field(default=None, metadata=stored(omit_default=True))
    """Name of the file that lists the sha256 of its pieces, if it was joined within a bucket."""
    within: str | None = field(default=None, metadata=stored(omit_default=True))
    """Path below the root of another output's file that contains its bytes.

    Then the bytes are not stored a second time.
    """
    begin: int = field(default=0, metadata=stored(only_with="within"))
    """Position of its first byte in the file `within`."""

    @property
    def is_in_other_output(self) -> bool:
        """Whether the bytes are part of a file of another output, and not stored a second time."""
        return self.within is not None


class FilePlace(NamedTuple):
    """Where the bytes of an output's file are."""

    path: Path
    """Local path of the file itself, or of another output's file that contains it."""
    begin: int
    """Position of its first byte there."""


class FileFault(NamedTuple):
    """A file that is missing or has the wrong size."""

    name: str
    size: int | None
    """Its size in bytes; None if it is missing."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete version of an output: its folder, recipe, facts and files."""

    folder: Path
    """Absolute path; the folder contains manifest.json and the files."""
    recipe: Mapping[str, Any]
    """What it was made from: its `Recipe` as plain values."""
    digest: str
    """Digest of the recipe."""
    facts: Mapping[str, Any]
    """Counts and other findings; never times, hosts or paths."""
    files: Mapping[str, FileFact]
    """Path below the folder → size and checksum of the file."""
    access: FileAccess = field(compare=False, repr=False)
    """How the files are read."""
    stored: Mapping[str, int] | None = field(default=None, compare=False, repr=False)
    """Path → bytes of all files that were in the folder when the manifest was read.

    None if the store did not report them along with the manifest.
    """

    @property
    def stage(self) -> str:
        """Folder of the stage, below the root."""
        return str(self.recipe["stage"])

    @property
    def name(self) -> str:
        """Name of the output."""
        return str(self.recipe["name"])

    @property
    def location(self) -> str:
        """Path below the root of the folder in which a build wrote it: datasets/web/91fe….

        `folder` is another one if somebody has copied or renamed it.
        """
        return f"{self.stage}/{self.name}/{self.digest}"

    @property
    def written_ns(self) -> int:
        """When the manifest was written, in nanoseconds since 1970.

        0 if the manifest is in a bucket and this machine has no copy of it.
        """
        return self.access.written_ns(self.folder / MANIFEST)

    def path(self, name: str) -> Path:
        """Return the local path of a file, after downloading it if it is in a bucket.

        Args:
            name: Name of the file, such as `order.npy`. Or how the names of several files begin:
                `web_text_document` stands for web_text_document.bin and web_text_document.idx.

        Returns:
            The path of the file, or the path of the files without their endings.
        """
        for file_name in self._files_named(name):
            # To save room, a file may only be stored as a part of another output's file. Then there
            # is nothing to download here.
            if not self.files[file_name].is_in_other_output:
                self._fetch(file_name)
        return self.folder / name

    def _files_named(self, name: str) -> list[str]:
        """Return the files of this output with a name, with or without the ending.

            order.npy            ["order.npy"]
            web_text_document    ["web_text_document.bin", "web_text_document.idx"]

        Args:
            name: The name.
        """
        if name in self.files:
            return [name]
        return [file for file in self.files if file.startswith(f"{name}.")]

    def _fetch(self, name: str) -> None:
        """Download a file of this output if it is in a bucket, and this machine has no copy of it.

        The download is compared with the sha256 in the manifest, which lists the files of the
        output. The sha256 of some large files is not known, since a bucket has joined them from
        pieces. Then another file of the output lists the sha256 of each piece.

        Args:
            name: Name of the file, which is not part of another output's file.
        """
        fact = self.files[name]
        list_of_pieces: Path | None = None
        if fact.pieces is not None:
            list_of_pieces = self.path(fact.pieces)  # downloads the list
        self.access.fetch(
            self.folder / name, size=fact.size, sha256=fact.sha256, pieces=list_of_pieces
        )

    def place(self, name: str) -> FilePlace:
        """Return where the bytes of a file are: in itself, or in a file of another output.

        To save room, an output that only joins others need not store their bytes again. Its
        manifest then says, for example, that the file `web.bin` is the bytes from 4,000 on of
        `datasets/all/77ab/all.bin`.

        Args:
            name: One of `files`.
        """
        fact = self.files[name]
        if fact.within is None:
            return FilePlace(self.folder / name, 0)
        return FilePlace(self.access.folder / fact.within, fact.begin)

    def url(self, name: str = "") -> str:
        """Return where a file, or the whole output, is stored, for messages.

        Args:
            name: One of `files`; "" for the whole output.

        Returns:
            A path, or an address such as `s3://bucket/datasets/web/91fe…`.
        """
        return self.access.url(self.folder / name)

    def load(self, name: str, kind: type[RecordType]) -> RecordType:
        """Read one of the files of this output that contain a record, such as a JSON file with
        counts.

        Args:
            name: The file, one of `files`.
            kind: Class of the record.

        Returns:
            The record, after its bytes were compared with the checksum in the manifest.

        Raises:
            MissingError: The file does not exist.
            FormatError: Its bytes are not those that were written, or are no such record.
        """
        path = self.path(name)
        try:
            data = read_regular(path)
        except FileNotFoundError as error:
            raise MissingError(
                "a file of an output was deleted",
                where=self.url(name),
                remedy="run `nanoset build`",
            ) from error

        # Another program may have changed the file, or written a part of it only.
        if not self._has_bytes(name, data):
            raise self._not_as_written(path, "its size or sha256 is not that in the manifest")
        try:
            return load(kind, data, path)
        except FormatError as error:
            found = f"{error.what}: {error.found}"
            raise self._not_as_written(path, found, error.expected) from error

    def _not_as_written(self, path: Path, found: str, expected: str | None = None) -> FormatError:
        """Return the error for a file whose content is not what nanoset wrote.

        Somebody has changed it, or the disk has damaged it. The user is told to delete the output,
        which the next build makes again.

        Args:
            path: Local path of the file.
            found: What is wrong with it.
            expected: What its content should be, if known.
        """
        return FormatError(
            "this file is not as it was written",
            where=path,
            found=found,
            expected=expected,
            remedy=f"delete {self.folder}; the next build makes it again",
        )

    def _has_bytes(self, name: str, data: bytes) -> bool:
        """Return whether a file's bytes have the size and sha256 that the manifest states.

        Args:
            name: The file. If the manifest does not list it, any bytes are right.
            data: Its bytes.
        """
        fact = self.files.get(name)
        if fact is None:
            return True
        has_sha256 = fact.sha256 is None or fact.sha256 == hashlib.sha256(data).hexdigest()
        return len(data) == fact.size and has_sha256

    def damage(self) -> str | None:
        """Return a description of the first file of this output that is missing or has the wrong
        size.

        Returns:
            For example "tokens.bin is missing" or "tokens.bin has 40 bytes instead of 80"; None if
            all files exist in their sizes.
        """
        sizes = {name: fact.size for name, fact in self.files.items()}
        fault = first_fault(self.sizes(), sizes)
        if fault is None:
            return None
        if fault.size is None:
            return f"{fault.name} is missing"
        return f"{fault.name} has {fault.size:,} bytes instead of {sizes[fault.name]:,}"

    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of the files of this output that exist.

        To save room, a file may be stored as a range of bytes within a file of another output, and
        not by itself. Such a file exists if the other file is long enough.

        Returns:
            Path below the folder of this output → bytes, such as {"web.bin": 80, "web.idx": 42}.
        """
        sizes = dict(self._sizes_in_folder())
        for name, fact in self.files.items():
            if fact.is_in_other_output:
                # Nobody reads a file of this name in the folder, so it does not count.
                sizes.pop(name, None)
                if self._has_bytes_in_other_output(name):
                    sizes[name] = fact.size
        return sizes

    def _sizes_in_folder(self) -> Mapping[str, int]:
        """Return the sizes of the files that are stored in the folder: path below it → bytes."""
        if self.stored is not None:
            return self.stored  # they were listed when the manifest was read
        return self.access.sizes(self.folder, self.files)

    def _has_bytes_in_other_output(self, name: str) -> bool:
        """Return whether another output's file is long enough to contain the bytes of a file.

        For example, a file of 80 bytes is stored as the bytes 4,000 to 4,079 of
        `datasets/all/77ab/all.bin`. So that file must have at least 4,080 bytes.

        Args:
            name: A file that is a range of that other file, and not stored a second time.
        """
        fact = self.files[name]
        other_file = self.place(name).path
        other_size = self.access.size(other_file) or 0
        return fact.begin + fact.size <= other_size


def first_fault(sizes: Mapping[str, int], expected: Mapping[str, int]) -> FileFault | None:
    """Return the first file that is missing or has the wrong size, or None.

        sizes       {"a.bin": 80, "b.bin": 40}
        expected    {"a.bin": 80, "b.bin": 70, "c.bin": 10}
        result      b.bin, which has 40 bytes (c.bin is missing, but comes later)

    Args:
        sizes: Name → bytes of the files that exist.
        expected: Name → bytes that the files should have.
    """
    for name, expected_size in expected.items():
        size = sizes.get(name)
        if size != expected_size:
            return FileFault(name, size)
    return None


@dataclass(frozen=True, slots=True)
class StoredManifest(Record):
    """The content of manifest.json."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not a manifest",
        remedy="delete the folder; the next build makes it again",
        indent=1,
        sorts_keys=True,
        ends_with_newline=True,
    )

    digest: str
    """Digest of the recipe."""
    recipe: Recipe
    facts: Mapping[str, Any]
    files: Mapping[str, FileFact]
    """Path below the output's folder → size and checksum of the file."""
    sha256: str | None = field(default=None, metadata=stored(omit_default=True))
    """Checksum of facts and files. Manifests of early versions of nanoset have none."""
    nanoset: int = 1
    """Version of this format."""

    @classmethod
    def of(
        cls, recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]
    ) -> StoredManifest:
        """Return the content of the manifest of an output, with its digest and checksum.

        A manifest is the JSON file that describes a finished output:

            recipe    {"name": "web", "options": {"seed": 7}, ...}      what it was made from
            digest    "91fe02..."                                        of the recipe
            facts     {"documents": 3}                                   counts
            files     {"web.bin": {"bytes": 80, "sha256": "9f86..."}}
            sha256    "4c2e..."                                          of facts and files

        Args:
            recipe: What the output was made from.
            facts: Counts and other findings, as values that JSON can represent.
            files: Path below the output's folder → size and checksum of the file.
        """
        sorted_files = dict(sorted(files.items()))

        # A reader computes the checksum again, from what JSON has made of these values: the key 3
        # of a mapping has become the text "3", for example. So convert them first.
        plain_facts = as_parsed(dict(facts))
        plain_files = {name: to_plain(fact) for name, fact in sorted_files.items()}
        sha256 = _checksum(plain_facts, plain_files)
        return cls(recipe.digest, recipe, dict(facts), sorted_files, sha256)

    def check(self, value: dict[str, Any]) -> None:
        """Check that a manifest is as it was written, and that its paths stay where they belong.

        A manifest is the JSON file that describes a finished output. Three parts of it are checked:

            digest           must be that of the recipe (what the output was made from)
            sha256           must be that of the counts and the list of files
            names of files   must not lead out of the folder, as "../../keys" would

        Args:
            value: The parsed JSON from which this object was made.

        Raises:
            ValueError: One of them is wrong.
        """
        if self.digest != self.recipe.digest:
            raise ValueError(f"digest {self.digest}, but its recipe has {self.recipe.digest}")
        # Use the parsed file, since this object lacks keys that only a newer version knows.
        if "sha256" in value and self.sha256 != _checksum(value["facts"], value["files"]):
            raise ValueError("its facts and files do not have the sha256 that it states")
        for name, fact in self.files.items():
            self._check_file(name, fact)

    def _check_file(self, name: str, fact: FileFact) -> None:
        """Check the paths in one entry of a manifest, which may have been forged.

        A manifest lists the files of an output. If it is read from a shared folder, anybody may
        have written it, and a file named `../../keys` would lead to a secret file elsewhere. An
        entry has up to three paths:

            name      web.bin                    the file, in the output's folder
            within    datasets/web/3f9c…/a.bin   the file of another output that contains its bytes
            pieces    web.pieces                 a file with checksums of parts of the file

        Args:
            name: Path of the file below the output's folder.
            fact: What the manifest says about the file.

        Raises:
            ValueError: A path leads out of its folder; or the output has no such file with
                checksums.
        """
        if not is_inside(name):
            raise ValueError(f"a file named {name!r}, which is not below its folder")

        other_file = fact.within
        if other_file is not None and not is_inside(other_file):
            raise ValueError(f"{name!r} within {other_file!r}, which is not below the root")

        list_of_pieces = fact.pieces
        if list_of_pieces is not None and not self._is_list_of_pieces(list_of_pieces):
            raise ValueError(f"no list of the pieces of {name!r}")

    def _is_list_of_pieces(self, name: str) -> bool:
        """Return whether a file of an output can be a list of checksums of another file's pieces.

        A bucket may join a large file from pieces. Nobody has read it as a whole, so its checksum
        is not known. Instead, another file lists the checksums of the pieces. By the manifest:

            web.bin       pieces: web.pieces
            web.pieces    sha256: 9f86…         can be such a list
            a.pieces      pieces: b.pieces      cannot: it has no checksum of its own
            b.pieces      pieces: a.pieces      nor this: it would lead readers round in a circle

        Args:
            name: Path of the file below the output's folder, such as web.pieces.
        """
        fact = self.files.get(name)
        if fact is None:
            return False  # the manifest does not list it
        if fact.pieces is not None or fact.is_in_other_output:
            return False  # to check it, other files would have to be read
        return fact.sha256 is not None


def read_manifest(folder: Path, access: FileAccess | None = None) -> Manifest | None:
    """Read the manifest of an output, the JSON file that describes it, as it is stored now.

    An output without a manifest is incomplete: its manifest is written last.

    Args:
        folder: Folder of the output, which is named by its digest, such as
            `datasets/web/91fe02...`.
        access: How its files are read. By default the folder is a local one.

    Returns:
        The manifest, or None if the folder has none.

    Raises:
        FormatError: The file is not a manifest, or its digest is not that of its recipe.
    """
    path = folder / MANIFEST
    access = access or FileAccess(folder)
    try:
        # {"web.bin": 80, …} if the folder was listed for this, as in a bucket; otherwise None
        data, sizes = access.read_marker(path)
        content = load(StoredManifest, data, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except FormatError as error:
        url_of_manifest = access.url(path)  # its place in the bucket, instead of the local copy's
        raise error.at(url_of_manifest) from error
    return Manifest(
        folder=folder,
        recipe=to_plain(content.recipe),
        digest=content.digest,
        facts=content.facts,
        files=content.files,
        access=access,
        stored=sizes,
    )


def _checksum(facts: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest's facts and files; the digest protects its recipe.

    Args:
        facts: The facts, as they are parsed from JSON.
        files: Name → entry of each file, as it is parsed from JSON.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(canonical_json([facts, files])).hexdigest()


def no_manifest(where: str, found: str, expected: str) -> FormatError:
    """Return the error for a manifest that belongs to another output than its folder.

    Args:
        where: Path or address of the manifest.
        found: The output that it belongs to.
        expected: The output whose folder it is in.
    """
    form = StoredManifest.json_form
    return FormatError(
        form.problem, where=where, found=found, expected=expected, remedy=form.remedy
    )


def pack(manifest: Manifest) -> bytes:
    """Return the content of a manifest as a few hundred compressed bytes, to keep many in one file.

    A manifest describes a finished output. A large corpus has hundreds of thousands of outputs,
    whose manifests would otherwise take gigabytes of memory. `unpack` restores a manifest. Left out
    is what depends on the process or the time: the folder, how files are accessed, and which files
    were found on the disk.

    Args:
        manifest: The manifest.

    Returns:
        The list [recipe, digest, facts, files] as JSON, compressed by zlib.
    """
    # Imported here, since it is slow to import and readers of finished outputs do not need it.
    import orjson

    # A file is a list of the fields of `FileFact`, in their order, which `unpack` passes to it.
    files: dict[str, tuple[Any, ...]] = {}
    for name, fact in manifest.files.items():
        files[name] = (fact.size, fact.sha256, fact.pieces, fact.within, fact.begin)
    content = orjson.dumps((manifest.recipe, manifest.digest, manifest.facts, files))
    return zlib.compress(content, level=1)


def unpack(packed: bytes, access: FileAccess) -> Manifest:
    """Return the manifest that `pack` has compressed.

    A manifest describes a finished output. A program that works with hundreds of thousands of
    outputs holds their manifests compressed, and unpacks one when it needs it.

    Args:
        packed: Result of `pack`.
        access: How the files below the folder or bucket of all outputs are read.
    """
    import orjson

    recipe, digest, facts, files = orjson.loads(zlib.decompress(packed))
    return Manifest(
        folder=access.folder / recipe["stage"] / recipe["name"] / digest,
        recipe=recipe,
        digest=digest,
        facts=facts,
        files={name: FileFact(*fact) for name, fact in files.items()},
        access=access,
    )


class PackedManifests(Sequence[Manifest]):
    """Manifests of one root, which are held compressed and are unpacked whenever they are read.

    A corpus may have hundreds of thousands of shards. Packed, a manifest takes a few hundred bytes.
    """

    def __init__(self, packed: Iterable[bytes], access: FileAccess) -> None:
        """Hold packed manifests.

        Args:
            packed: Results of `pack`.
            access: How the files below the root of the outputs are read.
        """
        self._packed = list(packed)
        self._access = access

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Manifest: ...
    @overload
    def __getitem__(self, index: slice) -> PackedManifests: ...
    def __getitem__(self, index: int | slice) -> Manifest | PackedManifests:
        if isinstance(index, slice):
            return PackedManifests(self._packed[index], self._access)
        return unpack(self._packed[index], self._access)
