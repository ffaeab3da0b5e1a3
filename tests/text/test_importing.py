import datetime
import gzip
import json

import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.text.importing import ImportFacts, import_parquet

pa = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")

GOLDEN = GOLDEN_FILES / "datasets"
KINDS = ["parquet", "file", "stream"]
TABLE = pa.table(
    {
        "text": ['a "quoted"\nline', None, "日本"],
        "n": [1, None, -3],
        "x": [0.5, float("nan"), 1000.0],
        "when": pa.array([datetime.datetime(2024, 1, 31, 23, 59)] * 3, pa.timestamp("ms", "UTC")),
        "meta": pa.array(
            [{"url": "u", "tags": ["t"]}, None, {"url": None, "tags": []}],
            pa.struct([("url", pa.string()), ("tags", pa.list_(pa.string()))]),
        ),
    }
)
LINES = (
    b'{"text":"a \\"quoted\\"\\nline","n":1,"x":0.5,"when":"2024-01-31T23:59:00.000Z",'
    b'"meta":{"url":"u","tags":["t"]}}\n'
    b'{"text":null,"n":null,"x":null,"when":"2024-01-31T23:59:00.000Z","meta":null}\n'
    + '{"text":"日本","n":-3,"x":1000.0,"when":"2024-01-31T23:59:00.000Z","meta":{"url":null,"tags":[]}}\n'.encode()
)


@pytest.fixture
def write(tmp_path, as_file):
    def write(table, kind="parquet", folder=".", **options):
        name, data = as_file(table, kind, **options)
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_bytes(data)
        return tmp_path / folder / name

    return write


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 1000])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_lines(tmp_path, write, kind, rows, suffix):
    source, target = write(TABLE, kind, rows=rows), tmp_path / "out" / f"a{suffix}"
    facts = import_parquet(source, target)
    data = target.read_bytes()
    plain = {".gz": gzip.decompress, ".zst": lambda data: zstandard.decompress(data, 1 << 20)}.get(
        target.suffix, bytes
    )
    assert plain(data) == LINES
    assert facts == ImportFacts(1, 3, len(LINES), len(data))
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    import_parquet([str(source)], str(target))
    assert target.read_bytes() == data


def test_columns_are_kept_in_the_order_given(tmp_path, write):
    for kind in KINDS:
        import_parquet(write(TABLE, kind), tmp_path / "a.jsonl", columns=["n", "text"])
        lines = (tmp_path / "a.jsonl").read_text().splitlines()
        assert lines == [
            '{"n":1,"text":"a \\"quoted\\"\\nline"}',
            '{"n":null,"text":null}',
            '{"n":-3,"text":"日本"}',
        ]


def test_folders_in_natural_order(tmp_path, write):
    for number, folder in ((10, "f"), (2, "f"), (1, "f/sub"), (0, "g")):
        write(
            pa.table({"n": [number]}),
            "stream" if number == 2 else "parquet",
            folder,
            stem=f"part-{number}",
        )
    (tmp_path / "f" / "README.md").write_text("not a table")
    (tmp_path / "f" / "lines.jsonl").write_text('{"n": 5}\n')
    facts = import_parquet([tmp_path / "g", tmp_path / "f"], tmp_path / "all.jsonl")
    assert (tmp_path / "all.jsonl").read_text() == '{"n":0}\n{"n":2}\n{"n":10}\n{"n":1}\n'
    assert (facts.files, facts.rows) == (4, 4)


def test_tables_without_rows_or_columns(tmp_path, write):
    write(pa.table({"text": pa.array([], pa.string())}), "stream", "f", stem="a")
    facts = import_parquet(tmp_path / "f", tmp_path / "a.jsonl")
    assert facts == ImportFacts(1, 0, 0, 0)
    assert (tmp_path / "a.jsonl").read_bytes() == b""


def test_saved_dataset_of_hugging_face(tmp_path):
    """The rows that the library's own to_json writes; times apart, which it writes as milliseconds."""
    expected = [json.loads(line) for line in (GOLDEN / "rows.jsonl").read_text().splitlines()]
    for row in expected:
        instant = datetime.datetime.fromtimestamp(row["when"] / 1000, datetime.UTC)
        row["when"] = instant.strftime("%Y-%m-%dT%H:%M:%S.") + f"{row['when'] % 1000:03d}456"
    for source in (GOLDEN / "saved", GOLDEN / "rows.parquet"):
        import_parquet(source, tmp_path / "a.jsonl")
        rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
        assert [row | {"when": row["when"][:26]} for row in rows] == expected


def fails(error, match, *args, **options):
    target = args[1]
    with pytest.raises(error, match=match):
        import_parquet(*args, **options)
    assert not target.exists()
    if target.parent.exists():
        assert not [path for path in target.parent.iterdir() if path.name.startswith(".tmp-")]


def test_values_that_json_cannot_hold_name_file_and_column(tmp_path, write):
    for kind in KINDS:
        table = pa.table({"text": ["a", "b"], "image": [b"ok", b"\x89PNG\xff"]})
        source = write(table, kind, rows=1)
        fails(
            InputError,
            rf"{source.name}: the column 'image'.*\n.*PNG.*rows 2 to 2",
            source,
            tmp_path / "o.jsonl",
        )
        import_parquet(source, tmp_path / "text.jsonl", columns=["text"])
        assert (tmp_path / "text.jsonl").read_text() == '{"text":"a"}\n{"text":"b"}\n'


def test_missing_and_double_columns(tmp_path, write):
    source = write(TABLE)
    fails(
        InputError,
        "the column 'txt' is missing",
        source,
        tmp_path / "o.jsonl",
        columns=["text", "txt"],
    )
    double = write(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"]), "stream", stem="double"
    )
    fails(InputError, "the column 'n' is there twice", double, tmp_path / "o.jsonl")


def test_damaged_table(tmp_path, write):
    for kind in KINDS:
        source = write(TABLE, kind, rows=1)
        source.write_bytes(source.read_bytes()[:-9])
        fails(FormatError, "a table is damaged", source, tmp_path / "o.jsonl")


def test_what_was_there_stays_when_an_import_fails(tmp_path, write):
    source, target = write(TABLE), tmp_path / "o.jsonl"
    target.write_text("old\n")
    source.write_bytes(b"PAR1")
    with pytest.raises(FormatError):
        import_parquet(source, target)
    assert target.read_text() == "old\n"


def test_arguments(tmp_path, write):
    source = write(TABLE)
    (tmp_path / "empty").mkdir()
    fails(ConfigError, "not a file of JSON lines", source, tmp_path / "o.json")
    fails(ConfigError, "one of them twice", source, tmp_path / "o.jsonl", columns=["n", "n"])
    fails(ConfigError, "no columns", source, tmp_path / "o.jsonl", columns=[])
    fails(
        MissingError, "no such file or folder", tmp_path / "nothing.parquet", tmp_path / "o.jsonl"
    )
    fails(InputError, "no tables", tmp_path / "empty", tmp_path / "o.jsonl")
    fails(InputError, "nothing to import", [], tmp_path / "o.jsonl")


def test_the_command_replaces_nothing_unasked(tmp_path, write):
    source, target = write(TABLE), tmp_path / "x.jsonl"

    def run(*more):
        return invoke_nanoset(["import-parquet", str(source), "--output", str(target), *more])

    first = run("--columns", "n")
    data = target.read_bytes()
    assert run("--columns", "n").output == first.output.replace("\n", " (already exists)\n")
    refused = run()
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.found == "--columns: ['n'] → none"
    assert target.read_bytes() == data
    assert run("--overwrite").exit_code == 0
    assert target.read_bytes() == LINES
    write(TABLE.slice(1))
    assert "written again since" in run().exception.found
    target.unlink()
    target.symlink_to(source)
    assert "an input would be overwritten" in str(run("--overwrite").exception)
    assert "rename it" in run("--overwrite", "--output", str(tmp_path / "x.txt")).exception.remedy


def test_a_folder_with_the_name_of_a_table_is_named(tmp_path):
    with pa.ipc.new_file(tmp_path / "a.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE)
    (tmp_path / "b.parquet").mkdir()
    with pytest.raises(InputError, match="a folder has the name of a table"):
        import_parquet(tmp_path, tmp_path / "out.jsonl")
