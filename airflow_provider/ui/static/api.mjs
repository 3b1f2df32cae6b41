/** The page's questions to the server, with the cookie of whoever is signed in to Airflow. */

const SENTENCES = {
  401: "You are signed out. Sign in to Airflow again, then reload.",
  403: "You may not see this.",
  404: "It is not there any more.",
  503: "Airflow's database gives no answer now.",
};

/** What the address says: whose jobs these are, of a run, of a task without one, or all that run now. A plus sign is one, in run ids. */
export function subject(search) {
  const pairs = search.replace(/^\?/, "").split("&").map((pair) => pair.split("="));
  const told = Object.fromEntries(pairs.map(([name, value]) => [name, decodeURIComponent(value ?? "")]));
  const isTask = Boolean(told.task);
  const index = /^-?\d+$/.test(told.map ?? "") ? Number(told.map) : null;
  return { dag: told.dag ?? "", run: told.run ?? "", task: isTask ? told.task : "", map: isTask ? index : null };
}

function ofDag(dag) {
  return `../api/dags/${encodeURIComponent(dag)}`;
}

function ofRun(dag, run, things = "jobs") {
  return `${ofDag(dag)}/runs/${encodeURIComponent(run)}/${things}`;
}

function ofTask(dag, task) {
  return `${ofDag(dag)}/tasks/${encodeURIComponent(task)}/jobs`;
}

export class Api {
  constructor({ dag, run, task }) {
    if (!dag) this.home = "../api/jobs";
    else this.home = run ? ofRun(dag, run) : ofTask(dag, task);
  }

  /** A page of the jobs that `filters` leave. */
  jobs(filters, offset, limit, signal) {
    const wanted = Object.entries({ ...filters, offset, limit }).filter(([, value]) => value !== "" && value !== null);
    return this.ask(`${this.home}?${new URLSearchParams(wanted)}`, signal);
  }

  /** The row of a task instance, whatever the list shows. */
  row({ dag_id, run_id, task_id, map_index }, signal) {
    return this.ask(`${ofRun(dag_id, run_id)}?${new URLSearchParams({ task_id, map_index, limit: 1 })}`, signal);
  }

  /** The latest runs of a task, or of one of its map indexes. */
  history({ dag, task, map }, signal) {
    const wanted = new URLSearchParams({ limit: 1, ...(map === null ? {} : { map_index: map }) });
    return this.ask(`${ofTask(dag, task)}?${wanted}`, signal);
  }

  /** One job in detail. */
  job({ dag_id, run_id, job_id }, signal) {
    return this.ask(`${ofRun(dag_id, run_id)}/${encodeURIComponent(job_id)}`, signal);
  }

  /** A batch, with its squares from an input on. */
  batch({ dag_id, run_id, job_id }, offset, signal) {
    return this.ask(`${ofRun(dag_id, run_id, "batches")}/${encodeURIComponent(job_id)}?offset=${offset}`, signal);
  }

  /** One input of a batch in detail. */
  input({ dag_id, run_id, job_id }, index, signal) {
    return this.ask(`${ofRun(dag_id, run_id, "batches")}/${encodeURIComponent(job_id)}/inputs/${index}`, signal);
  }

  /** Mark the job's task as failed, as a person does in Airflow, which asks whether this user may; that cancels the job. */
  cancel({ dag_id, run_id, task_id, map_index }) {
    const names = ["dags", dag_id, "dagRuns", run_id, "taskInstances", task_id, ...(map_index < 0 ? [] : [map_index])];
    const body = JSON.stringify({ new_state: "failed" });
    return this.ask(`../../api/v2/${names.map(encodeURIComponent).join("/")}`, undefined, { method: "PATCH", body });
  }

  async ask(url, signal, others = {}) {
    const headers = { Accept: "application/json", ...(others.body ? { "Content-Type": "application/json" } : {}) };
    const response = await fetch(url, { signal, headers, ...others });
    if (!response.ok) throw new Error(SENTENCES[response.status] ?? `The server answered ${response.status}.`);
    return response.json();
  }
}
