"""Trials on what a build leaves: manifests, plans, index files, notes and tables, as trainers and
builds read them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.formats import Format
from helpers.building import build_all
from helpers.records import plain
from helpers.sample_project import CONFIG, EOD, sentences, write_raw
from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.layout import idx_path, read_idx
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config
from nanoset_core.sampling.cache import index_sets
from nanoset_core.sampling.descriptions import read_identifiers
from nanoset_core.stages.handoff.data_args import read_data_args, read_per_split
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.shards.document_counts import counts_by_file
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.markers import read_markers
from nanoset_core.stages.webdataset.plan import StoredShufflePlan
from nanoset_core.stages.webdataset.standalone.sampling import load_sampling
from nanoset_core.storage.access import FileAccess
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventories import known_inventory
from nanoset_core.text.survey import list_corpora
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

_SPLIT = "data/nanosets/pretrain/train"


def formats(scratch: Path, tokenizer: bytes) -> list[Format]:
    """All of them, from one small project."""
    folder = scratch / "project"
    folder.mkdir()
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "nanoset.yaml").write_text(CONFIG)
    build_all(folder / "nanoset.yaml")
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(parent.is_symlink() for parent in [path, *path.parents])
    }
    return [*_of_nanosets(files), *_of_outputs(files), *_of_tables(files)]


def _one(files: dict[str, bytes], begin: str, end: str) -> str:
    """The first of the files so named."""
    return next(name for name in files if name.startswith(begin) and name.endswith(end))


def _below(files: dict[str, bytes], *begins: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(begins)}


def _of_nanosets(files: dict[str, bytes]) -> list[Format]:
    parts = _below(
        files,
        f"{_SPLIT}/",
        "data/nanosets/pretrain/cache/",
        "data/datasets/web/",
        "data/datasets/code/",
    )
    dataset = _one(files, "data/datasets/web/", ".idx")
    victims = {
        "plan.json": _one(files, f"{_SPLIT}/blend/", "plan.json"),
        "manifest.json of a split": _one(files, f"{_SPLIT}/blend/", "manifest.json"),
        "current.json of a split": f"{_SPLIT}/index_mappings/current.json",
    }
    found = [
        Format(name, parts, victim, _read_split, _is_mended, is_json=True, mend=_mend(victim))
        for name, victim in victims.items()
    ]
    index = {
        "document index": _indexed(files, "members", 0, "files", "document_index"),
        "sample index": _indexed(files, "members", 0, "files", "sample_index"),
        "shuffle index": _indexed(files, "members", 0, "files", "shuffle_index"),
        "blend's dataset index": _indexed(files, "blend", "files", "dataset_index"),
        "blend's sample index": _indexed(files, "blend", "files", "dataset_sample_index"),
    }
    found += [
        Format(name, parts, victim, _read_split, _is_as_indexed) for name, victim in index.items()
    ]
    found.append(
        Format(".idx under a nanoset", parts, dataset, _read_split, _is_as_indexed_or_unsound)
    )
    sidecar = _indexed(files, "members", 0, "sidecar")
    return [
        *found,
        Format(
            "note on index files",
            parts,
            sidecar,
            _is_cached,
            lambda _f, v: v is False,
            lambda v: not v,
        ),
    ]


def _indexed(files: dict[str, bytes], *path: str | int) -> str:
    """An index file that the plan of the split names."""
    found = json.loads(files[_one(files, f"{_SPLIT}/blend/", "plan.json")])["plan"]
    for part in path:
        found = found[part]
    return f"data/nanosets/pretrain/cache/{found}"


def _read_split(folder: Path) -> Any:
    split = load_nanoset(folder / "data", "pretrain", "train")
    count = len(split)
    one_by_one = b"".join(split.tokens(number).tobytes() for number in range(0, count, 7))
    return count, split.batch(np.arange(count)).tobytes(), one_by_one


def _mend(victim: str) -> Callable[[Path], None]:
    """Let the manifest say what the file beside it now is, and the manifest's own checksum be
    right.
    """

    def mend(folder: Path) -> None:
        path = (folder / victim).with_name("manifest.json")
        try:
            value = json.loads(path.read_bytes())
            if path.name != Path(victim).name:
                data = (folder / victim).read_bytes()
                fact = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                value["files"][Path(victim).name] = fact
            text = json.dumps(
                [value["facts"], value["files"]], sort_keys=True, separators=(",", ":")
            )
            value["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        except (OSError, ValueError, LookupError, TypeError):
            return  # it is beyond mending
        path.write_text(json.dumps(value))

    return mend


def _is_mended(folder: Path, _value: Any) -> bool:
    """Another plan counts only where the manifest was forged with it, and then as far as it leads
    nowhere else.
    """
    plan = next((folder / _SPLIT / "blend").glob("*/plan.json"))
    fact = json.loads((plan.parent / "manifest.json").read_bytes())["files"]["plan.json"]
    told = json.loads(plan.read_bytes())["plan"]
    names = [member["prefix"] for member in told["members"]] + list(told["blend"]["files"].values())
    inside = not any(".." in name.split("/") or name.startswith("/") for name in names)
    return inside and hashlib.sha256(plan.read_bytes()).hexdigest() == fact.get("sha256")


def _is_as_indexed(folder: Path, value: Any) -> bool:
    """Sample by sample, as the index files say, with every number checked."""
    plan = json.loads(next((folder / _SPLIT / "blend").glob("*/plan.json")).read_bytes())["plan"]
    cache = folder / "data/nanosets/pretrain/cache"
    chosen, numbers = (
        np.load(cache / plan["blend"]["files"][k])
        for k in ("dataset_index", "dataset_sample_index")
    )
    members = [_member(folder, cache, member) for member in plan["members"]]
    try:
        rows = [
            _at(members, member)(number) for member, number in zip(chosen, numbers, strict=True)
        ]
    except IndexError:
        return False
    one_by_one = b"".join(row.tobytes() for row in rows[::7])
    is_even = all(len(row) == len(rows[0]) for row in rows)
    return is_even and value == (len(rows), b"".join(row.tobytes() for row in rows), one_by_one)


def _is_as_indexed_or_unsound(folder: Path, value: Any) -> bool:
    """A trainer's start reads the ends of an .idx, not its entries: those are for `nanoset verify`,
    tried as well.
    """
    try:
        read_idx(next((folder / "data/datasets/web").glob("*/*.idx")))
    except FormatError:
        return True
    return _is_as_indexed(folder, value)


def _member(folder: Path, cache: Path, member: dict[str, Any]) -> Callable[[int], np.ndarray]:
    """One dataset's samples by its index files, followed slowly; IndexError where they lead outside
    of the arrays.
    """
    parts = ("document_index", "sample_index", "shuffle_index")
    documents, samples, shuffle = (np.load(cache / member["files"][part]) for part in parts)
    prefix = folder / "data" / member["prefix"]
    index, data = read_idx(idx_path(prefix), validate=False), Path(f"{prefix}.bin").read_bytes()

    def sample(number: int) -> np.ndarray:
        place = int(_at(shuffle, number))
        (first, begin), (last, end) = _at(samples, place).tolist(), _at(samples, place + 1).tolist()
        found, size = b"", index.dtype.itemsize
        if first > last:
            raise IndexError
        for at in range(first, last + 1):
            sequence = int(_at(documents, at))
            start, length = (
                int(_at(index.sequence_pointers, sequence)),
                int(_at(index.sequence_lengths, sequence)),
            )
            low, high = begin if at == first else 0, end + 1 if at == last else length
            if start < 0 or not 0 <= low <= high or start + high * size > len(data):
                raise IndexError
            found += data[start + low * size : start + high * size]
        return np.frombuffer(found, index.dtype).astype(np.int64)

    return sample


def _at(values: Any, number: int) -> Any:
    if number < 0:
        raise IndexError
    return values[number]


def _is_cached(folder: Path) -> Any:
    split = load_nanoset(folder / "data", "pretrain", "train")
    config = replace(split.config, path_to_cache=str(folder / "data/nanosets/pretrain/cache"))
    sets = index_sets(split.plan, config)
    return all(files.digests_if_complete(deep=False) is not None for files in sets)


def _of_outputs(files: dict[str, bytes]) -> list[Format]:
    """What one stage of a build reads of another."""
    parts = _below(
        files, "nanoset.yaml", "tokenizer.json", "raw/", "data/inventory/", "data/shuffle_plans/"
    )
    datasets = _below(files, "data/datasets/web/")
    listed = _one(datasets, "", "manifest.json")
    inventory = _one(files, "data/inventory/web/", "inventory.json")
    shuffle = _one(files, "data/shuffle_plans/", "plan.json")
    memory = _one(files, "data/inventory/web/", ".fingerprints.json")
    return [
        Format(
            "manifest.json",
            datasets,
            listed,
            _read_output,
            _is_output,
            is_json=True,
            mend=_mend(listed),
        ),
        Format(
            "current.json", datasets, _one(datasets, "", "current.json"), _read_output, is_json=True
        ),
        Format(
            "inventory.json",
            parts,
            inventory,
            _read_inventory,
            _forged(inventory),
            is_json=True,
            mend=_mend(inventory),
        ),
        Format(
            "plan.json of tars",
            parts,
            shuffle,
            _read_plan,
            _forged(shuffle),
            is_json=True,
            mend=_mend(shuffle),
        ),
        Format(
            "memory of digests",
            parts,
            memory,
            _recall,
            refuses=lambda value: value is None,
            is_json=True,
        ),
        Format(
            "note on a shard",
            {"shards/.shards/shard-00000000.json": _note(), "shards/shard-00000000.tar": b"x" * 10},
            "shards/.shards/shard-00000000.json",
            _read_note,
            _is_note,
            lambda v: v is None,
            is_json=True,
        ),
    ]


def _read_output(folder: Path) -> Any:
    manifest = OutputRoot(FileAccess(folder / "data")).require(
        "datasets", "web", remedy="build again"
    )
    files = {name: (fact.size, fact.sha256) for name, fact in manifest.files.items()}
    return manifest.digest, dict(manifest.recipe), dict(manifest.facts), files, manifest.folder.name


def _is_output(folder: Path, value: Any) -> bool:
    """Facts and checksums as the file has them; the recipe as its digest says; no file outside of
    the folder.
    """
    digest, recipe, facts, files, place = value
    told = json.loads(next((folder / "data/datasets/web").glob("*/manifest.json")).read_bytes())
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    named = {name: (fact["bytes"], fact.get("sha256")) for name, fact in told["files"].items()}
    inside = not any({"", ".", ".."} & set(name.split("/")) for name in files)
    sound = hashlib.sha256(text.encode()).hexdigest()[:20] == digest == place
    return (
        sound and inside and recipe == told["recipe"] and facts == told["facts"] and files == named
    )


def _forged(victim: str) -> Callable[[Path, Any], bool]:
    """A judge for files that their manifest has a checksum of: another one only where that was
    forged, too.
    """

    def judge(folder: Path, _value: Any) -> bool:
        path = folder / victim
        fact = json.loads(path.with_name("manifest.json").read_bytes())["files"][path.name]
        return fact.get("sha256") == hashlib.sha256(path.read_bytes()).hexdigest()

    return judge


def _read_inventory(folder: Path) -> Any:
    _, inventory = current_inventory(Project.open(folder / "nanoset.yaml"), "web")
    return plain(inventory)


def _read_plan(folder: Path) -> Any:
    _, plan = shuffling.current_plan(Project.open(folder / "nanoset.yaml"), "shuffled")
    return plain(StoredShufflePlan.of(plan))


def _recall(folder: Path) -> Any:
    """Whether a memory of digests knows the files; None: they are read again."""
    files = list_corpora(folder / "raw").corpora["web"]
    known = known_inventory(
        files, FingerprintMemory(folder / "data/inventory/web/.fingerprints.json")
    )
    if known is None:
        return None
    ends = [piece.end for piece in known.pieces]
    return [file.size for file in sorted(files.texts, key=lambda file: file.path)] == ends


def _note() -> bytes:
    facts = {
        "shard": 0,
        "sequences": 3,
        "tokens": 99,
        "pad_tokens": 0,
        "size_bytes": 10,
        "sha256": "ab" * 32,
    }
    return json.dumps(facts | {"made_from": "m"}).encode()


def _read_note(folder: Path) -> Any:
    facts = read_markers(folder / "shards", [0], "m", FileAccess(folder)).get(0)
    return None if facts is None else (facts.stem, facts.size_bytes)


def _is_note(_folder: Path, value: Any) -> bool:
    return value is None or value == ("shard-00000000", 10)


def _of_tables(files: dict[str, bytes]) -> list[Format]:
    shard = _one(files, "data/shards/web/", "documents.parquet").removesuffix("documents.parquet")
    table = {name: files[shard + name] for name in ("documents.parquet", "manifest.json")}
    return [
        Format("documents.parquet", table, "documents.parquet", _read_rows, _is_rows),
        Format("documents.parquet, counted", table, "documents.parquet", _count_tokens, _is_count),
    ]


def _read_rows(folder: Path) -> Any:
    facts = json.loads((folder / "manifest.json").read_bytes())["facts"]
    rows = DocumentRows(folder / "documents.parquet", facts["documents"])
    count = facts["documents"]
    found = rows.read(list(range(0, count, 5)))
    tokens = sum(int(lengths.sum()) for _, lengths in rows.lengths())
    return (
        found,
        tokens,
        [row for row, _ in rows.search({"line": found[0]["line"], "file": found[0]["file"]})],
    )


def _is_rows(folder: Path, value: Any) -> bool:
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "documents.parquet")
    return value[0] == table.to_pylist()[::5] and value[1] == sum(
        table.column("tokens").to_pylist()
    )


def _count_tokens(folder: Path) -> Any:
    return {
        path: found.tokens for path, found in counts_by_file(folder / "documents.parquet").items()
    }


def _is_count(folder: Path, value: Any) -> bool:
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    for row in pq.read_table(folder / "documents.parquet", columns=["file", "tokens"]).to_pylist():
        counts[row["file"]] = counts.get(row["file"], 0) + row["tokens"]
    return counts == {name: count for name, count in value.items() if name in counts or count}


# What people and trainers write

_SAMPLING = """\
sources:
- {source: CC, markers: [commoncrawl, cc-main]}
- {source: CODE, markers: [stack]}
sampling_frequencies: {CC: 0.5, CODE: 2.0}
"""
_PER_SPLIT = {
    "train": ["0.8", "/data/web", "0.2", "/data/code"],
    "valid": "/data/held-out",
    "test": None,
}
_TEXTS = [row["text"] for row in sentences("web", 6)] + [
    "",
    " \n",
    f"a{EOD}b",
    "é漢\u0301 1234567 don't",
]


def settings_formats(tokenizer: bytes) -> list[Format]:
    """Those that people and trainers write."""
    known = _known(tokenizer)
    return [
        Format(
            "nanoset.yaml", {"nanoset.yaml": CONFIG.encode()}, "nanoset.yaml", _read_config, _says
        ),
        Format("sampling.yaml", {"s.yaml": _SAMPLING.encode()}, "s.yaml", _read_sampling, _says),
        Format(
            "tokenizer.json", {"t.json": tokenizer}, "t.json", _read_tokenizer, _says, is_json=True
        ),
        Format(
            "tokenizer.json, encoding",
            {"t.json": tokenizer},
            "t.json",
            _encode,
            _says,
            is_json=True,
            share=0.1,
        ),
        Format("known of a tokenizer (.npz)", known, list(known)[-1], _encode_known, share=0.02),
        Format(
            "data arguments",
            {"a.txt": b"0.8 /data/web 0.2 /data/code\n"},
            "a.txt",
            _read_args,
            _says,
        ),
        Format(
            "data arguments, by split",
            {"a.json": json.dumps(_PER_SPLIT).encode()},
            "a.json",
            lambda folder: repr(read_per_split(folder / "a.json")),
            _says,
            is_json=True,
        ),
        Format(
            "tokenizer identifiers", _identifiers(), "d.txt", _read_identifiers, _says, is_json=True
        ),
    ]


def _says(_folder: Path, value: Any) -> bool:
    """These have neither checksum nor invariant: what they say counts, as long as it could be read
    at all.
    """
    return isinstance(value, str)


def _read_config(folder: Path) -> str:
    config = load_config(folder / "nanoset.yaml")
    return repr(
        (
            config.nanosets,
            config.webdatasets,
            config.tokenization,
            config.documents,
            config.raw_folder,
        )
    )


def _read_sampling(folder: Path) -> str:
    return repr(load_sampling(folder / "s.yaml"))


def _read_tokenizer(folder: Path) -> str:
    facts = tokenizer_facts(folder / "t.json")
    return repr((facts.vocab_size, facts.max_id))


def _encode(folder: Path) -> str:
    tokenizer_facts(folder / "t.json")  # every stage asks it first
    encoded = make_engine(folder / "t.json", cache=folder / "cache").encode(_TEXTS)
    same = ReferenceEngine(folder / "t.json").encode(_TEXTS)
    if (
        encoded.ids.tolist() != same.ids.tolist()
        or encoded.lengths.tolist() != same.lengths.tolist()
    ):
        raise AssertionError("the engine gives other tokens than the reference")
    for path in (folder / "cache").glob("*"):
        path.unlink()
    return repr(encoded.ids.tolist())


def _known(tokenizer: bytes) -> dict[str, bytes]:
    """The tokenizer, and what an engine noted of it for its next start; that comes last."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(tokenizer)
        make_engine(path, cache=path.parent / "cache")
        notes = sorted((path.parent / "cache").iterdir(), key=lambda note: note.suffix == ".npz")
        return {"t.json": tokenizer} | {f"cache/{note.name}": note.read_bytes() for note in notes}


def _encode_known(folder: Path) -> str:
    return repr(make_engine(folder / "t.json", cache=folder / "cache").encode(_TEXTS).ids.tolist())


def _read_args(folder: Path) -> str:
    return repr(read_data_args(folder / "a.txt"))


def _identifiers() -> dict[str, bytes]:
    described = {
        "class": "GPTDataset",
        "dataset_path": "/x",
        "tokenizer": {"class": "HF", "path": "/t"},
    }
    return {"d.txt": json.dumps(described).encode()}


def _read_identifiers(folder: Path) -> str:
    return repr(read_identifiers(folder / "d.txt", folder / "nanoset.yaml"))
