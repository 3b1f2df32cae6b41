"""Every benchmark in turn; exit status 1 if any target is missed."""

from __future__ import annotations

import sys

import command_line
import data
import import_time
import local_jobs
import projects
from measuring import report

if __name__ == "__main__":
    missed = 0
    for program in (import_time, command_line, projects, data, local_jobs):
        missed |= report(program.measure())
    sys.exit(missed)
