"""Views of many documents: ids taken out, hundreds in one pass, conditions compared with DuckDB alone,
tables joined by id.

    python -m benchmarks.views [--millions 10] [--folder FOLDER]

The documents are made up: an id of 20 characters, a topic of 40, a quality of 5, a score, 1 to 127 tokens;
their tables are Parquet files of a million rows with zstd, as shards have them.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.growth import write_dataset
from benchmarks.harness import options
from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.relation import DocumentRelation, TableSource, value_type
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.formats.indexed.layout import read_idx
from nanoset_core.project.columns.statistics import ColumnReading
from nanoset_core.stages.attributes.lookup import Lookup
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.stages.attributes.tables import AttributeTables
from nanoset_core.stages.columns.column_table import ColumnTable
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.rules import HashSplit, Listed, Rule, Top, Where
from nanoset_core.stages.views.selection import select
from nanoset_core.stages.views.tables import JoinedTables, ShardTables, joined_tables
from nanoset_core.stages.views.writing import write_view_idx
from nanoset_core.text.files.listing import stat_file

_T = TypeVar("_T")

SHARD = 1_000_000
"""Documents of a file."""
TOPICS = 40
QUALITIES = 5
EXCLUDED = 1_000
CONDITION_RUNS = 5
NULL_SHARE = 0.03
"""Documents without a score."""


def main() -> None:
    arguments = options(__doc__, millions=10.0, folder="")
    n_documents = int(arguments.millions * 1_000_000)
    print("| what | seconds | of CPU |\n| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory(dir=arguments.folder or None) as temporary:
        folder = Path(temporary)
        prefix = folder / "web_text_document"
        timed("the pair made up", lambda: write_dataset(prefix, n_documents))
        timed("its tables made up", lambda: write_tables(folder, prefix))
        exclude_ids(folder, prefix, n_documents)
        choose_many_views(folder, n_documents)
        choose_by_condition(folder)
        choose_best(folder, n_documents)
        summarise_columns(folder)
        join_scores(folder, n_documents)


def timed(what: str, work: Callable[[], _T]) -> tuple[float, _T]:
    """Call a function, print a row of what it took, and return the seconds and its result."""
    wall_started = time.monotonic()
    cpu_started = time.process_time()
    result = work()
    wall = time.monotonic() - wall_started
    cpu = time.process_time() - cpu_started
    print(f"| {what} | {wall:.1f} | {cpu:.1f} |", flush=True)
    return wall, result


def write_tables(folder: Path, prefix: Path) -> None:
    """Write the tables of the documents of a pair.

    Args:
        folder: Folder for the Parquet files.
        prefix: Path of the pair, without the endings.
    """
    lengths = read_idx(prefix.with_suffix(".idx"), validate=False).sequence_lengths
    rng = np.random.default_rng(1)
    topics = pa.array([f"topic-{number:02d}" for number in range(TOPICS)])
    for shard, begin in enumerate(range(0, len(lengths), SHARD)):
        shard_lengths = lengths[begin : begin + SHARD]
        n_rows = len(shard_lengths)
        topic_numbers = pa.array(rng.integers(0, TOPICS, n_rows, np.int32))
        columns = {
            "id": document_ids(np.arange(begin, begin + n_rows)),
            "tokens": pa.array(shard_lengths),
            "topic": pa.DictionaryArray.from_arrays(topic_numbers, topics),
            "quality": pa.array(rng.integers(0, QUALITIES, n_rows)),
            "score": pa.array(rng.normal(size=n_rows), mask=rng.random(n_rows) < NULL_SHARE),
        }
        path = folder / f"{shard:06d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=1 << 16, compression="zstd")


def document_ids(numbers: NDArray[np.int64]) -> pa.Array:
    """Return the ids of documents: those of numbers 5 and 6 end in 5 and 6."""
    digits = np.char.zfill(numbers.astype("U12"), 12)
    return pa.array(np.char.add("https://", digits))


def read_shards(folder: Path) -> Iterator[JoinedTables]:
    """Return the files of a folder as shards that are read together."""
    files = sorted(folder.glob("*.parquet"))
    shards = [file_as_shard(path) for path in files]
    return joined_tables(shards, first_document=0)


def file_as_shard(path: Path) -> ShardTables:
    """Return a Parquet file as a shard."""
    with RowGroups(path) as file:
        source = TableSource((path,), file.schema, metadata=(file.metadata,))
    types = {field.name: value_type(field.type) for field in source.stored_schema}
    return ShardTables(
        n_documents=source.metadata[0].num_rows,
        n_tokens=0,  # of a real shard, its manifest has this number
        relation=DocumentRelation(pa.schema(types), (source,)),
    )


def choose(folder: Path, rules: list[Rule]) -> list[tuple[int, int]]:
    """Return the documents and tokens that each rule chooses."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        selections = select(read_shards(folder), rules, Path(scratch))
        return [(selection.documents, selection.tokens) for selection in selections]


def exclude_ids(folder: Path, prefix: Path, n_documents: int) -> None:
    """Time a view without some ids, and its .idx."""
    numbers = np.random.default_rng(2).choice(n_documents, EXCLUDED, replace=False)
    ids = Ids(document_ids(numbers).cast(pa.large_string()))
    rule = Rule((Listed("clean", (ids,), keep=False, text="exclude"),))

    def make_view() -> int:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            scratch = Path(temporary)
            [selection] = select(read_shards(folder), [rule], scratch)
            base = read_idx(prefix.with_suffix(".idx"), validate=False)
            view = write_view_idx(scratch / "view.idx", base, selection.chunks)
            assert view.documents == n_documents - EXCLUDED
            return sum(path.stat().st_size for path in scratch.iterdir())

    wall, written = timed(f"{EXCLUDED:,} ids out of {n_documents:,} documents", make_view)
    print(f"  {written / 1e9:.2f} GB written, {wall / n_documents * 1e9:.0f} ns a document")


def choose_many_views(folder: Path, n_documents: int) -> None:
    """Time a view of each topic and quality, all in one pass. Each document is in one of them."""
    rules = []
    for topic, quality in product(range(TOPICS), range(QUALITIES)):
        text = f"topic = 'topic-{topic:02d}' and quality = {quality}"
        rules.append(Rule((Where("one", parse_condition(text, "where")),)))
    _, counts = timed(f"{len(rules)} views", lambda: choose(folder, rules))
    assert sum(documents for documents, _ in counts) == n_documents


def choose_by_condition(folder: Path) -> None:
    """Time a condition beside DuckDB alone, which counts and sums up; and a split by ids."""
    text = "quality >= 3 and topic in ('topic-01', 'topic-02', 'topic-03')"
    rule = Rule((Where("one", parse_condition(text, "where")),))
    query = f"select count(*), sum(tokens) from '{folder}/*.parquet' where {text}"

    def ask_duckdb() -> Any:
        with duckdb.connect(config={"threads": 1}) as connection:
            return connection.execute(query).fetchone()

    ratios = []
    for _ in range(CONDITION_RUNS):
        started = time.process_time()
        [counts] = choose(folder, [rule])
        our_cpu = time.process_time() - started

        started = time.process_time()
        assert ask_duckdb() == counts
        duckdb_cpu = time.process_time() - started

        ratios.append(our_cpu / duckdb_cpu)
        print(f"| where {text} | | {our_cpu:.3f} |")
        print(f"| the same by DuckDB alone, one thread | | {duckdb_cpu:.3f} |", flush=True)
    print(f"  {statistics.median(ratios):.2f}x of DuckDB (median), counts equal")

    split = Rule((HashSplit("one", "id", 0.0, 0.01),))
    timed("a split by id", lambda: choose(folder, [split]))


def choose_best(folder: Path, n_documents: int) -> None:
    """Time the best tokens by score beside DuckDB alone, whose running sum needs no ids."""
    budget = 16 * n_documents  # about a quarter of the tokens
    rule = Rule((Top("one", "score", "tokens", limit=budget),))
    query = f"""
        select count(*), sum(tokens) from (
            select tokens, sum(tokens) over (order by score desc rows unbounded preceding) total
            from '{folder}/*.parquet' where score is not null
        ) where total <= {budget}
    """

    def ask_duckdb() -> Any:
        with duckdb.connect(config={"threads": 1}) as connection:
            return connection.execute(query).fetchone()

    _, [counts] = timed("the best quarter of the tokens", lambda: choose(folder, [rule]))
    _, duckdb_counts = timed("the same by DuckDB alone, one thread", ask_duckdb)
    assert counts == duckdb_counts


def summarise_columns(folder: Path) -> None:
    """Time the statistics of columns, each by itself."""
    for name in ("id", "topic", "quality", "score"):
        timed(f"statistics of {name}", partial(summarise_column, folder, name))


def summarise_column(folder: Path, name: str) -> None:
    """Compute the statistics of a column."""
    scan = DocumentScan(["tokens", name])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        reading = ColumnReading([name], Path(scratch), n_values=10)
        for shard in read_shards(folder):
            for batch in scan.batches(shard.relation):
                reading.add(batch.columns)
        reading.statistics()


def join_scores(folder: Path, n_documents: int) -> None:
    """Time the join of a table of scores to all documents, whose rows are in another order."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        scores = Path(temporary, "scores")
        scores.mkdir()
        scratch = Path(temporary, "scratch")
        scratch.mkdir()

        timed("scores made up", lambda: write_scores(scores, n_documents))
        read_seconds, lookup = timed(
            f"{n_documents:,} rows read and sorted by id", lambda: read_scores(scores, scratch)
        )
        join_seconds, _ = timed(
            f"{n_documents:,} documents joined with them",
            lambda: join_documents(folder, lookup, n_documents, scratch),
        )

        status = Path("/proc/self/status").read_text(encoding="utf-8")
        memory_kb = int(status.partition("RssAnon:")[2].split()[0])
        scratch_bytes = sum(path.stat().st_size for path in scratch.iterdir())
        row_seconds = (read_seconds + join_seconds) / n_documents
        print(
            f"  {row_seconds * 1e6:.1f} µs a row, {scratch_bytes / n_documents:.0f} bytes of scratch "
            f"a row, {memory_kb / 1e3:.0f} MB of memory"
        )


def write_scores(folder: Path, n_documents: int) -> None:
    """Write a row for each document, in an order that has nothing to do with theirs.

    The score of a document is its number as a fraction of all, so that a join can be checked.
    """
    # Steps of this length, which shares no divisor with the number of documents, come to each once.
    step = int(n_documents * 0.618)
    while math.gcd(step, n_documents) != 1:
        step += 1
    languages = np.array(["de", "en", "fr"])
    for file, begin in enumerate(range(0, n_documents, SHARD)):
        rows = np.arange(begin, min(begin + SHARD, n_documents))
        numbers = rows * step % n_documents
        columns = {
            "id": document_ids(numbers),
            "score": pa.array(numbers / n_documents),
            "language": pa.array(languages[numbers % 3]),
        }
        pq.write_table(pa.table(columns), folder / f"{file:06d}.parquet", compression="zstd")


def read_scores(folder: Path, scratch: Path) -> Lookup:
    """Read the tables of scores, and sort their rows by id."""
    files = [stat_file(folder, path.name) for path in sorted(folder.glob("*.parquet"))]
    schema = AttributeSchema("id", None, (), "attributes.web")
    return AttributeTables(folder, files, schema).read(scratch, lambda _: None).lookup


def join_documents(folder: Path, lookup: Lookup, n_documents: int, scratch: Path) -> None:
    """Find the scores of all documents, and write them as columns.

    Args:
        folder: Folder of the documents' tables.
        lookup: The scores.
        n_documents: Number of documents.
        scratch: Folder for the columns.
    """
    opened = lookup.open_files()
    begin = 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(1 << 16, columns=["id"]):
            rows, _ = opened.find(batch.column("id"))
            score, language = opened.take(rows)
            end = begin + batch.num_rows
            assert np.array_equal(score.to_numpy(), np.arange(begin, end) / n_documents)
            begin = end
            with ColumnTable(scratch / "columns.parquet", ["score", "language"]) as table:
                table.add([[score, language]])


if __name__ == "__main__":
    main()
