"""The live line of a call and of a batch, on a terminal and in a pipe."""

from __future__ import annotations

import io
import queue
import threading
import time
from dataclasses import dataclass, replace

import pytest

from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.batches.progress import Board
from kinetic_core.job import JobObservation, JobStatus, Step, StepBegun
from kinetic_core.terminal import BatchProgress, Counts, LiveLine, Progress, duration
from tests.jobs.test_summaries import reference
from tests.screen import terminal


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


NO_NODE = JobObservation(JobStatus.PENDING, "Unschedulable", "0/3 nodes are available")
RUNS = JobObservation(JobStatus.RUNNING, "Running", "the runner has started")
DONE = JobObservation(JobStatus.SUCCEEDED, "Completed", "the function returned")


def call(progress: Progress, clock: Clock) -> None:
    """A call that prepares, packs, waits 41 seconds for a node, fails once and succeeds."""
    clock.now += 0.6
    progress.say(StepBegun(Step.PACK, "packing"))
    clock.now += 0.4
    progress.say(StepBegun(Step.UPLOAD, "uploading"))
    progress.say("uploading: 40 of 300 MiB")
    clock.now += 2.0
    progress.observe(NO_NODE)
    clock.now += 41.0
    progress.observe(RUNS)
    clock.now += 3.0
    progress.attempt_ended(0, Failure(FailureClass.USER_ERROR, "ValueError: shard 3 is corrupt\nmore"))
    progress.attempt_ended(1, Failure(FailureClass.PREEMPTED, "the node was taken away"))
    progress.observe(JobObservation(JobStatus.RUNNING, "Running", "the runner has started", attempt=2))
    clock.now += 7.0
    progress.observe(DONE)


TOOK = "preparing 0.6 s, packing 0.4 s, uploading 2.0 s, waiting (Unschedulable) 41.0 s, running 10.0 s"
STAYS = [
    "kinetic: attempt 1 of 3 failed: ValueError: shard 3 is corrupt; starting again",
    "kinetic: attempt 2 was lost: the node was taken away; starting again",
    f"kinetic: succeeded in 54.0 s: {TOOK}",
]


def test_a_terminal_shows_each_phase_with_its_reason() -> None:
    with terminal(columns=110) as (stream, screen):
        clock = Clock()
        call(Progress(stream, retries=2, clock=clock), clock)
    assert screen.lines == [*STAYS, ""]
    drawn = [line[2:] for line in screen.drawn if line]
    assert "0.0 s packing" in drawn
    assert "0.0 s uploading: 40 of 300 MiB" in drawn
    assert "0.0 s waiting (Unschedulable): 0/3 nodes are available" in drawn
    assert "3.0 s running: attempt 3" in drawn


def test_a_pipe_gets_a_plain_line_for_each_change() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, retries=2, clock=clock) as progress:
        call(progress, clock)
    assert stream.getvalue().splitlines() == [
        "kinetic: uploading: 40 of 300 MiB",
        "kinetic: waiting (Unschedulable): 0/3 nodes are available",
        "kinetic: running: attempt 1",
        *STAYS[:2],
        "kinetic: running: attempt 3",
        STAYS[2],
    ]


def test_a_pipe_gets_few_lines_of_a_build_log() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock)
    progress.say(StepBegun(Step.BUILD, "dependencies: uv.lock"))
    for number in range(400):
        clock.now += 0.1
        progress.say(f"Step #1: line {number}")
    assert len(stream.getvalue().splitlines()) <= 5


def test_a_pipe_hears_of_a_submission_that_takes_long() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(stream, clock=clock) as progress:
        for done in range(300):
            progress.submitting(done, 300)
            clock.now += 0.125
    told = [f"kinetic: submitting: {done} of 300 inputs" for done in (80, 160, 240)]
    assert stream.getvalue().splitlines() == told


def test_a_terminal_counts_what_a_cancellation_has_ended() -> None:
    with terminal() as (stream, screen), Progress(stream, clock=Clock()) as progress:
        progress.cancelling(0, 10_000)
        progress.cancelling(9_992, 10_000)
        progress.cancelling(9_993, 10_000)
    drawn = [line[2:] for line in screen.drawn if line]
    for told in ("10000 inputs", "9992 of 10000 inputs", "9993 of 10000 inputs"):
        assert f"0.0 s cancelling: {told}" in drawn


def attached(seen: JobObservation) -> list[str]:
    """What is told of a job that was submitted 600 seconds before, looked at, and ends 7 seconds later."""
    stream, clock = io.StringIO(), Clock(5.0)
    with Progress(stream, clock=clock) as progress:
        progress.attach(submitted=1000.0, now=1600.0)
        progress.observe(seen)
        clock.now += 7.0
        progress.observe(DONE)
    return stream.getvalue().splitlines()


def test_an_attached_job_is_counted_from_its_submission() -> None:
    begun = JobObservation(JobStatus.RUNNING, "Running", "the runner has started", started_at=1060.0)
    took = "kinetic: succeeded in 10 min 07 s: waiting 1 min 00 s, running 9 min 07 s"
    assert attached(begun) == ["kinetic: running: attempt 1", took]
    took = "kinetic: succeeded in 10 min 07 s: waiting (Unschedulable) 10 min 07 s"
    assert attached(NO_NODE)[1:] == [took]
    took = "kinetic: succeeded in 10 min 07 s: earlier attempts 9 min 00 s, running 1 min 07 s"
    assert attached(replace(begun, attempt=1, started_at=1540.0))[1:] == [took]


NO_SLOT = JobObservation(
    JobStatus.PENDING, "WaitingForSlot", "no CPU slot of this machine is free; it has 128"
)


def test_a_narrow_terminal_keeps_times_and_reasons() -> None:
    """What goes first is the reason in one word, which the sentence says too."""
    with terminal() as (stream, screen):
        clock = Clock()
        progress = Progress(stream, clock=clock)
        progress.observe(NO_SLOT)
        clock.now += 725.0
        progress.observe(NO_SLOT)
    assert screen.lines[-1][2:] == f"12 min 05 s waiting: {NO_SLOT.message}"


def test_what_the_job_prints_stays_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal() as (stream, screen):
        monkeypatch.setattr("sys.stdout", stream)
        line = LiveLine(stream)
        line.draw("running")
        line.write("epoch 1\n")
        line.write("\r10 %")
        line.draw("running")  # a progress bar is not torn apart
        line.write("\r20 %")
        line.say("attempt 1 failed")
        line.draw("")
        line.erase()
    assert screen.lines == ["epoch 1", "20 %", "kinetic: attempt 1 failed", ""]
    assert not any("10 %" in line for line in screen.drawn)


def test_a_warning_takes_the_place_of_the_line() -> None:
    with terminal() as (stream, screen):
        line = LiveLine(stream)
        line.draw("uploading")
        stream.write("queue= has no effect\n")  # as logging does
        line.draw("waiting")
        line.erase()
    assert screen.lines == ["queue= has no effect", ""]


def test_a_line_fits_into_the_terminal_and_obeys_nobody() -> None:
    with terminal(columns=20) as (stream, screen):
        LiveLine(stream).draw("漢字漢字漢字漢字漢字漢字")
        LiveLine(stream).draw("bell \x07 and \x1b[2J clear")
    assert [line[2:] for line in (screen.drawn[-1], screen.lines[-1])] == [
        "漢字漢字漢字漢字",
        "bell \\x07 and \\x1",
    ]


class Unread(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_stops_no_call() -> None:
    clock = Clock()
    call(Progress(Unread(), clock=clock), clock)


def test_a_batch_shows_counts_slowest_and_the_rest() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = BatchProgress(stream, clock)
    for done in range(0, 200, 5):
        clock.now += 2.0
        progress.show(lambda done=done: Counts(200, done, done // 50, done // 20, (3, 41.2)))
    progress.end(Counts(200, 200, 4, 10, (3, 41.2)))
    progress.end(Counts(200, 200, 4, 10, (3, 41.2)))
    told = stream.getvalue().splitlines()
    assert told[5] == (
        "kinetic: 100/200 done, 2 failed, 5 retried, slowest: input 3, 41.2 s, about 40.0 s left"
    )
    assert told[10:] == [
        "kinetic: 200/200 done, 4 failed, 10 retried, slowest: input 3, 41.2 s; took 1 min 20 s"
    ]


def test_the_last_inputs_of_a_batch_are_named() -> None:
    assert str(Counts(20, 19, left=(2,))) == "19/20 done, left: input 2"
    assert str(Counts(20, 18, 1, left=(2, 7))) == "18/20 done, 1 failed, left: inputs 2, 7"


def test_the_slowest_input_may_still_run() -> None:
    board, now = Board(9), time.time()
    board.jobs[:] = [reference(1)] * 9
    for index in range(7):
        board.ended[index] = JobObservation(JobStatus.SUCCEEDED, started_at=now - 5, finished_at=now - 3)
    board.living[7] = JobObservation(JobStatus.RUNNING, started_at=now - 60)
    board.living[8] = JobObservation(JobStatus.PENDING, created_at=now - 90)
    counts = board.counts()
    assert counts.slowest is not None
    assert counts.slowest[0] == 7
    assert counts.slowest[1] == pytest.approx(60, abs=5)
    assert counts.left == (7, 8)


def test_a_narrow_terminal_keeps_counts_and_the_rest() -> None:
    clock = Clock()
    with terminal() as (stream, screen):
        progress = BatchProgress(stream, clock)
        for done in (0, 5, 10):
            progress.show(lambda done=done: Counts(200, done, 2, 5, (3, 41.2)))
            clock.now += 200.0
    assert screen.lines[-1][2:] == ("6 min 40 s 10/200 done, 2 failed, 5 retried, about 2 h 06 min left")


def test_a_batch_says_why_all_of_its_inputs_wait() -> None:
    clock, waits, piped = Clock(), Counts(8, 0, waits=NO_SLOT), io.StringIO()
    with terminal() as (stream, screen):
        live, plain = BatchProgress(stream, clock), BatchProgress(piped, clock)
        for counts in (Counts(8, 0), waits, waits, Counts(8, 0, running=2)):
            live.show(lambda counts=counts: counts)
            plain.show(lambda counts=counts: counts)
            clock.now += 11.0
    why = f"0/8 done, waiting (WaitingForSlot): {NO_SLOT.message}"
    assert piped.getvalue().splitlines() == ["kinetic: 0/8 done", f"kinetic: {why}"]
    assert [line[2:] for line in (*screen.drawn[-2:], *screen.lines)] == [
        f"11.0 s 0/8 done, waiting: {NO_SLOT.message}",
        f"22.0 s 0/8 done, waiting: {NO_SLOT.message}",
        "33.0 s 0/8 done",
    ]


def test_a_batch_says_once_what_gives_its_inputs_a_node() -> None:
    """Somebody is asked, while the line goes on, until there is an answer, and again for another reason."""
    clock, piped, asked = Clock(), io.StringIO(), queue.Queue[str]()
    answers = {"no node": "", "still no node": "kinetic pool add"}

    def remedy(seen: JobObservation) -> str:
        asked.put(seen.message)
        return answers[seen.message]

    def unheard() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "kinetic-remedy"]

    progress = BatchProgress(piped, clock, remedy=remedy)
    for message in ("no node", "no node", "still no node", "still no node", "no node"):
        waits = JobObservation(JobStatus.PENDING, "Unschedulable", message)
        progress.show(lambda waits=waits: Counts(8, 0, waits=waits))
        for thread in unheard():
            thread.join()
        clock.now += 11.0
    assert list(asked.queue) == ["no node", "still no node"]
    assert [line for line in piped.getvalue().splitlines() if "hint" in line] == [
        "kinetic: hint: kinetic pool add"
    ]


def test_between_two_inputs_it_is_no_news_that_they_wait() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = BatchProgress(stream, clock)
    for counts in (Counts(3, 0, running=1), Counts(3, 1, waits=NO_SLOT), Counts(3, 2, waits=NO_SLOT)):
        progress.show(lambda counts=counts: counts)
        clock.now += 20.0
    told = [line.partition(" done")[2] for line in stream.getvalue().splitlines()]
    assert told == ["", ", about 40.0 s left", ", about 20.0 s left"]


def rests(*looks: tuple[float, Counts]) -> list[str]:
    """What a batch's line says of the time left, at each of these times."""
    clock = Clock()
    with terminal() as (stream, screen):
        progress = BatchProgress(stream, clock)
        for at, counts in looks:
            clock.now = at
            progress.show(lambda counts=counts: counts)
    lines = [*screen.drawn[1:], *screen.lines]
    return [line.partition(", about ")[2].removesuffix(" left") for line in lines]


def test_the_time_left_does_not_grow_while_nothing_ends() -> None:
    done = Counts(4, 2, running=1)
    looks = [(0.0, Counts(4, 0, running=1)), *((at, done) for at in (20.0, 25.0, 39.0, 45.0, 90.0))]
    assert rests(*looks) == ["", "20.0 s", "15.0 s", "1.0 s", "", ""]


def test_the_time_left_is_unknown_to_the_first_that_end() -> None:
    """Of eight inputs at once, the first to end says that the other seven take as long again, each."""
    looks = [(0.0, Counts(16, 0, running=8)), (10.0, Counts(16, 1, running=8))]
    assert rests(*looks, (11.0, Counts(16, 8, running=8))) == ["", "", "11.0 s"]


def test_the_time_left_leaves_out_what_all_inputs_waited() -> None:
    looks = [(0.0, Counts(4, 0)), (600.0, Counts(4, 0))]
    assert rests(*looks, (610.0, Counts(4, 2, running=2))) == ["", "", "10.0 s"]


def test_cancelled_inputs_of_a_batch_have_not_failed() -> None:
    assert str(Counts(3, 3, 0, cancelled=3)) == "3/3 done, 3 cancelled"
    assert str(Counts(3, 3, 1, 1, cancelled=2)) == "3/3 done, 1 failed, 2 cancelled, 1 retried"


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(each) for each in (0.04, 59.9, 125, 4803)] == [
        "0.0 s",
        "59.9 s",
        "2 min 05 s",
        "1 h 20 min",
    ]


def test_a_running_attempt_says_what_it_does() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, clock=clock)
    progress.doing(0, "fetching the data")
    progress.observe(RUNS)
    for what in ("fetching the data", "", "storing the result"):
        clock.now += 11.0
        progress.doing(0, what)
    progress.observe(DONE)
    progress.doing(0, "nothing any more")
    assert stream.getvalue().splitlines() == [
        "kinetic: running: attempt 1",
        "kinetic: running: attempt 1: fetching the data",
        "kinetic: running: attempt 1",
        "kinetic: running: attempt 1: storing the result",
        "kinetic: succeeded in 33.0 s: running 33.0 s",
    ]
