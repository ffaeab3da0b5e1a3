"""The page of `export`: the files of another reader, and how to open them.

An export is a corpus or view in the format of another program, for example as a `.ds` file for
datatrove. The page lists its files, and shows the lines of Python that open them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import code, counts_text, facts_of, markdown, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.exports.formats import FORMATS
from nanoset_core.wording import format_bytes, format_count


def export_page(run: AssetRun) -> dict[str, Any]:
    """Write a dataset in the format of another program, and return what Dagster's UI shows of it.

    Args:
        run: Executes the Dagster asset `export` for one export, such as a `.ds` file for the
            program datatrove. `run.make()` writes the files, and returns their manifest: the record
            of the files and of what was counted.

    Returns:
        What the page of the asset shows: heading → value. See `export_metadata`.

    Raises:
        NanosetError: The export could not be made.
    """
    manifest = run.make()
    return export_metadata(manifest)


def export_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of an export, a dataset in the format of another program.

    Args:
        manifest: The record of the export: its files, and what was counted.

    Returns:
        Heading → value: texts, a table and counts.
    """
    facts = manifest.facts
    export_format = FORMATS[facts["format"]]  # such as that of datatrove
    # "**5,000 documents, 1,234,567 tokens** of `web` for datatrove …"
    summary = _documents_text(facts, export_format.reader)
    counted = ["documents", "tokens", "left_out", "dtype", "format"]
    if "samples" in facts:  # a format with samples of one length
        summary += f" {_samples_text(facts)}"
        counted += ["samples", "sequence_length", "dropped"]
    # Python code that opens the files.
    example = export_format.example(manifest.url(), manifest.name, facts)
    return {
        "summary": markdown(summary),
        "opened_by": dg.MetadataValue.md(f"```python\n{example}\n```"),
        "files": _file_table(manifest),
        "dagster/partition_row_count": facts["documents"],  # Dagster shows it as the size
        **facts_of(manifest, *counted),
    }


def _file_table(manifest: Manifest) -> dg.TableMetadataValue:
    """Return a table of the files of an export, a dataset in the format of another program.

        file                     size
        web.ds                   2.47 MB
        web.ds.index             40.0 kB

    Args:
        manifest: The record of the export, with the size of each file in bytes.
    """
    rows: list[dict[str, str]] = []
    for name, file in manifest.files.items():
        rows.append({"file": name, "size": format_bytes(file.size)})
    return table(rows)


def _documents_text(facts: Mapping[str, Any], reader: str) -> str:
    """Say in a sentence which documents an export contains, and for which program it is written.

    For example:

        **5,000 documents, 1,234,567 tokens** of `web` for datatrove (tokens: hard link); 2
        documents without tokens left out.

    Args:
        facts: What was counted when the export was made, and the name of the dataset that it is
            made from.
        reader: Name of the program that reads its format.
    """
    dataset = code(facts["of"])
    method = facts["made_by"]  # how the file of tokens was made, such as "hard link" or "copy"
    text = f"{counts_text(facts)} of {dataset} for {reader} (tokens: {method})"
    n_left_out = facts["left_out"]
    if n_left_out:
        empty_documents = format_count(n_left_out, "document")
        text += f"; {empty_documents} without tokens left out"
    return f"{text}."


def _samples_text(facts: Mapping[str, Any]) -> str:
    """Say in a sentence into how many training samples a program divides the tokens of an export.

    Some programs cut the tokens into samples of one length, and ignore the rest. For example, 2,500
    tokens in samples of 1,000: "2 samples of 1,000 tokens; the last 500 tokens are not read."

    Args:
        facts: What was counted when the export was made, for the sample length in its settings.
    """
    samples = format_count(facts["samples"], "sample")
    length = format_count(facts["sequence_length"], "token")
    text = f"{samples} of {length}"
    n_dropped = facts["dropped"]
    if n_dropped:
        # Tokens after the last complete sample are never read.
        dropped_tokens = format_count(n_dropped, "token")
        text += f"; the last {dropped_tokens} are not read"
    return f"{text}."
