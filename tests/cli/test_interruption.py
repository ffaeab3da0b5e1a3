"""Ctrl-C and SIGTERM: one sentence, no process left, and the same command goes on to the same bytes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from child_processes import members, start_forked, start_nanoset, wait_until
from sample_project import EOD, jsonl, sentences

from nanoset_core.cli import main


def interrupt(process, number, when, *, group):
    """Send a signal once `when` holds; → what the process said on stderr. It must end, and leave no process."""
    try:
        assert wait_until(lambda: when() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        (os.killpg if group else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=60)
        assert wait_until(lambda: not members(process.pid))
    finally:
        process.kill()
        process.wait()
    return said


def check(process, said, number):
    assert process.returncode == 128 + number
    assert said.count("run the same command again to go on") == 1, said
    assert ("interrupted: " if number == signal.SIGINT else "ended by SIGTERM: ") in said
    for noise in ("Traceback", "Error", "SpawnProcess", "Exception", "Aborted"):
        assert noise not in said, said


def test_build_goes_on(tmp_path, tokenizer_file):
    """In the middle of one of Dagster's runs, whose helpers hear the Ctrl-C too."""
    (tmp_path / "raw" / "web").mkdir(parents=True)
    (tmp_path / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("web", 3000)))
    (tmp_path / "nanoset.yaml").write_text(
        f'raw: raw\nroot: data\ntokenizer: {{path: {tokenizer_file}, eod: "{EOD}"}}\n'
        "tokenization: {range_mib: 0.05, workers: 2, engine: tokenizers}\n"
    )
    words, data = ("build", "-c", tmp_path / "nanoset.yaml"), tmp_path / "data"
    process = start_nanoset(*words)
    said = interrupt(process, signal.SIGINT, lambda: any(data.glob("shards/*/*/manifest.json")), group=True)
    check(process, said.replace("raw_jsonl, tokenized_shards, indexed_dataset [web]", ""), signal.SIGINT)
    assert not any(data.glob("datasets/*/*/manifest.json"))
    shards = {path: path.stat().st_mtime_ns for path in data.glob("shards/web/*/manifest.json")}
    again = start_forked(*words, said=tmp_path / "said")
    again.join()
    assert again.exitcode == 0, (tmp_path / "said").read_text()
    assert any(data.glob("datasets/*/*/manifest.json"))
    assert all(path.stat().st_mtime_ns == written for path, written in shards.items()), "what was finished stays"


def test_what_the_parent_had_ignored_stays_ignored(tmp_path, tokenizer_file):
    """As nohup, and shells that start a command in the background, would have it."""
    raw = tmp_path / "a.jsonl"
    raw.write_bytes(jsonl(sentences("a", 5000)))
    words = ["tokenize", "--input", raw, "--output-prefix", tmp_path / "x", "--tokenizer", tokenizer_file]

    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    process = start_nanoset(*words, "--workers", "1", preexec_fn=ignore)
    assert wait_until((tmp_path / ".x.scratch").exists)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert Path(tmp_path / "x_text_document.bin").exists()


def test_before_the_command_itself_is_imported():
    """A finder that hears Ctrl-C when the command's own module is looked for, as one that comes early does."""
    finder = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "nanoset_core.cli.entry":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
    process = start_nanoset("--help", before=finder)
    said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGINT
    assert said == "interrupted: what is finished is kept; run the same command again to go on\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_only_reads(make_project, monkeypatch, capfd, number):
    """In this process: handlers are as before afterwards."""
    from nanoset_core.versions import status

    config = make_project()
    monkeypatch.setattr(status, "project_status", lambda project: signal.raise_signal(number))
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminated = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as left:
            main(["status", "-c", str(config)])
    finally:
        signal.signal(signal.SIGINT, ours)
        kept = signal.signal(signal.SIGTERM, terminated)
    assert left.value.code == 128 + number
    assert "run the same command again" in capfd.readouterr().err
    assert kept == signal.SIG_DFL
