"""Write START.md, which explains how to start a trainer on a built nanoset.

It shows the command that starts the trainer, how to check the options of a run before it starts,
what each file of the folder is for, and notes. If nanoset.yaml does not name the trainer's
tokenizer, it also has the lines to add, such as `tokenizer_type: HuggingFaceTokenizer`.
"""

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
_PURPOSES = {
    "arguments.txt": "the trainer's arguments for the data, the tokenizer and the schedule",
    "data.yaml": "the trainer's settings of the data: datasets, weights, seed and sequence length",
    "data_args.txt": "the datasets of the blend with their weights; arguments.txt names this file",
    "per_split_data_args.json": "the datasets of each split; arguments.txt names this file",
    "preflight.py": "checks on the training machine whether the trainer will find its index files, "
    "and recognize padding and ends of documents",
    "run.yaml": "template of a description of the run, for `nanoset explain`",
    "sequences_per_dataset.json": "the sizes of the datasets, so that the trainer starts faster",
}
"""Name of a file of a handoff → what it is for."""
_VERSION_LINE = (
    'megatron_core: "0.16.1"   # python -c "import megatron.core as core; print(core.__version__)"'
)
_TOKENIZER_LINES = (
    "tokenizer_type: HuggingFaceTokenizer",
    "tokenizer_model: /models/x   # the path that the trainer gets",
)


def start_text(
    handoff: Handoff, instructions: str, file_names: Sequence[str], notes: Sequence[str]
) -> str:
    """Return the text of START.md, which says how to start a trainer on the data that was built.

        # pretrain                   how many samples there are
        ## Start the trainer         a command
        ## Check …                   a script that checks the options before
        ## Files                     what each file is for
        ## Notes

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
        instructions: How to start the trainer, in Markdown.
        file_names: Names of the other files of the folder that contains START.md.
        notes: Notes for the user, in sentences.
    """
    lines = [f"# {handoff.name}", "", *_introduction(handoff)]
    lines += ["", "## Start the trainer", "", instructions]
    if PREFLIGHT in file_names:
        lines += _preflight_lines(handoff)
        if not handoff.config.tokenizer_identifiers:
            lines += _unknown_tokenizer_lines(handoff)
    lines += _file_lines(handoff, file_names)
    if notes:
        lines += ["", "## Notes", ""]
        lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _introduction(handoff: Handoff) -> list[str]:
    """Return the first lines of START.md: how many samples there are, and how long they are.

    For example, "It has samples of 4,096 tokens: 64,000 for train, 800 for valid, 0 for test."

    Args:
        handoff: Describes the data that was built, with the number of samples of each split.

    Returns:
        Two lines of Markdown, or three if the data is for a phase of a run.
    """
    length = handoff.config.sequence_length
    counts = ", ".join(f"{handoff.samples[split]:,} for {split}" for split in SPLITS)
    lines = [
        f"Use the files of this folder to train on the nanoset `{handoff.name}`.",
        f"It has samples of {length:,} tokens: {counts}.",
    ]
    if handoff.spec.span is not None:
        start, stop = handoff.spec.span
        lines.append(f"It is the phase from iteration {start:,} to {stop:,} of a run.")
    return lines


def _preflight_lines(handoff: Handoff) -> list[str]:
    """Return the lines of START.md that show how to check the options of a run before it starts.

    They contain the command of a script, preflight.py. It says whether the trainer will find the
    index files that were built, and recognize padding and ends of documents. It gets the same
    options as the trainer.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.

    Returns:
        A section of Markdown with a heading.
    """
    options = TOKENIZER_OPTIONS  # "--tokenizer-type … --tokenizer-model …"
    if handoff.tokenizer:  # the options are known, such as ["--vocab-size 32000", …]
        words: list[str] = []
        for option in handoff.tokenizer:
            words += option.split()
        options = shell_line(*words)  # quotes the words that a shell would change
    if not handoff.spec.schedule:
        # The length of the run is not in nanoset.yaml, so the user has to add it.
        options += f" {_RUN_OPTIONS}"

    script = shell_line("python", f"{handoff.folder}/{PREFLIGHT}")
    return [
        "",
        "## Check the options of the run",
        "",
        "Run this on the training machine before you queue a job. It checks that the trainer will",
        "find the index files, and that it will recognize padding and ends of documents. Add the",
        "options of your command that concern data, tokenizer, masks and schedule:",
        "",
        f"    {script} {options}",
    ]


def _unknown_tokenizer_lines(handoff: Handoff) -> list[str]:
    """Return the warning of START.md that the trainer will not find the index files.

    Megatron-LM names index files by a hash that covers its tokenizer. nanoset.yaml does not say
    which tokenizer it uses, so the warning shows lines that the user has to add.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.

    Returns:
        Lines of Markdown.
    """
    # If the options of the tokenizer follow from its file, show them. Otherwise, show an example.
    tokenizer_lines = [_yaml_line(option) for option in handoff.tokenizer]
    if not tokenizer_lines:
        tokenizer_lines = list(_TOKENIZER_LINES)
    yaml_lines = [f"          {line}" for line in (_VERSION_LINE, *tokenizer_lines)]
    return [
        "",
        f"**{UNKNOWN_TOKENIZER}.**",
        "",
        "Megatron-LM names index files after its tokenizer, so it will not find these index files.",
        "Add these lines to nanoset.yaml, and run `nanoset build`:",
        "",
        "    nanosets:",
        f"      {handoff.section}:",
        "        trainer:",
        *yaml_lines,
    ]


def _file_lines(handoff: Handoff, file_names: Sequence[str]) -> list[str]:
    """Return the lines of START.md that say what each file is for.

    For example, "- `preflight.py`: checks on the training machine whether …".

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.
        file_names: Names of the files in the folder of START.md.

    Returns:
        A section of Markdown: a heading, and a list with an entry for each file.
    """
    lines = ["", "## Files", ""]
    for name in file_names:
        purpose = _PURPOSES.get(name)
        lines.append(f"- `{name}`" if purpose is None else f"- `{name}`: {purpose}")
    lines.append(f"- Index files: {handoff.cache}")
    return lines


def _yaml_line(argument: str) -> str:
    """Convert an option of the trainer to a line of nanoset.yaml that says the same.

        --vocab-size 32000                        vocab_size: 32000
        --tokenizer-sentencepiece-legacy          tokenizer_sentencepiece_legacy: true
        --tokenizer-special-tokens <sep> <mask>   special_tokens: ["<sep>", "<mask>"]

    Args:
        argument: An option that names the tokenizer, and its values, separated by spaces.

    Returns:
        A line of YAML without indentation.
    """
    flag, *values = argument.split()
    name = flag.removeprefix("--").replace("-", "_")

    # The only options with a list of values. Their name depends on the version of Megatron-LM; in
    # nanoset.yaml there is one name for both.
    if name in ("tokenizer_special_tokens", "tiktoken_special_tokens"):
        return f"special_tokens: {json.dumps(values, ensure_ascii=False)}"
    if not values:  # a switch, which has no value on the command line
        return f"{name}: true"
    return f"{name}: {_yaml_scalar(values[0])}"


def _yaml_scalar(value: str) -> str:
    """Return a value of the command line in YAML, where numbers and true need no quotes."""
    if value == "true" or value.isdecimal():
        return value
    return yaml_value(value)
