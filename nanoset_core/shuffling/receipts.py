"""Receipts for shards that are written, beside them: so that a run that was cut off goes on where it was."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanoset_core.outputs.manifest import canonical_json
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import TarFacts, shard_stem
from nanoset_core.storage.atomic import UNFINISHED, fsync_folder
from nanoset_core.storage.mirror import Mirror, mirror_of

RECEIPTS = ".shards"
"""Folder of the receipts, within that of the tars."""
_ATTEMPTS = 8


def write_receipt(folder: Path, facts: TarFacts, made_from: str) -> None:
    """Note what a shard that was just written holds, and what it was made from.

    Nothing waits for the disk here: where a power cut takes the note, or the tar's new name, the shard is made again.
    """
    note = canonical_json({**asdict(facts), "made_from": made_from})
    for _ in range(_ATTEMPTS):
        try:
            (folder / RECEIPTS).mkdir(parents=True, exist_ok=True)
            path = folder / RECEIPTS / f"{UNFINISHED}{facts.stem}-{secrets.token_hex(4)}"
            path.write_bytes(note)
            path.rename(folder / RECEIPTS / f"{facts.stem}.json")
            return
        except (FileNotFoundError, FileExistsError):
            continue  # another build completed the webdataset, and removed the folder, at this very moment


def read_receipts(folder: Path, shards: Sequence[int], made_from: str) -> dict[int, TarFacts]:
    """Facts of those of the shards whose tars are there, of the size written, and made from just this."""
    found = {}
    for shard in shards:
        note = _read(folder / RECEIPTS / f"{shard_stem(shard)}.json")
        if note is not None and note.pop("made_from", None) == made_from:
            facts = _facts(note, shard)
            if facts is not None and has_size(folder, facts):
                found[shard] = facts
    return found


def _facts(note: dict[str, Any], shard: int) -> TarFacts | None:
    try:
        facts = TarFacts(**note)
    except TypeError:
        return None
    numbers = (facts.shard, facts.sequences, facts.tokens, facts.pad_tokens, facts.size_bytes)
    sound = all(type(number) is int for number in numbers) and type(facts.sha256) is str
    return facts if sound and facts.shard == shard else None


def read_sent_receipts(mirror: Mirror, folder: Path, shards: Sequence[int], made_from: str) -> dict[int, TarFacts]:
    """As `written`, of a folder that lives in a bucket: what the bucket has now."""
    from nanoset_core.storage.s3 import in_parallel

    sizes = mirror.sizes(folder)
    noted = [shard for shard in shards if f"{RECEIPTS}/{shard_stem(shard)}.json" in sizes]
    notes = in_parallel(
        lambda shard: mirror.bucket.read(mirror.name(folder / RECEIPTS / f"{shard_stem(shard)}.json")), noted
    )
    found = {}
    for shard, data in zip(noted, notes, strict=True):
        note = _parsed(data or b"")
        if note is not None and note.pop("made_from", None) == made_from:
            facts = _facts(note, shard)
            if facts is not None and sizes.get(f"{facts.stem}.tar") == facts.size_bytes:
                found[shard] = facts
    return found


def send_tars(mirror: Mirror, folder: Path, written_here: Sequence[TarFacts]) -> None:
    """Bring tars to the bucket where their folder lives, and then the notes on them."""
    tars = {folder / f"{facts.stem}.tar": facts.sha256 for facts in written_here}
    mirror.send(tars, tars)
    notes = (folder / RECEIPTS / f"{facts.stem}.json" for facts in written_here)
    mirror.send(note for note in notes if note.is_file())


def has_size(folder: Path, facts: TarFacts) -> bool:
    """Whether the shard's tar is there and of the size written."""
    path = folder / f"{facts.stem}.tar"
    return path.is_file() and path.stat().st_size == facts.size_bytes


def clear_receipts(folder: Path) -> None:
    """Remove the notes, once a manifest says what they say."""
    mirror = mirror_of(folder)
    if mirror is not None:
        mirror.remove(folder / RECEIPTS / name for name in mirror.sizes(folder / RECEIPTS))
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


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return None


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        note = json.loads(data)
    except (ValueError, RecursionError):  # ValueError: a power cut left the name and not the bytes
        return None
    return note if isinstance(note, dict) else None
