"""What `import kinetic_core` costs a script: seconds over bare Python, and modules."""

from __future__ import annotations

import subprocess
import sys

from measuring import Verdict, median_seconds, report

_COUNT = (
    "import sys; before = len(sys.modules); from kinetic_core import run; print(len(sys.modules) - before)"
)


def measure() -> list[Verdict]:
    def python(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    bare = median_seconds(lambda: python("pass"), 9)
    package = median_seconds(lambda: python("import kinetic_core"), 9)
    decorator = median_seconds(lambda: python("from kinetic_core import run"), 9)
    count = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True).stdout
    return [
        Verdict("import kinetic_core, over bare Python", package - bare, 0.15, "s"),
        Verdict("from kinetic_core import run, over bare Python", decorator - bare, 0.15, "s"),
        Verdict("modules imported by `from kinetic_core import run`", float(count), 250, ""),
    ]


if __name__ == "__main__":
    sys.exit(report(measure()))
