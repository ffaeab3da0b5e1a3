"""Warnings that were seen, of a project whose root is a bucket."""

from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.project.project import Project

WARNING = "warning: corpus web: 3 documents are empty"


def test_warnings_seen_on_one_machine_are_counted_on_another(remote_project, capsys):
    print_warnings(Project.open(remote_project("here")), [WARNING], show_known=True)
    capsys.readouterr()

    print_warnings(Project.open(remote_project("there")), [WARNING])

    assert "1 known warning" in capsys.readouterr().out


def test_warnings_of_a_bucket_without_a_record_are_printed_in_full(remote_project, capsys):
    print_warnings(Project.open(remote_project()), [WARNING])

    assert WARNING in capsys.readouterr().out
