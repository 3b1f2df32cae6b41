"""Jobs that outlive the script: submit, find again by id, follow, cancel.

KINETIC_BACKEND=local python examples/from_keras_kinetic/async_jobs.py
"""

import time

import kinetic_core.compat as kinetic
from kinetic_core.compat.job_status import JobStatus


@kinetic.run(accelerator="cpu")
def train(epochs: int, seconds: float) -> float:
    for epoch in range(epochs):
        time.sleep(seconds)
        print(f"epoch {epoch}", flush=True)
    return 1.0 / epochs


if __name__ == "__main__":
    handle = train.run_async(3, 0.1)
    again = kinetic.attach(handle.job_id)  # from any process and machine with the same settings
    print("value", again.result(timeout=600, cleanup=False))
    print("log", again.tail(1))
    again.cleanup()
    print("after cleanup", again.status().name)

    endless = train.run_async(1000, 60)
    while endless.status() is JobStatus.PENDING:
        time.sleep(0.5)
    print("listed", endless.job_id in [job.job_id for job in kinetic.list_jobs()])
    endless.cancel()
    print("after cancel", endless.status().name)
    endless.cleanup()
