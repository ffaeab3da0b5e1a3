"""Data arguments as Megatron-LM reads them."""

import pytest

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.handoff.data_args import blend_from_words, read_data_args, read_per_split


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (["a"], "a"),
        (["a", "b"], ["a", "b"]),
        (["a", "b", "c"], ["a", "b", "c"]),
        (["1", "a"], {"a": 1.0}),
        ([".3", "a", "7e-1", "b"], {"a": 0.3, "b": 0.7}),
        (["1", "a", "2"], ["1", "a", "2"]),  # an odd number of words: all are prefixes, as Megatron-LM has it
    ],
)
def test_blends(words, blend):
    assert blend_from_words(words, "here") == blend


@pytest.mark.parametrize("words", [[], ["1", "a", "x", "b"], ["a", "a"], ["1", "a", "2", "a"]])
def test_no_blends(words):
    with pytest.raises(ConfigError):
        blend_from_words(words, "here")


def test_texts_and_lists_of_each_split(tmp_path):
    path = tmp_path / "args.json"
    path.write_text('{"train": "0.5 a 0.5 b", "valid": ["c"], "test": null}')
    assert read_per_split(path) == [{"a": 0.5, "b": 0.5}, "c", None]


@pytest.mark.parametrize("text", ["", "[]", '{"train": ["a"], "valid": null}', '{"train": 1, "valid": 2, "test": 3}'])
def test_what_is_not_for_each_split(tmp_path, text):
    path = tmp_path / "args.json"
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        read_per_split(path)
    assert caught.value.where == str(path)


def test_no_file(tmp_path):
    with pytest.raises(MissingError):
        read_data_args(tmp_path / "none")
