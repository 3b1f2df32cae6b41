"""A wheel, installed in a clean environment, behaves like the checkout.

Run with the project's interpreter from the root, after `make build`. Exit status 1 and a sentence if not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).parent / "uv"

PROGRAM = """
import kinetic_core
from helper import offset

@kinetic_core.run(accelerator="tpu-v6e-8", backend="local")
def double(x):
    from helper import offset as shipped
    return 2 * x + shipped + offset

if __name__ == "__main__":
    print(double(20), double.run_async_map([1, 2]).results(), kinetic_core.__file__)
"""


def main() -> None:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    expect(top == {"kinetic_core", "airflow_provider"}, f"top level of the wheel is {sorted(top)}")
    runner = {f"kinetic_core/_runner/{file.name}" for file in (ROOT / "runner").glob("*.py")}
    expect(runner <= names, f"the wheel lacks {sorted(runner - names)}")
    shipped = {str(path.relative_to(ROOT)) for path in (ROOT / "kinetic_core").rglob("*.json")}
    shipped |= {str(path.relative_to(ROOT)) for path in (ROOT / "kinetic_core").rglob("*.json.gz")}
    page = ROOT / "airflow_provider" / "ui" / "static"
    shipped |= {str(path.relative_to(ROOT)) for path in page.iterdir()}
    expect(shipped <= names, f"the wheel lacks {sorted(shipped - names)}")
    with tempfile.TemporaryDirectory(prefix="kinetic-wheel-") as folder:
        use(wheel, Path(folder))
    print(f"{wheel.name} behaves like the checkout")


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel where nothing else is and run a program with it, from a directory of its own."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    project = folder / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (project / "helper.py").write_text("offset = 1\n")
    (project / "main.py").write_text(PROGRAM)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(
        [python, "main.py"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr, sep="")
    expect(done.returncode == 0, "the program failed")
    last = done.stdout.splitlines()[-1]
    expect(last.startswith("42 [4, 6] ") and str(folder) in last, f"the program printed {last!r}")


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"check_wheel: {otherwise}")


if __name__ == "__main__":
    main()
