"""Receipts for shards that are written, beside them: so that a run that was cut off goes on where it was."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanoset_core.outputs.manifest import canonical_json
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import TarFacts, shard_stem
from nanoset_core.storage.access import FileAccess, LocalAccess
from nanoset_core.storage.atomic import discard, fsync_folder
from nanoset_core.storage.scratch import open_unfinished

RECEIPTS = ".shards"
"""Folder of the receipts, within that of the tars."""
_ATTEMPTS = 8


def receipt_path(folder: Path, facts: TarFacts) -> Path:
    """Where the receipt of a shard lies."""
    return folder / RECEIPTS / f"{facts.stem}.json"


def write_receipt(folder: Path, facts: TarFacts, made_from: str) -> None:
    """Note what a shard that was just written holds, and what it was made from.

    Nothing waits for the disk here: a shard whose receipt, or whose tar's new name, a power cut takes is made again.
    """
    receipt = canonical_json({**asdict(facts), "made_from": made_from})
    target = receipt_path(folder, facts)
    for _ in range(_ATTEMPTS):
        try:
            file = open_unfinished(target)
            try:
                file.write(receipt)
                file.flush()
                Path(file.name).rename(target)
            finally:
                discard(file)
            return
        except (FileNotFoundError, FileExistsError):
            continue  # another build completed the webdataset, and removed the folder, at this very moment


def read_receipts(
    folder: Path, shards: Sequence[int], made_from: str, access: FileAccess | None = None
) -> dict[int, TarFacts]:
    """Facts of those of the shards whose tars are there, of the size written, and made from just this.

    Args:
        folder: of the tars.
        shards: numbers of the shards.
        made_from: digest that the receipts must name.
        access: how the folder is reached; None = as a local one.
    """
    access = access or LocalAccess(folder)
    names = {shard: (f"{shard_stem(shard)}.tar", f"{RECEIPTS}/{shard_stem(shard)}.json") for shard in shards}
    sizes = access.sizes(folder, [name for pair in names.values() for name in pair])
    both = [shard for shard, pair in names.items() if sizes.keys() >= set(pair)]
    receipts = access.each(lambda shard: _read(access, folder / names[shard][1]), both)
    found = {}
    for shard, receipt in zip(both, receipts, strict=True):
        if receipt is not None and receipt.pop("made_from", None) == made_from:
            facts = _facts(receipt, shard)
            if facts is not None and sizes[names[shard][0]] == facts.size_bytes:
                found[shard] = facts
    return found


def _facts(receipt: dict[str, Any], shard: int) -> TarFacts | None:
    try:
        facts = TarFacts(**receipt)
    except TypeError:
        return None
    numbers = (facts.shard, facts.sequences, facts.tokens, facts.pad_tokens, facts.size_bytes)
    sound = all(type(number) is int for number in numbers) and type(facts.sha256) is str
    return facts if sound and facts.shard == shard else None


def send_tars(access: FileAccess, folder: Path, written_here: Sequence[TarFacts]) -> None:
    """Send tars, and then their receipts, to where their folder lives."""
    tars = {folder / f"{facts.stem}.tar": facts.sha256 for facts in written_here}
    access.send(tars, tars)
    receipts = (receipt_path(folder, facts) for facts in written_here)
    access.send(receipt for receipt in receipts if receipt.is_file())


def clear_receipts(folder: Path, access: FileAccess | None = None) -> None:
    """Remove the receipts, once a manifest says what they say; `access` as in `read_receipts`."""
    (access or LocalAccess(folder)).remove_all(folder / RECEIPTS)
    if (folder / RECEIPTS).is_dir():
        shutil.rmtree(folder / RECEIPTS, ignore_errors=True)
        fsync_folder(folder)


def sources_digest(plan: ShufflePlan, sources: Sequence[TokenSource]) -> str:
    """What shards are made from, as far as it can be told without reading the tokens again; hex sha256.

    The plan, and of each source its file's place, size and time of change; the tokens themselves where there is no
    file. Whoever knows a digest of the tokens should rather use that.
    """
    states: list[object] = [plan.to_json()]
    for source in sources:
        if source.path is None:
            states.append(hashlib.sha256(source.tokens.data).hexdigest())
        else:
            stat = source.path.stat()
            states.append([str(source.path.resolve()), stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(canonical_json(states)).hexdigest()


def _read(access: FileAccess, path: Path) -> dict[str, Any] | None:
    try:
        receipt = json.loads(access.read_current(path))
    except (FileNotFoundError, ValueError, RecursionError):  # ValueError: a power cut left the name and not the bytes
        return None
    return receipt if isinstance(receipt, dict) else None
