"""Functions for the tests of `kinetic run`."""

import os
import time

import kinetic_core

on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def scaled(x, factor=1):
    print("[bold]scaling[/bold]")
    return x * factor


@on_cpu
def failing():
    raise KeyError("no [such] key")


@on_cpu
def waiting(seconds):
    print("waiting", flush=True)
    time.sleep(seconds)


@kinetic_core.run(accelerator="cpu", retries=1)
def retried():
    if os.environ.get("KINETIC_FAILED_COUNT", "0") == "0":
        raise OSError("shard 3 is corrupt")
    return 2


def plain(x):
    return {x}
