"""YAML in files of users becomes plain values, or an error that names the line."""

from __future__ import annotations

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.project.settings import load_config
from nanoset_core.records.yaml_text import located, read_yaml
from nanoset_core.stages.webdataset.standalone.sampling import load_sampling

NO_YAML = {
    "deep nesting": "[" * 2_000,
    "deep blocks": "".join(" " * n + "a:\n" for n in range(400)),
    "a long number": "a: " + "9" * 5000,
    "code": "a: !!python/object/apply:os.mkdir [should-not-exist]",
    "another tag": "a: !!timestamp x",
    "no number": 'a: !!int ""',
    "no truth": "a: !!bool x",
    "no mapping": "a: !!map [b]",
    "no base64": "a: !!binary é",
    "a list as a key": "? [a]\n: b\n",
    "a tab": "a:\n\t- b",
    "a NUL": "a: \0",
    "half a surrogate": 'a: "\\ud800"\nb: [',
    "an alias of nothing": "a: *b",
    "a value that contains itself": "a: &a [*a]",
}
"""What is wrong → text that is no YAML, or that has values which settings cannot have."""


@pytest.mark.parametrize("read", [load_config, load_sampling])
@pytest.mark.parametrize("name", NO_YAML)
def test_text_that_is_no_yaml_is_a_short_error(name, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nanoset.yaml"
    file.write_text(NO_YAML[name])

    with pytest.raises(ConfigError, match=r"nanoset\.yaml") as caught:
        read(file)

    assert len(str(caught.value)) < 7000
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["nanoset.yaml"], "code in the file was executed"


def test_aliases_and_merge_keys_become_the_values_that_they_name(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")

    value, _ = read_yaml(file, remedy="")

    assert value == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_an_empty_file_has_no_value(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("")

    value, _ = read_yaml(file, remedy="")

    assert value is None


def test_errors_are_listed_with_their_lines_in_the_order_of_the_file(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("# settings\na:\n  web.v2: {x: 1}\n  b:\n  - {c: 1}\n  - {c: 2,\n     d: 3}\n")
    # The first key that does not exist has the line of the mapping or list in which it is missing.
    keys = ["a.b[1].d", "a.web.v2.x", "a.b[1].missing.e", "other", "a.b[1].c", "a.b[9]"]
    errors = [ConfigError("wrong", where=f"{file}: {key}") for key in keys]

    error = located(file, file.read_text(), errors)

    assert error.what.splitlines() == [
        "6 mistakes:",
        f"  {file}:2: other: wrong",
        f"  {file}:3: a.web.v2.x: wrong",
        f"  {file}:4: a.b[9]: wrong",
        f"  {file}:6: a.b[1].missing.e: wrong",
        f"  {file}:6: a.b[1].c: wrong",
        f"  {file}:7: a.b[1].d: wrong",
    ]


def test_an_error_quotes_a_name_as_it_is_written(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a:\n  1_0: {x: 1}\n  b: 0.10\n")
    errors = [
        ConfigError("wrong", where=f"{file}: a.10", remedy='put it in quotes: "10"'),
        ConfigError("wrong", where=f"{file}: a.10.x", remedy="write text"),
        ConfigError("wrong", where=f"{file}: a.b", remedy='put it in quotes: "0.1"'),
    ]

    error = located(file, file.read_text(), errors)

    assert error.what.splitlines() == [
        "3 mistakes:",
        f"  {file}:2: a.1_0: wrong",
        '    remedy: put it in quotes: "1_0"',
        f"  {file}:2: a.1_0.x: wrong",
        "    remedy: write text",
        f"  {file}:3: a.b: wrong",
        '    remedy: put it in quotes: "0.10"',
    ]
