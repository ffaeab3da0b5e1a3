"""Views of many documents: ids taken out, hundreds in one pass, conditions compared with DuckDB alone,
tables joined by id.

    python -m benchmarks.views [--millions 10] [--folder FOLDER]

The documents are made up: an id of 20 characters, a topic of 40, a quality of 5, 1 to 127 tokens;
their tables are Parquet files of a million rows with zstd, as shards have them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.growth import write_dataset
from benchmarks.harness import options
from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.relation import DocumentRelation, TableSource, value_type
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.formats.indexed.layout import read_idx
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.stages.attributes.tables import AttributeTables
from nanoset_core.stages.columns.column_table import ColumnTable
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.rules import HashSplit, Listed, Rule, Where
from nanoset_core.stages.views.selection import select
from nanoset_core.stages.views.tables import ShardTables, joined_shards
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.text.listing import stat_file

SHARD = 1_000_000
TOPICS, QUALITIES = 40, 5
CONDITION_RUNS = 5


def shards(folder: Path) -> Iterator[ShardTables]:
    """Yield the files of a folder as shards that are read together."""
    first = 0
    for tables in joined_shards(file_as_shard(path) for path in sorted(folder.glob("*.parquet"))):
        yield replace(tables, first=first)
        first += tables.n_documents


def file_as_shard(path: Path) -> ShardTables:
    """Return a Parquet file as a shard."""
    import pyarrow as pa

    with RowGroups(path) as file:
        source = TableSource((path,), file.schema, metadata=(file.metadata,))
    types = {field.name: value_type(field.type) for field in source.stored}
    return ShardTables(
        first=0,
        n_documents=source.metadata[0].num_rows,
        n_tokens=0,  # of a real shard, its manifest has this number
        relation=DocumentRelation(pa.schema(types), (source,)),
    )


def write_tables(folder: Path, prefix: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths, rng = (
        read_idx(prefix.with_suffix(".idx"), validate=False).sequence_lengths,
        np.random.default_rng(1),
    )
    topics = pa.array([f"topic-{number:02d}" for number in range(TOPICS)])
    for begin in range(0, len(lengths), SHARD):
        rows = len(lengths[begin : begin + SHARD])
        digits = np.char.add(
            "https://", np.char.zfill(np.arange(begin, begin + rows).astype("U12"), 12)
        )
        table = pa.table(
            {
                "id": pa.array(digits),
                "tokens": pa.array(lengths[begin : begin + rows]),
                "topic": pa.DictionaryArray.from_arrays(
                    pa.array(rng.integers(0, TOPICS, rows, np.int32)), topics
                ),
                "quality": pa.array(rng.integers(0, QUALITIES, rows)),
            }
        )
        pq.write_table(
            table,
            folder / f"{begin // SHARD:06d}.parquet",
            row_group_size=1 << 16,
            compression="zstd",
        )


def timed(what: str, work: Callable[[], Any]) -> tuple[float, Any]:
    begun, used = time.monotonic(), time.process_time()
    found = work()
    wall, cpu = time.monotonic() - begun, time.process_time() - used
    print(f"| {what} | {wall:.1f} | {cpu:.1f} |", flush=True)
    return wall, found


def chosen(folder: Path, rules: list[Rule]) -> list[Any]:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return [(one.documents, one.tokens) for one in select(shards(folder), rules, Path(scratch))]


def main() -> None:
    arguments = options(__doc__, millions=10.0, folder="")
    documents = int(float(arguments.millions) * 1_000_000)
    print("| what | seconds | of CPU |\n| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory(dir=arguments.folder or None) as temporary:
        folder, prefix = Path(temporary), Path(temporary, "web_text_document")
        timed("made up", lambda: (write_dataset(prefix, documents), write_tables(folder, prefix)))
        without(folder, prefix, documents)
        many(folder, documents)
        condition(folder)
        joined(folder, documents)


def without(folder: Path, prefix: Path, documents: int) -> None:
    """Take 1,000 ids out, and write the .idx."""
    import pyarrow as pa

    numbers = np.random.default_rng(2).choice(documents, 1000, replace=False)
    ids = Ids(pa.array([f"https://{number:012d}" for number in numbers], pa.large_string()))
    rule = Rule((Listed("clean", ids, keep=False, text="exclude"),))

    def make() -> int:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (found,) = select(shards(folder), [rule], Path(scratch))
            base = read_idx(prefix.with_suffix(".idx"), validate=False)
            assert (
                write_view_idx(Path(scratch, "view.idx"), base, found.chunks).documents
                == documents - 1000
            )
            return sum(path.stat().st_size for path in Path(scratch).iterdir())

    wall, written = timed(f"1,000 ids out of {documents:,} documents", make)
    print(f"  {written / 1e9:.2f} GB written, {wall / documents * 1e9:.0f} ns a document")


def many(folder: Path, documents: int) -> None:
    """Choose 40 topics times 5 qualities in one pass."""
    rules = [
        Rule(
            (
                Where(
                    "one",
                    parse_condition(
                        f"topic = 'topic-{topic:02d}' and quality = {quality}", "where"
                    ),
                ),
            )
        )
        for topic in range(TOPICS)
        for quality in range(QUALITIES)
    ]
    _, found = timed("200 views", lambda: chosen(folder, rules))
    assert sum(count for count, _ in found) == documents


def condition(folder: Path) -> None:
    """Choose by a condition, and compare it with DuckDB alone, which counts and sums up."""
    import duckdb

    text = "quality >= 3 and topic in ('topic-01', 'topic-02', 'topic-03')"
    rule = Rule((Where("one", parse_condition(text, "where")),))
    query = f"select count(*), sum(tokens) from '{folder}/*.parquet' where {text}"

    def ask_duckdb() -> Any:
        with duckdb.connect(config={"threads": 1}) as connection:
            return connection.execute(query).fetchone()

    ratios = []
    for _ in range(CONDITION_RUNS):
        started = time.process_time()
        [counts] = chosen(folder, [rule])
        ours = time.process_time() - started
        started = time.process_time()
        assert ask_duckdb() == counts
        theirs = time.process_time() - started
        ratios.append(ours / theirs)
        print(f"| where {text} | | {ours:.3f} |")
        print(f"| the same by DuckDB alone, one thread | | {theirs:.3f} |", flush=True)
    print(f"  {sorted(ratios)[len(ratios) // 2]:.2f}x of DuckDB (median), counts equal")
    timed("a split by id", lambda: chosen(folder, [Rule((HashSplit("one", "id", 0.0, 0.01),))]))


def joined(folder: Path, documents: int) -> None:
    """Join a table of scores to all documents, as many rows in an order that has nothing to do with
    theirs.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write_scores() -> None:
        step = next(
            step
            for step in range(int(documents * 0.618), documents)
            if np.gcd(step, documents) == 1
        )
        for begin in range(0, documents, SHARD):
            numbers = np.arange(begin, min(begin + SHARD, documents)) * step % documents
            ids = np.char.add("https://", np.char.zfill(numbers.astype("U12"), 12))
            values = {
                "id": ids,
                "score": numbers / documents,
                "language": np.array(["de", "en", "fr"])[numbers % 3],
            }
            pq.write_table(
                pa.table(values), scores / f"{begin // SHARD:06d}.parquet", compression="zstd"
            )

    def read() -> Any:
        files = [stat_file(scores, path.name) for path in sorted(scores.glob("*.parquet"))]
        schema = AttributeSchema("id", None, (), "attributes.web")
        return AttributeTables(scores, files, schema).read(scratch, lambda _: None)

    def join() -> None:
        opened, begin = lookup.open_files(), 0
        for path in sorted(folder.glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches(1 << 16, columns=["id"]):
                rows, _ = opened.find(batch.column("id"))
                score, language = opened.take(rows)
                end = begin + batch.num_rows
                assert np.array_equal(score.to_numpy(), np.arange(begin, end) / documents)
                begin = end
                with ColumnTable(scratch / "columns.parquet", ["score", "language"]) as table:
                    table.add([[score, language]])

    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        scores, scratch = Path(temporary, "scores"), Path(temporary, "scratch")
        scores.mkdir(), scratch.mkdir()
        timed("scores made up", write_scores)
        wall, lookup = timed(f"{documents:,} rows read and sorted by id", read)
        more, _ = timed(f"{documents:,} documents joined with them", join)
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        anonymous = int(status.partition("RssAnon:")[2].split()[0]) / 1e3
        size = sum(path.stat().st_size for path in scratch.iterdir()) / documents
        each = (wall + more) / documents * 1e6
        print(
            f"  {each:.1f} µs a row, {size:.0f} bytes of scratch a row, {anonymous:.0f} MB of "
            "memory"
        )


if __name__ == "__main__":
    main()
