"""A folder of .txt and .csv files becomes a training set, whose samples lead back to the files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from helpers.building import build_all, make_corpora
from helpers.command import json_of, output_of
from helpers.inspecting import current_dataset, read_dataset
from helpers.sample_project import encoded, sentences, tree
from nanoset_core import load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.project.purge.apply import purge
from nanoset_core.project.purge.plan import plan_purge
from nanoset_core.tokenizers.engines.tokenizers_library import decode_tokens, load_tokenizer

BOOKS = sentences("web", 40)
REVIEWS = sentences("code", 30)


def write_books(raw: Path) -> None:
    """Write a corpus of 40 .txt files in two folders, whose names have one and two digits."""
    for number, row in enumerate(BOOKS):
        file = raw / "books" / f"{number // 20}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row["text"])


def write_reviews(raw: Path, name: str, numbers: Sequence[int]) -> None:
    """Write some reviews to a CSV file; every third one has one star, and the others have four."""
    rows = []
    for number in numbers:
        stars = "4" if number % 3 else "1"
        row = {"id": REVIEWS[number]["id"], "review": REVIEWS[number]["text"], "stars": stars}
        rows.append(row)
    file = raw / "reviews" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(name, rows, part=1))


@pytest.fixture(scope="module")
def initialized(tmp_path_factory, tokenizer_file):
    """A folder with such text, for which `nanoset init` wrote nanoset.yaml."""
    folder = tmp_path_factory.mktemp("project")
    write_books(folder / "raw")
    write_reviews(folder / "raw", "a.csv", range(20))
    write_reviews(folder / "raw", "b.csv.gz", range(20, 30))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    output_of("init", folder)
    return folder


@pytest.fixture
def config(initialized, tmp_path):
    """The nanoset.yaml of a copy of the folder."""
    folder = tmp_path / "project"
    shutil.copytree(initialized, folder)
    return folder / "nanoset.yaml"


def change_settings(config, **sections):
    """Add keys to sections of nanoset.yaml."""
    settings = yaml.safe_load(config.read_text())
    for section, values in sections.items():
        settings.setdefault(section, {}).update(values)
    config.write_text(yaml.safe_dump(settings))


def texts_of(project, name):
    """Return the text of each document of a dataset, without the end-of-document token."""
    tokenizer = load_tokenizer(project.tokenizer.file)
    return [
        decode_tokens(tokenizer, tokens[:-1], project.tokenizer.file)
        for tokens in read_dataset(project, name)
    ]


def test_init_finds_the_corpora_and_the_columns_of_csv_files(config):
    settings = yaml.safe_load(config.read_text())

    assert settings["nanosets"]["pretrain"]["blend"].keys() == {"books", "reviews"}
    assert settings["documents"]["text_key"] == "review"


def test_a_build_makes_a_training_set_of_all_texts(config):
    project = build_all(config)

    # Files are in natural order.
    assert texts_of(project, "books") == [row["text"] for row in BOOKS]
    assert texts_of(project, "reviews") == [row["text"] for row in REVIEWS]
    assert len(load_nanoset(config.parent / "data", "pretrain", "train")) > 0


def test_documents_are_found_by_file_id_and_row(config):
    build_all(config)
    explain = ("explain", "--json", "--config", config, "pretrain", "train")

    by_id = json_of(*explain, "--document", "0/7.txt")
    by_file = json_of(*explain, "--file", "books/0/7.txt:1")
    by_row = json_of(*explain, "--file", "reviews/b.csv.gz:3")

    assert by_id == by_file
    assert by_id[0]["origin"]["file"] == "0/7.txt"
    assert by_row[0]["origin"]["id"] == REVIEWS[22]["id"]


def test_only_the_shards_of_new_files_are_made_again(config):
    change_settings(config, tokenization={"range_mib": 0.001})
    make_corpora(Project.open(config), "books")
    shards = config.parent / "data" / "shards" / "books"
    before = {folder.name for folder in shards.iterdir()}

    (config.parent / "raw" / "books" / "1" / "1000.txt").write_text("a new text")
    project = Project.open(config)
    make_corpora(project, "books")

    assert texts_of(project, "books") == [*(row["text"] for row in BOOKS), "a new text"]
    assert len({folder.name for folder in shards.iterdir()} - before) == 1
    assert len(before) > 5


@pytest.fixture
def datasets_made_by(config):
    """A function that makes the datasets with some workers; returns the sha256 of each file."""

    def make(n_workers: int) -> dict[str, str]:
        change_settings(config, tokenization={"range_mib": 0.002, "workers": n_workers})
        make_corpora(Project.open(config))
        digests = tree(config.parent / "data" / "datasets")
        shutil.rmtree(config.parent / "data")
        return {name: digest for name, digest in digests.items() if "manifest" not in name}

    return make


def test_workers_do_not_change_a_byte(datasets_made_by):
    digests_of_one_worker = datasets_made_by(1)

    assert datasets_made_by(2) == digests_of_one_worker
    for corpus in ("books", "reviews"):
        assert sum(name.startswith(corpus) for name in digests_of_one_worker) > 2


def test_columns_of_csv_files_select_documents(config):
    change_settings(
        config,
        documents={"columns": ["stars"]},
        views={"good": {"of": "reviews", "where": "stars = '4'"}},
    )

    project = build_all(config)

    expected = [row["text"] for number, row in enumerate(REVIEWS) if number % 3]
    assert texts_of(project, "good") == expected


def test_columns_of_csv_files_may_be_numbers(config):
    change_settings(
        config,
        documents={"columns": ["stars"], "csv_values": "json"},
        views={"good": {"of": "reviews", "where": "stars > 3"}},
    )

    project = build_all(config)

    expected = [row["text"] for number, row in enumerate(REVIEWS) if number % 3]
    assert texts_of(project, "good") == expected


def test_a_purge_erases_a_txt_file_and_a_row_of_a_csv_file(config):
    build_all(config)

    project = Project.open(config)
    plan = plan_purge(project, ["0/7.txt", REVIEWS[22]["id"]])

    purge(project, plan, lambda: build_all(config), "2026-11-26")

    project = Project.open(config)
    assert texts_of(project, "books") == [row["text"] for row in BOOKS if row != BOOKS[7]]
    assert texts_of(project, "reviews") == [row["text"] for row in REVIEWS if row != REVIEWS[22]]


def test_rows_that_are_no_documents_are_listed_with_file_and_row(config):
    table = config.parent / "raw" / "reviews" / "c.csv"
    table.write_text("id,review,stars\n1,a review,4\n2,no stars\n3,another review,4\n")
    change_settings(config, documents={"max_rejected_fraction": 0.1})

    project = build_all(config)

    manifest = current_dataset(project, "reviews")
    [rejects] = config.parent.glob("data/shards/reviews/*/rejects.jsonl")
    assert manifest.facts["documents"] == len(REVIEWS) + 2
    assert '"file":"c.csv","line":2' in rejects.read_text().replace(" ", "")
    assert "wrong_field_count" in rejects.read_text()
