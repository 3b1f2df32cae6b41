"""Write into the page of `make nightly` how a part of it ended; rows of other parts stay.

    python .ci/nightly_page.py PAGE PART RESULT SECONDS LOG

LOG is the part's output, of which pytest's last lines go into the row.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

_HEAD = """\
# When the long tests ran last

`make nightly` runs what is too long for `.ci/run` and writes this page, a row for each of its parts.

| part | result | when (UTC) | commit | minutes | tests | machine |
|---|---|---|---|---|---|---|
"""
_COUNTS = re.compile(r"^=* ?((?:\d+ \w+,? ?)+) in [\d.]+s", re.MULTILINE)


def main(page: str, part: str, result: str, seconds: str, log: str) -> None:
    """Replace the row of a part, or add one."""
    path = Path(page)
    rows = path.read_text(encoding="utf-8").splitlines()[6:] if path.exists() else []
    rows = [row for row in rows if not row.startswith(f"| {part} |")]
    counts = _COUNTS.findall(Path(log).read_text(encoding="utf-8", errors="replace"))
    told = (
        part,
        result,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        _commit(),
        f"{int(seconds) / 60:.1f}",
        "; ".join(counts) or "none",
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
    )
    path.write_text(_HEAD + "\n".join([*rows, f"| {' | '.join(told)} |"]) + "\n", encoding="utf-8")


def _commit() -> str:
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}, changed" if _git("status", "--porcelain", "--", ".", ":!benchmarks/nightly.md") else head


def _git(*words: str) -> str:
    asking = ["/usr/bin/env", "git", *words]
    return subprocess.run(asking, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
