"""A project whose corpora have texts at different keys, two of them in the same folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.project.project import Project

CORPORA = """\
corpora:
  code: {text_key: content, id_key: sha}
  web_title: {folder: web, text_key: title}
"""
"""Settings of the corpora. The corpus web needs none: its folder has its name, its key is text."""
CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
tokenization: {{workers: 1, range_mib: 0.02}}
nanosets:
  both:
    blend: {{web: 1, web_title: 1, code: 1}}
    sequence_length: 8
    split: "1,0,0"
    trainer_path: /lustre/data
"""
"""The other settings."""
KEY_BY_CORPUS = {"web": "text", "web_title": "title", "code": "content"}
N_WEB = 80
WEB = [
    row | {"title": f"title of {row['id']}: {row['text'][:20]}"} for row in sentences("web", N_WEB)
]
"""Documents of the folder web."""
CODE = [{"sha": row["id"], "content": row["text"]} for row in sentences("code", 40)]
"""Documents of the folder code."""


def write_keyed_project(folder: Path, tokenizer_file: Path) -> Path:
    """Write raw text, tokenizer and settings into a folder, and return the folder."""
    for name, rows in {"web/a/1": WEB[:40], "web/2": WEB[40:], "code/1": CODE}.items():
        file = folder / "raw" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jsonl(rows))
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    (folder / "nanoset.yaml").write_text(CONFIG + CORPORA)
    return folder


def open_with_corpora(
    folder: Path, corpora: str, replacements: Mapping[str, str] | None = None
) -> Project:
    """Write other settings into the folder of the project, and open it.

    Args:
        folder: The folder.
        corpora: Settings of the corpora.
        replacements: Text of CONFIG, each with what takes its place.
    """
    config = CONFIG
    for text, replacement in (replacements or {}).items():
        assert text in config
        config = config.replace(text, replacement)
    (folder / "nanoset.yaml").write_text(config + corpora)
    return Project.open(folder / "nanoset.yaml")
