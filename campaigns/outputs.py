"""Formats of a build's outputs and of settings, for the campaign on formats.

Outputs are read as trainers and later stages of a build read them. Each *judge* says whether a
result is right for damaged files: by following the index files number by number, or by comparing
digests with the manifest, the list of an output's files with their checksums.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

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
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.text.files.survey import list_corpora
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.fingerprints import fingerprint
from nanoset_core.text.inventory.take import known_inventory
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

_SPLIT = "data/nanosets/pretrain/train"
"""Folder of the split whose samples are read."""
_INDEX_CACHE = "data/nanosets/pretrain/cache"
"""Folder of the index files, from which a trainer takes the samples."""
Files = dict[str, bytes]
"""Relative path → content."""
Judge = Callable[[Path, Any], bool]
"""See `Format.judge`."""


def formats(scratch: Path, tokenizer: bytes) -> list[Format]:
    """Build a small project, and return the formats of its outputs.

    Args:
        scratch: Where the project is built.
        tokenizer: Its tokenizer.json.
    """
    folder = scratch / "project"
    folder.mkdir()
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "nanoset.yaml").write_text(CONFIG)
    build_all(folder / "nanoset.yaml")

    # Links to the current outputs are left out: the same files would come twice.
    files: Files = {}
    for path in sorted(folder.rglob("*")):
        is_linked = any(parent.is_symlink() for parent in (path, *path.parents))
        if path.is_file() and not is_linked:
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return [
        *_plan_formats(files),
        *_index_formats(files),
        *_manifest_formats(files),
        *_stage_formats(files),
        *_table_formats(files),
    ]


def _find(files: Files, prefix: str, suffix: str) -> str:
    """Return the first path that starts and ends so."""
    for name in files:
        if name.startswith(prefix) and name.endswith(suffix):
            return name
    raise LookupError(f"{prefix}…{suffix}")


def _select(files: Files, *prefixes: str) -> Files:
    """Return the files whose paths start with one of the prefixes."""
    return {name: data for name, data in files.items() if name.startswith(prefixes)}


def _files_of_split(files: Files) -> Files:
    """Return the files that a trainer needs to read the split."""
    return _select(
        files,
        f"{_SPLIT}/",
        f"{_INDEX_CACHE}/",
        "data/datasets/web/",
        "data/datasets/code/",
    )


# --- Checksums ---


def _forge_manifest(victim: str) -> Callable[[Path], None]:
    """Return a function that makes a manifest agree with a damaged file next to it.

    It writes the checksum of the damaged file into the manifest, and then the manifest's own. An
    attacker could do the same. If the victim is the manifest, only its own checksum is written.

    Args:
        victim: Relative path of the damaged file.
    """

    def forge(folder: Path) -> None:
        victim_path = folder / victim
        manifest_path = victim_path.with_name("manifest.json")
        try:
            manifest = json.loads(manifest_path.read_bytes())
            if victim_path != manifest_path:
                data = victim_path.read_bytes()
                manifest["files"][victim_path.name] = {
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
            content = [manifest["facts"], manifest["files"]]
            text = json.dumps(content, sort_keys=True, separators=(",", ":"))
            manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        except (OSError, ValueError, LookupError, TypeError):
            # The manifest is too damaged to be changed.
            return
        manifest_path.write_text(json.dumps(manifest))

    return forge


def _has_listed_digest(path: Path) -> bool:
    """Return whether a file has the digest that the manifest next to it lists."""
    manifest = json.loads(path.with_name("manifest.json").read_bytes())
    listed = manifest["files"][path.name].get("sha256")
    return hashlib.sha256(path.read_bytes()).hexdigest() == listed


def _judge_by_manifest(victim: str) -> Judge:
    """Return a judge that accepts a changed file only if the manifest was forged with it."""

    def judge(folder: Path, _value: Any) -> bool:
        return _has_listed_digest(folder / victim)

    return judge


# --- The plan of a split ---


def _plan_formats(files: Files) -> list[Format]:
    """Return the JSON files from which a trainer learns where the index files of a split are."""
    split_files = _files_of_split(files)
    victims = {
        "plan.json": _find(files, f"{_SPLIT}/blend/", "plan.json"),
        "manifest.json of a split": _find(files, f"{_SPLIT}/blend/", "manifest.json"),
        "current.json of a split": f"{_SPLIT}/index_mappings/current.json",
    }
    formats: list[Format] = []
    for name, victim in victims.items():
        formats.append(
            Format(
                name,
                split_files,
                victim,
                _read_split,
                _is_forged_plan,
                is_json=True,
                mend=_forge_manifest(victim),
            )
        )
    return formats


class SplitContent(NamedTuple):
    """The samples of a split, as a trainer reads them."""

    n_samples: int
    batch: bytes
    """Tokens of all samples, read as one batch."""
    single: bytes
    """Tokens of every seventh sample, read one by one."""


def _read_split(folder: Path) -> SplitContent:
    """Read the samples of a split."""
    split = load_nanoset(folder / "data", "pretrain", "train")
    n_samples = len(split)
    single = b""
    for number in range(0, n_samples, 7):
        single += split.tokens(number).tobytes()
    return SplitContent(n_samples, split.batch(np.arange(n_samples)).tobytes(), single)


def _plan_path(folder: Path) -> Path:
    """Return the path of the split's plan.json."""
    return next((folder / _SPLIT / "blend").glob("*/plan.json"))


def _is_forged_plan(folder: Path, _value: Any) -> bool:
    """Return whether another plan may be read: its manifest was forged, and it names no other folder.

    A plan that names files outside of the outputs must be refused, even with right checksums.
    """
    path = _plan_path(folder)
    plan = json.loads(path.read_bytes())["plan"]
    names = [member["prefix"] for member in plan["members"]]
    names += plan["blend"]["files"].values()
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            return False
    return _has_listed_digest(path)


# --- The index files of a split ---


def _index_formats(files: Files) -> list[Format]:
    """Return the arrays that lead from the number of a sample to its tokens, and their receipt.

    A *receipt* is the JSON file next to index files that lists their sizes and digests.
    """
    split_files = _files_of_split(files)
    plan = json.loads(files[_find(files, f"{_SPLIT}/blend/", "plan.json")])["plan"]
    member = plan["members"][0]
    blend_files = plan["blend"]["files"]
    victims = {
        "document index": member["files"]["document_index"],
        "sample index": member["files"]["sample_index"],
        "shuffle index": member["files"]["shuffle_index"],
        "blend's dataset index": blend_files["dataset_index"],
        "blend's sample index": blend_files["dataset_sample_index"],
    }
    formats: list[Format] = []
    for name, victim in victims.items():
        path = f"{_INDEX_CACHE}/{victim}"
        formats.append(Format(name, split_files, path, _read_split, _follows_indices))

    dataset_idx = _find(files, "data/datasets/web/", ".idx")
    formats.append(
        Format(
            ".idx under a nanoset",
            split_files,
            dataset_idx,
            _read_split,
            _follows_indices_or_idx_is_invalid,
        )
    )
    receipt = f"{_INDEX_CACHE}/{member['sidecar']}"
    formats.append(
        Format(
            "receipt of index files", split_files, receipt, _is_cached, _is_false, _is_refused_cache
        )
    )
    return formats


class SampleOutOfBoundsError(Exception):
    """An index file leads to something that does not exist."""


@dataclass(frozen=True, slots=True)
class MemberSamples:
    """The samples of one dataset of a blend, found by its index files with every number checked."""

    document_index: NDArray[Any]
    """(n_documents,) number of a sequence, in the order in which a trainer reads them."""
    sample_index: NDArray[Any]
    """(n_samples + 1, 2) where each sample starts: position in `document_index`, and token."""
    shuffle_index: NDArray[Any]
    """(n_samples,) number of a sample, in random order."""
    pointers: NDArray[Any]
    """(n_sequences,) byte offset of each sequence in the .bin."""
    lengths: NDArray[Any]
    """(n_sequences,) tokens of each sequence."""
    dtype: np.dtype[Any]
    data: bytes
    """Content of the .bin."""

    @classmethod
    def open(cls, folder: Path, member: dict[str, Any]) -> MemberSamples:
        """Load the arrays of a dataset.

        Args:
            folder: The project.
            member: Its entry in the split's plan.
        """
        names = member["files"]
        cache = folder / _INDEX_CACHE
        prefix = folder / "data" / member["prefix"]
        index = read_idx(idx_path(prefix), validate=False)
        return cls(
            document_index=np.load(cache / names["document_index"]),
            sample_index=np.load(cache / names["sample_index"]),
            shuffle_index=np.load(cache / names["shuffle_index"]),
            pointers=index.sequence_pointers,
            lengths=index.sequence_lengths,
            dtype=index.dtype,
            data=Path(f"{prefix}.bin").read_bytes(),
        )

    def tokens(self, number: int) -> NDArray[np.int64]:
        """Return the tokens of a sample.

        Raises:
            SampleOutOfBoundsError: An array leads to something that does not exist.
        """
        sample = int(_element(self.shuffle_index, number))
        first, first_token = _element(self.sample_index, sample).tolist()
        # A sample ends with the first token of the next one, which is its last label.
        last, last_token = _element(self.sample_index, sample + 1).tolist()
        if first > last:
            raise SampleOutOfBoundsError

        tokens = b""
        for position in range(first, last + 1):
            sequence = int(_element(self.document_index, position))
            length = int(_element(self.lengths, sequence))
            start = first_token if position == first else 0
            stop = last_token + 1 if position == last else length
            tokens += self._read(sequence, start, stop)
        return np.frombuffer(tokens, self.dtype).astype(np.int64)

    def _read(self, sequence: int, start: int, stop: int) -> bytes:
        """Return the bytes of some tokens of a sequence.

        Args:
            sequence: Number of the sequence.
            start: First of its tokens.
            stop: The token after the last.
        """
        pointer = int(_element(self.pointers, sequence))
        start_byte = pointer + start * self.dtype.itemsize
        stop_byte = pointer + stop * self.dtype.itemsize
        if pointer < 0 or not 0 <= start <= stop or stop_byte > len(self.data):
            raise SampleOutOfBoundsError
        return self.data[start_byte:stop_byte]


def _element(values: Any, number: int) -> Any:
    """Return an element of an array or a list, whose number must not be negative.

    Raises:
        SampleOutOfBoundsError: There is no such element. Python would count a negative number from
            the end.
    """
    if not 0 <= number < len(values):
        raise SampleOutOfBoundsError
    return values[number]


def _follows_indices(folder: Path, value: SplitContent) -> bool:
    """Return whether the value has the samples to which the index files lead."""
    plan = json.loads(_plan_path(folder).read_bytes())["plan"]
    blend_files = plan["blend"]["files"]
    # (n_samples,) each: which dataset of the blend a sample is from, and its number there.
    dataset_index = np.load(folder / _INDEX_CACHE / blend_files["dataset_index"])
    dataset_sample_index = np.load(folder / _INDEX_CACHE / blend_files["dataset_sample_index"])
    members = [MemberSamples.open(folder, member) for member in plan["members"]]

    samples: list[NDArray[np.int64]] = []
    try:
        for dataset, number in zip(dataset_index, dataset_sample_index, strict=True):
            samples.append(_element(members, dataset).tokens(number))
    except SampleOutOfBoundsError:
        return False
    if any(len(sample) != len(samples[0]) for sample in samples):
        return False

    batch = b"".join(sample.tobytes() for sample in samples)
    single = b"".join(sample.tobytes() for sample in samples[::7])
    return value == SplitContent(len(samples), batch, single)


def _follows_indices_or_idx_is_invalid(folder: Path, value: SplitContent) -> bool:
    """Return whether the value is right, or cannot be known to be wrong when training starts.

    At the start, only the size and the header of an .idx are checked. `nanoset verify` checks its
    entries, and must refuse it in this case.
    """
    path = next((folder / "data/datasets/web").glob("*/*.idx"))
    try:
        read_idx(path)
    except FormatError:
        return True
    return _follows_indices(folder, value)


def _is_cached(folder: Path) -> bool:
    """Return whether a build would use the index files, instead of rebuilding them."""
    split = load_nanoset(folder / "data", "pretrain", "train")
    config = replace(split.config, path_to_cache=str(folder / _INDEX_CACHE))
    sets = index_sets(split.plan, config)
    return all(index_set.is_complete() for index_set in sets)


def _is_false(_folder: Path, value: bool) -> bool:
    """Return whether the value is False."""
    return value is False


def _is_refused_cache(is_cached: bool) -> bool:
    """Return whether the index files were refused, so that they are rebuilt."""
    return not is_cached


# --- Manifests ---


def _manifest_formats(files: Files) -> list[Format]:
    """Return the two JSON files that say which version of an output is current."""
    dataset = _select(files, "data/datasets/web/")
    manifest = _find(dataset, "", "manifest.json")
    current = _find(dataset, "", "current.json")
    return [
        Format(
            "manifest.json",
            dataset,
            manifest,
            _read_output,
            _is_in_manifest,
            is_json=True,
            mend=_forge_manifest(manifest),
        ),
        Format("current.json", dataset, current, _read_output, is_json=True),
    ]


class ManifestFile(NamedTuple):
    """A file in a manifest."""

    size: int
    sha256: str | None


class OutputContent(NamedTuple):
    """What the manifest of an output says."""

    digest: str
    """Digest of the recipe."""
    recipe: dict[str, Any]
    """What the output was made from, and how."""
    facts: dict[str, Any]
    """What is known of the output, such as its number of tokens."""
    files: dict[str, ManifestFile]
    folder_name: str
    """Name of the output's folder, which is the digest of its recipe."""


def _read_output(folder: Path) -> OutputContent:
    """Read the manifest of the current version of a dataset."""
    outputs = OutputRoot(FileAccess(folder / "data"))
    manifest = outputs.require("datasets", "web", remedy="build again")
    files = {name: ManifestFile(fact.size, fact.sha256) for name, fact in manifest.files.items()}
    return OutputContent(
        digest=manifest.digest,
        recipe=dict(manifest.recipe),
        facts=dict(manifest.facts),
        files=files,
        folder_name=manifest.folder.name,
    )


def _is_in_manifest(folder: Path, value: OutputContent) -> bool:
    """Return whether the file says the value, which names no file outside of the output's folder."""
    path = next((folder / "data/datasets/web").glob("*/manifest.json"))
    manifest = json.loads(path.read_bytes())
    files: dict[str, ManifestFile] = {}
    for name, fact in manifest["files"].items():
        if {"", ".", ".."} & set(name.split("/")):
            return False
        files[name] = ManifestFile(fact["bytes"], fact.get("sha256"))

    recipe_text = json.dumps(value.recipe, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(recipe_text.encode()).hexdigest()[:20]
    return value == OutputContent(digest, manifest["recipe"], manifest["facts"], files, digest)


# --- What one stage of a build reads of another ---


def _stage_formats(files: Files) -> list[Format]:
    """Return the JSON files that later builds and later stages read."""
    project_files = _select(
        files, "nanoset.yaml", "tokenizer.json", "raw/", "data/inventory/", "data/shuffle_plans/"
    )
    inventory = _find(files, "data/inventory/web/", "inventory.json")
    shuffle_plan = _find(files, "data/shuffle_plans/", "plan.json")
    memory_files = _select(files, "raw/web/")
    memory_files[_MEMORY] = _memory_of(memory_files)
    return [
        Format(
            "inventory.json",
            project_files,
            inventory,
            _read_inventory,
            _judge_by_manifest(inventory),
            is_json=True,
            mend=_forge_manifest(inventory),
        ),
        Format(
            "plan.json of tars",
            project_files,
            shuffle_plan,
            _read_shuffle_plan,
            _judge_by_manifest(shuffle_plan),
            is_json=True,
            mend=_forge_manifest(shuffle_plan),
        ),
        Format(
            "memory of digests",
            memory_files,
            _MEMORY,
            _remembers_files,
            refuses=_is_none,
            is_json=True,
        ),
        Format(
            "note on a shard",
            _shard_with_marker(),
            _MARKER,
            _read_marker,
            _is_marker,
            _is_none,
            is_json=True,
        ),
    ]


def _is_none(value: Any) -> bool:
    """Return whether a reader has ignored the file, so that its content is computed again."""
    return value is None


def _read_inventory(folder: Path) -> Any:
    """Read the list of a corpus's files, with their digests."""
    _, inventory = current_inventory(Project.open(folder / "nanoset.yaml"), "web")
    return plain(inventory)


def _read_shuffle_plan(folder: Path) -> Any:
    """Read the plan that says which tar takes which contexts."""
    _, plan = shuffling.current_plan(Project.open(folder / "nanoset.yaml"), "shuffled")
    return plain(StoredShufflePlan.of(plan))


_MEMORY = "fingerprints.json"
"""The file that remembers the digests of a corpus's files, so that they are not read again."""


def _memory_of(files: Files) -> bytes:
    """Return a memory of the digests of a corpus's files.

    Args:
        files: The files below `raw/web/`.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        contents = list_corpora(Path(folder) / "raw").corpora["web"]
        memory = FingerprintMemory(Path(folder) / _MEMORY)
        for file in contents.texts:
            pieces = list(fingerprint(Path(folder) / "raw/web", file))
            memory.note(_without_times(file), pieces)
        memory.save([file.path for file in contents.texts])
        return (Path(folder) / _MEMORY).read_bytes()


def _without_times(file: FileStat) -> FileStat:
    """Return what the file system reports of a file, with a time and an inode that never change.

    Otherwise, a memory would not know the copies of the files that each trial reads.
    """
    return FileStat(file.path, file.size, mtime_ns=1, inode=1)


def _remembers_files(folder: Path) -> bool | None:
    """Return whether the remembered digests of a corpus's files are for files of the right sizes.

    Returns:
        None if the memory does not know all files: then a build reads them again.
    """
    contents = list_corpora(folder / "raw").corpora["web"]
    contents = replace(contents, texts=tuple(map(_without_times, contents.texts)))
    inventory = known_inventory(contents, FingerprintMemory(folder / _MEMORY))
    if inventory is None:
        return None
    remembered_sizes = [piece.end for piece in inventory.pieces]
    sizes = [file.size for file in sorted(contents.texts, key=lambda file: file.path)]
    return remembered_sizes == sizes


_MARKER = "shards/.shards/shard-00000000.json"
"""The file that says that a tar is complete, so that an interrupted build need not write it again."""


def _shard_with_marker() -> Files:
    """Return a tar, of which only the size matters here, and its marker."""
    facts = {
        "shard": 0,
        "sequences": 3,
        "tokens": 99,
        "pad_tokens": 0,
        "size_bytes": 10,
        "sha256": "ab" * 32,
        "made_from": "m",
    }
    return {_MARKER: json.dumps(facts).encode(), "shards/shard-00000000.tar": b"x" * 10}


class MarkedShard(NamedTuple):
    """A tar that is known to be complete."""

    stem: str
    """Name of the tar, without its ending."""
    size_bytes: int


def _read_marker(folder: Path) -> MarkedShard | None:
    """Return what the marker says of the tar, or None if the tar must be written again."""
    facts = read_markers(folder / "shards", [0], "m", FileAccess(folder)).get(0)
    if facts is None:
        return None
    return MarkedShard(facts.stem, facts.size_bytes)


def _is_marker(_folder: Path, value: MarkedShard | None) -> bool:
    """Return whether the marker was ignored, or names the tar and its size."""
    return value is None or value == MarkedShard("shard-00000000", 10)


# --- Tables of documents ---


def _table_formats(files: Files) -> list[Format]:
    """Return the table of a shard's documents, as two readers read it."""
    table = _find(files, "data/shards/web/", "documents.parquet")
    shard = table.removesuffix("documents.parquet")
    table_files = {
        "documents.parquet": files[table],
        "manifest.json": files[f"{shard}manifest.json"],
    }
    victim = "documents.parquet"
    return [
        Format("documents.parquet", table_files, victim, _read_rows, _is_in_table),
        Format("documents.parquet, counted", table_files, victim, _count_tokens, _is_sum_of_table),
    ]


class TableContent(NamedTuple):
    """What is read of a table of documents."""

    rows: list[dict[str, Any]]
    """Every fifth row."""
    n_tokens: int
    """Tokens of all documents."""
    matches: list[int]
    """Numbers of the rows with the file and the line of the first one."""


def _read_rows(folder: Path) -> TableContent:
    """Read the table as `nanoset explain` does."""
    facts = json.loads((folder / "manifest.json").read_bytes())["facts"]
    table = DocumentRows(folder / "documents.parquet", facts["documents"])
    rows = table.read(list(range(0, facts["documents"], 5)))
    n_tokens = sum(int(lengths.sum()) for _, lengths in table.lengths())
    first = {"line": rows[0]["line"], "file": rows[0]["file"]}
    matches = [number for number, _ in table.search(first)]
    return TableContent(rows, n_tokens, matches)


def _is_in_table(folder: Path, value: TableContent) -> bool:
    """Return whether pyarrow reads the same rows and number of tokens."""
    table = pq.read_table(folder / "documents.parquet")
    n_tokens = sum(table.column("tokens").to_pylist())
    return value.rows == table.to_pylist()[::5] and value.n_tokens == n_tokens


def _count_tokens(folder: Path) -> dict[str, int]:
    """Return the number of tokens of each file of raw text, as `nanoset status` does."""
    counts = counts_by_file(folder / "documents.parquet")
    return {path: count.tokens for path, count in counts.items()}


def _is_sum_of_table(folder: Path, value: dict[str, int]) -> bool:
    """Return whether pyarrow finds the same numbers; files without tokens may be left out."""
    table = pq.read_table(folder / "documents.parquet", columns=["file", "tokens"])
    counts: Counter[str] = Counter()
    for row in table.to_pylist():
        counts[row["file"]] += row["tokens"]
    # Counters are equal if they differ only in counts of zero.
    return counts == Counter(value)


# --- Settings and tokenizers, which people and trainers write ---

_SAMPLING = """\
sources:
- {source: CC, markers: [commoncrawl, cc-main]}
- {source: CODE, markers: [stack]}
sampling_frequencies: {CC: 0.5, CODE: 2.0}
"""
_DATA_ARGUMENTS_BY_SPLIT = {
    "train": ["0.8", "/data/web", "0.2", "/data/code"],
    "valid": "/data/held-out",
    "test": None,
}
_TOKENIZER_DESCRIPTION = {
    "class": "GPTDataset",
    "dataset_path": "/x",
    "tokenizer": {"class": "HF", "path": "/t"},
}
"""What Megatron-LM writes next to its index files."""
_TEXTS = [
    *(row["text"] for row in sentences("web", 6)),
    "",
    " \n",
    f"a{EOD}b",
    "é漢\u0301 1234567 don't",
]
"""Texts that are encoded with a damaged tokenizer."""


def settings_formats(tokenizer: bytes) -> list[Format]:
    """Return the formats of settings and tokenizers.

    Args:
        tokenizer: A tokenizer.json.
    """
    per_split = json.dumps(_DATA_ARGUMENTS_BY_SPLIT).encode()
    return [
        Format(
            "nanoset.yaml",
            {"nanoset.yaml": CONFIG.encode()},
            "nanoset.yaml",
            _read_settings,
            _is_readable,
        ),
        Format(
            "sampling.yaml", {"s.yaml": _SAMPLING.encode()}, "s.yaml", _read_sampling, _is_readable
        ),
        *_tokenizer_formats(tokenizer),
        Format(
            "data arguments",
            {"a.txt": b"0.8 /data/web 0.2 /data/code\n"},
            "a.txt",
            _read_data_arguments,
            _is_readable,
        ),
        Format(
            "data arguments, by split",
            {"a.json": per_split},
            "a.json",
            _read_data_arguments_by_split,
            _is_readable,
            is_json=True,
        ),
        Format(
            "tokenizer identifiers",
            {"d.txt": json.dumps(_TOKENIZER_DESCRIPTION).encode()},
            "d.txt",
            _read_tokenizer_description,
            _is_readable,
            is_json=True,
        ),
    ]


def _tokenizer_formats(tokenizer: bytes) -> list[Format]:
    """Return the formats of a tokenizer and of what an engine caches of it."""
    cache_files = _cache_of_engine(tokenizer)
    return [
        Format(
            "tokenizer.json",
            {"t.json": tokenizer},
            "t.json",
            _read_tokenizer,
            _is_readable,
            is_json=True,
        ),
        # Encoding takes long, so that these two formats get a small share of the trials.
        Format(
            "tokenizer.json, encoding",
            {"t.json": tokenizer},
            "t.json",
            _encode_with_two_engines,
            _is_readable,
            is_json=True,
            share=0.04,
        ),
        Format(
            "known of a tokenizer (.npz)",
            {"t.json": tokenizer} | cache_files,
            _find(cache_files, "cache/", ".npz"),
            _encode_with_cache,
            share=0.02,
        ),
    ]


def _is_readable(_folder: Path, value: Any) -> bool:
    """Return whether a reader returned a text.

    These files have no checksums, so that whatever they say is right, if it can be read.
    """
    return isinstance(value, str)


def _read_settings(folder: Path) -> str:
    """Read a nanoset.yaml."""
    config = load_config(folder / "nanoset.yaml")
    settings = (
        config.nanosets,
        config.webdatasets,
        config.tokenization,
        config.documents,
        config.raw_folder,
    )
    return repr(settings)


def _read_sampling(folder: Path) -> str:
    """Read a file of sampling frequencies."""
    return repr(load_sampling(folder / "s.yaml"))


def _read_tokenizer(folder: Path) -> str:
    """Read the size of a tokenizer's vocabulary."""
    facts = tokenizer_facts(folder / "t.json")
    return repr((facts.vocab_size, facts.max_id))


def _encode_with_two_engines(folder: Path) -> str:
    """Encode texts with an engine of nanoset, and with the `tokenizers` library.

    Raises:
        AssertionError: They return different tokens.
    """
    path = folder / "t.json"
    # Every stage reads the facts first, so that a tokenizer without them never reaches an engine.
    tokenizer_facts(path)
    encoded = make_engine(path, cache=folder / "cache").encode(_TEXTS)
    expected = ReferenceEngine(path).encode(_TEXTS)
    ids = encoded.ids.tolist()
    if ids != expected.ids.tolist() or encoded.lengths.tolist() != expected.lengths.tolist():
        raise AssertionError("the engine returns other tokens than the library")

    # The next trial must not use what this one has cached.
    for cached_file in (folder / "cache").glob("*"):
        cached_file.unlink()
    return repr(ids)


def _cache_of_engine(tokenizer: bytes) -> Files:
    """Return the files that an engine caches when it loads a tokenizer for the first time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(tokenizer)
        cache = Path(folder) / "cache"
        make_engine(path, cache=cache)
        return {f"cache/{file.name}": file.read_bytes() for file in cache.iterdir()}


def _encode_with_cache(folder: Path) -> str:
    """Encode texts with an engine that reads its cache."""
    engine = make_engine(folder / "t.json", cache=folder / "cache")
    return repr(engine.encode(_TEXTS).ids.tolist())


def _read_data_arguments(folder: Path) -> str:
    """Read the arguments by which Megatron-LM is told its datasets and their weights."""
    return repr(read_data_args(folder / "a.txt"))


def _read_data_arguments_by_split(folder: Path) -> str:
    """Read such arguments with datasets for each split."""
    return repr(read_per_split(folder / "a.json"))


def _read_tokenizer_description(folder: Path) -> str:
    """Read the tokenizer in what Megatron-LM writes next to its index files."""
    return repr(read_identifiers(folder / "d.txt", folder / "nanoset.yaml"))
