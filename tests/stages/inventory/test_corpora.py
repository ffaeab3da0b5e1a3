"""Corpora that nanoset.yaml describes: another key of the text, and a second corpus of the same
folder.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil

import pytest

from helpers.building import make_dataset, make_shards, run_stages
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, explain_sample, find_document, node_at, verify_at
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.project.gc import plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.status import project_status
from nanoset_core.project.verify import verify_output
from nanoset_core.stages.inventory.corpora import corpus_names, scan_corpora
from nanoset_core.stages.inventory.make import (
    current_inventory,
    make_inventory,
    remembered_inventory,
)
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.shared_files import check_all_files
from nanoset_core.stages.inventory.verify import verify_inventory
from nanoset_core.stages.shards.options import token_options
from nanoset_core.stages.shards.repeats import LOOK

CORPORA = """\
corpora:
  code: {text_key: content, id_key: sha}
  web_title: {folder: web, text_key: title}
"""
CONFIG = f"""\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "{EOD}"}}
tokenization: {{workers: 1, range_mib: 0.02}}
nanosets:
  both:
    blend: {{web: 1, web_title: 1, code: 1}}
    sequence_length: 8
    split: "1,0,0"
    trainer_path: /lustre/data
"""
WEB = [row | {"title": f"title of {row['id']}: {row['text'][:20]}"} for row in sentences("web", 80)]
CODE = [{"sha": row["id"], "content": row["text"]} for row in sentences("code", 40)]


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file):
    """The folder of a project with text of three keys, built."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, rows in {"web/a/1": WEB[:40], "web/2": WEB[40:], "code/1": CODE}.items():
        file = folder / "raw" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jsonl(rows))
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    (folder / "nanoset.yaml").write_text(CONFIG + CORPORA)
    run_stages(Project.open(folder / "nanoset.yaml"))
    return folder


@pytest.fixture
def project(built):
    return Project.open(built / "nanoset.yaml")


@pytest.fixture
def copy(built, tmp_path):
    """A copy to change; → a function that opens it, with other corpora."""
    shutil.copytree(built, tmp_path / "copy", symlinks=True)

    def opened(corpora: str = CORPORA) -> Project:
        (tmp_path / "copy/nanoset.yaml").write_text(CONFIG + corpora)
        return Project.open(tmp_path / "copy/nanoset.yaml")

    return opened


def pair(project, corpus):
    dataset = current_dataset(project, corpus)
    return {
        end: dataset.path(f"{dataset.facts['prefix']}.{end}").read_bytes() for end in ("bin", "idx")
    }


def test_datasets_are_those_of_tokenize_with_several_keys(project, tmp_path):
    settings = [
        "--tokenizer",
        str(project.config.tokenizer_file),
        "--eod",
        EOD,
        "--append-eod",
        "--workers",
        "1",
    ]
    for folder, keys in {"web": ["text", "title"], "code": ["content"]}.items():
        given = [
            "--input",
            str(project.config.raw_folder / folder),
            "--output-prefix",
            str(tmp_path / folder),
        ]
        ran = invoke_nanoset(
            ["tokenize", *given, *settings, "--json-keys", *keys], catch_exceptions=False
        )
        assert ran.exit_code == 0, ran.output
    for corpus, file in {
        "web": "web_text",
        "web_title": "web_title",
        "code": "code_content",
    }.items():
        for end, data in pair(project, corpus).items():
            assert data == (tmp_path / f"{file}_document.{end}").read_bytes(), f"{corpus}: {end}"
    assert current_dataset(project, "web_title").facts["prefix"] == "web_title_title_document"
    assert len({*map(str, map(pair, [project] * 3, ("web", "web_title", "code")))}) == 3


def test_corpora_and_their_files(project):
    assert corpus_names(project) == ["code", "web", "web_title"]
    found = scan_corpora(project)
    assert list(found.corpora) == ["code", "web", "web_title"]
    assert found.corpora["web_title"].corpus == "web_title"
    assert found.corpora["web_title"].signature == found.corpora["web"].signature
    assert not found.faults
    check_requested_corpora(project.config, corpus_names(project))


def test_files_of_a_folder_are_hashed_once_for_all_its_corpora(project):
    memories = sorted(
        path.parent.name for path in project.outputs.folder.rglob(".fingerprints.json")
    )
    assert memories == ["code", "web"]


def test_other_corpora_keep_their_digests(project, copy):
    before = copy("")
    inventory, _ = current_inventory(project, "web")
    parents = {"inventory": inventory.digest}
    for folder in ("tokenized", "datasets"):
        for corpus in ("web", "web_title"):
            node = node_at(f"{folder}/{corpus}")
            recipes = [node.stage.recipe(one, node.key, parents) for one in (before, project)]
            assert (recipes[0] == recipes[1]) == (corpus == "web")
    options = token_options(project, "code")
    assert (options["text_key"], options["id_key"]) == ("content", "sha")


def test_everything_is_up_to_date_and_another_key_makes_its_corpus_stale_alone(project, copy):
    assert {row.state for row in project_status(project)} == {"up to date"}
    states = {row.name: row.state for row in project_status(copy(CORPORA.replace("title}", "id}")))}
    assert (states["web_title"], states["web"], states["code"]) == (
        "stale",
        "up to date",
        "up to date",
    )


@pytest.mark.parametrize("corpus", ["web", "web_title", "code"])
def test_verify_tokenizes_sampled_documents_again_by_the_corpus_s_key(project, corpus):
    report = verify_output(project, corpus, deep=True)
    assert report.passed
    assert not report.findings
    assert report.figures["documents_compared"] == report.figures["documents_sampled"] > 0


def test_verify_names_the_file_that_changed_since(copy):
    project = copy()
    file = project.config.raw_folder / "web/2.jsonl"
    file.write_bytes(file.read_bytes().replace(b"title of", b"titel of"))
    assert not verify_output(project, "web", deep=True).findings
    [finding] = verify_output(project, "web_title", deep=True).findings
    assert str(file) in finding.where
    assert "the file was changed since" in finding.found


def test_explain_shows_the_text_of_the_corpus_s_key(project):
    seen = set()
    for sample in range(60):
        for piece in explain_sample(project, "both", "train", sample).pieces:
            origin = piece.origin
            row = json.loads(
                (project.config.corpus_folder(origin.corpus) / origin.file)
                .read_text()
                .splitlines()[origin.line - 1]
            )
            key = {"web": "text", "web_title": "title", "code": "content"}[origin.corpus]
            assert piece.source.state == "unchanged"
            assert piece.source.text.removesuffix("…") in row[key]
            assert origin.id == row.get("id", row.get("sha"))
            seen.add(origin.corpus)
    assert seen == {"web", "web_title", "code"}


def test_explain_finds_a_line_in_every_corpus_of_its_folder(project):
    def found(place, **settings):
        return [
            one.origin.corpus
            for one in find_document(project, "both", "train", file=place, **settings)
        ]

    assert sorted(found("a/1.jsonl:7")) == ["web", "web_title"]
    assert found("a/1.jsonl:7", corpus="web_title") == ["web_title"]
    assert found("web/a/1.jsonl:7") == ["web"]
    assert found("web_title/a/1.jsonl:7") == ["web_title"]
    assert found("web/a/1.jsonl:7", corpus="web_title") == ["web_title"]
    folder = project.config.raw_folder
    for place in (f"{folder}/web/a/1.jsonl:7", f"{folder.resolve()}/web/a/1.jsonl:7"):
        assert sorted(found(place)) == ["web", "web_title"]
        assert found(place, corpus="web_title") == ["web_title"]
    with pytest.raises(MissingError, match="no such document"):
        found(f"{folder}/web/a/none.jsonl:7")
    assert [
        one.origin.corpus for one in find_document(project, "both", "train", identity="code-3")
    ] == ["code"]


def test_gc_leaves_a_corpus_that_is_read_from_another_folder_and_tells_of_one_that_no_longer_is(
    copy,
):
    def told(project):
        return {
            str(item.path.relative_to(project.outputs.folder))
            for item in plan_gc(project).left_alone
        }

    assert not told(copy())
    assert "datasets/web_title" in told(copy("corpora: {code: {text_key: content}}\n"))


def test_a_folder_that_is_not_there_names_the_corpus(copy):
    project = copy(CORPORA.replace("folder: web", "folder: wbe"))
    with pytest.raises(ConfigError, match="this corpus is not in the raw folder") as caught:
        check_requested_corpora(project.config, corpus_names(project))
    assert str(caught.value.where).endswith("nanoset.yaml: corpora.web_title")
    assert str(project.config.raw_folder / "wbe") in caught.value.remedy
    assert corpus_names(project) == list(scan_corpora(project).corpora) == ["code", "web"]
    states = {row.name: row.state for row in project_status(project)}
    assert (states["web_title"], states["web"]) == ("failing", "up to date")


def test_a_name_that_a_folder_has_as_well_is_ambiguous(copy):
    project = copy()
    shutil.copytree(project.config.raw_folder / "web", project.config.raw_folder / "web_title")
    with pytest.raises(ConfigError, match="either of two folders") as caught:
        corpus_names(project)
    assert str(caught.value.where).endswith("nanoset.yaml: corpora.web_title")
    found = scan_corpora(project)
    assert list(found.corpora) == ["code", "web"]
    assert isinstance(found.faults["web_title"], ConfigError)


def test_a_folder_that_cannot_be_read_fails_all_its_corpora(copy):
    project = copy()
    (project.config.raw_folder / "web/loop").symlink_to(project.config.raw_folder / "web")
    found = scan_corpora(project)
    assert list(found.corpora) == ["code"]
    assert found.faults["web"] is found.faults["web_title"]


def test_too_many_rejects_name_the_corpus_s_own_key(copy):
    project = copy(CORPORA.replace("title}", "titel}"))
    make_inventory(project, "web_title")
    with pytest.raises(InputError, match="reject") as caught:
        make_shards(project, "web_title")
    assert "corpora.web_title.text_key" in str(caught.value)


def test_a_folder_is_shared_by_files(copy):
    project = copy(CORPORA + "  web: {files: [a/]}\n  web_rest: {folder: web, exclude: [a]}\n")
    # of files that are new, digests are not remembered
    for file in project.config.raw_folder.glob("web/**/*.jsonl"):
        os.utime(file, (1e9, 1e9))
    found = scan_corpora(project)
    assert {
        name: [file.path for file in found.corpora[name].texts] for name in ("web", "web_rest")
    } == {
        "web": ["a/1.jsonl"],
        "web_rest": ["2.jsonl"],
    }
    rows = {row.name: row for row in project_status(project)}
    assert [notice.kind for notice in rows["web"].notices] == ["left_out"]
    assert (rows["web"].state, rows["web_title"].state, rows["code"].state) == (
        "stale",
        "up to date",
        "up to date",
    )
    for corpus in ("web", "web_rest"):
        make_inventory(project, corpus)
        assert make_shards(project, corpus).facts["documents"] == 40
        assert not verify_inventory(project, corpus).findings
    assert remembered_inventory(project, found.corpora["web"]) is not None


def test_patterns_that_leave_nothing_name_themselves(copy):
    project = copy(CORPORA + "  web: {files: [train-*]}\n")
    fault = scan_corpora(project).faults["web"]
    assert "web_title" in scan_corpora(project).corpora
    assert "2 files left out: 2.jsonl, a/1.jsonl" in str(fault)
    assert "no file fits train-*" in fault.remedy
    assert {row.name: row.state for row in project_status(project)}["web"] == "failing"
    with pytest.raises(InputError, match="files and exclude leave no file"):
        make_inventory(project, "web")


def test_a_document_in_json_beside_the_shards_is_named_with_what_leaves_it_out(copy):
    project = copy()
    (project.config.raw_folder / "web/corpus.json").write_text(
        json.dumps({"name": "web", "files": 2}, indent=1)
    )
    make_inventory(project, "web")
    with pytest.raises(InputError, match="not what its ending says") as caught:
        make_shards(project, "web")
    assert str(caught.value.where).endswith("web/corpus.json")
    assert "the file is one JSON document over many lines, not JSON lines" in caught.value.found
    leave_out = 'corpora: {web: {exclude: ["corpus.json"]}}'
    assert leave_out in caught.value.remedy
    web = next(row for row in project_status(project) if row.name == "web")
    assert leave_out in web.why[0]
    project = copy(CORPORA + "  web: {exclude: [corpus.json]}\n")
    make_inventory(project, "web")
    assert make_shards(project, "web").facts["documents"] == 80


def test_zeros_at_the_end_of_a_gzip_file_are_a_warning(copy):
    project = copy()
    (project.config.raw_folder / "web/3.jsonl.gz").write_bytes(
        gzip.compress(jsonl(WEB[:9]), mtime=0) + bytes(512)
    )
    for make in (make_inventory, make_shards, make_dataset):
        make(project, "web")
    told = (
        "1 gzip file with zero bytes at the end, as of a download that was cut short: 3.jsonl.gz "
        "512 bytes"
    )
    web = next(row for row in project_status(project) if row.name == "web")
    assert (web.state, web.warnings) == ("up to date", (told,))
    assert [finding.found for finding in verify_at(project, "tokenized/web").findings] == [told]


def test_held_out_files_that_train_reads_are_told_with_what_parts_them(copy):
    project = copy()
    for name in ("train-0", "test-0", "test-1", "validation-0"):
        (project.config.raw_folder / f"web/{name}.jsonl").write_bytes(jsonl(WEB[:3]))

    def told(project, corpus="web"):
        notices = {row.name: row.notices for row in project_status(project) if row.kind == "corpus"}
        assert [one.what for one in verify_inventory(project, corpus).warnings] == [
            one.text for one in notices[corpus]
        ]
        return [one.text for one in notices[corpus]]

    lines = (
        'corpora: {web: {exclude: ["test-*", "validation-*"]}, web_test: {folder: web, files: '
        '["test-*"]}, '
        'web_valid: {folder: web, files: ["validation-*"]}}'
    )
    (text,) = told(project)
    assert text == (
        "3 files are named as validation or test data, in a corpus that train reads: "
        f"test-0.jsonl, test-1.jsonl, validation-0.jsonl; to separate them write {lines}"
    )
    assert len(told(project, "web_title")) == 1
    assert told(copy("corpora: {web: {files: ['*']}, code: {text_key: content}}\n")) == []
    for parted in (lines, CORPORA):
        config = CONFIG.replace('"1,0,0"', '"0,1,0"') if parted is CORPORA else CONFIG
        (project.config.file).write_text(config.replace("web_title: 1, ", "") + parted + "\n")
        notices = corpus_notices(Project.open(project.config.file), "web")
        assert [notice.kind for notice in notices if not notice.is_expected] == []


def test_documents_and_files_that_are_there_twice_are_warnings(copy):
    file = copy(CORPORA + "documents: {max_duplicate_fraction: 0.24}\n").config.file
    file.write_text(file.read_text().replace("range_mib: 0.02", "range_mib: 1"))
    project, folder = Project.open(file), file.parent / "raw/web"
    (folder / "3.jsonl").write_bytes(jsonl(WEB[:40][::-1]))
    (folder / "4.jsonl").write_bytes(jsonl(WEB[40:]))
    for make in (make_inventory, make_shards, make_dataset):
        make(project, "web")
    web = next(row for row in project_status(project) if row.name == "web")
    (copies,) = web.notices
    assert copies.text.endswith(
        "the same bytes as another, so that its text is read again: 4.jsonl (2.jsonl)"
    )
    (told,) = web.warnings
    text = "50.0% of the documents repeat others, more than documents.max_duplicate_fraction: 0.24"
    assert told == f"{text}: {LOOK}"
    (finding,) = verify_at(project, "datasets/web").warnings
    assert (finding.what, finding.remedy) == (text, LOOK)
    file.write_text(file.read_text().replace("0.24", "0.6"))
    assert not verify_at(Project.open(file), "datasets/web").findings
    assert not next(row for row in project_status(Project.open(file)) if row.name == "web").warnings


def blended(folder, blend, corpora="", raw_links=()):
    """Write a project over the raw text of web and code with another blend, and links in its raw
    folder.
    """
    for name, target in raw_links:
        path = folder / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    text = CONFIG.replace("{web: 1, web_title: 1, code: 1}", blend) + corpora
    (folder / "nanoset.yaml").write_text(text)
    return Project.open(folder / "nanoset.yaml")


@pytest.fixture
def sources(built, tmp_path):
    """The project's folder without outputs."""
    shutil.copytree(built, tmp_path / "sources", ignore=shutil.ignore_patterns("data"))
    return tmp_path / "sources"


@pytest.mark.parametrize(
    ("blend", "corpora", "raw_links"),
    [
        ("[web, again]", "corpora: {again: {folder: web}}\n", ()),
        ("{web: 0.5, again: 0.5}", "corpora: {again: {folder: web, id_key: other}}\n", ()),
        ("[web, part]", 'corpora: {part: {folder: web, files: ["2.*"]}}\n', ()),
        ("[web, linked]", "", [("linked", "web")]),
        ("[web, linked]", "", [("linked/a", "../web/a")]),
        ("[web, linked]", "", [("linked/x.jsonl", "../web/a/1.jsonl")]),
        ("[view, again]", "corpora: {again: {folder: web}}\nviews: {view: {of: web}}\n", ()),
    ],
)
def test_corpora_of_one_blend_that_hold_the_same_file_are_refused(
    sources, blend, corpora, raw_links
):
    project = blended(sources, blend, corpora, raw_links)
    with pytest.raises(ConfigError, match="contain the same file") as caught:
        check_all_files(project)
    assert "nanosets.both" in str(caught.value)


def test_a_hard_link_between_two_corpora_of_a_blend_is_refused(sources):
    (sources / "raw/linked").mkdir()
    os.link(sources / "raw/web/2.jsonl", sources / "raw/linked/x.jsonl")
    with pytest.raises(ConfigError, match=r"web/2\.jsonl of web is linked/x\.jsonl of linked"):
        check_all_files(blended(sources, "[web, linked]"))


@pytest.mark.parametrize(
    ("blend", "corpora"),
    [
        ("[web, title]", "corpora: {title: {folder: web, text_key: title}}\n"),
        (
            "[web, rest]",
            'corpora: {web: {exclude: ["2.*"]}, rest: {folder: web, files: ["2.*"]}}\n',
        ),
        ("[web, code]", "corpora: {again: {folder: web}}\n"),
        ("[web, view]", "views: {view: {of: web}}\n"),
    ],
)
def test_corpora_that_part_a_folder_or_are_not_read_together_are_no_repetition(
    sources, blend, corpora
):
    check_all_files(blended(sources, blend, corpora))


def test_a_webdataset_of_two_corpora_of_one_folder_is_refused(sources):
    corpora = "corpora: {again: {folder: web}}\nwebdatasets: {tars: {corpora: [web, again]}}\n"
    with pytest.raises(ConfigError, match=r"webdatasets\.tars"):
        check_all_files(blended(sources, "[web]", corpora))


def test_status_says_that_two_corpora_of_a_blend_hold_the_same_file(sources):
    shutil.rmtree(sources / "raw/code")
    run_stages(blended(sources, "[web]", raw_links=[("again", "web")]))
    rows = project_status(blended(sources, "[web, again]"))
    assert any("contain the same file" in " ".join(row.why) for row in rows if row.name == "both")
