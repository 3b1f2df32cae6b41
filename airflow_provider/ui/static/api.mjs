/** The page's questions to the server, with the cookie of whoever is signed in to Airflow. */

const SENTENCES = {
  401: "You are signed out. Sign in to Airflow again, then reload.",
  403: "You may not see this.",
  404: "It is not there any more.",
  503: "Airflow's database gives no answer now.",
};

/** What the address says: whose jobs these are, of a run or, without one, of a task. A plus sign is one, in run ids. */
export function subject(search) {
  const pairs = search.replace(/^\?/, "").split("&").map((pair) => pair.split("="));
  const told = Object.fromEntries(pairs.map(([name, value]) => [name, decodeURIComponent(value ?? "")]));
  const isTask = Boolean(told.task);
  const index = /^-?\d+$/.test(told.map ?? "") ? Number(told.map) : null;
  return { dag: told.dag, run: told.run ?? "", task: isTask ? told.task : "", map: isTask ? index : null };
}

export class Api {
  constructor({ dag, run, task }) {
    this.dag = `../api/dags/${encodeURIComponent(dag)}`;
    this.home = run ? this.ofRun(run) : `${this.dag}/tasks/${encodeURIComponent(task)}/jobs`;
  }

  ofRun(run) {
    return `${this.dag}/runs/${encodeURIComponent(run)}/jobs`;
  }

  /** A page of the jobs that `filters` leave, of a run, or without one of a task. */
  jobs(filters, offset, limit, signal) {
    const wanted = Object.entries({ ...filters, offset, limit }).filter(([, value]) => value !== "" && value !== null);
    return this.ask(`${this.home}?${new URLSearchParams(wanted)}`, signal);
  }

  /** One job in detail. */
  job(run, id, signal) {
    return this.ask(`${this.ofRun(run)}/${encodeURIComponent(id)}`, signal);
  }

  async ask(url, signal) {
    const response = await fetch(url, { signal, headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(SENTENCES[response.status] ?? `The server answered ${response.status}.`);
    return response.json();
  }
}
