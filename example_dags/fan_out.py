"""Eight pieces of work at once, each a job of its own, and one answer: the shape of most sweeps.

`prepare` lists the inputs, `count_primes.expand(...)` makes a job of every input, `add_up` reads all their
results. Here the jobs run on this machine (`backend="local"`); with another backend and, say,
`accelerator="tpu-v6e-8"` the same file runs them on eight TPU slices.
"""

from __future__ import annotations

from airflow.sdk import dag, task

LIMIT = 800_000
PIECES = 8


@dag(schedule=None, catchup=False, tags=["kinetic"])
def fan_out():
    """How many primes are there below 800,000?"""

    @task
    def prepare() -> list[int]:
        """Where each piece begins."""
        return list(range(0, LIMIT, LIMIT // PIECES))

    @task.kinetic(accelerator="cpu", backend="local", retries=1)
    def count_primes(begin: int) -> int:
        """All of this function runs inside the job: its imports, and what it takes from this file."""
        from math import isqrt

        end = begin + LIMIT // PIECES
        print(f"sieving {begin:,} to {end:,}")  # in the task's log in the UI, while the job runs
        prime = bytearray([1]) * (end - begin)
        prime[: max(2 - begin, 0)] = bytes(max(2 - begin, 0))
        for divisor in range(2, isqrt(end) + 1):
            first = max(divisor * divisor, -(-begin // divisor) * divisor)
            prime[first - begin :: divisor] = bytes(len(range(first, end, divisor)))
        print(f"found {sum(prime):,} primes")
        return sum(prime)

    @task
    def add_up(counts: list[int]) -> int:
        """One number out of eight."""
        return sum(counts)

    add_up(count_primes.expand(begin=prepare()))


fan_out()
