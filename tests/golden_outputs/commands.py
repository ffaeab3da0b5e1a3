"""The commands that need no project, with arguments on the same raw text.

All paths in their arguments are relative, because some outputs contain them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from golden_outputs.command import run
from golden_outputs.projects import GOLDEN, write_inputs

_PACKED = GOLDEN.parent / "modalities"
_TEXT = "--tokenizer tokenizer.json --workers 1"
_MAP = (
    "map --data-path 0.7 meg/web_text_document 0.3 meg/code_text_document --split 8,1,1 "
    "--seq-length 16 --seed 3"
)
_SAMPLES = "--train-samples 300 --valid-samples 20 --test-samples 10"
_TO = "--trainer-path meg=/lustre/meg"

COMMANDS = f"""
tokenize --input raw/web --output-prefix meg/web {_TEXT} --append-eod --eod <|endoftext|> --max-rejected-fraction 0.2
tokenize --input raw/code raw/books/*.zst --output-prefix meg/code {_TEXT} --append-eod --eod <|endoftext|>
tokenize --input raw/tables --output-prefix nanotron/tables {_TEXT} --preset nanotron --append-eos --eod <|endoftext|>
tokenize --input raw/tables --output-prefix nemo/tables {_TEXT} --preset nemo --bos <|padding|>
tokenize --input raw/code --output-prefix dealt/code {_TEXT} --partitions 3
tokenize --input raw/code --output-prefix dealt/kept {_TEXT} --partitions 3 --keep-sequential-samples
tokenize --input raw/web/part-0 --output-prefix apart/web {_TEXT} --per-file --max-rejected-fraction 0.5
tokenize --input raw/books --output-prefix keys/books {_TEXT} --json-keys text id
merge --input dealt --output-prefix merged
import-parquet raw/tables/rows.parquet raw/tables/rows.arrow --output tables.jsonl
import-parquet raw/tables --output columns.jsonl --columns text
pbin raw/books --output books.pbin {_TEXT} --eod <|endoftext|>
pbin write meg/web_text_document --output web.pbin --tokenizer tokenizer.json
pbin write dealt/code_text_document --output code.pbin --vocab-size 70000 --append-eod --eod <|endoftext|> \
 --tokenizer tokenizer.json
pbin merge books.pbin web.pbin --output joined.pbin
pbin shuffle joined.pbin --output shuffled.pbin --seed 11
pbin shuffle books.pbin web.pbin --output chunk.pbin --seed 11 --chunk 1 --chunks 3
pbin filter joined.pbin --output filtered.pbin --min-tokens 20 --every 3 --drop dropped.txt
pbin repair faulty.pbin --output repaired.pbin
pbin raw-index tables.jsonl
pbin raw-index faulty.jsonl --drop-faulty
shuffle --input raw/code raw/tables --output tars/zipped {_TEXT} --eod <|endoftext|> --seqlen 33 --wds-chunk-size 50
shuffle --input meg/web_text_document meg/code_text_document --output tars/pairs --seqlen 33 --wds-chunk-size 50 \
 --member npy --seed 3 --even --workers 1
shuffle --input tars/pairs --output tars/again --shuffle-only --wds-chunk-size 64 --member npy --seed 4 --workers 1
shuffle --input raw/books --output tars/padded {_TEXT} --eod <|endoftext|> --bos <|padding|> --context-bos <|padding|> \
 --tail pad --pad <|padding|> --seqlen 33 --wds-chunk-size 50 --member npy
shuffle --input raw/books raw/code --output tars/carried {_TEXT} --eod <|endoftext|> --tail carry --seqlen 33 \
 --wds-chunk-size 50 --member npy --engine buckets
shuffle --input raw/code --output tars/tokshuf --tokenizer neox.json --preset tokshuf --seqlen 33 --member npy \
 --workers 1 --tokenizer-engine tokenizers
shuffle --input raw --ext .zst --output tars/endings {_TEXT} --eod <|endoftext|> --seqlen 33 --member npy
shuffle --input raw/books raw/code --output tars/sampled {_TEXT} --eod <|endoftext|> --sampling sampling.yaml \
 --seqlen 33 --member npy --input-json exp_data.json --output-json exp_data.out.json
{_MAP} {_SAMPLES} {_TO} --data-cache-path cache/megatron
{_MAP} {_SAMPLES} {_TO} --data-cache-path cache/megatron-0.10 --preset megatron-0.10
{_MAP} {_SAMPLES} {_TO} --data-cache-path cache/nemo --preset nemo
{_MAP} --train-samples 300 {_TO} --data-cache-path cache/nanotron --preset nanotron
{_MAP} {_SAMPLES} {_TO} --data-cache-path cache/nanotron-000 --preset nanotron-000
map --train-data-path meg/web_text_document --valid-data-path meg/code_text_document --seq-length 16 --train-iters 10 \
 --global-batch-size 4 --eval-iters 2 {_TO} --data-cache-path cache/own --tokenizer-identifiers {{"class":"Stub"}}
"""
"""A command on each line, whose words are separated by spaces."""


def run_commands(folder: Path) -> None:
    """Run all commands in an empty folder, which must be the current one."""
    _write_inputs(folder)
    for line in COMMANDS.strip().replace("\\\n", "").splitlines():
        run(line.split())


def _write_inputs(folder: Path) -> None:
    """Write the files that the commands read."""
    write_inputs(folder)
    shutil.copyfile(_PACKED / "merge-buggy-index.pbin", folder / "faulty.pbin")
    shutil.copyfile(_PACKED / "bad-json.jsonl", folder / "faulty.jsonl")
    (folder / "dropped.txt").write_text("0\n6\n")
    (folder / "sampling.yaml").write_text(
        "sources:\n- {source: PROSE, markers: [books]}\n- {source: CODE, markers: [code]}\n"
        "sampling_frequencies: {PROSE: 0.5, CODE: 2.0}\n"
    )
    experiment = {"name": "small", "source": ["books", "code"]}
    (folder / "exp_data.json").write_text(json.dumps(experiment))
