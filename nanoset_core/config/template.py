"""Writes a first nanoset.yaml."""

from __future__ import annotations

import json
from pathlib import Path

from nanoset_core.config.project import CONFIG_FILE
from nanoset_core.errors import ConfigError
from nanoset_core.raw.survey import discover_corpora
from nanoset_core.storage.atomic import write_atomic

_TEMPLATE = """\
raw: raw                         # one folder a corpus: raw/<corpus>/**.jsonl, .jsonl.gz, .jsonl.zst, .parquet or .arrow
root: data                       # everything that is made goes here
tokenizer:
  path: tokenizer.json           # of Hugging Face's tokenizers
  eod: "<|endoftext|>"           # ends every document
documents:
  text_key: text                 # key of the text in each line's JSON object
  on_reject: quarantine          # lines that are no documents go to rejects.jsonl; or: fail
  max_rejected_fraction: 0.01
tokenization:
  append_eod: true
nanosets:
  pretrain:
    blend: {blend}
    sequence_length: 2048
    split: "969,30,1"            # shares of train, valid, test
    seed: 1234
    # samples: {{train: 1000000}}  # absent = one epoch
    # trainer_path: /data        # how the trainer spells root, when it is another path there
webdatasets:
  shuffled:
    corpora: [{corpora}]
    sequence_length: 2049
    samples_per_shard: 8192
    seed: 1234
    member: json.gz              # for OpenLM; npy is faster
# packed: [{corpora}]                # corpora to write as Modalities' .pbin, too
"""


def write_config(folder: Path) -> Path:
    """Write nanoset.yaml into `folder`, naming the corpora found in its raw folder, if there are any.

    Raises:
        ConfigError: there is one already, or a folder in raw cannot be a corpus.
        InputError: see discover_corpora.
    """
    path = folder / CONFIG_FILE
    if path.exists():
        raise ConfigError("there is a configuration already", where=path, remedy="edit it, or remove it first")
    raw = folder / "raw"
    corpora = [_in_yaml(corpus) for corpus in (discover_corpora(raw) if raw.is_dir() else [])] or ["web"]
    blend = corpora[0] if len(corpora) == 1 else "{" + ", ".join(f"{corpus}: 1.0" for corpus in corpora) + "}"
    write_atomic(path, _TEMPLATE.format(blend=blend, corpora=", ".join(corpora)).encode())
    return path


def _in_yaml(name: str) -> str:
    """A name as YAML writes it: in quotes where it would be read as a number, a date or a truth value."""
    import yaml

    return name if yaml.safe_load(name) == name else json.dumps(name)
