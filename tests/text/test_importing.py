"""Import of Parquet and Arrow tables as files of JSON lines, and when it is refused."""

import datetime
import gzip
import json

import pyarrow as pa
import pytest
import zstandard

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from helpers.table_files import TABLE_KINDS, encode_table
from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.text.importing import ImportFacts, import_once, import_parquet

SAVED_BY_HUGGING_FACE = GOLDEN_FILES / "datasets"
"""A dataset that the library `datasets` saved, and its rows as JSON lines and as Parquet."""
TABLE = pa.table(
    {
        "text": ['a "quoted"\nline', None, "日本"],
        "n": [1, None, -3],
        "x": [0.5, float("nan"), 1000.0],
        "when": pa.array(
            [datetime.datetime(2024, 1, 31, 23, 59)] * 3,
            pa.timestamp("ms", "UTC"),
        ),
        "meta": pa.array(
            [{"url": "u", "tags": ["t"]}, None, {"url": None, "tags": []}],
            pa.struct([("url", pa.string()), ("tags", pa.list_(pa.string()))]),
        ),
    }
)
LINES = (
    '{"text":"a \\"quoted\\"\\nline","n":1,"x":0.5,"when":"2024-01-31T23:59:00.000Z",'
    '"meta":{"url":"u","tags":["t"]}}\n'
    '{"text":null,"n":null,"x":null,"when":"2024-01-31T23:59:00.000Z","meta":null}\n'
    '{"text":"日本","n":-3,"x":1000.0,"when":"2024-01-31T23:59:00.000Z",'
    '"meta":{"url":null,"tags":[]}}\n'
).encode()
"""What TABLE is imported as."""

every_kind = pytest.mark.parametrize("kind", TABLE_KINDS)


@pytest.fixture
def write_file(tmp_path):
    """A function that writes a table to a folder, and returns the path of its file."""

    def write(table, kind="parquet", folder=".", **options):
        name, data = encode_table(table, kind, **options)
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return write


# Lines

DECOMPRESS_BY_SUFFIX = {
    ".jsonl": bytes,
    ".gz": gzip.decompress,
    ".zst": lambda data: zstandard.decompress(data, max_output_size=1 << 20),
}


@every_kind
@pytest.mark.parametrize("rows_per_batch", [1, 2, 1000])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_every_row_becomes_a_line(tmp_path, write_file, kind, rows_per_batch, suffix):
    source = write_file(TABLE, kind, rows_per_batch=rows_per_batch)
    target = tmp_path / "out" / f"a{suffix}"

    facts = import_parquet(source, target)

    data = target.read_bytes()
    decompress = DECOMPRESS_BY_SUFFIX[target.suffix]
    assert decompress(data) == LINES
    assert facts == ImportFacts(files=1, rows=3, written_bytes=len(LINES), stored_bytes=len(data))
    assert list(target.parent.iterdir()) == [target]


@every_kind
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_another_import_of_the_same_table_writes_the_same_bytes(tmp_path, write_file, kind, suffix):
    source = write_file(TABLE, kind, rows_per_batch=2)
    target = tmp_path / f"out{suffix}"
    import_parquet(source, target)
    data = target.read_bytes()

    import_parquet([str(source)], str(target))  # paths may be strings, too

    assert target.read_bytes() == data


@every_kind
def test_only_the_requested_columns_are_written_in_the_requested_order(tmp_path, write_file, kind):
    target = tmp_path / "a.jsonl"

    import_parquet(write_file(TABLE, kind), target, columns=["n", "text"])

    assert target.read_text().splitlines() == [
        '{"n":1,"text":"a \\"quoted\\"\\nline"}',
        '{"n":null,"text":null}',
        '{"n":-3,"text":"日本"}',
    ]


def test_the_tables_of_folders_are_imported_in_natural_order(tmp_path, write_file):
    write_file(pa.table({"n": [10]}), "parquet", "f", stem="part-10")
    write_file(pa.table({"n": [2]}), "stream", "f", stem="part-2")
    write_file(pa.table({"n": [1]}), "parquet", "f/sub", stem="part-1")
    write_file(pa.table({"n": [0]}), "parquet", "g", stem="part-0")
    (tmp_path / "f" / "README.md").write_text("not a table")
    (tmp_path / "f" / "lines.jsonl").write_text('{"n": 5}\n')
    target = tmp_path / "all.jsonl"

    facts = import_parquet([tmp_path / "g", tmp_path / "f"], target)

    assert target.read_text() == '{"n":0}\n{"n":2}\n{"n":10}\n{"n":1}\n'
    assert facts.files == 4
    assert facts.rows == 4


def test_a_table_without_rows_becomes_an_empty_file(tmp_path, write_file):
    source = write_file(pa.table({"text": pa.array([], pa.string())}), "stream")
    target = tmp_path / "a.jsonl"

    facts = import_parquet(source.parent, target)

    assert facts == ImportFacts(files=1, rows=0, written_bytes=0, stored_bytes=0)
    assert target.read_bytes() == b""


@pytest.mark.parametrize("source", ["saved", "rows.parquet"])
def test_a_dataset_of_hugging_face_has_the_rows_that_its_own_to_json_writes(tmp_path, source):
    expected_rows = []
    for line in (SAVED_BY_HUGGING_FACE / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        # The library writes times as milliseconds; here, they are texts with microseconds.
        seconds, milliseconds = divmod(row["when"], 1000)
        instant = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        row["when"] = instant.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds:03d}456"
        expected_rows.append(row)

    import_parquet(SAVED_BY_HUGGING_FACE / source, tmp_path / "a.jsonl")

    rows = []
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        row = json.loads(line)
        row["when"] = row["when"][:26]  # without the zone
        rows.append(row)
    assert rows == expected_rows


# Errors


def check_import_fails(error, message, source, target, **options):
    """Check that an import fails with an error, and leaves no file behind."""
    with pytest.raises(error, match=message):
        import_parquet(source, target, **options)

    assert not target.exists()
    if target.parent.exists():
        temporary_files = list(target.parent.glob(".tmp-*"))
        assert temporary_files == []


@pytest.fixture
def write_image_table(write_file):
    """A function that writes a table whose second row has bytes that JSON cannot hold."""
    columns = {"text": ["a", "b"], "image": [b"ok", b"\x89PNG\xff"]}
    return lambda kind: write_file(pa.table(columns), kind, rows_per_batch=1)


@every_kind
def test_a_value_that_json_cannot_hold_is_an_error_with_its_file_column_and_rows(
    tmp_path, write_image_table, kind
):
    source = write_image_table(kind)

    check_import_fails(
        InputError,
        rf"{source.name}: the column 'image'.*\n.*PNG.*rows 2 to 2",
        source,
        tmp_path / "o.jsonl",
    )


@every_kind
def test_the_other_columns_of_a_value_that_json_cannot_hold_can_be_imported(
    tmp_path, write_image_table, kind
):
    target = tmp_path / "text.jsonl"

    import_parquet(write_image_table(kind), target, columns=["text"])

    assert target.read_text() == '{"text":"a"}\n{"text":"b"}\n'


def test_a_missing_column_is_an_error(tmp_path, write_file):
    check_import_fails(
        InputError,
        "the column 'txt' is missing",
        write_file(TABLE),
        tmp_path / "o.jsonl",
        columns=["text", "txt"],
    )


def test_two_columns_with_the_same_name_are_an_error(tmp_path, write_file):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"])
    source = write_file(table, "stream")

    check_import_fails(InputError, "the column 'n' is there twice", source, tmp_path / "o.jsonl")


@every_kind
def test_a_damaged_table_is_an_error(tmp_path, write_file, kind):
    source = write_file(TABLE, kind, rows_per_batch=1)
    source.write_bytes(source.read_bytes()[:-9])

    check_import_fails(FormatError, "a table is damaged", source, tmp_path / "o.jsonl")


def test_the_old_file_stays_if_an_import_fails(tmp_path):
    source = tmp_path / "a.parquet"
    source.write_bytes(b"PAR1")
    target = tmp_path / "o.jsonl"
    target.write_text("old\n")

    with pytest.raises(FormatError):
        import_parquet(source, target)

    assert target.read_text() == "old\n"


def test_the_name_of_the_output_must_be_that_of_a_file_of_json_lines(tmp_path, write_file):
    check_import_fails(
        ConfigError, "not a file of JSON lines", write_file(TABLE), tmp_path / "o.json"
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        pytest.param(["n", "n"], "one of them twice", id="a column twice"),
        pytest.param([], "no columns", id="no columns"),
    ],
)
def test_columns_that_make_no_sense_are_an_error(tmp_path, write_file, columns, message):
    target = tmp_path / "o.jsonl"

    check_import_fails(ConfigError, message, write_file(TABLE), target, columns=columns)


def test_a_missing_file_is_an_error(tmp_path):
    check_import_fails(
        MissingError,
        "no such file or folder",
        tmp_path / "nothing.parquet",
        tmp_path / "o.jsonl",
    )


def test_a_folder_without_tables_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()

    check_import_fails(InputError, "no tables", tmp_path / "empty", tmp_path / "o.jsonl")


def test_an_import_of_no_files_is_an_error(tmp_path):
    check_import_fails(InputError, "nothing to import", [], tmp_path / "o.jsonl")


def test_a_folder_with_the_name_of_a_table_is_an_error(tmp_path, write_file):
    write_file(TABLE, "file")
    (tmp_path / "b.parquet").mkdir()

    check_import_fails(
        InputError, "a folder has the name of a table", tmp_path, tmp_path / "out.jsonl"
    )


# The command


class ImportCommand:
    """`nanoset import-parquet` of a table."""

    def __init__(self, source, target):
        self.source = source
        self.target = target

    def run(self, *options):
        """Run the command."""
        arguments = ["import-parquet", str(self.source), "--output", str(self.target)]
        return invoke_nanoset([*arguments, *options])


@pytest.fixture
def command(tmp_path, write_file):
    """The command that imports TABLE, which has not been run."""
    return ImportCommand(write_file(TABLE), tmp_path / "x.jsonl")


def test_the_same_import_is_not_repeated(command):
    first = command.run("--columns", "n")

    second = command.run("--columns", "n")

    assert second.output == first.output.replace("\n", " (already exists)\n")


def test_the_output_of_another_import_is_not_replaced(command):
    command.run("--columns", "n")
    data = command.target.read_bytes()

    result = command.run()

    assert isinstance(result.exception, ConfigError)
    assert result.exception.found == "--columns: ['n'] → none"
    assert command.target.read_bytes() == data


def test_the_output_of_another_import_is_replaced_if_requested(command):
    command.run("--columns", "n")

    result = command.run("--overwrite")

    assert result.exit_code == 0
    assert command.target.read_bytes() == LINES


def test_the_output_of_another_table_is_not_replaced(command, write_file):
    command.run()
    write_file(TABLE.slice(1))

    result = command.run()

    assert "written again since" in result.exception.found


def test_facts_that_a_later_version_has_added_to_a_receipt_are_ignored(tmp_path, write_file):
    source = write_file(TABLE)
    target = tmp_path / "a.jsonl"
    facts, _ = import_once([source], target)
    receipt = tmp_path / ".a.jsonl.made.json"
    content = json.loads(receipt.read_bytes())
    content["facts"]["columns"] = 5
    receipt.write_text(json.dumps(content))

    assert import_once([source], target) == (facts, False)


def test_an_input_is_never_replaced(command):
    command.target.symlink_to(command.source)

    result = command.run("--overwrite")

    assert "an input would be overwritten" in str(result.exception)


def test_an_error_says_how_to_name_the_output(command, tmp_path):
    result = command.run("--overwrite", "--output", str(tmp_path / "x.txt"))

    assert "rename it" in result.exception.remedy
