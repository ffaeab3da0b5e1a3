import json
import math

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanoset_core.raw.parsing import DETAIL_CHARACTERS, Fields, NotADocumentError, parse_line, parse_lines

FIELDS = Fields("text", "id")


@pytest.mark.parametrize(
    ("line", "text", "identity"),
    [
        (b'{"text": "a"}', "a", None),
        (b'  {"text" : "a" }\r', "a", None),
        (b'{"text": ""}', "", None),
        (b'{"text": "a", "id": "x"}', "a", "x"),
        (b'{"text": "a", "id": ""}', "a", ""),
        (b'{"text": "a", "id": null}', "a", None),
        (b'{"text": "a", "id": 7}', "a", "7"),
        (b'{"text": "a", "id": -7.50}', "a", "-7.5"),
        (b'{"text": "a", "id": true}', "a", "true"),
        (b'{"text": "a", "id": 123456789012345678901234567890}', "a", "123456789012345678901234567890"),
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
    assert parse_line(line, FIELDS) == (text, identity)
    assert parse_lines([line], FIELDS) in (None, ([text], [identity]))


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"", "blank_line", "nothing but white space"),
        (b" \t\r", "blank_line", "nothing but white space"),
        (b'{"text": "cut o', "invalid_json", "Unterminated string starting at: line 1 column 10 (char 9)"),
        (b"{'text': 'a'}", "invalid_json", "Expecting property name enclosed in double quotes"),
        (b'{"text": "a"} {"text": "b"}', "invalid_json", "Extra data"),
        (b'{"text": "tab\there"}', "invalid_json", "Invalid control character"),
        (b'\xef\xbb\xbf{"text": "a"}', "invalid_json", "Unexpected UTF-8 BOM"),
        (b'{"text": "a", "big": %s}' % (b"9" * 5000), "invalid_json", "Exceeds the limit"),
        (b'{"a":' * 100_000, "invalid_json", "recursion"),
        (b'{"text": "caf\xe9"}', "invalid_utf8", "byte 0xe9 at byte 13 of the line: invalid continuation byte"),
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
        (b'{"text": "ab\\ud83d"}', "lone_surrogate", "\\ud83d without its other half, at character 2 of the text"),
        (b'{"text": "\\udc00\\ud83d"}', "lone_surrogate", "\\udc00 without its other half, at character 0"),
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


def test_other_keys():
    assert parse_line(b'{"content": "a", "uid": 1, "text": 2}', Fields("content", "uid")) == ("a", "1")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "id", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.lists(VALUES | st.fixed_dictionaries({"text": st.text()}, optional={"id": VALUES}), max_size=4), st.booleans()
)
@example([{"text": "a", "id": 2**64}], False)
@example([{"text": "a", "id": math.nan}], False)
def test_block_by_block_gives_what_line_by_line_gives(values, ascii_only):
    lines = [json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for value in values]
    block = parse_lines(lines, FIELDS)
    one_by_one = []
    for line in lines:
        try:
            one_by_one.append(parse_line(line, FIELDS))
        except NotADocumentError:
            assert block is None
            return
    if block is not None:
        assert list(zip(*block, strict=True)) == one_by_one


@given(st.text(), VALUES)
def test_text_is_what_pythons_json_reads(text, other):
    line = json.dumps({"other": other, "text": text}).encode()
    expected = json.loads(line)["text"]
    try:
        expected.encode()
    except UnicodeEncodeError:
        with pytest.raises(NotADocumentError, match="lone_surrogate"):
            parse_line(line, FIELDS)
    else:
        assert parse_line(line, FIELDS)[0] == expected
