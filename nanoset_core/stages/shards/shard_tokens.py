"""Where the tokens of a shard are: in its own .bin, or in a range of a dataset's .bin.

Once a dataset contains the tokens of its shards, they are removed from the shards to save space.
The manifest of the shard says where they are (`Manifest.place`), so every reader of a shard finds
them. It is written before the .bin is removed, and after it was restored. So whenever a process is
killed, the file that it names exists.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import MANIFEST, FileFact, Manifest, Recipe, StoredManifest
from nanoset_core.records.json_records import dump, from_plain
from nanoset_core.stages.shards.one_shard import BIN
from nanoset_core.storage.atomic import atomic_file, sha256_file
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.removing.removals import remove_file
from nanoset_core.storage.writing.appending import append_file
from nanoset_core.storage.writing.uploads import write_small_file


def delete_own_tokens(shard: Manifest, in_dataset: FileFact) -> None:
    """Delete the file of a shard's tokens, after recording which bytes of a dataset are the same.

    A shard is a tokenized piece of a text collection. Its manifest, a JSON file, says where its
    tokens are:

        before    shards/web/3f9c…/tokens.bin
        after     datasets/web/77cd…/web.bin, bytes 4096 to 6000

    Args:
        shard: The manifest.
        in_dataset: The bytes of the dataset. The caller has compared them with the tokens.
    """
    # Write the manifest first: if this is interrupted, it never names a file that was deleted.
    _write_bin_fact(shard, in_dataset)
    with contextlib.suppress(FileNotFoundError):  # the tokens were a range of another dataset
        remove_file(shard.access, shard.folder / BIN)


def copy_tokens_back(shard: Manifest) -> None:
    """Give a shard its own file of tokens back, by copying them from a dataset.

    To save space, the file of a shard may be deleted while a dataset contains the same tokens:

        before    datasets/web/77cd…/web.bin, bytes 4096 to 6000
        after     shards/web/3f9c…/tokens.bin

    Args:
        shard: Such a shard, on this machine.

    Raises:
        StorageError: The bytes of the dataset have changed since it was written.
    """
    _copy_from_dataset(shard)
    # Written last: if the process is killed before, the tokens are still found in the dataset.
    own_file = replace(shard.files[BIN], within=None, begin=0)
    _write_bin_fact(shard, own_file)


def _copy_from_dataset(shard: Manifest) -> None:
    """Copy the tokens of a shard from the file of a dataset to the folder of the shard.

    The new file appears only once it is complete and has the recorded sha256.

    Args:
        shard: The manifest of the shard, which says where its tokens are.

    Raises:
        StorageError: The bytes of the dataset have changed since it was written.
    """
    recorded = shard.files[BIN]
    dataset_bin, first_byte = shard.place(BIN)
    with open_regular(dataset_bin) as source, atomic_file(shard.folder / BIN) as target:
        append_file(source, target, recorded.size, first_byte)
        target.flush()
        sha256 = sha256_file(Path(target.name))
        if sha256 != recorded.sha256:
            raise altered(
                dataset_bin,
                f"sha256 {sha256} of {recorded.size:,} bytes from byte {first_byte:,} on, "
                f"not {recorded.sha256}",
            )


def altered(path: Path, found: str) -> StorageError:
    """Return the error for a file whose tokens have changed since they were written.

    Each part of a tokenized dataset (a shard) has a recorded checksum. If a disk or a program has
    changed the file, training would read wrong tokens, so nothing is made from it.

    Args:
        path: The file.
        found: What was found in place of the tokens, such as another checksum.
    """
    return StorageError(
        "tokens of shards are not those that were written",
        where=path,
        found=found,
        remedy="run `nanoset verify --deep`, delete the shards that it names, and build again: "
        "they are rebuilt",
    )


def _write_bin_fact(shard: Manifest, fact: FileFact) -> None:
    """Record where the tokens of a shard are stored, in the shard's manifest.

    A shard is a part of a tokenized corpus. Its tokens are in a file of its own, or to save space,
    only in a range of bytes of a dataset that was made from it.

    Args:
        shard: The shard.
        fact: Where its tokens are now, with their size and sha256.
    """
    # The manifest is a JSON file. Write it again, with all that it had but for this entry.
    files = {**shard.files, BIN: fact}
    recipe = from_plain(Recipe, shard.recipe)
    content = StoredManifest.of(recipe, shard.facts, files)
    write_small_file(shard.access, shard.folder / MANIFEST, dump(content))
