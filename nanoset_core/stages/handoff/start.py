"""Write START.md, which explains how to start a trainer on a built nanoset."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nanoset_core.records.yaml_text import yaml_value
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.description import Handoff
from nanoset_core.stages.handoff.megatron import PREFLIGHT
from nanoset_core.stages.handoff.settings import UNNAMED
from nanoset_core.untrusted import shell_line

START = "START.md"
UNKNOWN_TOKENIZER = UNNAMED.format(place="nanoset.yaml")
"""Warning if nanoset.yaml does not name the trainer's tokenizer."""
TOKENIZER_OPTIONS = "--tokenizer-type … --tokenizer-model …"
"""Placeholder for the options that name a tokenizer, if they are not known."""
_RUN_OPTIONS = "--train-iters … --global-batch-size … --eval-interval … --eval-iters …"
_VERSION_LINE = (
    'megatron_core: "0.16.1"   # python -c "import megatron.core as core; print(core.__version__)"'
)
_TOKENIZER_LINES = (
    "tokenizer_type: HuggingFaceTokenizer",
    "tokenizer_model: /models/x   # as the trainer is given it",
)


def start_text(
    handoff: Handoff, command: str, file_names: Sequence[str], notes: Sequence[str]
) -> str:
    """Return the text of START.md.

    Args:
        handoff: Everything that the text mentions.
        command: Command that starts the trainer.
        file_names: Names of the other files of the handoff.
        notes: Notes for the user, in sentences.
    """
    # What was built.
    length = handoff.config.sequence_length
    built = ", ".join(f"{split} {handoff.samples[split]:,}" for split in SPLITS)
    lines = [f"# {handoff.name}", "", f"Samples built: {built} of {length:,} tokens."]
    if handoff.spec.span is not None:
        start, stop = handoff.spec.span
        lines.append(f"It is the phase of iterations {start:,} to {stop:,}.")

    # How to start the trainer, and to check that it will find the index files.
    lines += ["", "Start:", "", f"    {command}", ""]
    lines.append(f"Files here: {', '.join(file_names)}; index files: {handoff.cache}")
    if PREFLIGHT in file_names:
        lines += _preflight_lines(handoff)
        if not handoff.config.tokenizer_identifiers:
            lines += _trainer_lines(handoff)
    if notes:
        lines += ["", "To know:", ""]
        lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _preflight_lines(handoff: Handoff) -> list[str]:
    """Return the lines of START.md that show how to start preflight.py.

    This script checks whether the trainer will find the index files.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    words = " ".join(handoff.tokenizer).split()
    options = shell_line(*words) or TOKENIZER_OPTIONS
    if not handoff.spec.schedule:
        options += f" {_RUN_OPTIONS}"
    script = shell_line("python", f"{handoff.folder}/{PREFLIGHT}")
    return [
        "",
        "Whether the trainer will find them, asked where it runs, with its options:",
        "",
        f"    {script} {options}",
    ]


def _trainer_lines(handoff: Handoff) -> list[str]:
    """Return the lines of START.md for a nanoset that does not name the trainer's tokenizer.

    They contain a warning, and the lines to add to nanoset.yaml.

    Args:
        handoff: The built nanoset, as its trainer sees it.
    """
    tokenizer_lines = [_yaml_line(argument) for argument in handoff.tokenizer]
    if not tokenizer_lines:
        tokenizer_lines = list(_TOKENIZER_LINES)
    return [
        "",
        f"**{UNKNOWN_TOKENIZER}.** Write into nanoset.yaml, and build again:",
        "",
        "    nanosets:",
        f"      {handoff.section}:",
        "        trainer:",
        *(f"          {line}" for line in (_VERSION_LINE, *tokenizer_lines)),
    ]


def _yaml_line(argument: str) -> str:
    """Convert an argument of the trainer to a line of the section `trainer` in nanoset.yaml.

    Args:
        argument: An option that names the tokenizer, and its values, separated by spaces.
    """
    flag, *values = argument.split()
    name = flag.removeprefix("--").replace("-", "_")
    if name in ("tokenizer_special_tokens", "tiktoken_special_tokens"):
        return f"special_tokens: {json.dumps(values, ensure_ascii=False)}"
    if not values:
        return f"{name}: true"
    value = values[0]
    if value == "true" or value.isdecimal():
        return f"{name}: {value}"
    return f"{name}: {yaml_value(value)}"
