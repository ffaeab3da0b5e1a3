"""Parsing of lines: the text and the id of a document, and why other lines are no documents."""

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
    ParsedLine,
    ParsedLines,
    parse_line,
    parse_lines,
)

FIELDS = Fields("text", "id")


def check_document(line, fields, text, identity):
    """Check what a line is parsed as, alone and in a block.

    The parser of blocks may return None for lines that it leaves to the parser of single lines.
    """
    assert parse_line(line, fields) == ParsedLine(text, identity, [])
    assert parse_lines([line], fields) in (None, ParsedLines([text], [identity], []))


def is_document(line, fields):
    """Return whether a line is a document, by parsing it alone."""
    try:
        parse_line(line, fields)
    except NotADocumentError:
        return False
    return True


def check_block(lines, fields):
    """Check that lines are parsed in a block as they are one by one."""
    parsed = parse_lines(lines, fields)
    if parsed is not None:
        documents = [parse_line(line, fields) for line in lines]
        assert parsed.texts == [document.text for document in documents]
        assert parsed.ids == [document.id for document in documents]


# Documents


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(b'{"text": "a"}', "a", id="only a text"),
        pytest.param(b'  {"text" : "a" }\r', "a", id="white space"),
        pytest.param(b'{"text": ""}', "", id="empty text"),
        pytest.param(
            b'{"text": "a", "score": NaN, "top": Infinity, "low": -Infinity}',
            "a",
            id="numbers that are not JSON",
        ),
        pytest.param(b'{"text": "a", "big": %s}' % (b"9" * 400), "a", id="huge integer"),
        pytest.param(b'{"text": "a", "tiny": 1e-999, "huge": 1e999}', "a", id="extreme floats"),
        pytest.param(
            b'{"text": "a", "other": "\\ud83d lone"}', "a", id="lone surrogate in another value"
        ),
        pytest.param(
            b'{"text": "\\ud83d\\ude00 \\u0000 \\u2028"}', "\U0001f600 \0 \u2028", id="escapes"
        ),
        pytest.param(
            '{"text": "naïve 日本\u2028\x7f"}'.encode(), "naïve 日本\u2028\x7f", id="UTF-8"
        ),
    ],
)
def test_the_text_of_a_document_is_read(line, text):
    check_document(line, FIELDS, text, identity=None)


@pytest.mark.parametrize(
    ("value", "identity"),
    [
        (b'"x"', "x"),
        (b'""', ""),
        (b"null", None),
        (b"7", "7"),
        (b"-7.50", "-7.5"),
        (b"true", "true"),
        (b"NaN", "NaN"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b'{"$oid": "5\xc3\xa9"}', '{"$oid": "5\\u00e9"}'),
        (b'"\\ud800x"', "\\ud800x"),
    ],
)
def test_the_id_of_a_document_is_a_text_whatever_its_type(value, identity):
    line = b'{"text": "a", "id": %s}' % value

    check_document(line, FIELDS, "a", identity)


def test_a_line_may_start_with_a_byte_order_mark():
    line = b'\xef\xbb\xbf{"text": "a", "id": 7.50}'

    check_document(line, FIELDS, "a", "7.5")


def test_the_last_of_several_equal_keys_counts():
    line = b'{"text": "first", "text": "last", "id": 1, "id": 2}'

    check_document(line, FIELDS, "last", "2")


# Lines that are no documents


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
        pytest.param(
            b'{"text": "a", "big": %s}' % (b"9" * 5000),
            "invalid_json",
            "Exceeds the limit",
            id="integer with too many digits",
        ),
        pytest.param(b'{"a":' * 100_000, "invalid_json", "recursion", id="deeply nested"),
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
def test_a_line_that_is_no_document_has_a_reason(line, reason, detail):
    with pytest.raises(NotADocumentError) as caught:
        parse_line(line, FIELDS)

    assert caught.value.reason == reason
    assert detail in caught.value.detail
    # A block with such a line is left to the parser of single lines.
    assert parse_lines([b'{"text": "a"}', line], FIELDS) is None


def test_the_detail_of_a_reason_is_cut_to_its_limit():
    line = orjson.dumps({"k" * 10_000: 1})

    with pytest.raises(NotADocumentError) as caught:
        parse_line(line, FIELDS)

    assert len(caught.value.detail) == DETAIL_CHARACTERS


# Blocks


def containers_of(values):
    """Draw a list or an object of some values."""
    names = st.sampled_from(["text", "id", "a"])
    return st.lists(values, max_size=3) | st.dictionaries(names, values, max_size=3)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, containers_of, max_leaves=5)
DOCUMENTS = st.fixed_dictionaries({"text": st.text()}, optional={"id": VALUES})


@given(values=st.lists(VALUES | DOCUMENTS, max_size=4), is_ascii=st.booleans())
@example(values=[{"text": "a", "id": 2**64}], is_ascii=False)
@example(values=[{"text": "a", "id": math.nan}], is_ascii=False)
def test_a_block_of_lines_is_parsed_as_its_lines_are_one_by_one(values, is_ascii):
    lines = []
    for value in values:
        text = json.dumps(value, ensure_ascii=is_ascii)
        lines.append(text.encode("utf-8", "surrogatepass"))

    if all(is_document(line, FIELDS) for line in lines):
        check_block(lines, FIELDS)
    else:
        assert parse_lines(lines, FIELDS) is None


# Nested keys

NESTED_FIELDS = Fields("a.b", "m.id")


@pytest.mark.parametrize(
    ("line", "text", "identity"),
    [
        (b'{"a": {"b": "x"}}', "x", None),
        # A key that contains the dot takes precedence.
        (b'{"a.b": "flat", "a": {"b": "deep"}}', "flat", None),
        (b'{"a": {"b": "deep"}, "a.b": "flat", "m": {"id": 7}}', "flat", "7"),
        (b'{"a": {"b": "x"}, "m.id": "flat", "m": {"id": "deep"}}', "x", "flat"),
        (
            b'{"a": {"b": "x"}, "m": {"id": 123456789012345678901234567890}}',
            "x",
            "123456789012345678901234567890",
        ),
        # A document without the key has no id.
        (b'{"a": {"b": "x"}, "m": "id"}', "x", None),
        (b'{"a": {"b": "x"}, "m": [1]}', "x", None),
        (b'{"a": {"b": "x"}, "m": null}', "x", None),
        (b'{"a": {"b": "x"}, "m": {}}', "x", None),
    ],
)
def test_keys_with_dots_name_values_of_nested_objects(line, text, identity):
    check_document(line, NESTED_FIELDS, text, identity)


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
def test_a_line_without_a_text_at_a_nested_key_is_no_document(key, line, reason, detail):
    fields = Fields(key, "id")

    with pytest.raises(NotADocumentError) as caught:
        parse_line(line, fields)

    assert caught.value.reason == reason
    assert caught.value.detail.startswith(detail)
    assert parse_lines([line], fields) is None


MISSING = object()
"""What `slow_look_up` returns if there is no value."""


def slow_look_up(value, key):
    """Return the value at a key: that of the whole key, or the one within its first name."""
    if not isinstance(value, dict):
        return MISSING
    if key in value:
        return value[key]
    outer, dot, inner = key.partition(".")
    if dot and outer in value:
        return slow_look_up(value[outer], inner)
    return MISSING


NESTED_VALUES = st.recursive(
    st.sampled_from(["b", "a.b", "", 1, None, ["b"], ["a"]]),
    lambda values: st.dictionaries(
        st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c"]), values, max_size=3
    ),
    max_leaves=6,
)


@given(
    values=st.lists(NESTED_VALUES, max_size=4),
    key=st.sampled_from(["a", "a.b", "b.c", "a.b.c"]),
)
def test_nested_keys_are_found_as_by_a_slow_look_up(values, key):
    fields = Fields(key, "c.a")
    lines = [json.dumps(value).encode() for value in values]
    texts = [slow_look_up(value, key) for value in values]

    for line, text in zip(lines, texts, strict=True):
        if isinstance(text, str):
            assert parse_line(line, fields).text == text
        else:
            assert not is_document(line, fields)


@given(
    values=st.lists(NESTED_VALUES, max_size=4),
    key=st.sampled_from(["a", "a.b", "b.c", "a.b.c"]),
)
def test_nested_keys_are_found_in_a_block_as_line_by_line(values, key):
    fields = Fields(key, "c.a")
    lines = [json.dumps(value).encode() for value in values]

    is_parsed = parse_lines(lines, fields) is not None

    assert is_parsed == all(is_document(line, fields) for line in lines)
    check_block(lines, fields)


# Required keys

KEYS = ("a", "b", "c.d")
INCOMPLETE_VALUES = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "\ud800", "", 1, None, {"d": "y"}]),
        max_size=3,
    ),
    max_size=6,
)


def has_all_texts(value):
    """Return whether a value has a text without lone surrogates at each of KEYS."""
    texts = [slow_look_up(value, key) for key in KEYS]
    return all(isinstance(text, str) and "\ud800" not in text for text in texts)


@given(values=INCOMPLETE_VALUES)
def test_each_key_has_the_same_documents_if_the_others_are_required(values):
    """A corpus of questions and answers is read once for each, and its documents must be pairs."""
    complete_lines = [number for number, value in enumerate(values) if has_all_texts(value)]

    for key in KEYS:
        required_keys = tuple(other_key for other_key in KEYS if other_key != key)
        fields = Fields(key, "id", required_keys)
        lines = []
        for number, value in enumerate(values):
            if is_document(json.dumps(value).encode(), fields):
                lines.append(number)

        assert lines == complete_lines


# Long ids

MAX_ID_CHARACTERS = 4096


def test_the_longest_id_is_kept():
    identity = "é" * MAX_ID_CHARACTERS
    line = f'{{"text": "a", "id": "{identity}"}}'.encode()

    assert parse_line(line, FIELDS) == ParsedLine("a", identity, [])
    assert parse_lines([line], FIELDS) == ParsedLines(["a"], [identity], [])


def test_a_longer_id_is_not_kept():
    identity = "i" * (MAX_ID_CHARACTERS + 1)
    line = f'{{"text": "a", "id": "{identity}"}}'.encode()

    assert parse_line(line, FIELDS) == ParsedLine("a", None, [])
    assert parse_lines([line], FIELDS) == ParsedLines(["a"], [None], [])


def test_an_id_that_is_a_long_list_is_not_kept():
    line = b'{"text": "a", "id": [' + b"1, " * 5000 + b"1]}"

    assert parse_line(line, FIELDS) == ParsedLine("a", None, [])


# Deep values


def test_an_id_may_be_a_deeply_nested_list():
    # orjson reads 1,024 levels of nesting, more than Python's json module writes.
    identity = "[" * 1000 + "]" * 1000
    line = f'{{"text": "a", "id": {identity}}}'.encode()

    assert parse_line(line, FIELDS) == ParsedLine("a", identity, [])
    assert parse_lines([line], FIELDS) == ParsedLines(["a"], [identity], [])


# Large integers in further values


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("9223372036854775807", 2**63 - 1),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2**64),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", -(2**63) - 1),
        ("[12345678901234567890123]", [12345678901234567890123]),
        ('{"a": {"b": 12345678901234567890123}}', {"a": {"b": 12345678901234567890123}}),
        ("1.2345678901234567890123e30", 1.2345678901234567890123e30),
        ("12345678901234567890123.0", 12345678901234567890123.0),
    ],
)
@pytest.mark.parametrize("other", ["1", "NaN"])  # orjson refuses a line with NaN
def test_integers_in_further_values_keep_all_digits(written, value, other):
    fields = Fields("text", "id", kept=("hash",))
    line = f'{{"text": "a", "hash": {written}, "other": {other}}}'.encode()

    [kept_value] = parse_line(line, fields).kept
    block = parse_lines([line], fields)

    assert kept_value == value
    assert type(kept_value) is type(value)
    assert block in (None, ParsedLines(["a"], [None], [[value]]))


def test_an_id_may_be_a_list_of_large_integers():
    line = b'{"text": "a", "id": [12345678901234567890123]}'

    check_document(line, FIELDS, "a", "[12345678901234567890123]")


def test_a_large_integer_is_not_kept_if_its_digits_cannot_be_read():
    # Python's json, which keeps all digits, refuses so many levels of nesting.
    deep_list = "[" * 1000 + "]" * 1000
    number = "12345678901234567890123"
    line = f'{{"text": "a", "id": {number}, "hash": {number}, "deep": {deep_list}}}'.encode()

    assert parse_line(line, Fields("text", "id", kept=("hash",))) == ParsedLine("a", None, [None])
