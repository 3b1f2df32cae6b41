"""The first run of keras-kinetic: a function, its lines, its value, its exception.

KINETIC_BACKEND=local python examples/from_keras_kinetic/first_run.py
"""

import platform

import kinetic_core.compat as kinetic


@kinetic.run(accelerator="cpu")
def hello(name: str) -> str:
    print(f"running on {platform.node()}")
    if not name:
        raise ValueError("who?")
    return f"hello {name}"


if __name__ == "__main__":
    print(hello("world"))
    try:
        hello("")
    except ValueError as error:
        print(f"raised there, caught here: {error}")
