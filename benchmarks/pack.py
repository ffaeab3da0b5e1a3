"""Writing and reading Modalities' .pbin: python -m benchmarks.pack [--megabytes N] [--text FILE --tokenizer T].

1. A pair packed, and .pbin files merged and shuffled, against `cat` of the same tokens and against merging pairs.
2. With --text: text packed, against Modalities' own index and pack where they are installed; the bytes must be equal.
3. Opening a file and reading documents and samples, against Modalities' own classes where they are installed.

Rows of 1 and 2 are whole processes; all run in turn. --text is a JSONL file without bad lines, --tokenizer the folder
of a tokenizer.json whose end token is <|endoftext|>, --documents are those of the file whose index is opened.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Command, apart, head, interleaved, interleaved_calls, options, show, show_calls
from benchmarks.merge import MERGE, write_parts
from nanoset_core.indexed import MMapIndexedDataset, MMapIndexedDatasetBuilder, merge_indexed_datasets
from nanoset_core.packed import PackedDataset, merge_packed, pack_indexed_dataset, write_packed

PARTS = 16
TOOL = [sys.executable, "-m", "nanoset_core.cli", "pack"]
HAS_PEER = importlib.util.find_spec("modalities") is not None
IMPORT = "import sys; from nanoset_core import packed; "
PACK = IMPORT + "packed.pack_indexed_dataset(*sys.argv[1:], vocab_size=50257)"
JOIN = IMPORT + "packed.merge_packed(sys.argv[2:], sys.argv[1])"
SHUFFLE = IMPORT + "packed.shuffle_packed(*sys.argv[1:], seed=1)"
PEER_PACK = """\
settings:
  src_path: {text}
  dst_path: {target}
  index_path: {index}
  jq_pattern: .text
  num_cpus: 1
  eod_token: <|endoftext|>
  processing_batch_size: 100
  raw_samples_queue_size: 300
  processed_samples_queue_size: 300
tokenizer:
  component_key: tokenizer
  variant_key: pretrained_hf_tokenizer
  config: {{pretrained_model_name_or_path: {tokenizer}, padding: false, truncation: false}}
"""


def main() -> None:
    arguments = options(__doc__, megabytes=2000, documents=10_000_000, rounds=5, text=Path, tokenizer=Path)
    with tempfile.TemporaryDirectory() as name:
        writing(Path(name), arguments.megabytes, arguments.rounds)
    if arguments.text:
        with tempfile.TemporaryDirectory() as name:
            text(Path(name), arguments.text, arguments.tokenizer, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        reading(Path(name), arguments.documents, arguments.rounds)


def writing(folder: Path, megabytes: int, rounds: int) -> None:
    """Whole processes, ratios to `cat`."""
    apart(prepare, folder, megabytes)
    out, packs = folder / "out", sorted(map(str, folder.glob("parts/*.pbin")))

    script = [sys.executable, "-c"]
    packed = Path(f"{out}.pbin")
    commands = {
        "cat + sync": Command(
            ["sh", "-c", f"cat {folder}/parts/*.bin > {out}.bin && sync {out}.bin"], [Path(f"{out}.bin")]
        ),
        "merge .bin/.idx": Command(
            [*script, MERGE, str(folder / "parts"), str(out)], [Path(f"{out}.bin"), Path(f"{out}.idx")]
        ),
        "pack": Command([*script, PACK, str(folder / "pair"), str(packed)], [packed]),
        "pack, 4-byte tokens to 2": Command([*script, PACK, str(folder / "wide"), str(packed)], [packed]),
        "pack merge": Command([*script, JOIN, str(packed), *packs], [packed]),
        "pack shuffle": Command([*script, SHUFFLE, str(folder / "whole.pbin"), str(packed)], [packed]),
    }
    print(f"\n{megabytes:,} MB of tokens in documents of 1,000\n")
    show(interleaved(commands, rounds), megabytes)


def prepare(folder: Path, megabytes: int) -> None:
    """The same tokens as pairs and .pbin files, in parts and whole, and as a pair with tokens of 4 bytes."""
    parts = folder / "parts"
    parts.mkdir()
    write_parts(parts, PARTS, megabytes * 1_000_000 // PARTS)
    prefixes = sorted(path.with_suffix("") for path in parts.glob("*.bin"))
    for prefix in prefixes:
        pack_indexed_dataset(prefix, prefix.with_suffix(".pbin"))
    merge_packed([prefix.with_suffix(".pbin") for prefix in prefixes], folder / "whole.pbin")
    merge_indexed_datasets(prefixes, folder / "pair")
    dataset = MMapIndexedDataset(folder / "pair")
    with MMapIndexedDatasetBuilder(folder / "wide", np.int32) as builder:
        for document in range(0, len(dataset), 1 << 14):
            sequences = dataset[document : document + (1 << 14)]
            lengths = [len(sequence) for sequence in sequences]
            builder.add_documents(np.concatenate(sequences), lengths, np.ones(len(lengths), np.int64))


def reading(folder: Path, documents: int, rounds: int) -> None:
    """Calls in one process, ratios to ours."""
    small, big = folder / "small.pbin", folder / "big.pbin"
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50257, 50_000_000, dtype=np.uint16)
    write_packed(small, np.split(tokens, np.arange(1000, len(tokens), 1000)), token_bytes=2)
    write_packed(big, (tokens[n : n + 5] for n in range(documents)), token_bytes=2)
    numbers = rng.integers(0, 50_000, 20_000).tolist()
    ours = PackedDataset(small)
    stream = ours.continuous(2049)
    samples = [number % len(stream) for number in numbers]

    open_index: dict[str, Any] = {"nanoset": lambda: len(PackedDataset(big))}
    read_documents: dict[str, Any] = {"nanoset": lambda: sum(len(ours[number]) for number in numbers)}
    read_samples: dict[str, Any] = {
        "nanoset": lambda: sum(int(stream[number][0]) for number in samples),
        "nanoset, batches of 64": lambda: sum(
            int(stream.batch(samples[first : first + 64])[:, 0].sum()) for first in range(0, len(samples), 64)
        ),
    }
    if HAS_PEER:
        from modalities.dataloader.dataset import PackedMemMapDatasetBase, PackedMemMapDatasetContinuous

        base = PackedMemMapDatasetBase(small, sample_key="x", load_index=True)
        theirs = PackedMemMapDatasetContinuous(small, "x", 2049, True)
        open_index["Modalities"] = lambda: len(PackedMemMapDatasetBase(big, sample_key="x", load_index=True))
        read_documents["Modalities"] = lambda: sum(len(base[number]["x"]) for number in numbers)
        read_samples["Modalities"] = lambda: sum(int(theirs[number]["x"][0]) for number in samples)
    for title, group in (
        (f"open the index of {documents:,} documents", open_index),
        ("read 20,000 documents of 1,000 tokens", read_documents),
        ("read 20,000 samples of 2,049 tokens", read_samples),
    ):
        head("call")
        show_calls(title, interleaved_calls(group, rounds, lambda first, other: first == other))


def text(folder: Path, source: Path, tokenizer: Path, rounds: int) -> None:
    """Whole processes, ratios to ours."""
    megabytes = source.stat().st_size / 1e6
    target = folder / "ours.pbin"
    tool = [*TOOL, str(source), "-o", str(target), "--workers", "1", "--tokenizer", str(tokenizer)]
    commands = {"nanoset pack, one worker": Command(tool, [target])}
    if HAS_PEER:
        target, index, config = folder / "theirs.pbin", folder / "theirs.idx", folder / "pack.yaml"
        config.write_text(
            PEER_PACK.format(text=source, target=target, index=index, tokenizer=tokenizer), encoding="utf-8"
        )
        peer = f"{json.dumps(sys.executable)} -m modalities data"
        steps = f"{peer} create_raw_index --index_path {index} {source} && {peer} pack_encoded_data {config}"
        commands["Modalities, index and pack"] = Command(["sh", "-c", steps], [target, index])
    costs = interleaved(commands, rounds)
    contents = {name: command.makes[0].read_bytes() for name, command in commands.items()}
    for name, content in contents.items():
        print(f"{name}: {'same bytes' if content == next(iter(contents.values())) else 'OTHER BYTES'}")
    print(f"\n{megabytes:,.0f} MB of JSONL\n")
    show(costs, megabytes)


if __name__ == "__main__":
    main()
