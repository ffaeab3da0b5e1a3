"""Screenshots of the live UI over the demo project, for docs/dagster.md: `make tour`.

Builds nothing: the demo must have been built already (`make demo`). Its UI is opened on a free port.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from live.browser import Browser, browsing, chromium
from live.dagster_dev import dagster_dev
from live.host import write_host

from helpers.daemons import until

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "images"
RECOMMENDED_BYTES = 200_000
"""A screenshot should not be larger than this."""
PHOTOGRAPH_WIDTH = 1600
SETTLED_SECONDS = 2.0
"""A page has settled if its text has not changed for this long."""
SETTLE_SECONDS = 30
"""How long to wait for that."""


class Scene(NamedTuple):
    """A screenshot."""

    name: str
    """The name of its file."""
    page: str
    """Path and query of the page."""
    texts: tuple[str, ...]
    """Texts that the page shows once it has loaded."""
    height: int
    """Height of the window in pixels."""
    width: int = 1600
    """Width of the window in pixels."""


def graph_page(*groups: str) -> str:
    """Return the page of the asset graph with some groups expanded."""
    names = ",".join(f"global@global:{group}" for group in groups)
    return f"/asset-groups?expanded={names}"


SCENES = [
    Scene(
        name="graph",
        page=graph_page("corpora", "pretrain", "shuffled"),
        texts=("raw_jsonl", "tars", "handoff"),
        height=860,
        width=2150,
    ),
    Scene(
        name="overview",
        page="/assets/overview",
        texts=("made_of_them", "shuffled"),
        height=1130,
    ),
    Scene(
        name="corpus",
        page="/assets/tokenized_shards?view=partitions&partition=libraries",
        texts=("token_lengths",),
        height=900,
    ),
    Scene(
        name="documents",
        page="/assets/indexed_dataset?view=partitions&partition=stdlib",
        texts=("first_documents",),
        height=900,
    ),
    Scene(
        name="blend",
        page="/assets/pretrain/blend?view=partitions&partition=train",
        texts=("first_samples", "explain"),
        height=940,
    ),
    Scene(
        name="webdataset",
        page="/assets/shuffled/shuffle_plan",
        texts=("evenly_shuffled", "order"),
        height=1260,
        width=1900,
    ),
    Scene(
        name="checks",
        page="/assets/indexed_dataset?view=checks&checkDetail=verified",
        texts=("verified", "Passed"),
        height=800,
    ),
]
"""Screenshots of the demo project."""
HOST_SCENE = Scene(
    name="your_dagster",
    page=graph_page("lake", "training", "llm_corpora", "llm_pretrain"),
    texts=("web_dedup", "handoff", "model"),
    height=860,
    width=2150,
)
"""Screenshot of another team's project, for docs/your_dagster.md."""


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demo", type=Path, default=Path("demo"), help="folder of the demo project"
    )
    demo = parser.parse_args().demo.resolve()
    program = chromium()
    if program is None or not (demo / ".dagster").is_dir():
        parser.error("needs Chromium (apt-get install chromium) and the built demo (make demo)")

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tour-", ignore_cleanup_errors=True) as folder:
        photograph_demo(program, demo, Path(folder))
        photograph_host(program, demo, Path(folder))


def photograph_demo(program: str, demo: Path, scratch: Path) -> None:
    """Take the screenshots of the demo project.

    Args:
        program: The program of the browser.
        demo: The folder of the project.
        scratch: A folder for logs and the profile of the browser.
    """
    config_file = demo / "nanoset.yaml"
    with (
        dagster_dev(config_file, demo / ".dagster", scratch / "dev.log") as address,
        browsing(program, scratch) as browser,
    ):
        photograph(browser, address, SCENES)


def photograph_host(program: str, demo: Path, scratch: Path) -> None:
    """Take the screenshot of another team's project.

    Args:
        program: The program of the browser.
        demo: The folder of the demo, whose tokenizer is used.
        scratch: A folder for the project, its history, logs and the profile of the browser.
    """
    folder = scratch / "acme"
    home = scratch / "home"
    environment = write_host(folder, home, (demo / "tokenizer.json").read_bytes())
    with (
        dagster_dev(
            folder,
            home,
            scratch / "host.log",
            module="acme.definitions",
            environment=environment,
        ) as address,
        browsing(program, home) as browser,
    ):
        photograph(browser, address, [HOST_SCENE])


def photograph(browser: Browser, address: str, scenes: Sequence[Scene]) -> None:
    """Take screenshots of a UI, and print their sizes."""
    for scene in scenes:
        browser.resize(scene.width, scene.height, PHOTOGRAPH_WIDTH)
        browser.open(address + scene.page, *scene.texts)
        wait_until_settled(browser)
        file = SCREENSHOTS / f"{scene.name}.png"
        browser.photograph(file)
        size = file.stat().st_size
        print(f"{file} {size:,} bytes (recommended: at most {RECOMMENDED_BYTES:,})")


def wait_until_settled(browser: Browser) -> None:
    """Wait until the page shows the same text for a while: then it has loaded and drawn everything."""
    last_text = ""
    changed_at = time.monotonic()

    def is_settled() -> bool:
        nonlocal last_text, changed_at
        text = re.sub(r"\d+", "", browser.text())  # "Loaded 44 seconds ago" changes all the time
        if text != last_text:
            last_text = text
            changed_at = time.monotonic()
        return time.monotonic() - changed_at > SETTLED_SECONDS

    until(is_settled, SETTLE_SECONDS, lambda: f"the page keeps changing:\n{last_text}")


if __name__ == "__main__":
    main()
