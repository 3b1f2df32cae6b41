"""Functions for the tests of `kinetic run`."""

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


def plain(x):
    return {x}
