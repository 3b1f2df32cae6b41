"""One JAX program on a slice of two hosts: every host runs the function, and host 0's value is the job's.

python examples/from_keras_kinetic/two_hosts_jax.py [ACCELERATOR]
"""

# /// script
# dependencies = ["jax"]
# ///
import sys

import kinetic_core.compat as kinetic

ACCELERATOR = sys.argv[1] if len(sys.argv) > 1 else "tpu-v5p-8"


@kinetic.run(accelerator=ACCELERATOR)
def add_up() -> tuple[int, bool]:
    import os

    import jax
    import jax.numpy as jnp

    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
    )
    print(f"host {jax.process_index()} has {jax.local_device_count()} devices", flush=True)
    ones = jnp.ones(jax.local_device_count())
    summed = jax.pmap(lambda one: jax.lax.psum(one, "hosts"), axis_name="hosts")(ones)
    return jax.process_count(), float(summed[0]) == jax.device_count()


@kinetic.run(accelerator=ACCELERATOR)
def fail_on_host_1() -> None:
    import os
    import time

    if os.environ["TPU_WORKER_ID"] == "1":
        raise ValueError("no such shard")
    time.sleep(600)


if __name__ == "__main__":
    handle = add_up.run_async()
    print("backend", handle.backend)
    print("hosts and whether all devices added up", handle.result())
    try:
        fail_on_host_1.run_async().result()
    except ValueError as error:
        print("raised on host 1, caught here:", error)
