"""Mixtures that divide a corpus by the values of a column stand for views and a group of them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.project.settings import ProjectConfig, load_config

START = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: </s>}
documents: {columns: [topic, year]}
"""
"""The sections of a nanoset.yaml before its nanosets."""


@pytest.fixture
def load(tmp_path):
    """A function that loads a nanoset.yaml from the parts of the mixture of its nanoset."""

    def load_mix(parts: str, views: str = "{}") -> ProjectConfig:
        nanoset = f"{{sequence_length: 8, samples: {{train: 10}}, mix: {{{parts}}}}}"
        text = START + f"views: {views}\nnanosets: {{pretrain: {nanoset}}}\n"
        return load_config(write(tmp_path, text))

    return load_mix


def write(folder: Path, text: str) -> Path:
    """Write a nanoset.yaml, and return its path."""
    file = folder / "nanoset.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    return file


def parts_of(config: ProjectConfig) -> object:
    """Return the mixture of the nanoset as plain values."""
    mixture = config.nanosets["pretrain"].mixture
    assert mixture is not None
    return mixture.to_json()["mix"]


def test_each_value_is_a_view_and_a_part_of_the_group(load):
    config = load("topics: {of: web, by: topic, values: [news, science]}")

    conditions = {name: (view.of, view.where) for name, view in config.views.items()}
    assert conditions == {
        "topics-news": ("web", "\"topic\" = 'news'"),
        "topics-science": ("web", "\"topic\" = 'science'"),
    }
    assert parts_of(config) == {"topics": {"mix": {"topics-news": {}, "topics-science": {}}}}


def test_the_settings_equal_those_with_the_views_written_out(load):
    short = load(
        "web: {of: web, by: topic, values: {a: 2, b: 1}, max_epochs: 3}, code: {epochs: 1}"
    )

    long = load(
        "web: {max_epochs: 3, mix: {web-a: 2, web-b: 1}}, code: {epochs: 1}",
        """{web-a: {of: web, where: '"topic" = ''a'''}, web-b: {of: web, where: '"topic" = ''b'''}}""",
    )

    assert short.views == long.views
    assert parts_of(short) == parts_of(long)


def test_the_documents_with_other_values_can_be_one_more_part(load):
    config = load("topics: {of: web, by: topic, values: [news, science], others: true}")

    condition = "\"topic\" not in ('news', 'science') or \"topic\" is null"
    assert config.views["topics-others"].where == condition
    assert list(parts_of(config)["topics"]["mix"])[-1] == "topics-others"


def test_a_value_may_be_a_number_or_have_quotes(load):
    config = load("""years: {of: web, by: year, values: [2023, "it's"]}""")

    assert config.views["years-2023"].where == '"year" = 2023'
    assert config.views["years-it-s"].where == "\"year\" = 'it''s'"


def test_a_group_within_a_group_may_divide_a_corpus(load):
    config = load(
        "all: {share: 1, mix: {topics: {of: web, by: topic, values: [news]}, code: {}}}, b: 1"
    )

    assert parts_of(config)["all"]["mix"]["topics"] == {"mix": {"topics-news": {}}}


def test_a_phase_may_divide_a_corpus(tmp_path):
    text = """\
        nanosets:
          pretrain:
            sequence_length: 8
            schedule: {iterations: 10, global_batch_size: 1}
            phases:
              - {blend: web, until: 5}
              - {mix: {topics: {of: web, by: topic, values: [news]}}}
        """
    config = load_config(write(tmp_path, START + dedent(text)))

    assert config.nanosets["pretrain-phase-2"].corpora == ("topics-news",)


def test_two_mixtures_may_divide_a_corpus_into_the_same_views(tmp_path):
    nanoset = "{sequence_length: 8, mix: {topics: {of: web, by: topic, values: [news]}}}"
    config = load_config(write(tmp_path, START + f"nanosets: {{a: {nanoset}, b: {nanoset}}}\n"))

    assert list(config.views) == ["topics-news"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("{of: web, by: topic}", "no values"),
        ("{by: topic, values: [news]}", "no of"),
        ("{of: web, values: [news]}", "no by"),
        ("{others: true, mix: {code: {}}}", "no of and no by and no values"),
        ("{of: web, by: topic, values: [news], mix: {code: {}}}", "each say which parts"),
        ("{of: web, by: topic, values: {news: 1}, others: true}", "have no share"),
        ("{of: web, by: topic, values: [news], others: 0.3}", "the values have none"),
    ],
)
def test_a_mistake_is_refused_with_its_key(load, part, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(f"topics: {part}")

    assert "topics" in str(caught.value)


def test_a_view_of_that_name_with_other_documents_is_refused(load):
    with pytest.raises(ConfigError, match="name is taken by another view"):
        load(
            "topics: {of: web, by: topic, values: [news]}", "{topics-news: {of: web, documents: 5}}"
        )


def names_of_views(config):
    """Return the name of each view by the value of the column `topic` that it keeps."""
    return {view.where.removeprefix('"topic" = '): name for name, view in config.views.items()}


def test_values_that_give_the_same_name_are_told_apart_by_a_hash(load):
    names = names_of_views(load("topics: {of: web, by: topic, values: [a/b, news, a b, a-b]}"))

    assert names["'news'"] == "topics-news"
    assert names["'a-b'"] == "topics-a-b"
    assert names["'a/b'"].startswith("topics-a-b-")
    assert names["'a b'"].startswith("topics-a-b-")
    assert len(set(names.values())) == 4


def test_several_values_may_have_no_ascii_letter(load):
    names = names_of_views(load("topics: {of: web, by: topic, values: [中文, 日本語, Русский]}"))

    assert len(set(names.values())) == 3


def test_the_name_of_a_value_does_not_depend_on_the_order_of_values(load):
    names = names_of_views(load("topics: {of: web, by: topic, values: [中文, 日本語]}"))

    assert names == names_of_views(load("topics: {of: web, by: topic, values: [日本語, 中文]}"))


def test_a_number_and_the_text_of_its_digits_are_two_values(load):
    names = names_of_views(load('topics: {of: web, by: topic, values: [1, "1"]}'))

    assert names["'1'"] == "topics-1"
    assert names["1"].startswith("topics-1-")


def test_a_value_that_gives_a_name_of_its_own_keeps_it(load):
    config = load("""topics: {of: web, by: topic, values: [中文, "l'été", ""]}""")

    assert list(config.views)[1] == "topics-l-t-"


def test_a_value_may_be_the_word_others(load):
    config = load("topics: {of: web, by: topic, values: [news, others], others: true}")

    names = names_of_views(config)
    assert names["'others'"].startswith("topics-others-")
    assert config.views["topics-others"].where.endswith("is null")


def test_the_other_documents_may_have_a_share(load):
    config = load("topics: {of: web, by: topic, values: {news: 0.7}, others: 0.3}")

    parts = parts_of(config)["topics"]["mix"]
    assert parts == {"topics-news": {"share": 0.7}, "topics-others": {"share": 0.3}}


def test_errors_of_a_view_of_a_value_name_the_mixture(load):
    config = load("topics: {of: web, by: topic, values: [news], others: true}")

    for name in ("topics-news", "topics-others"):
        assert config.views[name].key(name, "where") == "nanosets.pretrain.mix.topics"


def test_errors_of_a_view_that_is_written_name_the_view(load):
    config = load("web: 1, best: 1", "{best: {of: web, tokens: 5}}")

    assert config.views["best"].key("best", "where") == "views.best.where"
