"""What `--json` prints: for every verb, each field and its meaning; docs/reference/cli-json.md is made of it.

A field is never renamed or removed, and none changes its type, under the same number; new ones may come.
"""

from __future__ import annotations

JOB = {
    "job_id": "id of the job",
    "backend": "`local`, `gke` or `pathways`",
    "func_name": "name of the function",
    "accelerator": "hardware asked for",
    "namespace": "namespace it runs in",
    "created_at": "submission, Unix seconds; null if not known",
    "group_id": 'batch it belongs to, "" for none',
    "status": "`PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED`, `CANCELLED` or `NOT_FOUND`; with `problem`, "
    "unknown",
    "reason": 'one word on why it waits, "" if it does not',
    "problem": 'why little is known of it, "" normally',
    "origin": "object: who asked for it; `dag_id`, `run_id`, `task_id`, `map_index`, `deployment` for a task",
    "user": 'who submitted it, as the submitter says; "" if it does not',
    "finished_at": "when its outcome was stored, Unix seconds; null if it has not ended, and for a batch",
    "inputs": "0; of a batch whose inputs share Jobs, how many: `job_id` is then the batch's",
    "succeeded": "how many of them have a value",
    "failed": "how many of them have ended without one",
}
"""A job in a list."""
WORKER = {
    "job_id": "id of the worker, which is a job",
    "status": "`PENDING` or `RUNNING`",
    "is_idle": "whether it waits for a call",
    "calls": "how many calls it was given",
    "accelerator": "its hardware",
    "idle_seconds": "for how long it waits for a call before it ends",
    "reuse": "what its calls share: `process` or `fork`, empty for the pod alone",
    "instance": "id of the instance of a class that has it, empty for none",
}
STATUS = {
    "job_id": "id of the job",
    "status": "as in a list",
    "reason": "one word, such as `Unschedulable`, `WaitingForSlot`, `DeadlineExceeded`",
    "message": "a sentence for people",
    "attempt": "number of the attempt, from 0",
    "created_at": "Unix seconds, null if not known",
    "started_at": "Unix seconds, null if not known",
    "finished_at": "Unix seconds, null if not known",
    "failure": "null, or how it failed: `failure_class`, `message`, `phase`, `exit_code`, `signal`, …",
    "moves_on_at": "null, or Unix seconds: it goes to its next accelerator, or is given up in its queue",
    "hint": 'what gives a job that waits for a node one, "" if it does not wait for one or nobody knows',
    "overdue": "whether its timeout is over, while its node does not say whether it has ended",
}
_PROBLEMS = "object: id of a job with which that was not possible to why; all of them: an `error/1` instead"
_PROFILE = {
    "name": "name of the profile",
    "current": "whether it is the one kept as current",
    "chosen": "whether this process uses it",
    "settings": "object: its fields",
}
_BATCH = {
    "group_id": "id of the batch",
    "name": "its name, null if it has none",
    "function": "name of the function",
    "inputs": "number of inputs",
    "created_at": "Unix seconds",
    "submitted": "whether nothing more will be submitted",
}
_CHECK = {
    "name": "what is checked",
    "outcome": "`ok`, `warn`, `fail` or `skip`",
    "found": "what was found",
    "fix": 'what to do about it, "" if nothing',
    "seconds": "how long it took",
}
_STEP = {
    "action": "`create`, `change`, `replace`, `wait`, `keep`, `delete` or `leave`",
    "kind": "kind of resource",
    "name": "its name",
    "details": "list of texts: what is changed, or why",
    "cost": 'what it costs while it is there, "" where nothing or not known',
}
_POOL = {
    "name": "name of the pool",
    "accelerator": 'as `accelerator=` takes it, "" for plain machines',
    "machine_type": "type of its machines",
    "topology": 'of a TPU slice, else ""',
    "min_nodes": "machines that are always there",
    "max_nodes": "machines there may be; 0 if it does not scale",
    "terms": "`on demand`, `spot`, `flex-start` or `reserved NAME`",
    "status": "GKE's word for its state",
    "made_here": "whether `kinetic` made it",
}
_PLAN = {
    "project": "project",
    "zone": "zone or region",
    "cluster": "name of the cluster",
    "done": "whether the steps have been done",
    "steps": "list of step",
}
_COST = {
    "job_id": "id of the job",
    "accelerator": "hardware asked for",
    "units": "chips of the whole slice, or cores of a job without chips; null if `problem`",
    "unit": "`chip` or `core`; null if `problem`",
    "seconds": "object: `waiting`, `pulling`, `installing`, `running`, `idle` to seconds; null if `problem`",
    "unit_seconds": "object: the same but `waiting`, times `units`: what was held; null if `problem`",
    "amount": "what it costs by now, null without a price for its hardware",
    "problem": 'why little is known of it, "" normally',
}
SHAPES = {
    "step": _STEP,
    "pool": _POOL,
    "job": JOB,
    "worker": WORKER,
    "profile": _PROFILE,
    "batch": _BATCH,
    "check": _CHECK,
    "cost": _COST,
}
"""Objects that fields below are lists of."""

SCHEMAS: dict[str, dict[str, str]] = {
    "error": {
        "error": "name of the error's class",
        "message": "what was wrong, and what to do",
        "notes": "list of texts: a remote traceback, last log lines",
        "exit_code": "exit code of the command",
    },
    "run": {"job_id": "id of the job", "result": "the value, as in `jobs.result`; null with `--detach`"},
    "home": {
        "place": "where jobs run, in words",
        "alive": "list of job: those that wait or run, of the newest 200",
        "failed": "id of the job or batch that failed last, null if none of them did",
        "message": 'why it failed, "" if none did',
        "problem": 'why the jobs cannot be listed, "" if they can',
        "hints": "list of texts: what to do next",
    },
    "jobs.list": {"jobs": "list of job"},
    "jobs.status": STATUS,
    "jobs.logs": {"job_id": "id of the job", "log": "what it printed"},
    "jobs.result": {
        "job_id": "id of the job",
        "result": "the value if JSON has it, else null",
        "repr": "the value as Python writes it",
        "type": "its type",
    },
    "jobs.explain": {
        "job_id": "id of the job",
        "status": "as in a list",
        "reason": "as in `jobs.status`",
        "message": "as in `jobs.status`",
        "phases": "list of `name`, `attempt` (from 0), `began` (Unix seconds), `seconds`, `advice`",
        "hint": "as in `jobs.status`",
        "passed_over": "list of `accelerator`, `at` (Unix seconds), `why`: what had no capacity",
    },
    "jobs.debug": {
        "job_id": "id of the job",
        "ended": "why no debugger can attach any more, as a sentence",
    },
    "warm.list": {"workers": "list of worker"},
    "warm.start": {"job_ids": "list of ids of workers that were started"},
    "warm.stop": {"job_ids": "list of ids of workers of which nothing runs any more", "problems": _PROBLEMS},
    "jobs.cancel": {
        "job_ids": "list of ids of jobs of which nothing runs any more",
        "problems": _PROBLEMS,
    },
    "jobs.cleanup": {"job_ids": "list of ids of jobs that were removed", "problems": _PROBLEMS},
    "jobs.outputs": {
        "job_id": "id of the job",
        "location": "the directory: a path, or `gs://bucket/prefix`",
        "files": "list of `name`, `size` (bytes) and `written` (Unix seconds)",
        "downloaded": "list of paths that were written; empty without `--to`",
    },
    "jobs.watch": {"jobs": "list of job: all that were watched, as they were at the end"},
    "batch.list": {"batches": "list of batch"},
    "batch.status": {
        "group_id": "id of the batch",
        "inputs": "number of inputs",
        "counts": "object: status to number of jobs",
        "jobs": "list of `index`, `job_id`, `status`",
        "not_submitted": "object: index to why it could not be submitted",
    },
    "batch.results": {
        "group_id": "id of the batch",
        "results": "list, in input order, of `index`, `result`, `repr` and `error` (null for a value)",
    },
    "batch.cancel": {"group_id": "id of the batch"},
    "package": {
        "root": "project directory",
        "files": "list of `path` and `bytes` that ship",
        "bytes": "their sum",
        "left_out": "list of files and directories (these with `/`) that `.gitignore` names",
        "notices": "list of texts: what was left out or should be known",
        "manifest": "the Kubernetes Job, its key left out; null without `--dry-run`",
        "stored_bytes": "bytes that had to be added to the store; 0 with `--dry-run`",
    },
    "build-image": {"images": "object: category to `address@sha256:…`"},
    "accelerators": {
        "accelerators": "list of `name`, `kind`, `chips`, `hosts`, `topology`, `machine_type`, `note`, "
        "`pools` (names of node pools with it; null without `--live`, or if it is not known), `also` (other "
        "machines that carry the name), `means` (the one that it means on this cluster; null like `pools`)"
    },
    "doctor": {"ok": "whether nothing failed", "checks": "list of check"},
    "profile.list": {"file": "the profiles file", "profiles": "list of profile"},
    "profile.show": _PROFILE,
    "profile.create": _PROFILE,
    "profile.use": {"current": "the profile that is current now, null for none"},
    "profile.remove": {"removed": "name of the profile", "current": "the current one now, null for none"},
    "config": {
        "profile": "the profile in use, null for none",
        "file": "the profiles file",
        "settings": "list of `name`, `value`, `origin`: a variable, `profile NAME` or `default`",
    },
    "up": {**_PLAN, "profile": "name of the profile that was kept, null for none"},
    "up.export": {"files": "list of paths that were written"},
    "down": {
        **_PLAN,
        "lost": "list of texts: running jobs, pools, outputs",
        "remains": "list of texts: what is left in the project",
        "profiles_removed": "list of names",
    },
    "init": {**_PLAN, "profile": "name of the profile that was kept, null for none"},
    "status": {
        "path": "`projects/P/locations/L/clusters/C`",
        "status": 'GKE\'s word for its state, "" if there is no such cluster',
        "version": "version of its control plane",
        "endpoint": "address of its API server",
        "made_here": "whether `kinetic` made it",
        "pools": "list of pool",
        "namespaces": "list of names of namespaces that `kinetic` made",
        "running_jobs": "list of `namespace/name` of jobs that have not ended, in every namespace",
        "outputs": "object: namespace to number of objects, counted up to 1,000; null if nobody knows",
        "unknown": "list of texts: what could not be looked at, and why",
        "elsewhere": "list of other locations with a cluster of this name",
    },
    "pool.add": _PLAN,
    "pool.update": _PLAN,
    "pool.remove": _PLAN,
    "pool.list": {"pools": "list of pool"},
    "namespace.add": _PLAN,
    "namespace.list": {"namespaces": "list of `name` and `jobs` (how many of it have not ended)"},
    "namespace.remove": _PLAN,
    "cost": {
        "jobs": "list of cost",
        "groups": "list of `function`, `user`, `unit`, `jobs`, `unit_seconds`, `amount`: sums of those jobs",
        "not_counted": "number of older jobs that `--limit` leaves out",
        "chip_seconds": "object: sum of the `unit_seconds` of the jobs on chips, by use",
        "core_seconds": "object: the same of the jobs on cores",
        "amount": "sum of the known amounts, null if there is none",
        "currency": "as the price table says, null without one",
        "without_price": "list of ids of jobs whose amount is not known; empty without a price table",
    },
    "reap": {
        "orphans": 'list of `job_id`, `why` and `problem`: why it could not be removed, "" otherwise',
        "removed": "whether they were ended and removed, with `--origin` cancelled; false is a dry run",
    },
}
NUMBERS: dict[str, int] = {"cost": 2, "home": 2, "jobs.list": 2, "jobs.watch": 2}
"""Those of schemas that are no longer 1."""


def numbered(schema: str) -> str:
    """The name of a schema with its number, as answers carry it."""
    return f"{schema}/{NUMBERS.get(schema, 1)}"
