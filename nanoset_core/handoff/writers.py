"""Which files a trainer is started with, by preset."""

from __future__ import annotations

from collections.abc import Callable

from nanoset_core.handoff.megatron import ARGUMENTS, megatron_files
from nanoset_core.handoff.nanotron import nanotron_files
from nanoset_core.handoff.nemo import nemo_files
from nanoset_core.handoff.request import Handoff
from nanoset_core.mapping.splits import SPLITS

START = "START.md"
_Writer = Callable[[Handoff], tuple[dict[str, str], list[str]]]
_WRITERS: dict[str, tuple[_Writer, str]] = {
    "megatron": (megatron_files, f"torchrun … pretrain_gpt.py $(cat {{folder}}/{ARGUMENTS}) …"),
    "megatron-0.10": (megatron_files, f"torchrun … pretrain_gpt.py $(cat {{folder}}/{ARGUMENTS}) …"),
    "nemo": (nemo_files, "merge data.yaml into the model's YAML"),
    "nanotron": (nanotron_files, "merge data.yaml into nanotron's YAML, then run_train.py --config-file …"),
    "nanotron-000": (nanotron_files, "merge data.yaml into nanotron's YAML, then run_train.py --config-file …"),
}


def handoff_files(handoff: Handoff) -> tuple[dict[str, bytes], list[str]]:
    """The files to start the preset's trainer with, START.md among them.

    Returns:
        (file name → content, what the user has to know).

    Raises:
        ConfigError: there is a space in a path.
    """
    handoff.check_paths()
    writer, command = _WRITERS[handoff.config.preset]
    texts, notes = writer(handoff)
    texts[START] = _start(handoff, command.format(folder=handoff.folder), sorted(texts), notes)
    return {name: text.encode() for name, text in texts.items()}, notes


def _start(handoff: Handoff, command: str, names: list[str], notes: list[str]) -> str:
    built = ", ".join(f"{split} {handoff.samples[split]:,}" for split in SPLITS)
    lines = [f"# {handoff.name}", "", f"Samples built: {built} of {handoff.config.sequence_length:,} tokens."]
    if handoff.span is not None:
        lines.append(f"It is the phase of iterations {handoff.span[0]:,} to {handoff.span[1]:,}.")
    lines += ["", "Start:", "", f"    {command}", "", f"Files here: {', '.join(names)}; index files: {handoff.cache}"]
    lines += ["", "To know:", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"
