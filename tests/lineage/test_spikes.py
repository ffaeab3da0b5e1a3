"""What stands out in steps of a run, against counts made by explaining each sample of them."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.cli import nanoset
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.lineage.run import explain_step
from nanoset_core.lineage.spikes import COMPARED, binomial_tail, poisson_tail, spike_report, spikes_in
from nanoset_core.loading.opening import load_nanoset

RUN = """\
handoff: data/nanosets/{name}/handoff/current
data_parallel_size: 4
micro_batch_size: 1
global_batch_size: 16
"""


@pytest.fixture
def run_file(tmp_path):
    def write(name):
        (tmp_path / "run.yaml").write_text(RUN.format(name=name))
        return tmp_path / "run.yaml"

    return write


def losses(path, values, every=1):
    rows = "".join(f"{number * every},{value}\n" for number, value in enumerate(values, start=1))
    path.write_text("iteration,loss\n" + rows)
    return path


def test_losses_that_spike(tmp_path):
    random, file = np.random.RandomState(2), tmp_path / "loss.csv"
    falling = 10 / (1 + np.arange(300) / 20) + random.randn(300) * 0.02
    assert spikes_in(losses(file, falling)) == []
    high = falling.copy()
    high[[99, 100, 149]] += 1.0
    assert spikes_in(losses(file, high)) == [100, 101, 150]
    assert spikes_in(losses(file, high, every=5)) == [*range(496, 506), *range(746, 751)]
    assert spikes_in(losses(file, [*high[:9], "nan", *high[10:99], "", *high[100:140]])) == [10, 100, 101]
    assert spikes_in(losses(file, [2.0] * 100 + [2.001] * 3 + [3.0])) == [104]
    assert spikes_in(losses(file, [])) == []
    assert spikes_in(losses(file, [2.0] * COMPARED + [3.0])) == [COMPARED + 1]
    assert spikes_in(losses(file, [2.0] * (COMPARED - 1) + [3.0])) == []
    for text in ("step,loss\n1,2\n", "iteration,loss\nx,2\n", "iteration,loss\n1\n1,x\n"):
        file.write_text(text)
        with pytest.raises(FormatError, match="this is no table of losses"):
            spikes_in(file)
    with pytest.raises(MissingError, match="the losses cannot be read"):
        spikes_in(tmp_path / "other.csv")


@given(st.integers(0, 40), st.integers(0, 41), st.floats(0.001, 0.999))
def test_tails(count, least, share):
    exact = sum(
        math.comb(count, hits) * share**hits * (1 - share) ** (count - hits) for hits in range(least, count + 1)
    )
    assert binomial_tail(count, share, least) == pytest.approx(exact, rel=1e-9, abs=1e-300)
    mean = 20 * share
    below = math.fsum(math.exp(hits * math.log(mean) - mean - math.lgamma(hits + 1)) for hits in range(least))
    assert poisson_tail(mean, least) == pytest.approx(1 - below, rel=1e-6, abs=1e-12)
    assert (binomial_tail(9, 0.0, 1), binomial_tail(9, 1.0, 9), poisson_tail(0.0, 1)) == (0.0, 1.0, 0.0)


def brute(project, file, steps):
    """Document → (samples that hold it, steps), corpus → samples, by explaining each step."""
    held, corpora = {}, Counter()
    for step in steps:
        for sample in explain_step(project.outputs.folder, file, step).samples:
            corpora[sample.corpus] += 1
            for key in {(piece.origin.corpus, piece.origin.document) for piece in sample.pieces}:
                held.setdefault(key, []).append(step)
    return held, corpora


@pytest.mark.parametrize("name", ["several_epochs", "pretrain", "plain"])
def test_documents_and_corpora(project, run_file, name):
    file, steps = run_file(name), range(2, 9)
    held, corpora = brute(project, file, steps)
    found = spike_report(project, file, [*steps, 5])
    assert (found.spikes, found.steps, found.documents) == (7, tuple(steps), len(held))
    again = {(one.origin.corpus, one.origin.document): one for one in found.again}
    assert {key: (one.samples, one.steps) for key, one in again.items()} == {
        key: (len(own), tuple(sorted(set(own)))) for key, own in held.items() if len(own) > 1
    }
    assert [one.p for one in found.again] == sorted(one.p for one in found.again)
    assert {one.corpus: one.samples for one in found.corpora} == corpora
    assert sum(one.expected for one in found.corpora) == pytest.approx(16 * len(steps))
    loaded = load_nanoset(project.outputs.folder, name, "train")
    assert sum(one.tokens for one in found.corpora) == 16 * len(steps) * loaded.config.sample_tokens
    others, _ = brute(project, file, found.others)
    assert 0 < len(found.others) <= 7
    assert not {*found.others} & {*steps}
    assert found.again_in_others == sum(len(own) > 1 for own in others.values())


def test_a_document_that_steps_read_too_often_comes_first(project, run_file, monkeypatch):
    from nanoset_core.lineage.run import Run

    original, file = Run.samples, run_file("pretrain")

    def planted(run, step):
        found = original(run, step)
        if step in (3, 4, 5):
            found.samples[:3] = original(run, 3).samples[:1]
        return found

    monkeypatch.setattr(Run, "samples", planted)
    first = spike_report(project, file, [3, 4, 5]).again[0]
    assert first.steps == (3, 4, 5)


def test_documents_with_the_same_tokens(project, run_file):
    # of web, lines 1 and 2 behind the generated ones hold the same text
    file = run_file("several_epochs")
    whole = spike_report(project, run_file("repeated"), range(1, 44))
    assert {tuple(origin.id for origin in group.documents) for group in whole.same} <= {("again", "again")}
    assert all(len({origin.tokens for origin in group.documents} | {group.tokens}) == 1 for group in whole.same)
    assert len(whole.same) == 1
    assert spike_report(project, file, [1]).same == ()


def test_the_command(project, run_file, tmp_path):
    def asked(*arguments):
        config = ["--config", project.config.file]
        outcome = CliRunner().invoke(nanoset, ["explain", *map(str, ("--run", file, *arguments, *config))])
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    file = run_file("several_epochs")
    csv = losses(tmp_path / "loss.csv", [2.0] * 60 + [9.0] + [2.0] * 5)
    found = json.loads(asked("--spike", csv, "--json"))
    assert (found["spikes"], found["steps"]) == (1, [61])
    assert {"corpora", "again", "same", "others"} <= found.keys()
    text = asked("--step", "2..8", "--show", 2)
    assert text.startswith("7 steps: 2, 3, 4, 5, 6, 7, 8\n")
    assert "by its share of the blend (p " in text
    assert text.count("expected (p ") == 2
    assert "more (--show)" in text
    assert asked("--spike", losses(tmp_path / "loss.csv", [2.0] * 60)).startswith("no loss is far above")


@pytest.mark.parametrize(
    ("n_rows", "first_line"),
    [
        (0, "no row was examined: the file has 0 rows, and 54 rows are needed before one is examined"),
        (1, "no row was examined: the file has 1 row, and"),
        (50, "no row was examined: the file has 50 rows, and"),
        (54, "no row was examined: the file has 54 rows, and"),
        (55, "no loss is far above those of the rows before it"),
    ],
)
def test_a_log_that_is_too_short_to_examine_is_said_to_be_so(project, run_file, tmp_path, n_rows, first_line):
    csv = losses(tmp_path / "loss.csv", [2.0] * n_rows)
    words = ["explain", "--run", run_file("several_epochs"), "--spike", csv, "--config", project.config.file]

    outcome = CliRunner().invoke(nanoset, [*map(str, words)])
    found = json.loads(CliRunner().invoke(nanoset, [*map(str, words), "--json"]).output)

    assert outcome.output.startswith(first_line)
    assert (found["rows"], found["rows_examined"]) == (n_rows, max(0, n_rows - 54))


def test_a_loss_that_is_no_number_is_found_in_a_short_log_too(project, run_file, tmp_path):
    csv = losses(tmp_path / "loss.csv", [2.0, 2.0, "nan", 2.0])
    words = ["explain", "--run", run_file("several_epochs"), "--spike", csv, "--config", project.config.file]

    lines = CliRunner().invoke(nanoset, [*map(str, words)]).output.splitlines()

    assert lines[0].startswith("no row was examined")
    assert lines[2].startswith("1 step: 3")
