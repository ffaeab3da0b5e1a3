"""Trials on files that people and trainers write: nanoset.yaml, tokenizer.json, data arguments."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from faults.formats import Format
from sample_project import CONFIG, EOD, sentences

from nanoset_core.config.project import load_config
from nanoset_core.handoff.data_args import read_data_args, read_per_split
from nanoset_core.mapping.planned import read_identifiers
from nanoset_core.shuffling.inputs import load_sampling
from nanoset_core.tokenization.bpe import make_engine
from nanoset_core.tokenization.bpe.reference import ReferenceEngine
from nanoset_core.tokenization.tokenizer import tokenizer_facts

_SAMPLING = """\
sources:
- {source: CC, markers: [commoncrawl, cc-main]}
- {source: CODE, markers: [stack]}
sampling_frequencies: {CC: 0.5, CODE: 2.0}
"""
_PER_SPLIT = {"train": ["0.8", "/data/web", "0.2", "/data/code"], "valid": "/data/held-out", "test": None}
_TEXTS = [row["text"] for row in sentences("web", 6)] + ["", " \n", f"a{EOD}b", "é漢\u0301 1234567 don't"]


def tokenizer_json() -> bytes:
    """A byte-level BPE tokenizer trained on a few sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[EOD, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([row["text"] for row in sentences("web", 60)], trainer)
    return tokenizer.to_str().encode()


def formats(tokenizer: bytes) -> list[Format]:
    """All of them."""
    known = _known(tokenizer)
    return [
        Format("nanoset.yaml", {"nanoset.yaml": CONFIG.encode()}, "nanoset.yaml", _read_config, _says),
        Format("sampling.yaml", {"s.yaml": _SAMPLING.encode()}, "s.yaml", _read_sampling, _says),
        Format("tokenizer.json", {"t.json": tokenizer}, "t.json", _read_tokenizer, _says, is_json=True),
        Format("tokenizer.json, encoding", {"t.json": tokenizer}, "t.json", _encode, _says, is_json=True, share=0.1),
        Format("known of a tokenizer (.npz)", known, list(known)[-1], _encode_known, share=0.02),
        Format("data arguments", {"a.txt": b"0.8 /data/web 0.2 /data/code\n"}, "a.txt", _read_args, _says),
        Format(
            "data arguments, by split",
            {"a.json": json.dumps(_PER_SPLIT).encode()},
            "a.json",
            lambda folder: repr(read_per_split(folder / "a.json")),
            _says,
            is_json=True,
        ),
        Format("tokenizer identifiers", _identifiers(), "d.txt", _read_identifiers, _says, is_json=True),
    ]


def _says(_folder: Path, value: Any) -> bool:
    """These have neither checksum nor invariant: what they say counts, as long as it could be read at all."""
    return isinstance(value, str)


def _read_config(folder: Path) -> str:
    config = load_config(folder / "nanoset.yaml")
    return repr((config.nanosets, config.webdatasets, config.tokenization, config.documents, config.raw_folder))


def _read_sampling(folder: Path) -> str:
    return repr(load_sampling(folder / "s.yaml"))


def _read_tokenizer(folder: Path) -> str:
    facts = tokenizer_facts(folder / "t.json")
    return repr((facts.vocab_size, facts.max_id))


def _encode(folder: Path) -> str:
    tokenizer_facts(folder / "t.json")  # every stage asks it first
    encoded = make_engine(folder / "t.json", cache=folder / "cache").encode(_TEXTS)
    same = ReferenceEngine(folder / "t.json").encode(_TEXTS)
    if encoded.ids.tolist() != same.ids.tolist() or encoded.lengths.tolist() != same.lengths.tolist():
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
    described = {"class": "GPTDataset", "dataset_path": "/x", "tokenizer": {"class": "HF", "path": "/t"}}
    return {"d.txt": json.dumps(described).encode()}


def _read_identifiers(folder: Path) -> str:
    return repr(read_identifiers(folder / "d.txt", folder / "nanoset.yaml"))
