import json
import math

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanoset_core.text.parsing import (
    DETAIL_CHARACTERS,
    Fields,
    NotADocumentError,
    parse_line,
    parse_lines,
)

FIELDS = Fields("text", "id")


@pytest.mark.parametrize(
    ("line", "text", "identity"),
    [
        (b'{"text": "a"}', "a", None),
        (b'  {"text" : "a" }\r', "a", None),
        (b'{"text": ""}', "", None),
        (b'{"text": "a", "id": "x"}', "a", "x"),
        (b'\xef\xbb\xbf{"text": "a", "id": 7.50}', "a", "7.5"),
        (b'{"text": "a", "id": ""}', "a", ""),
        (b'{"text": "a", "id": null}', "a", None),
        (b'{"text": "a", "id": 7}', "a", "7"),
        (b'{"text": "a", "id": -7.50}', "a", "-7.5"),
        (b'{"text": "a", "id": true}', "a", "true"),
        (
            b'{"text": "a", "id": 123456789012345678901234567890}',
            "a",
            "123456789012345678901234567890",
        ),
        (b'{"text": "a", "id": {"$oid": "5\xc3\xa9"}}', "a", '{"$oid": "5\\u00e9"}'),
        (b'{"text": "a", "id": "\\ud800x"}', "a", "\\ud800x"),
        (b'{"text": "first", "text": "last", "id": 1, "id": 2}', "last", "2"),
        (b'{"text": "a", "score": NaN, "top": Infinity, "low": -Infinity}', "a", None),
        (b'{"text": "a", "id": NaN}', "a", "NaN"),
        (b'{"text": "a", "big": %s}' % (b"9" * 400), "a", None),
        (b'{"text": "a", "tiny": 1e-999, "huge": 1e999}', "a", None),
        (b'{"text": "a", "other": "\\ud83d lone"}', "a", None),
        (b'{"text": "\\ud83d\\ude00 \\u0000 \\u2028"}', "\U0001f600 \0 \u2028", None),
        ('{"text": "naïve 日本\u2028\x7f"}'.encode(), "naïve 日本\u2028\x7f", None),
    ],
)
def test_documents(line, text, identity):
    assert parse_line(line, FIELDS) == (text, identity, [])
    assert parse_lines([line], FIELDS) in (None, ([text], [identity], []))


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"", "blank_line", "nothing but white space"),
        (b" \t\r", "blank_line", "nothing but white space"),
        (
            b'{"text": "cut o',
            "invalid_json",
            "Unterminated string starting at: line 1 column 10 (char 9)",
        ),
        (b"{'text': 'a'}", "invalid_json", "Expecting property name enclosed in double quotes"),
        (b'{"text": "a"} {"text": "b"}', "invalid_json", "Extra data"),
        (b'{"text": "tab\there"}', "invalid_json", "Invalid control character"),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"text": "a"}', "invalid_json", "Unexpected UTF-8 BOM"),
        (b'{"text": "a", "big": %s}' % (b"9" * 5000), "invalid_json", "Exceeds the limit"),
        (b'{"a":' * 100_000, "invalid_json", "recursion"),
        (
            b'{"text": "caf\xe9"}',
            "invalid_utf8",
            "byte 0xe9 at byte 13 of the line: invalid continuation byte",
        ),
        (b'{"text": "\xed\xa0\x80"}', "invalid_utf8", "byte 0xed at byte 10"),
        ('{"text": "a"}'.encode("utf-16"), "invalid_utf8", "byte 0xff at byte 0"),
        (b'["text"]', "not_an_object", "a JSON array"),
        (b'"text"', "not_an_object", "a JSON string"),
        (b"3", "not_an_object", "a JSON number"),
        (b"null", "not_an_object", "a JSON null"),
        (b"NaN", "not_an_object", "a JSON number"),
        (b'{"txt": "a", "b": 1}', "missing_key", "no 'text' among ['b', 'txt']"),
        (b"{}", "missing_key", "no 'text' among []"),
        (b'{"text": null}', "text_not_a_string", "'text' is a JSON null"),
        (b'{"text": 3}', "text_not_a_string", "'text' is a JSON number"),
        (b'{"text": true}', "text_not_a_string", "'text' is a JSON boolean"),
        (b'{"text": ["a"]}', "text_not_a_string", "'text' is a JSON array"),
        (b'{"text": {"a": "b"}}', "text_not_a_string", "'text' is a JSON object"),
        (
            b'{"text": "ab\\ud83d"}',
            "lone_surrogate",
            "\\ud83d without its other half, at character 2 of the text",
        ),
        (
            b'{"text": "\\udc00\\ud83d"}',
            "lone_surrogate",
            "\\udc00 without its other half, at character 0",
        ),
    ],
)
def test_lines_that_are_no_documents(line, reason, detail):
    with pytest.raises(NotADocumentError) as caught:
        parse_line(line, FIELDS)
    assert caught.value.reason == reason
    assert detail in caught.value.detail
    assert parse_lines([b'{"text": "a"}', line], FIELDS) is None


def test_detail_is_short():
    with pytest.raises(NotADocumentError) as caught:
        parse_line(orjson.dumps({"k" * 10_000: 1}), FIELDS)
    assert len(caught.value.detail) == DETAIL_CHARACTERS


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "id", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.lists(
        VALUES | st.fixed_dictionaries({"text": st.text()}, optional={"id": VALUES}), max_size=4
    ),
    st.booleans(),
)
@example([{"text": "a", "id": 2**64}], False)
@example([{"text": "a", "id": math.nan}], False)
def test_block_by_block_gives_what_line_by_line_gives(values, ascii_only):
    lines = [
        json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        for value in values
    ]
    block = parse_lines(lines, FIELDS)
    one_by_one = []
    for line in lines:
        try:
            one_by_one.append(parse_line(line, FIELDS))
        except NotADocumentError:
            assert block is None
            return
    if block is not None:
        assert list(zip(*block[:2], strict=True)) == [one[:2] for one in one_by_one]


NESTED = Fields("a.b", "m.id")


@pytest.mark.parametrize(
    ("line", "text", "identity"),
    [
        (b'{"a": {"b": "x"}}', "x", None),
        (b'{"a.b": "flat", "a": {"b": "deep"}}', "flat", None),
        (b'{"a": {"b": "deep"}, "a.b": "flat", "m": {"id": 7}}', "flat", "7"),
        (b'{"a": {"b": "x"}, "m.id": "flat", "m": {"id": "deep"}}', "x", "flat"),
        (
            b'{"a": {"b": "x"}, "m": {"id": 123456789012345678901234567890}}',
            "x",
            "123456789012345678901234567890",
        ),
        (b'{"a": {"b": "x"}, "m": "id"}', "x", None),
        (b'{"a": {"b": "x"}, "m": [1]}', "x", None),
        (b'{"a": {"b": "x"}, "m": null}', "x", None),
        (b'{"a": {"b": "x"}, "m": {}}', "x", None),
    ],
)
def test_nested_keys(line, text, identity):
    assert parse_line(line, NESTED) == (text, identity, [])
    assert parse_lines([line], NESTED) in (None, ([text], [identity], []))


@pytest.mark.parametrize(
    ("key", "line", "reason", "detail"),
    [
        ("a.b", b'{"c": 1}', "missing_key", "no 'a' among ['c']"),
        ("a.b", b'{"a": {"c": "x", "d": 1}}', "missing_key", "no 'b' among ['c', 'd'] in 'a'"),
        ("a.b.c", b'{"a": {"b": {}}}', "missing_key", "no 'c' among [] in 'a.b'"),
        ("a.b", b'{"a": null}', "not_an_object", "'a' is a JSON null"),
        ("a.b", b'{"a": "b"}', "not_an_object", "'a' is a JSON string"),
        ("a.b.c", b'{"a": {"b": ["c"]}}', "not_an_object", "'a.b' is a JSON array"),
        ("a.b", b'{"a": {"b": 1}}', "text_not_a_string", "'a.b' is a JSON number"),
        ("a.b", b'{"a.b": null, "a": {"b": "x"}}', "text_not_a_string", "'a.b' is a JSON null"),
        ("a.b", b'{"a": {"b": "\\ud800"}}', "lone_surrogate", "\\ud800"),
        ("a.", b'{"a": {"b": "x"}}', "missing_key", "no '' among ['b'] in 'a'"),
    ],
)
def test_nested_keys_that_are_not_there(key, line, reason, detail):
    with pytest.raises(NotADocumentError) as caught:
        parse_line(line, Fields(key, "id"))
    assert (caught.value.reason, caught.value.detail[: len(detail)]) == (reason, detail)
    assert parse_lines([line], Fields(key, "id")) is None


def look_up_slowly(value, key):
    """Every way to read the key, the shortest number of names first."""
    if isinstance(value, dict):
        if key in value:
            return [value[key]]
        outer, dot, inner = key.partition(".")
        if dot and outer in value:
            return look_up_slowly(value[outer], inner)
    return []


NESTED_VALUES = st.recursive(
    st.sampled_from(["b", "a.b", "", 1, None, ["b"], ["a"]]),
    lambda inner: st.dictionaries(
        st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c"]), inner, max_size=3
    ),
    max_leaves=6,
)


@given(st.lists(NESTED_VALUES, max_size=4), st.sampled_from(["a", "a.b", "b.c", "a.b.c"]))
def test_nested_keys_are_found_as_the_slow_way_finds_them(values, key):
    fields = Fields(key, "c.a")
    lines = [json.dumps(value).encode() for value in values]
    found = [look_up_slowly(value, key) for value in values]
    block = parse_lines(lines, fields)
    assert (block is not None) == all(text and type(text[0]) is str for text in found)
    for line, text in zip(lines, found, strict=True):
        if text and type(text[0]) is str:
            assert parse_line(line, fields)[0] == text[0]
        else:
            with pytest.raises(NotADocumentError):
                parse_line(line, fields)
    if block is not None:
        assert list(zip(*block[:2], strict=True)) == [
            parse_line(line, fields)[:2] for line in lines
        ]


REQUIRED = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "\ud800", "", 1, None, {"d": "y"}]),
        max_size=3,
    ),
    max_size=6,
)


@given(REQUIRED)
def test_each_key_with_the_others_required_gives_the_same_lines(values):
    keys = ("a", "b", "c.d")
    passes = []
    for key in keys:
        fields = Fields(key, "id", tuple(other for other in keys if other != key))
        kept = []
        for number, value in enumerate(values):
            try:
                parse_line(json.dumps(value).encode(), fields)
                kept.append(number)
            except NotADocumentError:
                pass
        passes.append(kept)
    whole = [
        number
        for number, value in enumerate(values)
        if all(is_text(look_up_slowly(value, key)) for key in keys)
    ]
    assert passes == [whole] * 3


def is_text(found):
    return bool(found) and type(found[0]) is str and "\ud800" not in found[0]


@pytest.mark.parametrize(
    ("identity", "kept"), [('"%s"' % ("é" * 4096), True), ('"%s"' % ("i" * 4097), False)]
)
def test_ids_that_are_too_long_are_not_kept(identity, kept):
    line = f'{{"text": "a", "id": {identity}}}'.encode()
    wanted = ("a", identity.strip('"') if kept else None)
    assert parse_line(line, Fields("text", "id")) == (*wanted, [])
    assert parse_lines([line], Fields("text", "id")) == ([wanted[0]], [wanted[1]], [])
    numbers = b'{"text": "a", "id": [' + b"1, " * 5000 + b"1]}"
    assert parse_line(numbers, Fields("text", "id")) == ("a", None, [])
