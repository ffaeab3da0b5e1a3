"""Why an output is not current, in words."""

from nanoset_core.outputs.current import setting_differences


def test_of_long_lists_what_differs_is_told():
    before = ["--tokenizer-type TikTokenizer", "--tokenizer-model /a/b.json", "--tiktoken-pattern v1"]
    now = [*before[:2], "--tiktoken-pattern v2"]
    told = "tokenizer: ['--tiktoken-pattern v1'] → ['--tiktoken-pattern v2']"
    assert setting_differences({"tokenizer": before}, {"tokenizer": now}) == [told]
    assert setting_differences({"tokenizer": before[:2]}, {"tokenizer": now}) == [
        "tokenizer: [] → ['--tiktoken-pattern v2']"
    ]
    (other_order,) = setting_differences({"tokenizer": before}, {"tokenizer": before[::-1]})
    assert other_order.startswith("tokenizer: ['--tokenizer-type")


def test_short_lists_and_other_values_are_told_whole():
    assert setting_differences({"ends": [0, 1]}, {"ends": (0, 2)}) == ["ends: [0, 1] → [0, 2]"]
    assert setting_differences({"a": {"b": 1}}, {}) == ["a.b: 1 → none"]
