"""What people get wrong: every message names where, what was found or expected, and a remedy that
helps.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.sample_project import CONFIG, EOD, write_raw
from nanoset_core.cli import nanoset
from nanoset_core.cli.entry import message
from nanoset_core.errors import NanosetError

PAIR = "o/y_text_document"
TOKENIZER_LINE = 'tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}\n'
USAGE = 2
UNSIZED = '{"megatron_core":"0.16.1","tokenizer_type":"NullTokenizer"}'
SIZED, MISSPELT = (UNSIZED.replace("}", f',"{key}":9}}') for key in ("vocab_size", "vocabsize"))
CONFIGURATIONS = {
    "no-tokenizer": ("path: tokenizer.json", "path: nope.json"),
    "raw-is-a-file": ("raw: raw", "raw: nanoset.yaml"),
    "root-is-a-file": ("root: data", "root: nanoset.yaml"),
    "tokenizer-is-yaml": ("path: tokenizer.json", "path: nanoset.yaml"),
    "tokenizer-is-folder": ("path: tokenizer.json", "path: raw"),
    "hub-name": ("path: tokenizer.json", "path: org/gpt2"),
    "unknown-eod": ("<|endoftext|>", "<nope>"),
    "unknown-corpus": ("blend: books", "blend: bokos"),
    "tab": ("    seed: 7", "\tseed: 7"),
    "raw-is-not-there": ("raw: raw\n", "raw: nowhere\n"),
}

# (arguments, words of the message); exit code 1 unless the first of the words is USAGE
CASES = [
    # a project's configuration
    ("status -c nope.yaml", ["nope.yaml", "no such configuration", "nanoset init"]),
    ("status -c raw", ["raw/nanoset.yaml", "no such configuration", "nanoset init"]),
    ("status -c empty.yaml", ["empty.yaml", "is empty", "raw, root and tokenizer", "nanoset init"]),
    ("status -c tab.yaml", ["tab.yaml", "not YAML", "line 11"]),
    ("status -c raw-is-a-file.yaml", ["nanoset.yaml", "a file is where", "name a folder"]),
    ("status -c root-is-a-file.yaml", ["root-is-a-file.yaml:2: root", "a file is where", "name a folder"]),
    ("status -c raw-is-not-there.yaml", ["nowhere", "remedy"]),
    ("build -c unknown-corpus.yaml", ["nanosets.plain.blend.bokos", "books, code, web", "take it out"]),
    # the tokenizer: whoever asks first hears what a build would say
    *(
        (f"{command} -c {name}.yaml", words)
        for command in ("build", "status", "map", "map --plan", "verify")
        for name, words in (
            ("no-tokenizer", ["no-tokenizer.yaml: tokenizer.path", "nope.json does not exist", "correct the path"]),
            ("tokenizer-is-yaml", ["nanoset.yaml", "not a tokenizer", "name another file"]),
            ("unknown-eod", ["tokenizer.eod", "'<nope>'", f"'{EOD}', '<|pad|>'", "name another token"]),
        )
        if command != "build" or name == "no-tokenizer"
    ),
    ("status -c tokenizer-is-folder.yaml", ["tokenizer.path", "is a folder", "tokenizer.json"]),
    ("status -c hub-name.yaml", ["`hf download org/gpt2 tokenizer.json --local-dir org/gpt2`, and name org/gpt2/tok"]),
    ("tokenize --input raw/web --output-prefix o/z --tokenizer gpt2", ["`hf download gpt2 tokenizer.json"]),
    ("shuffle --input raw/web --output tars --tokenizer org/gpt", ["`hf download org/gpt tokenizer.json"]),
    ("tokenize --input raw/web --output-prefix o/z --tokenizer raw", ["raw/tokenizer.json|raw is a folder"]),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer nanoset.yaml --append-eod",
        ["nanoset.yaml", "not a tokenizer", "tokenizer.json", "name another file"],
    ),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer tokenizer.json --append-eod",
        ["no eos_token in tokenizer_config.json", f"'{EOD}', '<|pad|>'", "--eod"],
    ),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer configured --append-eod",
        ["no eos_token in configured/tokenizer_config.json", f"'{EOD}', '<|pad|>'", "--eod"],
    ),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer tokenizer.json --append-eod "
        "--eod <nope>",
        ["--eod", "'<nope>'", EOD],
    ),
    ("shuffle --input raw/web --output tars", ["--tokenizer", "text needs a tokenizer", "name its file"]),
    ("pack raw/web --output o/p.pbin", ["--tokenizer", "no tokenizer is named"]),
    (f"verify {PAIR} --tokenizer nope", ["nope does not exist", "hf download nope"]),
    (f"inspect {PAIR} --tokenizer gpt2", ["gpt2 does not exist", "hf download gpt2"]),
    # inputs that are not there, or hold nothing
    ("tokenize --input nope --output-prefix o/z --tokenizer tokenizer.json", ["nope", "remedy"]),
    ("tokenize --input hollow --output-prefix o/z --tokenizer tokenizer.json", ["hollow", ".jsonl", "remedy"]),
    ("shuffle --input nope --output tars --tokenizer tokenizer.json", ["nope", "name an existing one with --input"]),
    (f"shuffle --input hollow --output tars --tokenizer tokenizer.json --eod {EOD}", ["hollow", "--ext"]),
    ("merge --input nope --output-prefix o/m", [USAGE, "'nope' does not exist"]),
    ("merge --input hollow --output-prefix o/m", ["hollow", ".bin and .idx"]),
    ("pack nope --output o/p.pbin", ["nope", "name an existing file or folder"]),
    ("pbin merge nope.pbin --output o/p.pbin", ["nope.pbin", "name a file that exists"]),
    (f"pbin describe {PAIR}.bin", [f"{PAIR}.bin", "no .pbin", "layouts A, C and D"]),
    ("import-parquet nope --output o/a.jsonl", ["nope", "that exists"]),
    ("inspect nope", ["nope.idx", "a prefix, without .bin or .idx"]),
    # scratch folders that cannot be made; for outputs see campaigns/commands.py
    *(
        (f"{line} --scratch /proc/none", ["/proc/none", "the folder cannot be made", "name a place"])
        for line in (
            "tokenize --input raw/web --output-prefix o/z --tokenizer tokenizer.json",
            f"shuffle --input {PAIR} --output tars --seqlen 9 --workers 1",
        )
    ),
    ("demo /proc/none/x --megabytes 0.01", ["/proc/none", "the folder cannot be made", "name a place"]),
    # nanoset map without a project
    (f"map --data-path {PAIR}", ["--seq-length", "give the value that the run has"]),
    (f"map --data-path {PAIR} --seq-length 0", [USAGE, "--seq-length", "1<=x"]),
    (f"map --data-path 0.5 {PAIR} 0.5 --seq-length 8", ["--data-path", "come in pairs", f"0.5 {PAIR} 0.5"]),
    (f"map --data-path {PAIR} {PAIR} --seq-length 8", ["named twice", f"found: {PAIR}"]),
    ("map --data-args-path empty --seq-length 8", ["empty", "no datasets are named"]),
    (f"map --data-path 0.5 {PAIR} 0.5 {PAIR} --seq-length 8", [f"found: {PAIR}", "the sum of its weights"]),
    (f"map --data-path 0.5 {PAIR} x {PAIR} --seq-length 8", ["'x'", "pairs of weight and prefix", "before each"]),
    ("map --data-path nope --seq-length 8", ["nope.idx", "check the data path"]),
    (f"map --data-path {PAIR} --train-data-path {PAIR} --seq-length 8", ["--data-path, --train-data-path", "leave"]),
    ("map --data-args-path nope --seq-length 8", ["nope", "cannot be read", "correct the path"]),
    (f"map --data-path {PAIR} --seq-length 8 --train-iters 10", ["--global-batch-size", "give both"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer-path abc", ["'abc'", "HERE=THERE"]),
    (f"map --data-path {PAIR} --seq-length 8 --tokenizer-identifiers {{x", ["--tokenizer-identifiers", "quotes"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {{x", ["--trainer", "not YAML", "in single quotes: '{meg"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer x", ["--trainer", "wrong type", "'x' (str)"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {MISSPELT}", ["--trainer: vocabsize", "mean 'vocab_size'"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {UNSIZED}", ["--trainer.vocab_size", "needs this option"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {SIZED} --preset nemo", ["--trainer", "preset nemo", "remove"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {SIZED} --preset megatron-0.10", ["--preset", "0.16.1"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {SIZED} --tokenizer-identifiers x", ["keep one of them"]),
    (f"map --data-path {PAIR} --seq-length 8 --split 0,0", ["'0,0'", "969,30,1"]),
    ("map nope", ["nanosets", "'nope'", "pretrain, plain", "correct the name"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer-path =/lustre", ["'=/lustre'", "HERE=THERE"]),
    ("map --seq-length 8", ["--seq-length", "nanoset.yaml", "--data-path"]),
    ("map --max-epochs 2 --train-iters 10 pretrain", ["--max-epochs, --train-iters", "no effect"]),
    ("map pretrain --data-path web --seq-length 8", ["pretrain", "no effect"]),
    (f"map --plan --data-path {PAIR} --seq-length 100000000", ["train has no sample", "make samples shorter"]),
    (f"map --data-path {PAIR} --seq-length 100000000", ["train has no sample", "100,000,001 tokens or more"]),
    # names that nothing has
    ("diff nope", ["nope", "no such corpus", "nanoset build"]),
    ("explain nope train 0", ["nope", "correct the names"]),
    ("explain pretrain train", [USAGE, "give a SAMPLE, or a document"]),
    ("verify --select nope", ["--select", "'nope'", "books, code, web", "name one of these"]),
    ("verify --eod x", [USAGE, "--eod"]),
    ("nope", [USAGE, "nope"]),
    ("tokenize --input raw/web --output-prefix o/z", [USAGE, "--tokenizer"]),
    ("gc --older-than -1", [USAGE, "--older-than", "x>=0"]),
    ("gc --older-than nan", [USAGE, "--older-than", "'nan' is not a finite number"]),
    ("demo new --megabytes inf", [USAGE, "--megabytes", "0<=x<=10000"]),
    (f"tokenize --input raw/web --output-prefix o --tokenizer t --partitions {10**30}", [USAGE, "--partitions", "<=x"]),
    (f"shuffle --input {PAIR} --output tars\udcff --seqlen 9", [r"b'tars\xff'", "not UTF-8", "rename it"]),
    (f"shuffle --input raw/web --output tars --workers {10**30}", [USAGE, "--workers", "0<=x<=4096"]),
    ("tokenize --input raw/web --output-prefix out --tokenizer tokenizer.json --audit nan", [USAGE, "--audit", "nan"]),
    ("init .", ["nanoset.yaml", "already", "edit it"]),
    ("demo nanoset.yaml", [USAGE, "nanoset.yaml"]),
    ("shuffle --input raw/web --output tars --tokenizer tokenizer.json --seqlen -3", [USAGE, "--seqlen", "1<=x"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_file):
    """A project that was never built, with a wrong nanoset.yaml for each way to get one wrong, and
    a pair.
    """
    folder = tmp_path_factory.mktemp("wrong")
    write_raw(folder / "raw")
    (folder / "hollow").mkdir()
    (folder / "empty").touch()
    (folder / "configured").mkdir()
    for place in (folder, folder / "configured"):
        shutil.copyfile(tokenizer_file, place / "tokenizer.json")
    (folder / "configured" / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    (folder / "nanoset.yaml").write_text(CONFIG)
    (folder / "empty.yaml").write_text("# nothing yet\n")
    for name, (old, new) in CONFIGURATIONS.items():
        assert old in CONFIG, name
        (folder / f"{name}.yaml").write_text(CONFIG.replace(old, new, 1))
    words = (
        f"tokenize --input raw/books --output-prefix {folder}/o/y --tokenizer {tokenizer_file} "
        "--workers 1"
    )
    outcome = CliRunner().invoke(
        nanoset, words.replace("raw/", f"{folder}/raw/").split(), catch_exceptions=False
    )
    assert outcome.exit_code == 0
    return folder


def files(folder: Path) -> dict[str, float]:
    found = (
        path
        for path in folder.rglob("*")
        if not {".dagster", "data"} & {*path.relative_to(folder).parts}
    )
    return {str(path): path.stat().st_mtime_ns for path in found}


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line for line, _ in CASES])
def test_wrong_use(folder, monkeypatch, line, words):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DAGSTER_HOME", str(folder / ".dagster"))
    before = files(folder)
    outcome = CliRunner().invoke(nanoset, line.split())
    usage = words[0] == USAGE
    error = outcome.exception
    if usage:
        assert (outcome.exit_code, type(error)) == (USAGE, SystemExit)
        said = outcome.output
    else:
        assert isinstance(error, NanosetError), outcome.output
        said = message(error)
        assert error.remedy, said
        assert error.where or error.found, said
    for word in words[usage:]:
        assert any(one in said for one in word.split("|")), (word, said)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            f"map --plan --data-path {PAIR} --seq-length 8 --split 90,5",
            ["train 94.74%, valid 5.26%, test 0.00%"],
        ),
        (
            f"map --plan --data-path {PAIR} --seq-length 1024 --split 999,1",
            ["data valid has no sample", "hangs on such a split"],
        ),
        (
            f"map --plan --data-path {PAIR} --seq-length 100000 --train-samples 9 --valid-samples "
            "1",
            ["data train reads y_text_document", "times (max_epochs would limit that)"],
        ),
    ],
)
def test_what_is_allowed_and_seldom_meant_is_said(folder, monkeypatch, line, words):
    monkeypatch.chdir(folder)
    outcome = CliRunner().invoke(nanoset, line.split(), catch_exceptions=False)
    assert outcome.exit_code == 0
    for word in words:
        assert word in outcome.stderr


def test_a_usual_plan_says_nothing(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = f"map --plan --data-path {PAIR} --seq-length 16 --split 90,5,5"
    assert CliRunner().invoke(nanoset, words.split(), catch_exceptions=False).stderr == ""


def test_inspect_takes_the_folder_of_a_tokenizer(folder, monkeypatch):
    monkeypatch.chdir(folder)
    outcome = CliRunner().invoke(
        nanoset, ["inspect", PAIR, "--tokenizer", "configured"], catch_exceptions=False
    )
    assert "books 0: " in outcome.output


@pytest.mark.parametrize("words", [["--help"], ["pbin", "--help"]])
def test_summaries_of_commands_are_whole(words):
    lines = CliRunner().invoke(nanoset, words, env={"COLUMNS": "80"}).output
    assert "..." not in lines.partition("Commands:")[2]


def test_init_says_what_a_build_would_say_of_the_tokenizer(tmp_path, folder, tokenizer_file):
    def said(name):
        return (
            CliRunner()
            .invoke(nanoset, ["init", str(tmp_path / name)], catch_exceptions=False)
            .output
        )

    (tmp_path / "with").mkdir()
    shutil.copyfile(tokenizer_file, tmp_path / "with" / "tokenizer.json")
    assert "notice" not in said("with")
    assert "notice: there is no tokenizer" in said("without")
