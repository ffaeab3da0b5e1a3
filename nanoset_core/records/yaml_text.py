"""Read and write YAML: files of settings with limits on their size, and lines of mistakes.

YAML has three traps that this module closes. A key that is written twice silently replaces the
first one, so it is an error here. With aliases, a few hundred bytes can mean billions of values
("billion laughs"), so the values of a file are counted before they are built. And the errors of
PyYAML span several lines, so they are rewritten: `the key 'seed' occurs twice (line 3, column 1)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, combined, joined_lines
from nanoset_core.records.mismatches import NO_VALUE, QUOTES_REMEDY
from nanoset_core.untrusted import shortened, visible

MOST_BYTES = 16 << 20
"""Limit for the size of a file; a larger one does not contain settings."""
MOST_VALUES = 100_000
"""Limit for the values of a file; aliases and merge keys (`<<`) count as what they stand for."""
MOST_DEPTH = 100
"""Limit for values that are nested in each other."""
_MAX_DIGITS = 64
"""Limit for the length of a whole number; Python cannot print one of more than 4,300 digits."""
_MAX_ERROR_CHARACTERS = 1000
"""Errors of PyYAML are cut to this length."""
_TAG_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""Raised by PyYAML, in addition to its own errors, if a tag such as `!!int` is at a wrong value."""
_TAGS_OF_OTHER_TYPES = {
    "tag:yaml.org,2002:bool",
    "tag:yaml.org,2002:int",
    "tag:yaml.org,2002:float",
    "tag:yaml.org,2002:null",
    "tag:yaml.org,2002:timestamp",
}
"""PyYAML's names of the types that a value without quotes may have, except text."""
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+=:-]*[A-Za-z0-9_./@+=-]|[A-Za-z0-9_./]")
"""Text that needs no quotes in YAML, unless it looks like a number, a date or the like."""


class YamlFile(NamedTuple):
    """What was read from a YAML file."""

    values: Any
    """The plain values, which must not be changed."""
    text: str
    """The text of the file."""


def read_yaml(file: Path, *, remedy: str) -> YamlFile:
    """Read and parse a YAML file of settings: "seed: 7" gives {"seed": 7}.

    Args:
        file: The file.
        remedy: What the message of an error tells the user to do.

    Returns:
        The values, which the caller must not change, since later calls may get the same objects.
        Also the text of the file, to find the line of a value that turns out to be wrong.

    Raises:
        OSError: The file cannot be read.
        ConfigError: It is not a file, is too large, is not UTF-8 or not YAML, has a key twice, or
            has too many or too deeply nested values.
    """
    data = _read_settings(file, remedy)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "not UTF-8 text", where=file, found=str(error), remedy="save it as UTF-8"
        ) from error
    return YamlFile(parse_yaml(text, file, remedy=remedy), text)


def _read_settings(file: Path, remedy: str) -> bytes:
    """Read a file of settings; refuse anything that cannot be one, before it is read.

    A user may name a wrong file by mistake: one with terabytes of text would fill the memory, and a
    pipe could make the program wait forever.

    Args:
        file: The file.
        remedy: What errors say to do.

    Raises:
        OSError: The file cannot be read.
        ConfigError: It is a pipe or a device, or is too large.
    """
    # Reading a pipe could wait forever. Opening a folder raises an OSError below.
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise ConfigError(
            "this is not a file",
            where=file,
            found="a pipe or a device",
            expected="YAML",
            remedy=remedy,
        )
    with file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(
            "this file is too large",
            where=file,
            found=f"{file.stat().st_size:,} bytes",
            expected=f"at most {MOST_BYTES:,} bytes of settings",
            remedy=remedy,
        )
    return data


def parse_yaml(text: str, where: object, *, remedy: str) -> Any:
    """Parse a YAML text, and turn everything that can go wrong into one kind of error for users.

        seed: 7               {"seed": 7}
        seed: [1              an error: not YAML; expected ',' or ']' (line 2, column 1)
        seed: !!int x         an error: not YAML; invalid literal for int() with base 10: 'x'

    Args:
        text: The text, usually the content of a file of settings.
        where: The file, for messages.
        remedy: What messages tell the user to do.

    Returns:
        The values. The caller must not change them, since the next call for the same text returns
        the same objects.

    Raises:
        ConfigError: The text is not YAML, has a key twice, or has too many or too deeply nested
            values.
    """
    import yaml

    try:
        return _parsed(text)
    except _TooMuchError as error:
        raise ConfigError(
            error.what, where=where, found=error.found, expected=error.expected, remedy=remedy
        ) from error
    except yaml.MarkedYAMLError as error:
        found = _mistake(error)
        raise ConfigError("not YAML", where=where, found=found, remedy=remedy) from error
    except (yaml.YAMLError, *_TAG_ERRORS) as error:
        # Such as a ValueError for `!!int x`. These errors have no line.
        found = shortened(joined_lines(error), _MAX_ERROR_CHARACTERS)
        raise ConfigError("not YAML", where=where, found=found, remedy=remedy) from error


class _TooMuchError(Exception):
    """A YAML text has more or deeper values than any file of settings needs."""

    def __init__(self, what: str, found: str, expected: str) -> None:
        """State what is too much, for the `ConfigError` of the same fields.

        Args:
            what: What is wrong, in a few words.
            found: What the text has, and in which line.
            expected: The limit.
        """
        super().__init__(what)
        self.what = what
        self.found = found
        self.expected = expected


def _too_many_values(line: int) -> _TooMuchError:
    """Return the error for more values than `MOST_VALUES`.

    Args:
        line: Where they are, counted from 0.
    """
    return _TooMuchError(
        "this unpacks to too many values",
        f"more in line {line + 1}, with what aliases and merge keys stand for",
        f"at most {MOST_VALUES:,} values",
    )


def _too_deep(mark: Any) -> _TooMuchError:
    """Return the error for more than `MOST_DEPTH` values that are nested in each other.

    Args:
        mark: Where they are: PyYAML's line and column, counted from 0.
    """
    return _TooMuchError(
        "values are nested too deeply",
        f"more in line {mark.line + 1}, column {mark.column + 1}",
        f"at most {MOST_DEPTH:,} within each other",
    )


def _mistake(error: Any) -> str:
    """Write an error of PyYAML on one line: what is wrong in a text, and in which line of it.

    PyYAML's own message has several lines, with an excerpt of the text. For the text `a: [1`:

        while parsing a flow sequence (line 1, column 4); expected ',' or ']', … (line 2, column 1)

    Args:
        error: A `yaml.MarkedYAMLError`. It has up to two texts, each with a place: what was parsed,
            and what went wrong there.
    """
    context = _text_at(error.context, error.context_mark)  # such as "while parsing a flow sequence"
    problem = _text_at(error.problem, error.problem_mark)
    mistake = "; ".join(filter(None, [context, problem]))
    return shortened(mistake, _MAX_ERROR_CHARACTERS)


def _text_at(text: str | None, mark: Any) -> str:
    """Write a text from an error of PyYAML on one line, with the place that it is about.

        "expected ',' or ']'", and line 2, column 0    "expected ',' or ']' (line 3, column 1)"
        "expected ',' or ']'", and no place            "expected ',' or ']'"
        no text                                        ""

    PyYAML counts lines and columns from 0, and users from 1.

    Args:
        text: The text, if any.
        mark: The place as PyYAML's object with `line` and `column`, if it is known.
    """
    if not text:
        return ""
    if mark is None:
        return joined_lines(text)
    return f"{joined_lines(text)} (line {mark.line + 1}, column {mark.column + 1})"


@lru_cache(maxsize=2)
def _parsed(text: str) -> Any:
    """Return the plain values of a YAML text: "seed: 7" gives {"seed": 7}.

    The last results are kept, since Dagster reads the same file of settings often.

    Args:
        text: The text. An empty one has the value None.

    Raises:
        _TooMuchError: The text has too many or too deeply nested values.
        yaml.YAMLError: The text is not YAML.
    """
    loader = _loader_class()(text)
    # Nodes are values with their lines. They are counted before values are made of them.
    root = loader.get_single_node()
    if root is None:
        return None
    _check_size(root)
    return loader.construct_document(root)


@lru_cache(maxsize=1)
def _loader_class() -> type[Any]:
    """Return PyYAML's loader, with limits, and with an error for a key that occurs twice.

    The class is made in a function, since most calls of nanoset do not need PyYAML.
    """
    import yaml

    class LimitedLoader(yaml.SafeLoader):
        """Reads YAML that people write, and refuses what no file of settings needs."""

        depth = 0
        n_values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Parse the next value of the text, unless there are too many values or levels.

            PyYAML calls this method for each value, and within it for the values in this value. So
            for `[[1]]`, it is called three times, and `depth` is 0, 1 and 2 at the start of these
            calls. For a text of many "[", it would otherwise call itself more often than Python
            allows.
            """
            self.n_values += 1
            if self.n_values > MOST_VALUES:
                raise _too_many_values(self.peek_event().start_mark.line)  # type: ignore[no-untyped-call]
            if self.depth >= MOST_DEPTH:
                raise _too_deep(self.peek_event().start_mark)  # type: ignore[no-untyped-call]
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            """Return a node as a dictionary, unless it has a key twice: PyYAML keeps the last one.

            Args:
                node: The mapping, as PyYAML has parsed it.
                deep: Passed on to PyYAML.
            """
            _check_no_key_twice(node)
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: Any) -> int:
            """Return a node as a whole number, unless it is so long that Python cannot print it."""
            _check_digits(node)
            return int(super().construct_yaml_int(node))

    # PyYAML looks methods for types up in a table, and not by their names.
    LimitedLoader.add_constructor("tag:yaml.org,2002:int", LimitedLoader.construct_yaml_int)
    return LimitedLoader


def _check_no_key_twice(node: Any) -> None:
    """Refuse a mapping in a YAML text that has a key twice.

    PyYAML would silently use the last one, and the user would wonder why the first has no effect:

        seed: 7
        seed: 8        an error: the key 'seed' occurs twice

    Args:
        node: The mapping as PyYAML has parsed it, before a dictionary is made of it: its value is a
            list of pairs (node of the key, node of the value).

    Raises:
        yaml.YAMLError: A key occurs twice.
    """
    from yaml.constructor import ConstructorError

    keys: set[str] = set()
    for key_node, _ in node.value:
        key = str(key_node.value)
        if key in keys:
            message = f"the key {key!r} occurs twice"
            raise ConstructorError(None, None, message, key_node.start_mark)
        keys.add(key)


def _check_digits(node: Any) -> None:
    """Refuse a whole number in a YAML text that is absurdly long, before Python converts it.

    No setting needs more than 64 digits (_MAX_DIGITS). Python cannot print a number of more than
    4,300 digits, so that even a message about it would fail.

    Args:
        node: The number as PyYAML has parsed it: its value is the text of the number, such as
            "1234".

    Raises:
        yaml.YAMLError: The number is longer.
    """
    from yaml.constructor import ConstructorError

    n_digits = len(node.value)
    if n_digits > _MAX_DIGITS:
        message = f"a whole number of {n_digits:,} characters; at most {_MAX_DIGITS} make sense"
        raise ConstructorError(None, None, message, node.start_mark)


def _check_size(root: Any) -> None:
    """Check that a YAML text does not stand for too many values, or for endlessly many.

    An alias (`*x`) repeats a value, so a few lines of YAML can stand for billions of values:

        [&x [1, 2], *x]     7 values: the outer list, and twice a list with two numbers
        &x [*x]             endlessly many, since the list contains itself

    Args:
        root: The text as a tree of nodes. An alias is the same node as the value that it repeats.

    Raises:
        _TooMuchError: There are more than `MOST_VALUES`, or a value contains itself.
    """
    n_values_by_id: dict[int, int] = {}  # id of a node → number of values at and below it
    for node in _children_first(root):
        n_values_by_id[id(node)] = _count_values(node, n_values_by_id)


def _children_first(root: Any) -> Iterator[Any]:
    """Yield each node of a YAML text once, after the nodes below it.

    The text may be nested deeply, so this uses a stack instead of recursion. Each node is on the
    stack twice: first to add its children, and then, below these, to be yielded.

    Args:
        root: The text as a tree of nodes. An alias is the same node as the value that it repeats.

    Raises:
        _TooMuchError: A value contains itself.
    """
    yielded_ids: set[int] = set()
    open_ids: set[int] = set()  # nodes whose children come first
    stack = [(root, False)]  # (node, whether its children were yielded)
    while stack:
        node, were_children_yielded = stack.pop()
        if were_children_yielded:
            open_ids.remove(id(node))
            yielded_ids.add(id(node))
            yield node
        elif id(node) in open_ids:
            found = f"an alias in line {node.start_mark.line + 1}"
            raise _TooMuchError("a value holds itself", found, "no alias within what it stands for")
        elif id(node) not in yielded_ids:
            open_ids.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in _children(node)]


def _count_values(node: Any, n_values_by_id: Mapping[int, int]) -> int:
    """Count the values in a part of a YAML text, including those that an alias repeats.

        &x [1, 2]          3 values: the list and two numbers; `&x` gives it a name
        [&x [1, 2], *x]    7 values: the outer list, and twice these 3

    Args:
        node: The part, as PyYAML has parsed it. An alias is the same node again.
        n_values_by_id: Id of each child of the node → its number of values, which was counted
            before.

    Raises:
        _TooMuchError: There are more than `MOST_VALUES` (100,000).
    """
    count = 1 + sum(n_values_by_id[id(child)] for child in _children(node))
    if count > MOST_VALUES:
        raise _too_many_values(node.start_mark.line)
    return count


def _children(node: Any) -> list[Any]:
    """Return the nodes directly below a node of a YAML text, which PyYAML has parsed.

        text of the node     its value in PyYAML          result
        abc                  "abc"                        nothing
        [1, 2]               a list of two nodes          these
        {a: 1, b: 2}         a list of two pairs          four nodes: a, 1, b and 2

    Args:
        node: The node.
    """
    if isinstance(node.value, str):
        return []
    children: list[Any] = []
    for item in node.value:
        if isinstance(item, tuple):
            children.extend(item)  # key and value
        else:
            children.append(item)
    return children


class _LocatedError(NamedTuple):
    """An error about a key of a YAML file."""

    line: int
    """Line of the key, counted from 1; 0 if the error is not about a key of the file."""
    error: ConfigError


def located(file: Path, text: str, errors: Iterable[ConfigError]) -> ConfigError:
    """Return errors about keys of a YAML file as one error, with the lines of the keys.

    The place "nanoset.yaml: views.en" becomes "nanoset.yaml:12: views.en", so that the user, or an
    editor, can jump to it. Errors about earlier lines come first.

    If YAML has read a name as something else, the error quotes what is written in the file: for the
    key `null`, the place "blend.None" becomes "blend.null", and the remedy is to write "null".

    Args:
        file: The file.
        text: Its content.
        errors: At least one error.
    """
    place_by_key = _place_by_key(text)
    located_errors = [_with_place(error, file, place_by_key) for error in errors]
    located_errors.sort(key=lambda located_error: located_error.line)
    return combined([located_error.error for located_error in located_errors], file)


class _Place(NamedTuple):
    """Where a key of a YAML file is, and how it is written."""

    line: int
    """Its line, counted from 1."""
    path_as_read: str
    """Its path with each key as YAML reads it, such as `blend.None`. Errors name this path."""
    path_as_written: str
    """Its path with each key as it is written in the file, such as `blend.null`."""
    text_to_quote: str | None
    """What the user may have to put in quotes: the key, if YAML does not read it as text, or else
    its value, as written in the file. None if the value is a list or a mapping.
    """


def _with_place(
    error: ConfigError, file: Path, place_by_key: Mapping[str, _Place]
) -> _LocatedError:
    """Add the line to an error about a key of a YAML file, so that the user finds it.

    YAML may read a key as something else than text. Then the error also gets the key as it is
    written in the file. For example, with `null: 7` in line 3 of the mapping `blend`:

        place of the error          in the file           result
        nanoset.yaml: views.en      line 12               nanoset.yaml:12: views.en
        nanoset.yaml: blend.None    line 3                nanoset.yaml:3: blend.null
        nanoset.yaml: views.de.of   views.de in line 14   nanoset.yaml:14: views.de.of

    In the last row, the key `of` is missing in the file. The section that lacks it has the line.

    Args:
        error: The error. Its place is the file and the path of the key: "nanoset.yaml: views.en".
        file: The file.
        place_by_key: Path of each key, as YAML has read it → its place in the file.

    Returns:
        The line, by which the caller sorts errors, and the error. An error about the whole file is
        unchanged, and gets the line 0.
    """
    prefix = f"{file}: "
    where = error.where or ""
    is_about_key = where.startswith(prefix)
    if not is_about_key:
        return _LocatedError(0, error)

    key = where.removeprefix(prefix)  # "views.de.of"
    existing_key = _nearest(key, place_by_key)  # the key itself, or a section: "views.de"
    missing_part = key.removeprefix(existing_key)  # ".of"
    place = place_by_key[existing_key]
    path = place.path_as_written + missing_part

    remedy = None  # keep that of the error
    if not missing_part and place.text_to_quote:
        # The error may suggest quotes. Then quote what is written in the file.
        remedy = _remedy_as_written(error, place.text_to_quote)
    return _LocatedError(place.line, error.at(f"{file}:{place.line}: {path}", remedy))


def _remedy_as_written(error: ConfigError, written: str) -> str | None:
    """Return the remedy for a name that YAML has read as another type, with the name as written.

        in the file    YAML reads    remedy of the error             result
        0x10           16            put it in quotes: "16"          put it in quotes: "0x10"
        null           no value      write "of: web"                 write "of: web"; or if it is a
                                                                     name, put it in quotes: "null"

    Args:
        error: The error about the name.
        written: What is written in the file.

    Returns:
        The remedy; None to keep that of the error.
    """
    remedy = error.remedy or ""
    quoted = f"{QUOTES_REMEDY}{json.dumps(written, ensure_ascii=False)}"
    if remedy.startswith(QUOTES_REMEDY):
        return quoted
    may_be_text = "text" in (error.expected or "")
    if error.found == NO_VALUE and may_be_text:
        return f"{remedy}; or if it is a name, {quoted}"
    return None


def _place_by_key(text: str) -> dict[str, _Place]:
    """Return where each key of a YAML text is, for messages about wrong values.

        views:           line 1
          en: [7]        line 2

    gives places in the lines {"": 1, "views": 1, "views.en": 2, "views.en[0]": 2}. The empty path
    is the whole text.

    Args:
        text: The text, which was parsed without an error before.
    """
    import yaml

    # The values that were parsed from the text have no lines, so parse it again into nodes.
    root = yaml.compose(text)
    if root is None:  # an empty text
        return {"": _Place(line=1, path_as_read="", path_as_written="", text_to_quote=None)}
    whole_text = _Place(
        line=root.start_mark.line + 1,
        path_as_read="",
        path_as_written="",
        text_to_quote=_written_value(root),
    )
    return {place.path_as_read: place for place in _places_within(root, whole_text)}


def _nearest(key: str, known: Collection[str]) -> str:
    """Return the path of a key, or else of the nearest section around it that is in the file.

    An error may be about a key that is missing, so that it has no line. Then the line of the
    section that lacks it is shown. If the file has `views.en` but no `views.en.of`:

        views.en        views.en
        views.en.of     views.en
        seed            ""  (the whole file)

    Names may contain dots themselves, so each shorter path is looked up as a whole.

    Args:
        key: The path of the key.
        known: The paths that are in the file, among them "" for the whole file.
    """
    # Positions at which the path may be cut: before each "." and "[". The longest path first.
    ends = [match.start() for match in re.finditer(r"[.[]", key)]  # [5, 8] for views.en.of
    for end in (len(key), *reversed(ends)):
        if key[:end] in known:
            return key[:end]
    return ""


class _LocatedValue(NamedTuple):
    """A value of a YAML text, and where it is."""

    node: Any
    """The value, a node of PyYAML. Its `value` is a text, a list of nodes, or for a mapping a list
    of pairs (key, value) of nodes.
    """
    place: _Place
    """Where it is."""


def _places_within(root: Any, whole_text: _Place) -> list[_Place]:
    """Return the places of all values of a YAML text, in the order in which they are written.

    For example, the values of `views: {en: [7]}` have the paths "" (the whole text), "views",
    "views.en" and "views.en[0]".

    Args:
        root: The whole text, as PyYAML has parsed it.
        whole_text: Its place.
    """
    places: list[_Place] = []
    visited_ids: set[int] = set()
    values_to_visit = [_LocatedValue(root, whole_text)]  # the next one is the last of the list
    while values_to_visit:
        value = values_to_visit.pop()
        places.append(value.place)

        # An alias of YAML (`*name`) repeats a value. PyYAML then has the same node again, perhaps
        # within itself: do not go into it once more.
        if id(value.node) not in visited_ids:
            visited_ids.add(id(value.node))
            values_to_visit += reversed(_values_directly_in(value))
    return places


def _values_directly_in(value: _LocatedValue) -> list[_LocatedValue]:
    """Return the items of a YAML list, or the values of a mapping; nothing for a text or number.

        views: {en: [7], de: 8}    values "views.en" and "views.de", of the mapping "views"
        en: [7, 8]                 values "en[0]" and "en[1]", of the list "en"

    Args:
        value: The list, mapping or other value.
    """
    if isinstance(value.node.value, str):
        return []
    inner_values: list[_LocatedValue] = []
    for index, item in enumerate(value.node.value):
        if isinstance(item, tuple):  # an entry of a mapping
            key_node, value_node = item
            place = _place_of_entry(value.place, key_node, value_node)
        else:
            value_node = item
            place = _place_of_item(value.place, index, value_node)
        inner_values.append(_LocatedValue(value_node, place))
    return inner_values


def _place_of_item(list_place: _Place, index: int, value_node: Any) -> _Place:
    """Return where an item of a YAML list is, such as `views.en[0]`.

    Args:
        list_place: The place of the list.
        index: The number of the item, counted from 0.
        value_node: The item, as PyYAML has parsed it.
    """
    return _Place(
        line=value_node.start_mark.line + 1,
        path_as_read=f"{list_place.path_as_read}[{index}]",
        path_as_written=f"{list_place.path_as_written}[{index}]",
        text_to_quote=_written_value(value_node),
    )


def _place_of_entry(mapping_place: _Place, key_node: Any, value_node: Any) -> _Place:
    """Return where an entry of a YAML mapping is, for messages about it.

    YAML may read a key or a value as a number, for example, though the user meant a name. Then the
    message asks for quotes around `text_to_quote`. For entries of the mapping `blend`:

        entry        path_as_read    path_as_written    text_to_quote
        web: 0x10    blend.web       blend.web          "0x10"
        null: 7      blend.None      blend.null         "null"    (the key is no text)
        web: [7]     blend.web       blend.web          None      (quotes would make no sense)

    Args:
        mapping_place: The place of the mapping.
        key_node: The key, as PyYAML has parsed it.
        value_node: The value.
    """
    key_as_written: str = key_node.value
    if _is_read_as_text(key_node):
        text_to_quote = _written_value(value_node)
    else:
        text_to_quote = key_as_written
    return _Place(
        line=key_node.start_mark.line + 1,
        path_as_read=_inner_path(mapping_place.path_as_read, _key_as_read(key_node)),
        path_as_written=_inner_path(mapping_place.path_as_written, key_as_written),
        text_to_quote=text_to_quote,
    )


def _is_read_as_text(key_node: Any) -> bool:
    """Return whether YAML reads a key as text, and not as a number, for example.

    Args:
        key_node: The key, as PyYAML has parsed it.
    """
    return key_node.tag not in _TAGS_OF_OTHER_TYPES


def _inner_path(mapping_path: str, key: str) -> str:
    """Return the path of an entry of a mapping, such as "views.en", or "views" in the whole text.

    Args:
        mapping_path: Path of the mapping; "" for the whole text.
        key: Key of the entry.
    """
    return f"{mapping_path}.{key}".lstrip(".")


def _written_value(node: Any) -> str | None:
    """Return a value as it is written in a YAML text, such as "0x10"; None for a list or mapping.

    Args:
        node: The value, as PyYAML has parsed it.
    """
    return node.value if isinstance(node.value, str) else None


def _key_as_read(node: Any) -> str:
    """Return a key of a YAML text as errors name it: what YAML reads, as Python prints it.

        web     web
        null    None
        0x10    16

    Args:
        node: The key, as PyYAML has parsed it.
    """
    if _is_read_as_text(node):
        return str(node.value)
    return str(_loader_class()("").construct_object(node))


def yaml_value(text: str) -> str:
    """Return a text in the form of a YAML value, in quotes unless it needs none.

    Args:
        text: The text: `web` needs no quotes, but `no` does, which YAML takes for false.
    """
    if _PLAIN_TEXT.fullmatch(text) is not None:
        import yaml

        if yaml.safe_load(text) == text:
            return text
    return json.dumps(text, ensure_ascii=visible(text) != text)
