"""`nanoset init` chooses settings that suit the text and the tokenizer, and says what it chose."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import AddedToken, Tokenizer, models

from helpers.building import build_all
from helpers.command import invoke_nanoset, output_of
from helpers.locations import REPOSITORY
from helpers.sample_project import encoded, sentences
from nanoset_core import load_nanoset
from nanoset_core.cli.commands import init
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.first_config.write import write_config
from nanoset_core.project.settings import load_config
from nanoset_core.stages.handoff.evaluation_warnings import evaluation_warnings
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER

README = REPOSITORY / "README.md"

Row = dict[str, Any]


def write_rows(folder: Path, path: str, rows: Sequence[Row]) -> None:
    """Write rows into a file of the raw text of a project, in the format of its ending."""
    file = folder / "raw" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(file.name, rows, 7))


def nested(row: Row) -> Row:
    """Return a row whose text and id are in an object."""
    return {"data": {"text": row["text"], "id": row["id"]}}


def renamed(row: Row) -> Row:
    """Return a row whose text and id have other keys."""
    return {"content": row["text"], "path": row["id"]}


Files = Mapping[str, Sequence[Row]]
"""Rows of the files of raw text, by path."""

HUGGING_FACE_FILES: Files = {
    "wiki/data/train-00000-of-00002.parquet": sentences("web", 60),
    "wiki/data/train-00001-of-00002.parquet": sentences("web", 60),
    "wiki/data/validation-00000-of-00001.parquet": sentences("web", 20),
    "wiki/data/test-00000-of-00001.parquet": sentences("web", 20),
}
TRAIN_AND_TEST_FILES: Files = {
    "wiki/train-00000.jsonl": sentences("web", 60),
    "wiki/test-00000.jsonl": sentences("web", 20),
}


def one_corpus(n_documents: int) -> Files:
    """Return the raw text of one corpus in one file."""
    return {"web/a.jsonl": sentences("web", n_documents)}


@pytest.fixture
def init_project(tmp_path, tokenizer_file) -> Callable[[Files], str]:
    """A function that writes text and a tokenizer into `tmp_path`, and runs `nanoset init` there.

    It returns what the command prints.
    """

    def write_and_init(files: Files) -> str:
        for path, rows in files.items():
            write_rows(tmp_path, path, rows)
        (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
        return output_of("init", tmp_path)

    return write_and_init


def facts_of(folder: Path, corpus: str) -> Mapping[str, Any]:
    """Return the facts on the tokenized documents of a corpus."""
    manifest = folder / "data/tokenized" / corpus / "current/manifest.json"
    return json.loads(manifest.read_text())["facts"]


# The text


@pytest.mark.parametrize(
    ("files", "blend_per_split"),
    [
        pytest.param(
            HUGGING_FACE_FILES,
            {"train": "wiki", "valid": "wiki_valid", "test": "wiki_test"},
            id="files of a dataset of Hugging Face",
        ),
        pytest.param(
            {
                "web/train/a.jsonl": sentences("web", 60),
                "web/dev/a.jsonl": sentences("web", 20),
                "code/a.jsonl": sentences("web", 60),
            },
            {"train": {"code": 0.5, "web": 0.5}, "valid": "web_valid"},
            id="a corpus with held-out files and one without",
        ),
        pytest.param(
            {
                "train/a.arrow": sentences("web", 60),
                "validation/a.jsonl.zst": sentences("web", 20),
            },
            {"train": "train", "valid": "validation"},
            id="corpora named like splits",
        ),
        pytest.param(
            TRAIN_AND_TEST_FILES,
            {"train": "wiki", "valid": "wiki_test", "test": "wiki_test"},
            id="files for train and test only",
        ),
        pytest.param(
            {
                "web/a.jsonl.gz": [nested(row) for row in sentences("web", 600)],
                "code/a.jsonl": [renamed(row) for row in sentences("web", 600)],
            },
            {},
            id="text with other keys in each corpus",
        ),
    ],
)
def test_a_project_is_built_with_the_settings_that_were_chosen(
    tmp_path, init_project, files, blend_per_split
):
    output = init_project(files)

    assert "name your tokenizer" not in output
    nanoset = load_config(tmp_path / "nanoset.yaml").nanosets["pretrain"]
    assert nanoset.blend_per_split == blend_per_split
    assert nanoset.split != "1,0,0"
    assert nanoset.samples.keys() >= {"train", "valid"}

    build_all(tmp_path / "nanoset.yaml")
    for split, n_samples in nanoset.samples.items():
        assert len(load_nanoset(tmp_path / "data", "pretrain", split)) >= n_samples
    for corpus in nanoset.corpora:
        assert facts_of(tmp_path, corpus)["rejected"] == 0


def test_held_out_files_are_excluded_from_the_training_corpus(tmp_path, init_project):
    output = init_project(HUGGING_FACE_FILES)

    assert "1 file of wiki for valid" in output
    text = (tmp_path / "nanoset.yaml").read_text()
    assert "exclude: [validation-*, test-*]" in text
    blends = yaml.safe_load(text)["nanosets"]["pretrain"]["blend_per_split"]
    assert blends["train"] == "wiki"


def test_held_out_files_are_built_as_corpora_of_their_own(tmp_path, init_project):
    init_project(HUGGING_FACE_FILES)

    build_all(tmp_path / "nanoset.yaml")

    assert facts_of(tmp_path, "wiki")["documents"] == 120
    assert facts_of(tmp_path, "wiki_valid")["documents"] == 20
    assert facts_of(tmp_path, "wiki_test")["documents"] == 20


def test_test_files_are_used_for_valid_with_a_message_if_there_are_none_for_valid(init_project):
    output = init_project(TRAIN_AND_TEST_FILES)

    assert "There are no files for valid: those for test are read for it, too." in output


def test_test_files_are_used_for_training_if_there_are_no_others(tmp_path):
    write_rows(tmp_path, "web/test-0.jsonl", sentences("web", 9))

    config = load_config(write_config(tmp_path).path)

    assert config.nanosets["pretrain"].blend == "web"
    assert dict(config.corpora) == {}


def test_the_name_of_a_txt_file_says_nothing_about_its_split_but_its_folder_does(
    tmp_path, init_project
):
    names = ["a", "evaluation", "test", "valid-1", "test/b", "test/c"]
    for name in names:
        path = tmp_path / "raw" / "notes" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a text of some length " * 500)

    output = init_project({})

    corpora = yaml.safe_load((tmp_path / "nanoset.yaml").read_text())["corpora"]
    assert "4 files of notes for train, 2 files of notes for test" in output
    assert corpora["notes"]["exclude"] == ["test/"]
    assert corpora["notes_test"]["files"] == ["test/"]


def test_held_out_files_without_a_sample_are_left_out_with_a_message(tmp_path):
    write_rows(tmp_path, "web/train.jsonl", sentences("web", 400))
    write_rows(tmp_path, "web/test.jsonl", sentences("web", 1))

    first_config = write_config(tmp_path)

    nanoset = load_config(first_config.path).nanosets["pretrain"]
    assert dict(nanoset.blend_per_split) == {"train": "web"}
    assert "those for test are read" not in str(first_config.chosen)
    (choice,) = [line for line in first_config.chosen if "blend_per_split" in line]
    assert "web_test left out" in choice


def test_a_tiny_corpus_is_left_out_of_the_blend_with_a_message(tmp_path, init_project):
    output = init_project(
        {
            "web/a.jsonl": sentences("web", 400),
            "code/a.jsonl": sentences("code", 400),
            "tiny/a.jsonl": [{"text": "hello world"}, {"text": "bye"}],
        }
    )

    nanoset = load_config(tmp_path / "nanoset.yaml").nanosets["pretrain"]
    assert sorted(nanoset.blend) == ["code", "web"]
    assert nanoset.sequence_length >= 256
    (line,) = [line for line in output.splitlines() if "pretrain.blend" in line]
    assert "tiny left out, since there might be no sample." in line
    build_all(tmp_path / "nanoset.yaml")
    assert facts_of(tmp_path, "tiny")["documents"] == 2


def test_a_tiny_corpus_is_left_out_of_train_if_there_are_held_out_files(tmp_path):
    write_rows(tmp_path, "web/train.jsonl", sentences("web", 400))
    write_rows(tmp_path, "web/test.jsonl", sentences("web", 200))
    write_rows(tmp_path, "tiny/a.jsonl", [{"text": "hello world"}])

    first_config = write_config(tmp_path)

    nanoset = load_config(first_config.path).nanosets["pretrain"]
    assert nanoset.blend_per_split["train"] == "web"
    assert nanoset.sequence_length >= 256
    (choice,) = [line for line in first_config.chosen if "blend_per_split" in line]
    assert "tiny left out" in choice


def test_samples_are_short_if_there_are_only_tiny_corpora(tmp_path, init_project):
    init_project({"a/a.jsonl": [{"text": "hello world"}], "b/b.jsonl": [{"text": "good bye"}]})

    nanoset = load_config(tmp_path / "nanoset.yaml").nanosets["pretrain"]
    assert sorted(nanoset.blend) == ["a", "b"]
    assert nanoset.sequence_length < 256
    build_all(tmp_path / "nanoset.yaml")


def test_the_corpus_with_little_text_is_named(tmp_path):
    write_rows(tmp_path, "web/a.jsonl", sentences("web", 2000))
    write_rows(tmp_path, "code/a.jsonl", sentences("code", 90))

    chosen = write_config(tmp_path).chosen

    (length,) = [line for line in chosen if "sequence_length" in line]
    (split,) = [line for line in chosen if "pretrain.split" in line]
    assert "There is little text in code; with more, use 2,048." in length
    assert "There is little text in code: " in split


def test_nothing_is_built_that_was_not_requested(tmp_path, init_project):
    init_project(one_corpus(200))

    text = (tmp_path / "nanoset.yaml").read_text()
    settings = yaml.safe_load(text)
    assert "webdatasets" not in settings
    assert "packed" not in settings
    assert "# webdatasets:" in text

    build_all(tmp_path / "nanoset.yaml")
    folders = {path.name for path in (tmp_path / "data").iterdir()}
    assert folders.isdisjoint({"webdatasets", "shuffle_plans", "packed"})


def test_text_outside_of_the_raw_folder_is_named(tmp_path, init_project):
    texts = ["a.jsonl", "c.json.gz", "data/train-0.parquet", "more/deep/b.parquet"]
    # Files of a tokenizer, of a cache, and of the outputs are no text.
    others = [
        "tokenizer_config.json",
        "vocab.json",
        ".cache/x.jsonl",
        "data/shards/web/documents.parquet",
    ]
    for name in [*texts, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")

    output = init_project(one_corpus(60))

    (line,) = [line for line in output.splitlines() if "outside of" in line]
    assert line.startswith(
        f"not read: 4 files of text outside of {tmp_path / 'raw'}: a.jsonl, c.json.gz, data/train"
    )
    assert "move it to" in line


def test_the_file_of_a_tokenizer_is_not_called_text(tmp_path, tokenizer_file):
    write_rows(tmp_path, "web/a.jsonl", sentences("web", 60))
    (tmp_path / "models").mkdir()
    shutil.copy(tokenizer_file, tmp_path / "models/bpe.json")
    (tmp_path / "tekken.json").write_text("{}")  # of another tokenizer
    (tmp_path / "models/other.json").write_text("{}")

    output = output_of("init", tmp_path, "--tokenizer", tmp_path / "models/bpe.json")

    (line,) = [line for line in output.splitlines() if "outside of" in line]
    assert f"1 file of text outside of {tmp_path / 'raw'}: models/other.json: " in line


def test_links_in_a_circle_do_not_stop_init(tmp_path, tokenizer_file):
    write_rows(tmp_path, "web/a.jsonl", sentences("web", 60))
    (tmp_path / "x.jsonl").symlink_to("y.jsonl")
    (tmp_path / "y.jsonl").symlink_to("x.jsonl")

    output_of("init", tmp_path, "--tokenizer", tokenizer_file)

    assert (tmp_path / "nanoset.yaml").exists()


def test_txt_files_in_no_corpus_are_named_in_one_line(tmp_path, init_project):
    (tmp_path / "raw").mkdir()
    for number in range(20):
        (tmp_path / "raw" / f"{number:02}.txt").write_text("a text")

    output = init_project({})

    assert (
        "not read: 00.txt, 01.txt, 02.txt and 17 more: a file in no corpus, which is not read: move "
        "it into a folder, its corpus\n" in output
    )


def test_txt_files_outside_of_the_raw_folder_are_named_if_there_is_no_text(tmp_path, init_project):
    (tmp_path / "texts").mkdir()
    for name in ("texts/a.txt", "texts/b.csv", "requirements.txt", "texts/merges.txt"):
        (tmp_path / name).write_text("a text")

    output = init_project({})
    (tmp_path / "nanoset.yaml").unlink()
    output_with_text = init_project(one_corpus(60))

    assert (
        f"not read: 2 files of text outside of {tmp_path / 'raw'}: texts/a.txt, texts/b.csv: "
        in output
    )
    assert "outside of" not in output_with_text


def test_a_key_that_cannot_be_used_is_not_a_reason_to_name_a_tokenizer(init_project):
    rows = [{"a/b": row["text"]} for row in sentences("web", 20)]

    output = init_project({"web/a.jsonl": rows})

    assert "cannot be part of a file's name" in output
    assert "name your tokenizer" not in output


def test_a_key_that_is_empty_in_every_line_is_not_taken_for_the_text(tmp_path):
    rows = [{"text": "", "markdown": row["text"]} for row in sentences("web", 50)]
    write_rows(tmp_path, "web/a.jsonl", rows)

    first_config = write_config(tmp_path)

    assert load_config(first_config.path).documents.text_key == "markdown"
    assert [line for line in first_config.chosen if "text (empty in every line)" in line]


def test_the_reason_for_a_key_of_ids_does_not_deny_that_some_lines_have_another(tmp_path):
    rows = sentences("web", 50)
    for number, row in enumerate(rows):
        row["id"] = str(number) if number < 5 else None
        row["url"] = f"a.org/{number}"
    write_rows(tmp_path, "web/a.jsonl", rows)

    first_config = write_config(tmp_path)

    [reason] = [line for line in first_config.chosen if "documents.id_key" in line]
    assert reason.endswith("id_key: url. Most corpora have their ids there.")


def without_id(row: Row) -> Row:
    """Return a row that has only a text."""
    return {"text": row["text"]}


def with_url(row: Row) -> Row:
    """Return a row whose id is at the key `url`."""
    return {"text": row["text"], "url": row["id"]}


@pytest.mark.parametrize(
    ("corpora_with_url", "corpora_without_id"), [(["a", "b"], ["c"]), (["c"], ["a", "b"])]
)
def test_corpora_without_ids_have_no_key_of_ids_that_a_build_warns_of(
    tmp_path, corpora_with_url, corpora_without_id
):
    for corpus in corpora_with_url:
        write_rows(tmp_path, f"{corpus}/a.jsonl", [with_url(row) for row in sentences("web", 50)])
    for corpus in corpora_without_id:
        write_rows(tmp_path, f"{corpus}/a.jsonl", [without_id(row) for row in sentences("web", 50)])

    config = load_config(write_config(tmp_path).path)

    # Builds do not warn if the key is the default, and no document has it.
    assert {config.documents_of(corpus).id_key for corpus in corpora_with_url} == {"url"}
    assert {config.documents_of(corpus).id_key for corpus in corpora_without_id} == {"id"}


def test_corpora_of_txt_files_need_no_key_of_ids(tmp_path):
    write_rows(tmp_path, "a/a.jsonl", [with_url(row) for row in sentences("web", 50)])
    (tmp_path / "raw/notes").mkdir()
    (tmp_path / "raw/notes/a.txt").write_text("a text " * 500)

    config = load_config(write_config(tmp_path).path)

    assert config.documents.id_key == "url"
    assert "notes" not in config.corpora


def test_text_is_shown_before_it_is_read(tmp_path):
    write_rows(tmp_path, "web/a.jsonl", [{"question": "What is it?", "answer": "A test."}])

    outcome = invoke_nanoset(["init", tmp_path])

    assert isinstance(outcome.exception, ConfigError)  # it is not clear which key has the text
    assert outcome.stdout.startswith("found web: 1 file")


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        pytest.param(
            {"question": "What is it?", "answer": "A test."}, "question, answer", id="two texts"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "What is it?"}]}, "messages (list)", id="chat"
        ),
    ],
)
def test_the_key_of_the_text_has_to_be_named_if_it_is_unclear(tmp_path, row, keys):
    write_rows(tmp_path, "chat/a.jsonl", [row] * 3)

    outcome = invoke_nanoset(["init", tmp_path])
    assert isinstance(outcome.exception, ConfigError)
    assert outcome.exception.found == f"the keys {keys}"
    assert "--text-key" in str(outcome.exception.remedy)
    assert not (tmp_path / "nanoset.yaml").exists()

    # Once it is named, the file is written.
    assert invoke_nanoset(["init", tmp_path, "--text-key", "answer"]).exit_code == 0
    assert load_config(tmp_path / "nanoset.yaml").documents.text_key == "answer"


def test_a_key_with_a_line_end_is_written_as_one_line_of_a_comment(tmp_path):
    write_rows(tmp_path, "web/a.jsonl", [{"text": "The cat sat.", "a\nraw: elsewhere": "x"}])

    path = write_config(tmp_path).path

    assert load_config(path).raw == "raw"
    assert "# The first lines of web have text, a\\nraw: elsewhere." in path.read_text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("hello\nbye\n", "No column has a usual name. If the first row", id="text"),
        pytest.param("17,The cat\n18,The dog\n", "The first row has the number 17.", id="number"),
        pytest.param("id|text\n1|The cat\n", "The first row has `|`, which does not", id="bar"),
    ],
)
def test_a_csv_file_without_a_header_is_pointed_out(tmp_path, content, reason):
    file = tmp_path / "raw/notes/a.csv"
    file.parent.mkdir(parents=True)
    file.write_text(content)

    first_config = write_config(tmp_path)

    (choice,) = [line for line in first_config.chosen if "text_key" in line]
    assert reason in choice


def test_a_usual_column_name_shows_that_a_csv_file_has_a_header(tmp_path):
    file = tmp_path / "raw/notes/a.csv"
    file.parent.mkdir(parents=True)
    file.write_text("text,lang\nThe cat,en\n")

    first_config = write_config(tmp_path)

    (choice,) = [line for line in first_config.chosen if "text_key" in line]
    assert choice.endswith("The first lines of notes have text, lang.")


def test_the_named_key_is_not_used_for_a_corpus_that_has_another_one(tmp_path):
    qa_rows = [{"question": row["text"], "answer": row["text"]} for row in sentences("qa", 50)]
    write_rows(tmp_path, "qa/q.jsonl", qa_rows)
    write_rows(tmp_path, "web/w.jsonl", sentences("web", 50))

    assert invoke_nanoset(["init", tmp_path, "--text-key", "answer"]).exit_code == 0

    config = load_config(tmp_path / "nanoset.yaml")
    assert config.documents.text_key == "text"
    assert config.documents_of("qa").text_key == "answer"
    assert config.documents_of("web").text_key == "text"


def test_the_named_key_is_used_for_a_corpus_that_also_has_a_usual_one(tmp_path):
    write_rows(tmp_path, "web/w.jsonl", [{"text": "raw", "clean": "cleaned"}] * 3)

    assert invoke_nanoset(["init", tmp_path, "--text-key", "clean"]).exit_code == 0

    assert load_config(tmp_path / "nanoset.yaml").documents.text_key == "clean"


def test_the_named_key_is_not_used_for_txt_files(tmp_path):
    write_rows(tmp_path, "qa/q.jsonl", [{"question": "q", "answer": "a"}] * 3)
    (tmp_path / "raw/notes").mkdir()
    (tmp_path / "raw/notes/a.txt").write_text("A note.")
    write_rows(tmp_path, "web/w.jsonl", [{"text": "It rains."}] * 3)

    assert invoke_nanoset(["init", tmp_path, "--text-key", "answer"]).exit_code == 0

    assert load_config(tmp_path / "nanoset.yaml").documents_of("notes").text_key == "text"


def test_the_named_key_is_used_for_a_corpus_whose_first_lines_have_no_keys(tmp_path):
    (tmp_path / "raw/chat").mkdir(parents=True)
    (tmp_path / "raw/chat/a.jsonl").write_text("not JSON\n" * 300 + '{"answer": "Yes."}\n')
    write_rows(tmp_path, "web/w.jsonl", [{"text": "It rains."}] * 3)

    assert invoke_nanoset(["init", tmp_path, "--text-key", "answer"]).exit_code == 0

    assert load_config(tmp_path / "nanoset.yaml").documents_of("chat").text_key == "answer"


def test_the_user_is_asked_for_the_key_of_the_text_once(tmp_path, monkeypatch):
    write_rows(tmp_path, "chat/a.jsonl", [{"question": "q", "answer": "a"}] * 3)
    questions = []

    def choose_second(question: str, answers: Sequence[str]) -> str:
        questions.append((question, answers))
        return answers[1]

    monkeypatch.setattr(init, "_ask", choose_second)

    assert invoke_nanoset(["init", tmp_path]).exit_code == 0
    assert questions == [("Which key of chat holds the text?", ["question", "answer"])]
    assert load_config(tmp_path / "nanoset.yaml").documents.text_key == "answer"

    # If a configuration exists, there is nothing to ask.
    assert "already" in str(invoke_nanoset(["init", tmp_path]).exception)
    assert len(questions) == 1


# Evaluation


TRAIN_40_STEPS = "schedule: {iterations: 40, global_batch_size: 4, eval_interval: 10, "
"""The start of a schedule, before `eval_iters`."""


def test_no_evaluation_is_requested_if_the_held_out_files_have_no_sample(tmp_path, tokenizer_file):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    write_rows(tmp_path, "web/train.jsonl", sentences("web", 400))
    write_rows(tmp_path, "web/test.jsonl", sentences("web", 1))

    nanoset = load_config(write_config(tmp_path).path).nanosets["pretrain"]

    assert nanoset.schedule.eval_iters == 0


@pytest.mark.parametrize(
    ("blend", "what_exists"),
    [
        pytest.param('blend: web\n    split: "1,0,0"', "split: 1,0,0", id="split"),
        pytest.param(
            "blend_per_split: {train: web, test: code}",
            "blends for train and test",
            id="blend_per_split",
        ),
    ],
)
def test_an_evaluation_without_samples_is_warned_of_everywhere(make_project, blend, what_exists):
    config = make_project(
        replacements={
            "blend: {web: 0.7, code: 0.3}": blend,
            '    split: "80,15,5"\n': "",
            "samples: {train: 400}\n": TRAIN_40_STEPS + "eval_iters: 2}\n",
        }
    )
    build_all(config)

    status = invoke_nanoset(["status", "--config", config]).output
    start_file = config.parent / "data/nanosets/pretrain/handoff/current/START.md"
    for text in (status, start_file.read_text()):
        assert "eval_iters: 2 asks for 40 samples of valid, which " in text
        assert "or set eval_iters to 0" in text
    with pytest.raises(MissingError) as caught:
        load_nanoset(config.parent / "data", "pretrain", "valid")
    assert caught.value.found == what_exists


def test_a_split_without_samples_is_no_reason_for_a_warning_without_evaluation(make_project):
    replacements = {
        'split: "80,15,5"': 'split: "1,0,0"',
        "samples: {train: 400}\n": TRAIN_40_STEPS + "eval_iters: 0}\n",
    }
    config = load_config(make_project(replacements=replacements))

    assert not [*evaluation_warnings(config.nanosets["pretrain"])]


# The folder of the project


@pytest.fixture
def project_with_space(tmp_path, tokenizer_file) -> Path:
    """The folder of a project, not initialised, whose name has to be quoted in a shell."""
    folder = tmp_path / "my project"
    write_rows(folder, "web/a.jsonl", sentences("web", 60))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    return folder


def suggested_command(output: str) -> str:
    """Return the command that `nanoset init` suggests."""
    return output.rpartition("then run `")[2].partition("`")[0]


def check_dry_run(command: str) -> None:
    """Check that a command line builds this project, as far as nothing is written."""
    outcome = invoke_nanoset([*shlex.split(command)[1:], "--dry-run"])
    # Only the handoff would fail, since Megatron-LM cannot read paths with spaces.
    assert "corpus web" in outcome.output
    assert outcome.output.count("failing") == 1, outcome.output


def test_the_suggested_command_works_in_the_folder_of_the_project(project_with_space, monkeypatch):
    monkeypatch.chdir(project_with_space)

    command = suggested_command(invoke_nanoset(["init", "."]).output)

    assert command == "nanoset build"
    check_dry_run(command)


def test_the_suggested_command_works_in_another_folder(project_with_space, monkeypatch):
    monkeypatch.chdir(project_with_space.parent)

    command = suggested_command(invoke_nanoset(["init", "my project"]).output)

    assert command == "nanoset build -c 'my project'"
    check_dry_run(command)


def test_the_suggested_command_names_the_project_if_the_environment_names_another_one(
    tmp_path, monkeypatch
):
    write_rows(tmp_path, "web/a.jsonl", sentences("web", 60))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOSET_CONFIG", "/elsewhere")

    assert "`nanoset build -c .`" in invoke_nanoset(["init"]).output


@pytest.mark.parametrize(
    "command",
    [["status"], ["map", "pretrain", "--plan"], ["gc"], ["verify"], ["build", "--dry-run"]],
    ids=" ".join,
)
def test_a_command_accepts_the_folder_of_a_project_or_its_file(make_project, command):
    config = make_project()

    for option in (["-c", config.parent], ["--config", config]):
        output = invoke_nanoset([*command, *option]).output
        assert "no such configuration" not in output
        assert "is a directory" not in output


def test_the_environment_may_name_the_folder_of_a_project(make_project, monkeypatch):
    monkeypatch.setenv("NANOSET_CONFIG", str(make_project().parent))

    assert "corpus" in invoke_nanoset(["status"]).output


def test_a_configuration_is_loaded_from_its_folder(make_project):
    config = make_project()

    assert load_config(config.parent).file == config


def test_a_folder_without_a_configuration_is_an_error(make_project):
    folder = make_project().parent / "raw"

    with pytest.raises(MissingError) as caught:
        load_config(folder)

    assert caught.value.where == str(folder / "nanoset.yaml")


def modification_times(folder: Path) -> dict[str, int]:
    """Return when the files and folders in a folder were modified, by name."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_second_init_says_that_it_changed_nothing(tmp_path, init_project):
    init_project(one_corpus(60))
    times_before = modification_times(tmp_path)

    outcome = invoke_nanoset(["init", tmp_path])

    assert outcome.exit_code == 0
    assert f"nothing was changed: {tmp_path / 'nanoset.yaml'} already is what" in outcome.output
    assert "chose" not in outcome.output
    assert modification_times(tmp_path) == times_before


def test_a_configuration_that_was_edited_is_not_overwritten(tmp_path, init_project):
    init_project(one_corpus(60))
    config = tmp_path / "nanoset.yaml"
    config.write_text(config.read_text() + "# mine\n")
    times_before = modification_times(tmp_path)

    with pytest.raises(ConfigError, match="nothing was changed"):
        invoke_nanoset(["init", tmp_path], catch_exceptions=False)

    assert modification_times(tmp_path) == times_before


# The tokenizer


@pytest.mark.parametrize("is_folder_named", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("is_in_project", [True, False], ids=["in the project", "elsewhere"])
def test_the_named_tokenizer_is_written_with_a_path_that_finds_it(
    tmp_path, tokenizer_file, is_in_project, is_folder_named
):
    file = tmp_path / "elsewhere/tokenizer.json"
    expected_path = str(file)
    if is_in_project:
        file = tmp_path / "project/tok/tokenizer.json"
        expected_path = "tok/tokenizer.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(tokenizer_file.read_bytes())
    write_rows(tmp_path / "project", "web/a.jsonl", sentences("web", 60))
    argument = file.parent if is_folder_named else file

    output = invoke_nanoset(["init", tmp_path / "project", "--tokenizer", argument]).output

    assert "name your tokenizer" not in output
    settings = yaml.safe_load((tmp_path / "project/nanoset.yaml").read_text())
    assert settings["tokenizer"]["path"] == expected_path
    assert settings["tokenizer"]["eod"] == "<|endoftext|>"


def test_the_advice_of_an_init_without_a_tokenizer_leads_to_settings_for_one(
    tmp_path, tokenizer_file, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "my project", "web/a.jsonl", sentences("web", 60))

    output = " ".join(output_of("init", "my project").split())

    assert f"put it into {tmp_path / 'my project'}, remove my project/nanoset.yaml" in output
    assert "run `nanoset init 'my project'` again" in output
    assert "or set tokenizer.path and tokenizer.eod in my project/nanoset.yaml" in output
    (tmp_path / "my project/tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (tmp_path / "my project/nanoset.yaml").unlink()
    second_output = output_of("init", "my project")
    assert "tokenizer.eod" in second_output  # it was chosen
    assert "name your tokenizer" not in second_output


def test_a_named_tokenizer_that_is_none_is_refused_and_nothing_is_written(tmp_path):
    write_rows(tmp_path, "web/a.jsonl", sentences("web", 60))

    outcome = invoke_nanoset(["init", tmp_path, "--tokenizer", tmp_path / "raw"])

    assert outcome.exit_code != 0
    assert not (tmp_path / "nanoset.yaml").exists()


def write_tokenizer(
    folder: Path,
    special_tokens: Sequence[str],
    configured_eos: object = None,
    generation_eos: Sequence[str] | None = None,
) -> None:
    """Write a tokenizer of the tokens a and b, with ids 0 and 1, and some special ones after them.

    Args:
        folder: The folder of its files.
        special_tokens: The special tokens.
        configured_eos: The token that ends texts by tokenizer_config.json; None for no such file.
        generation_eos: Those by generation_config.json; None for no such file.
    """
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    if configured_eos is not None:
        config = {"eos_token": configured_eos}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if generation_eos is not None:
        ids = [tokenizer.token_to_id(token) for token in generation_eos]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))


@pytest.mark.parametrize(
    ("tokenizer", "eod", "reason"),
    [
        pytest.param(
            {
                "special_tokens": ["<|endoftext|>", "<|im_end|>"],
                "configured_eos": "<|im_end|>",
            },
            "<|endoftext|>",
            "Id 2, by its common name. tokenizer_config.json names <|im_end|>, which ends turns of "
            "a chat.",
            id="common name instead of a token of chats",
        ),
        pytest.param(
            {
                "special_tokens": ["<|return|>", "<|endoftext|>"],
                "configured_eos": "<|return|>",
                "generation_eos": ["<|return|>", "<|endoftext|>"],
            },
            "<|endoftext|>",
            "Id 3, by generation_config.json. tokenizer_config.json names <|return|>",
            id="generation_config.json instead of a token of chats",
        ),
        pytest.param(
            {"special_tokens": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]},
            "<|end_of_text|>",
            "Id 3, by its common name.",
            id="common name without files",
        ),
        pytest.param(
            {
                "special_tokens": ["<eos>", "<end_of_turn>"],
                "configured_eos": {"content": "<end_of_turn>"},
            },
            "<eos>",
            "Id 2, by its common name.",
            id="tokenizer_config.json with an object",
        ),
        pytest.param(
            {"special_tokens": ["<|stop|>"], "configured_eos": "<|stop|>"},
            "<|stop|>",
            "Id 2, by tokenizer_config.json.",
            id="tokenizer_config.json",
        ),
        pytest.param(
            {"special_tokens": ["</s>"], "configured_eos": "<gone>"},
            "</s>",
            "Id 2, by its common name.",
            id="tokenizer_config.json with an unknown token",
        ),
        pytest.param(
            {"special_tokens": ["<|im_end|>"], "configured_eos": "<|im_end|>"},
            "<|im_end|>",
            "It ends turns of a chat: check that this is intended.",
            id="only a token of chats",
        ),
    ],
)
def test_the_token_that_ends_documents_in_pre_training_is_chosen_with_a_reason(
    tmp_path, tokenizer, eod, reason
):
    write_tokenizer(tmp_path, **tokenizer)
    write_rows(tmp_path, "web/a.jsonl", [{"text": "ab"}])

    output = invoke_nanoset(["init", tmp_path]).output

    assert f"chose tokenizer.eod: {eod}. " in output
    assert reason in output
    # A notice would say what has to be changed before a build.
    assert "notice" not in output
    assert reason in (tmp_path / "nanoset.yaml").read_text()
    assert load_config(tmp_path / "nanoset.yaml").tokenizer.eod == eod


def test_documents_are_not_ended_if_the_tokenizer_has_no_token_for_it(tmp_path):
    write_tokenizer(tmp_path, ["<|pad|>"])

    output = invoke_nanoset(["init", tmp_path]).output

    assert (
        "tokenization.append_eod: False. The tokenizer names no token that ends documents" in output
    )
    assert "notice" not in output
    assert load_config(tmp_path / "nanoset.yaml").tokenizer.eod is None


@pytest.fixture
def tokenize_ab(tmp_path) -> Callable[..., str]:
    """A function that runs `nanoset tokenize` with options; it returns what is printed as errors.

    The tokenizer's own token that ends texts is one of chats.
    """
    write_tokenizer(tmp_path, ["<|endoftext|>", "<|im_end|>"], "<|im_end|>")
    write_rows(tmp_path, "web/a.jsonl", [{"text": "ab"}])

    def tokenize(*options: str) -> str:
        command = ["tokenize", "--input", tmp_path / "raw/web", "--tokenizer", tmp_path]
        command += ["--append-eod", "--output-prefix", tmp_path / "out", *options]
        return invoke_nanoset(command).stderr

    return tokenize


def test_tokenize_warns_of_a_token_that_ends_turns_of_a_chat(tokenize_ab):
    messages = tokenize_ab()

    assert "documents end with <|im_end|> (id 3, by tokenizer_config.json)\n" in messages
    advice = (
        "ends turns of a chat: pre-training uses <|endoftext|> (id 2); to use it, set --eod "
        "'<|endoftext|>'"
    )
    assert advice in messages


def test_tokenize_names_the_token_that_ends_documents(tokenize_ab):
    messages = tokenize_ab("--eod", "<|endoftext|>")

    assert "documents end with <|endoftext|> (id 2, by --eod)\n" in messages
    assert "chat" not in messages


# Handoffs of first projects


def build_with_preset(folder: Path, preset: str) -> Path:
    """Add a preset to the first nanoset.yaml, build, and return the folder of the handoff."""
    config = folder / "nanoset.yaml"
    text = config.read_text()
    config.write_text(
        text.replace("    seed: 1234\n", f"    seed: 1234\n    preset: {preset}\n", 1)
    )
    build_all(config)
    return folder / "data/nanosets/pretrain/handoff/current"


@pytest.mark.parametrize(
    ("preset", "steps_key"), [("nanotron", "train_steps"), ("nemo", "max_steps")]
)
def test_handoffs_name_the_samples_of_the_schedule(tmp_path, init_project, preset, steps_key):
    init_project(one_corpus(300))
    settings = yaml.safe_load((tmp_path / "nanoset.yaml").read_text())
    schedule = settings["nanosets"]["pretrain"]["schedule"]

    handoff = build_with_preset(tmp_path, preset)

    n_samples = schedule["iterations"] * schedule["global_batch_size"]
    start_text = (handoff / "START.md").read_text()
    assert f"for {n_samples:,} samples. {steps_key} * global" in start_text
    if preset == "nanotron":
        trainer_settings = yaml.safe_load((handoff / "data.yaml").read_text())
        assert trainer_settings["tokens"]["train_steps"] == schedule["iterations"]


@pytest.fixture
def first_project(tmp_path, init_project) -> Path:
    """The folder of a built first project, whose trainer's tokenizer is not named."""
    init_project(one_corpus(300))
    build_all(tmp_path / "nanoset.yaml")
    return tmp_path


def handoff_of(folder: Path) -> Path:
    """Return the folder of the handoff of a first project."""
    return folder / "data/nanosets/pretrain/handoff/current"


def read_start(folder: Path) -> str:
    """Return the text in the handoff of a first project that explains how to start the trainer."""
    return (handoff_of(folder) / "START.md").read_text()


def print_status(folder: Path) -> str:
    """Return what `nanoset status` prints of a project."""
    return invoke_nanoset(["status", "--config", folder / "nanoset.yaml"]).stdout


def test_a_first_project_warns_that_the_tokenizer_of_the_trainer_is_not_known(first_project):
    warning = f"warning: nanoset pretrain handoff: {UNKNOWN_TOKENIZER}"

    assert warning in print_status(first_project)
    assert "--tokenizer-model FOLDER" in read_start(first_project)


def test_a_first_handoff_gives_the_content_of_a_file_next_to_the_tokenizer(first_project):
    lines = [line for line in read_start(first_project).splitlines() if "this content: " in line]

    content = json.loads(lines[0].rpartition("this content: ")[2])

    assert content == {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}


@pytest.fixture
def project_with_named_tokenizer(first_project) -> Path:
    """The first project, built again with the lines for nanoset.yaml that its handoff gives."""
    advice = read_start(first_project).partition(f"{UNKNOWN_TOKENIZER}.")[2]
    advised_lines = advice.partition("## Files")[0].partition("nanosets:")[2]
    [trainer_settings] = yaml.safe_load(advised_lines).values()
    config = first_project / "nanoset.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["nanosets"]["pretrain"] |= trainer_settings
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    build_all(config)
    return first_project


def test_with_the_lines_of_a_first_handoff_the_warnings_disappear(project_with_named_tokenizer):
    assert UNKNOWN_TOKENIZER not in print_status(project_with_named_tokenizer)
    assert UNKNOWN_TOKENIZER not in read_start(project_with_named_tokenizer)


def test_with_the_lines_of_a_first_handoff_the_trainer_gets_its_tokenizer(
    project_with_named_tokenizer,
):
    arguments = (handoff_of(project_with_named_tokenizer) / "arguments.txt").read_text()

    assert "--tokenizer-model /models/x\n" in arguments


def test_with_the_lines_of_a_first_handoff_index_files_are_those_of_the_tokenizer(
    project_with_named_tokenizer,
):
    cache = project_with_named_tokenizer / "data/nanosets/pretrain/cache"

    tokenizer_paths = set()
    for description_file in cache.glob("*-train-description.txt"):
        description = json.loads(description_file.read_text())
        if "tokenizer" in description:
            tokenizer_paths.add(description["tokenizer"].get("tokenizer_path"))

    assert "/models/x" in tokenizer_paths


# The README


def test_the_smallest_project_of_the_readme_is_built_of_40_documents(tmp_path, tokenizer_file):
    for corpus in ("web", "code"):
        rows = [row | {"text": row["text"] * 9} for row in sentences(corpus, 20)]
        write_rows(tmp_path, f"{corpus}/a.jsonl", rows)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    blocks = [block.partition("```")[0] for block in README.read_text().split("```yaml\n")[1:]]
    smallest_config = next(block for block in blocks if block.startswith("raw: raw\n"))
    (tmp_path / "nanoset.yaml").write_text(smallest_config)

    build_all(tmp_path / "nanoset.yaml")

    assert len(load_nanoset(tmp_path / "data", "pretrain", "train")) >= 8000
    status = invoke_nanoset(["status", "--config", tmp_path / "nanoset.yaml"]).stdout
    assert "warning: nanoset pretrain valid: " in status
