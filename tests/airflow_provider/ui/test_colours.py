"""The colours of the page: causes of neighbouring stretches are told apart at a glance, in both themes."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

import airflow_provider.ui
from kinetic_core.jobs.phases import PHASES

STATIC = Path(airflow_provider.ui.__file__).parent / "static"
TIMELINES = {
    "each phase once": tuple(PHASES),
    "a call": (
        "packing",
        "build",
        "upload",
        "queue",
        "scheduling",
        "scale-up",
        "image",
        "container",
        "start",
    ),
    "one without a build": ("packing", "upload", "scheduling", "image", "start", "function", "result"),
    "a short job": ("upload", "queue", "start", "running", "termination"),
    "an attempt again": ("function", "replacement", "queue", "scheduling", "container", "running"),
    "a task": ("airflow-scheduler", "airflow-queue", "airflow-worker", "packing"),
    "a task without packing": ("airflow-queue", "airflow-worker", "upload"),
    "one that a worker ends": ("airflow-scheduler-and-queue", "airflow-worker", "build", "airflow-queue"),
    "a build that is held": ("airflow-worker", "build", "airflow-resumption", "airflow-queue"),
    "a try again": ("airflow-retry", "airflow-worker", "build"),
    "the end": (
        "function",
        "result",
        "termination",
        "airflow-resumption",
        "airflow-scheduler",
        "airflow-end",
    ),
    "a soon end": ("result", "airflow-end"),
}
"""Causes by their classes as they follow each other."""
Lab = tuple[float, float, float]


def linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def of_linear(red: float, green: float, blue: float) -> Lab:
    """The colour in CIELAB, of linear sRGB under D65."""
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    edge = 6 / 29
    p, q, r = (each ** (1 / 3) if each > edge**3 else each / (3 * edge**2) + 4 / 29 for each in (x, y, z))
    return 116 * q - 16, 500 * (p - q), 200 * (q - r)


def of_hex(text: str) -> Lab:
    red, green, blue = (linear(int(text[place : place + 2], 16) / 255) for place in (1, 3, 5))
    return of_linear(red, green, blue)


def of_oklch(lightness: float, chroma: float, hue: float) -> Lab:
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return of_linear(
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def style() -> str:
    return (STATIC / "page.css").read_text()


def causes() -> dict[str, Lab]:
    """The colour of each cause, the same in both themes."""
    found = re.findall(
        r"^\.cause-(\S+) \{ background: (.*); \}$", (STATIC / "page.css").read_text(), re.MULTILINE
    )
    return {name: of_hex(colour) for name, colour in found}


def backs() -> list[Lab]:
    """The colours behind a bar, of the light theme and of the dark one."""
    lines = re.findall(
        r"^  --(?:back|raised): light-dark\(.*$", (STATIC / "page.css").read_text(), re.MULTILINE
    )
    found = [of_hex(each) for line in lines for each in re.findall(r"#[0-9a-f]{6}", line)]
    for line in lines:
        for told in re.findall(r"oklch\(([^)]*)\)", line):
            lightness, chroma, hue = map(float, told.split())
            found.append(of_oklch(lightness, chroma, hue))
    assert len(found) == 4
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_a_colour_of_its_own(phase: str) -> None:
    """A bar of several grey stretches tells nobody where the time went."""
    assert f'  "{phase}",\n' in (STATIC / "timeline.mjs").read_text()
    assert phase in causes()


def test_every_phase_of_airflow_has_a_colour() -> None:
    listed = re.findall(r'^  "(airflow [a-z ]+)",$', (STATIC / "timeline.mjs").read_text(), re.MULTILINE)
    source = (STATIC.parent / "detail.py").read_text()
    assert set(re.findall(r'"(airflow [a-z ]+)"', source)) <= set(listed)
    assert {each.replace(" ", "-") for each in listed} == {each for each in causes() if "airflow" in each}


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_no_two_causes_look_alike() -> None:
    """CIE76: about 2 is just noticed side by side, 10 at a glance."""
    pairs = itertools.combinations(causes().items(), 2)
    alike = [(one, other) for (one, first), (other, second) in pairs if math.dist(first, second) < 10]
    assert alike == []


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
@pytest.mark.parametrize("names", TIMELINES.values(), ids=TIMELINES)
def test_neighbours_are_plainly_different(names: tuple[str, ...]) -> None:
    known = causes()
    alike = [pair for pair in itertools.pairwise(names) if math.dist(known[pair[0]], known[pair[1]]) < 20]
    assert alike == []


def test_every_cause_is_seen_in_both_themes() -> None:
    pale = [name for name, colour in causes().items() for back in backs() if math.dist(colour, back) < 15]
    assert pale == []
