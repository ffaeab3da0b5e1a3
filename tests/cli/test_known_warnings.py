"""Warnings that a user has seen are counted afterwards, and new ones stand out."""

import sys

import click
import pytest
from click.testing import CliRunner

from nanoset_core.cli import nanoset
from nanoset_core.cli.known_warnings import FOLDER, print_warnings
from nanoset_core.project.project import Project

FIRST = "warning: corpus web: 3 documents are empty"
NOTICE = "notice: corpus web: 1 file is not read: notes.pdf"
SECOND = "warning: nanoset pretrain valid: it has no sample"


@pytest.fixture
def project(make_project):
    """A project that is not built."""
    return Project.open(make_project())


@pytest.fixture
def printed(project, capsys, monkeypatch):
    """Print warnings, to a terminal or to a pipe; return the lines that were printed."""

    def run(*lines, terminal=True, **options):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        print_warnings(project, lines, **options)
        return click.unstyle(capsys.readouterr().out).splitlines()

    return run


def test_a_warning_that_was_shown_in_a_terminal_is_counted_afterwards(printed):
    assert printed(FIRST) == [FIRST]
    assert printed(FIRST) == ["1 known warning: `nanoset status --warnings` prints them in full"]


def test_a_new_warning_stands_out_among_known_ones(printed):
    printed(FIRST)

    assert printed(FIRST, SECOND) == [
        f"new {SECOND}",
        "1 known warning: `nanoset status --warnings` prints them in full",
    ]


def test_a_warning_whose_facts_changed_is_new(printed):
    printed(FIRST)

    assert printed(FIRST.replace("3", "4")) == [FIRST.replace("3", "4")]


def test_a_warning_that_went_to_a_log_is_not_known(printed):
    in_log = printed(FIRST, terminal=False)

    assert in_log == [
        FIRST,
        "after `nanoset status --warnings`, commands only count these warnings",
    ]
    assert printed(FIRST) == [FIRST]


def test_a_known_warning_is_only_counted_in_a_log(printed):
    printed(FIRST)

    assert printed(FIRST, terminal=False) == [
        "1 known warning: `nanoset status --warnings` prints them in full"
    ]


def test_warnings_beyond_a_limit_are_counted_and_stay_new(printed):
    assert printed(FIRST, SECOND, at_most=1) == [
        FIRST,
        "1 more new warning: `nanoset status --warnings` prints them",
    ]
    assert printed(FIRST, SECOND)[0] == f"new {SECOND}"


def test_notices_are_counted_apart_from_warnings(printed):
    lines = (FIRST, NOTICE, "rejected lines of web: rejects.jsonl")
    printed(*lines)

    assert printed(*lines) == [
        "1 known warning and 2 known notices: `nanoset status --warnings` prints them in full"
    ]


def test_a_limit_prints_warnings_before_notices(printed):
    assert printed(NOTICE, FIRST, SECOND, at_most=2) == [
        FIRST,
        SECOND,
        "1 more new notice: `nanoset status --warnings` prints them",
    ]


def test_known_warnings_are_printed_in_full_on_request_and_known_from_then_on(printed):
    assert printed(FIRST, SECOND, show_known=True, terminal=False) == [FIRST, SECOND]
    assert printed(FIRST, SECOND) == [
        "2 known warnings: `nanoset status --warnings` prints them in full"
    ]


def test_an_equal_warning_about_many_outputs_is_one_line(printed):
    lines = [f"warning: nanoset n{number} handoff: it rebuilds: all" for number in range(100)]

    assert printed(lines[0], FIRST, *lines[1:], terminal=False)[:2] == [
        "warning: nanoset n0 handoff, nanoset n1 handoff, nanoset n2 handoff and 97 more: "
        "it rebuilds: all",
        FIRST,
    ]
    assert printed(*lines, at_most=1) != []
    assert printed(*lines) == [
        "100 known warnings: `nanoset status --warnings` prints them in full"
    ]
    assert printed(*lines, show_known=True) == lines


def test_an_equal_warning_about_few_outputs_stays_as_it_is(printed):
    lines = [
        "warning: nanoset a valid: it has no sample",
        FIRST,
        "warning: nanoset b valid: it has no sample",
        "warning: nanoset c valid: it has no sample",
    ]

    assert printed(*lines) == lines


def test_many_different_warnings_are_counted(printed):
    lines = [f"warning: corpus web: {number} documents are empty" for number in range(60)]

    assert printed(*lines) == [
        *lines[:50],
        "10 more new warnings: `nanoset status --warnings` prints them",
    ]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"warnings": 3}', b'{"warnings": [3, null]}', b"\xff"]
)
def test_a_damaged_record_shows_warnings_again(project, printed, content):
    printed(FIRST)
    (record,) = (project.outputs.folder / FOLDER).iterdir()
    record.write_bytes(content)

    assert printed(FIRST) == [FIRST]
    assert printed(FIRST) != [FIRST]


def test_what_one_user_has_seen_is_new_to_another(printed, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    printed(FIRST)
    monkeypatch.setenv("LOGNAME", "../grace")

    assert printed(FIRST) == [FIRST]


def test_a_root_that_cannot_be_written_shows_warnings_again(project, printed):
    project.outputs.folder.parent.mkdir(exist_ok=True)
    project.outputs.folder.write_text("a file where the root should be")

    assert printed(FIRST) == [FIRST]
    assert printed(FIRST) == [FIRST]


def test_status_says_if_it_cannot_record_that_warnings_were_seen(make_project):
    config = make_project()
    (config.parent / "raw/web/notes.pdf").write_bytes(b"%PDF")
    folder = config.parent / "data"
    folder.mkdir()
    (folder / FOLDER).write_text("a file where the folder should be")

    result = CliRunner().invoke(nanoset, ["status", "--warnings", "--config", str(config)])

    assert f"1 notice; this cannot be recorded, as {folder} is not writable" in result.stdout


def test_the_record_holds_no_text(project, printed):
    printed("warning: document 'a secret id'")

    (record,) = (project.outputs.folder / FOLDER).iterdir()
    assert "secret" not in record.read_text()


def test_a_project_without_warnings_gets_no_record(project, printed):
    assert printed() == []
    assert not (project.outputs.folder / FOLDER).exists()


def test_status_lists_all_warnings_and_counts_them_afterwards(make_project):
    config = make_project()
    (config.parent / "raw/web/notes.pdf").write_bytes(b"%PDF")

    def status(*options):
        return CliRunner().invoke(nanoset, ["status", "--config", str(config), *options]).stdout

    assert "notes.pdf" in status()
    listed = status("--warnings")
    assert "notes.pdf" in listed
    assert "missing:" not in listed
    assert "notes.pdf" not in status()
    assert "1 known notice" in status()
    assert "notes.pdf" in status("--warnings")
    assert "notes.pdf" in status("--json")
