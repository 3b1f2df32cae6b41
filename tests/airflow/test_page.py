"""The page in a real Airflow: who may see what, and what a browser shows of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import chromium
import pytest
from page_names import BUILD_PAGE, CORPUS, HTML, INPUTS
from page_server import PASSWORDS, Server, browsing, serving

pytestmark = pytest.mark.airflow
PICTURES = os.environ.get("KINETIC_TEST_PICTURES")
"""A directory for screenshots, to be looked at."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("page").resolve(), ("sweep", "secret", "secret", CORPUS)) as found:
        yield found


@pytest.mark.promise("page: A request without a token gets 401")
@pytest.mark.promise("page: One without access to the DAG gets 403")
@pytest.mark.attack
def test_who_may_see_what(server: Server) -> None:
    assert server.jobs("sweep", None)[0] == 401
    assert server.jobs("secret", "guest")[0] == 403
    for dag_id, user in [("sweep", "guest"), ("sweep", "admin"), ("secret", "admin")]:
        status, answer = server.jobs(dag_id, user)
        assert (status, answer["total"] > 0) == (200, True)
    job_id = server.jobs("secret", "admin")[1]["jobs"][0]["job_id"]
    for user, expected in [(None, 401), ("guest", 403), ("admin", 200)]:
        assert server.jobs("secret", user, f"/{job_id}")[0] == expected
    assert server.jobs("sweep", "guest", f"/{job_id}")[0] == 404  # not by way of a DAG that may be seen


@pytest.mark.promise("scale: A message with the exception's text needs the permission to read the log")
@pytest.mark.promise("page: Who may see no task logs opens no job")
@pytest.mark.promise("page: What a function raised is told only to who may read task logs")
@pytest.mark.attack
def test_who_may_see_no_logs_opens_no_job(server: Server) -> None:
    status, answer = server.jobs("sweep", "nologs")
    assert (status, answer["total"]) == (200, 1000)
    texts = {user: server.jobs("sweep", user, "?map_index=13")[1]["jobs"][0]["message"] for user in PASSWORDS}
    assert texts["guest"] == texts["admin"] == f"ValueError: {HTML} in row 13"
    assert texts["nologs"] == "what the function raised is in the task's log, which you may not read"
    job_id = answer["jobs"][0]["job_id"]
    assert server.jobs("sweep", "nologs", f"/{job_id}")[0] == 403
    assert server.jobs("sweep", "guest", f"/{job_id}")[0] == 200


@pytest.mark.promise("scale: A message with the exception's text needs the permission to read the log")
@pytest.mark.promise("page: A batch's inputs, each with state, reason, attempts and log")
@pytest.mark.promise("page: What a function raised is told only to who may read task logs")
@pytest.mark.attack
def test_who_may_see_what_of_a_batch(server: Server) -> None:
    _, listed = server.jobs(CORPUS, "admin")
    assert [(each["task_id"], each["status"]) for each in listed["jobs"]] == [
        ("embed", "FAILED"),
        ("forged", "NEVER"),
    ]
    group_id = listed["jobs"][0]["job_id"]
    paths = {
        dag_id: f"/kinetic/api/dags/{dag_id}/runs/{quote(server.runs[dag_id])}/batches/{group_id}"
        for dag_id in (CORPUS, "secret", "sweep")
    }
    seen = {user: server.get(paths[CORPUS], user) for user in (None, *PASSWORDS)}
    assert [seen[user][0] for user in (None, "guest", "nologs", "admin")] == [401, 200, 200, 200]
    told = seen["guest"][1]
    assert (len(told["squares"]), told["counts"]) == (INPUTS, {"s": 9896, "f": 104})
    texts = {user: seen[user][1]["causes"][0]["text"] for user in PASSWORDS}
    assert texts["guest"] == texts["admin"] == f"ValueError: {HTML}"
    assert texts["nologs"] == "what the function raised is in the task's log, which you may not read"
    answers = {user: server.get(f"{paths[CORPUS]}/inputs/7", user)[0] for user in (None, *PASSWORDS)}
    assert answers == {None: 401, "guest": 200, "nologs": 403, "admin": 200}
    assert server.get(paths["secret"], "guest")[0] == 403
    assert server.get(paths["sweep"], "guest")[0] == 404  # not by way of a DAG that may be seen
    assert server.get(f"{paths[CORPUS]}/inputs/{INPUTS}", "admin")[0] == 404
    assert server.get(f"{paths[CORPUS]}?offset=-1", "admin")[0] == 422


def test_the_page_itself_is_the_same_for_everybody(server: Server) -> None:
    """It is a file: whose jobs it shows is said by what it asks for, which needs a token."""
    shells = [
        server.get(server.page(dag_id).removeprefix(server.url), None) for dag_id in ("sweep", "secret")
    ]
    assert shells[0] == shells[1] == server.get("/kinetic/page/", "admin")
    status, text = shells[0]
    assert (status, "<script" in text, "train" in text) == (200, True, False)


@pytest.mark.promise("page: Filters, paged data")
@pytest.mark.promise("page: Job ids from another deployment")
def test_a_thousand_jobs_in_pages(server: Server) -> None:
    _, first = server.jobs("sweep", "admin", "?limit=100")
    assert (len(first["jobs"]), first["total"], first["running"]) == (100, 1000, True)
    assert sum(first["statuses"].values()) == 1000
    alive, _, foreign, forged, _, _, connected, _, gone, again = first["jobs"][:10]
    assert (alive["status"], alive["phases"][0]["seconds"] >= 0) == ("RUNNING", True)
    assert (foreign["status"], "gs://another-deployment" in foreign["message"]) == ("UNKNOWN", True)
    assert forged["status"] == "NEVER"
    assert {connected["status"], gone["status"]} == {"UNKNOWN"}
    assert "gs://their-bucket is set" in connected["message"]
    assert "there is no connection 'page_gone'" in gone["message"]
    assert first["troubles"] == [each["message"] for each in (foreign, connected, gone)]
    assert (again["try_number"], again["job_try"]) == (2, 1)  # the second try adopted the job of the first
    assert [each["job_id"] for each in again["earlier"]] == ["job-of-the-first-try"]
    _, last = server.jobs("sweep", "admin", "?limit=100&offset=950")
    assert [each["map_index"] for each in last["jobs"]] == list(range(950, 1000))
    waits = last["jobs"][-1]
    assert (waits["status"], waits["reason"]) == ("NO_JOB", "airflow scheduler")
    assert "a free slot of pool 'default_pool'" in waits["message"]
    _, some = server.jobs("sweep", "admin", "?reason=out%20of%20memory&text=train")
    assert {each["reason"] for each in some["jobs"]} == {"out of memory"}
    _, one = server.jobs("sweep", "admin", "?task_id=train&map_index=0")
    assert [each["map_index"] for each in one["jobs"]] == [0]
    assert server.jobs("sweep", "admin", "?limit=100000")[0] == 422


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_an_opened_job_knows_the_build_of_its_image(server: Server) -> None:
    _, answer = server.jobs("sweep", "admin", "?map_index=1")
    _, opened = server.jobs("sweep", "admin", f"/{answer['jobs'][0]['job_id']}")
    before = [(each["name"], each["seconds"]) for each in opened["airflow"]["before"]]
    assert before == [("build", 300.0), ("airflow queue", 12.0), ("airflow worker", 288.0)]


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_a_task_that_waits_for_its_image_opens(server: Server, tab: chromium.Tab) -> None:
    """Its build, how long it has waited for that, and with how many tasks of any run."""
    tab.open(server.page("sweep", "&task=train&map=991"))
    tab.until("document.querySelector('#detail .state')?.textContent === 'no job yet'")
    told = tab.ask(
        "Object.fromEntries([...document.querySelectorAll('dt')].map((e) => [e.textContent, "
        "e.nextSibling.textContent]))"
    )
    assert told["Why"] == "image build: the task waits for its image, which is being built"
    assert told["Shared by"] == "3 tasks since 2026-01-01T00:06:31Z"
    assert " h " in told["Image build"]
    assert tab.ask("document.querySelector('#detail a').href") == BUILD_PAGE
    of_jobs = "document.querySelectorAll('#detail pre, #detail .command, .board:not([hidden])')"
    assert tab.ask(f"{of_jobs}.length") == 0
    assert tab.troubles() == []


CHOICES = {"a search": ("text", "train[993]", "993"), "a filter": ("status", "NO_JOB", "992")}


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
@pytest.mark.parametrize(("name", "value", "index"), CHOICES.values(), ids=CHOICES)
def test_an_opened_row_goes_over_from_its_build_to_its_job(
    server: Server, tab: chromium.Tab, name: str, value: str, index: str
) -> None:
    """By itself: nobody presses anything, and the list that was filtered by "no job yet" has lost the row."""
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    choose = f"(() => {{ const s = document.querySelector('[name={name}]'); s.value = '{value}';"
    tab.ask(f"{choose} s.dispatchEvent(new Event('input', {{bubbles: true}})); }})()")
    tab.until(f"{ROWS} < 20")
    row = f"[...document.querySelectorAll('#jobs button')].find((e) => e.textContent === 'train[{index}]')"
    tab.ask(f"{row}.click()")
    tab.until("document.querySelector('#detail .state')?.textContent === 'no job yet'")
    tab.ask("window.opened = true")
    server.seed("hand-over", "sweep", server.runs["sweep"], index)
    tab.until("document.querySelector('#detail .state')?.textContent === 'succeeded'")
    tab.until("document.querySelector('#detail .stretches') !== null")
    shown = tab.ask("document.querySelector('#detail').textContent")
    assert [each for each in ("Shared by", "no job yet") if each in shown] == []
    phases = tab.ask("[...document.querySelectorAll('#detail .stretches li')].map((e) => e.textContent)")
    assert [each for each in phases if each.startswith("airflow resumption 7.0 s: until the trigger's event")]
    assert tab.ask("window.opened") is True, "it is the same page"
    assert tab.troubles() == []


@pytest.mark.promise("page: Cost so far")
def test_a_batch_says_what_it_has_cost(server: Server) -> None:
    """Eight chips for an hour, by the server's prices: in the list, in its sum, and on the board."""
    _, listed = server.jobs(CORPUS, "admin")
    (row,) = (each for each in listed["jobs"] if each["task_id"] == "embed")
    path = f"/kinetic/api/dags/{CORPUS}/runs/{quote(row['run_id'])}/batches/{row['job_id']}"
    _, board = server.get(path, "admin")
    assert [(each["chip_seconds"], each["cost"]) for each in (row, listed, board)] == [(28800.0, 20.0)] * 3
    assert board["currency"] == "EUR"


@pytest.mark.promise("page: History of a task's durations, waits and cost")
def test_a_batch_has_a_history(server: Server) -> None:
    """From its record alone: nothing is stored of it."""
    _, answer = server.get(f"/kinetic/api/dags/{CORPUS}/tasks/embed/jobs?limit=1", "admin")
    (run,) = answer["history"]
    names = ("run_id", "jobs", "failed", "ran", "waited", "chip_seconds", "cost")
    assert [run[name] for name in names] == [server.runs[CORPUS], 1, 1, 840.0, 60.0, 28800.0, 20.0]


@pytest.mark.promise("page: A request without a token gets 401")
@pytest.mark.promise("page: One without access to the DAG gets 403")
def test_the_jobs_of_a_task_in_its_latest_runs(server: Server) -> None:
    path = "/kinetic/api/dags/{}/tasks/train/jobs"
    for user, expected in [(None, 401), ("guest", 403), ("admin", 200)]:
        status, answer = server.get(path.format("secret"), user)
        assert status == expected
    newest, older = (each["run_id"] for each in answer["jobs"])
    assert newest == server.runs["secret"]
    assert newest > older
    assert {each["run_id"] for each in answer["history"]} == {newest, older}
    _, of_sweep = server.get(path.format("sweep") + "?limit=1&text=train[700]", "guest")
    assert [each["map_index"] for each in of_sweep["jobs"]] == [700]
    assert server.get("/kinetic/api/dags/sweep/tasks/other/jobs", "admin")[1]["total"] == 0


@pytest.mark.promise("page: All that runs now, of the DAGs that one may see")
@pytest.mark.attack
def test_what_runs_now_in_every_dag_that_one_may_see(server: Server) -> None:
    seen = {}
    for user in PASSWORDS:
        status, answer = server.get("/kinetic/api/jobs?limit=500", user)
        assert status == 200
        assert {each["task_state"] for each in answer["jobs"]} <= {"queued", "running", "deferred"}
        seen[user] = {group["name"]: group["jobs"] for group in answer["groups"]["dag_id"]}
    assert server.get("/kinetic/api/jobs", None)[0] == 401
    assert set(seen["admin"]) == {"sweep", "secret"}
    assert (seen["admin"]["secret"], set(seen["guest"])) == (2, {"sweep"})
    _, found = server.get("/kinetic/api/jobs?text=secret", "admin")
    assert [each["dag_id"] for each in found["jobs"]] == ["secret", "secret"]


@pytest.mark.promise("page: Cancelling asks Airflow, and is offered to who may")
@pytest.mark.attack
def test_only_who_may_change_a_task_is_offered_its_end(server: Server) -> None:
    for index, user, offered in [(0, "admin", True), (0, "guest", False), (1, "admin", False)]:
        job_id = server.jobs("sweep", user, f"?map_index={index}")[1]["jobs"][0]["job_id"]
        assert server.jobs("sweep", user, f"/{job_id}")[1]["may_cancel"] is offered


@pytest.mark.promise("page: Connection missing")
def test_a_job_whose_connection_is_not_there_opens_all_the_same(server: Server) -> None:
    job_id = server.jobs("sweep", "admin", "?map_index=8")[1]["jobs"][0]["job_id"]
    status, job = server.jobs("sweep", "admin", f"/{job_id}")
    assert (status, job["status"], len(job["troubles"])) == (200, "UNKNOWN", 1)
    assert "there is no connection 'page_gone'" in job["troubles"][0]


@pytest.mark.promise("page: The UI's own conventions (`external_views`)")
def test_airflow_offers_the_page(server: Server) -> None:
    _, answer = server.get("/api/v2/plugins", "admin")
    (plugin,) = (each for each in answer["plugins"] if each["name"] == "kinetic")
    views = {view["destination"]: view["href"] for view in plugin["external_views"]}
    assert views == {
        "nav": "/kinetic/page/",
        "dag_run": "/kinetic/page/?dag={DAG_ID}&run={RUN_ID}",
        "task": "/kinetic/page/?dag={DAG_ID}&task={TASK_ID}",
        "task_instance": "/kinetic/page/?dag={DAG_ID}&run={RUN_ID}&task={TASK_ID}&map={MAP_INDEX}",
    }
    for path in ("importErrors", "plugins/importErrors"):
        assert server.get(f"/api/v2/{path}", "admin")[1]["total_entries"] == 0


@pytest.fixture(scope="module")
def tab(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Tab]:
    with browsing(server, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def picture(tab: chromium.Tab, name: str) -> None:
    if PICTURES:
        tab.picture(Path(PICTURES, f"{name}.png"))


ROWS = "document.querySelectorAll('#jobs tr').length"


@pytest.mark.promise("page: 1,000 mapped tasks: ≤ 1 s to first paint")
@pytest.mark.promise("page: No request per job", "one")
def test_the_first_rows_need_one_request(server: Server, tab: chromium.Tab) -> None:
    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/'))"
    tab.open(server.page("sweep"))  # by a browser that has nothing of it yet
    tab.until(f"{ROWS} === 100")
    assert tab.ask(painted) < 5000  # 0.2 s on an idle machine
    tab.open(server.page("sweep"))  # the server has been asked before, as it is while a page is open
    tab.until(f"{ROWS} === 100")
    answered = tab.ask(f"{asked}[0].responseEnd")
    assert max(tab.ask(painted), answered) < 5000
    assert tab.ask(f"{asked}.filter((e) => e.startTime < {answered}).length") == 1  # for a hundred rows
    assert tab.troubles() == []
    picture(tab, "airflow-page-light")


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
@pytest.mark.promise("page: Cost so far")
def test_a_row_shows_where_its_time_went_and_what_it_cost(server: Server, tab: chromium.Tab) -> None:
    _, answer = server.jobs("sweep", "admin", "?map_index=1")
    (job,) = answer["jobs"]
    assert (answer["currency"], job["cost"] > 0) == ("EUR", True)
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    assert "EUR" in tab.ask("document.querySelector('#summary').textContent")
    bar = "document.querySelectorAll('#jobs .timeline')[1]"
    label = tab.ask(f"{bar}.getAttribute('aria-label')")
    assert [each.split()[0] for each in label.split(", ")] == [each["name"] for each in job["phases"]]
    widths = tab.ask(f"[...{bar}.children].map((each) => each.getBoundingClientRect().width)")
    seconds = [phase["seconds"] for phase in job["phases"]]
    assert widths.index(max(widths)) == seconds.index(max(seconds))
    assert len(widths) == len(seconds)
    tab.ask("document.querySelectorAll('#jobs button')[1].click()")
    tab.until("document.querySelector('#detail').textContent.includes('EUR')")
    _, opened = server.jobs("sweep", "admin", f"/{job['job_id']}")
    around = len(opened["airflow"]["before"]) + len(opened["airflow"]["after"])
    assert tab.ask("document.querySelectorAll('#detail .stretches li').length") == len(seconds) + around


@pytest.mark.promise("page: Log tail")
@pytest.mark.promise("page: Links, outputs")
@pytest.mark.promise(
    "page: No CDN",
    "an inline script is refused; that the policy names no other host is in the code, not asserted",
)
@pytest.mark.promise("page: HTML in names and logs is never rendered")
def test_names_and_logs_are_text(server: Server, tab: chromium.Tab) -> None:
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    assert "<img src=x" in tab.ask("document.querySelectorAll('#jobs button')[1].textContent")
    tab.ask("document.querySelector('#jobs button').click()")
    tab.until("document.querySelector('#detail pre')?.textContent.includes('<img src=x')")
    assert tab.ask("document.querySelectorAll('img, script:not([src])').length") == 0
    tab.ask("document.querySelectorAll('#jobs button')[5].click()")
    tab.until("document.querySelector('#detail h2')?.textContent.includes('train[5]')")
    tab.until("!document.querySelector('#detail').textContent.includes('loading')")
    assert tab.ask("document.querySelectorAll('a[href^=javascript]').length") == 0
    assert tab.ask("document.querySelectorAll('#jobs button')[9].textContent") == "train[9], try 2"
    tab.ask("document.querySelectorAll('#jobs button')[9].click()")
    shown = "document.querySelector('#detail')?.textContent"
    tab.until(f"{shown}.includes('try 1: failed ValueError: <img src=x')")
    assert tab.ask(f"{shown}.includes('(job-of-the-first-try)')")
    assert tab.ask("document.title") == "Kinetic jobs"
    inline = "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
    assert (
        tab.ask(f"{inline} document.head.append(s); return window.ran; }})()") is None
    )  # the policy forbids it


@pytest.mark.promise("page: Keyboard")
def test_the_keyboard_does_it_all(server: Server, tab: chromium.Tab) -> None:
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    tab.press("/")
    assert tab.ask("document.activeElement.name") == "text"
    tab.ask("document.querySelector('#jobs button').focus()")
    tab.press("ArrowDown")
    tab.press("Enter")
    tab.until("document.activeElement.id === 'detail' && !document.querySelector('#detail').hidden")
    tab.until("document.querySelector('#detail h2').textContent.includes('train[1]')")
    tab.until("!document.querySelector('#detail').textContent.includes('loading')")
    picture(tab, "airflow-page-job")
    tab.press("Escape")
    assert tab.ask("document.querySelector('#detail').hidden") is True
    assert tab.ask("document.activeElement.textContent.startsWith('train[1]')") is True


@pytest.mark.promise("page: Cost so far")
def test_rows_are_sorted_by_what_they_cost(server: Server, tab: chromium.Tab) -> None:
    """By the server, of all pages: the greatest first, then the smallest; without a price at the end."""
    costs = "[...document.querySelectorAll('#jobs td:last-child')].map((each) => each.textContent)"
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    unsorted = tab.ask(costs)
    assert "—" in unsorted
    for arrow, is_reversed in (("descending", True), ("ascending", False)):
        tab.ask("document.querySelector('thead [name=cost]').click()")
        tab.until(f"{costs}[0] !== {json.dumps(unsorted[0])}")
        assert tab.ask(f"document.querySelectorAll('[aria-sort={arrow}]').length") == 1
        shown = [float(each.removesuffix(" EUR")) for each in tab.ask(costs)]
        assert shown == sorted(shown, reverse=is_reversed)
        unsorted = tab.ask(costs)
    assert server.jobs("sweep", "admin", "?order=-state")[0] == 422


@pytest.mark.promise("page: Filters, paged data")
def test_filters_and_pages(server: Server, tab: chromium.Tab) -> None:
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    tab.ask("document.querySelector('[name=on]').click()")
    tab.until("document.querySelector('#jobs button').textContent.startsWith('train[100]')")
    choose = "(() => { const s = document.querySelector('[name=reason]'); s.value = 'out of memory';"
    tab.ask(f"{choose} s.dispatchEvent(new Event('input', {{bubbles: true}})); }})()")
    shown = "[...document.querySelectorAll('#jobs .why')].map((each) => each.textContent)"
    tab.until(f"{shown}.every((each) => each.startsWith('out of memory: killed at'))")
    assert tab.ask("document.querySelector('#pager').hidden") is True


@pytest.mark.promise("page: Refreshes while running")
def test_it_refreshes_while_something_runs(server: Server, tab: chromium.Tab) -> None:
    tab.open(server.page("sweep", "&task=train&map=0"))
    tab.until(f"{ROWS} === 1")
    before = tab.ask("document.querySelector('#jobs').textContent")
    tab.until(f"document.querySelector('#jobs').textContent !== {json.dumps(before)}")


@pytest.mark.promise("page: Dark and light")
def test_dark_as_airflow_or_the_system_is(server: Server, tab: chromium.Tab) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    dark, light = "oklch(0.23185 0.0323 266.44)", "rgb(255, 255, 255)"
    tab.open(server.page("sweep"))
    tab.until(f"{ROWS} === 100")
    for choice, system, expected in [
        ("null", "dark", dark),
        ("'light'", "dark", light),
        ("'dark'", "light", dark),
    ]:
        tab.ask(f"{choice} ? localStorage.setItem('theme', {choice}) : localStorage.removeItem('theme')")
        tab.colours(system)
        tab.open(server.page("sweep"))
        tab.until(f"{ROWS} === 100")
        assert tab.ask(back) == expected
    picture(tab, "airflow-page-dark")
    tab.ask("localStorage.removeItem('theme')")
    tab.colours("light")


@pytest.mark.promise("page: The UI's own conventions (`external_views`)")
@pytest.mark.promise("page: Tested in Debian's headless Chromium", "and the others of this file")
def test_inside_airflows_own_pages(server: Server, tab: chromium.Tab) -> None:
    run = quote(server.runs["sweep"], safe="")
    inside = "document.querySelector('iframe')?.contentDocument?.querySelectorAll('#jobs tr').length"
    tab.open(f"{server.url}/dags/sweep/runs/{run}/plugin/kinetic-dag-run")
    tab.until(f"{inside} === 100", 60)
    picture(tab, "airflow-page-in-airflow")
    airflow, own = "getComputedStyle(document.body)", "document.querySelector('iframe').contentWindow"
    assert tab.ask(f"{own}.getComputedStyle({own}.document.body).fontFamily === {airflow}.fontFamily")
    tab.open(f"{server.url}/plugin/kinetic-nav")
    tab.until(f"{inside} > 2", 60)
    picture(tab, "airflow-page-of-all")
    tab.open(f"{server.url}/dags/sweep/runs/{run}/tasks/train/mapped/0/plugin/kinetic-task-instance")
    tab.until(f"{inside} === 1", 60)
    tab.open(f"{server.url}/dags/secret/tasks/train/plugin/kinetic-task")
    tab.until(f"{inside} === 2", 60)


@pytest.mark.promise("page: Cancelling asks Airflow, and is offered to who may")
def test_a_job_is_ended_with_the_second_click(server: Server, tab: chromium.Tab) -> None:
    tab.open(f"{server.url}/kinetic/page/")
    tab.until("document.querySelector('#groups')?.textContent.includes('secret: ')")
    tab.ask(
        "[...document.querySelectorAll('#groups button')].find((e) => /^secret/.test(e.textContent)).click()"
    )
    tab.until(f"{ROWS} === 2")
    tab.ask("document.querySelectorAll('#jobs button')[0].click()")
    tab.until("document.querySelector('.end')?.textContent === 'Cancel…'")
    tab.ask("document.querySelector('.end').click()")
    tab.until("document.querySelector('.end').textContent.startsWith('Really')")
    tab.ask("document.querySelector('.end').click()")
    tab.until(f"{ROWS} === 1")  # of what runs
    states = [
        server.get(f"/api/v2/dags/secret/dagRuns/{quote(each['run_id'])}/taskInstances/train", "admin")[1][
            "state"
        ]
        for each in server.get("/kinetic/api/dags/secret/tasks/train/jobs", "admin")[1]["jobs"]
    ]
    assert sorted(states) == ["deferred", "failed"]
    assert tab.troubles() == []


@pytest.mark.promise("page: For a DAG run and for a task: its jobs")
def test_a_task_shows_the_jobs_of_its_runs(server: Server, tab: chromium.Tab) -> None:
    tab.open(f"{server.url}/kinetic/page/?dag=secret&task=train")
    tab.until(f"{ROWS} === 2")
    names = tab.ask("[...document.querySelectorAll('#jobs button')].map((each) => each.textContent)")
    assert names[0] == server.runs["secret"]
    tab.ask("document.querySelectorAll('#jobs button')[1].click()")
    shown = "document.querySelector('#detail').textContent"
    tab.until(f"{shown}.includes({json.dumps(names[1])})")
    tab.until(f"!{shown}.includes('loading')")
    assert tab.ask("document.querySelectorAll('#detail .troubles, #troubles li').length") == 0


@pytest.mark.promise("scale: A grid of 10,000 squares: state, reason, log, attempts of each")
@pytest.mark.promise("page: A batch's inputs, each with state, reason, attempts and log")
@pytest.mark.promise("page: HTML in names and logs is never rendered")
def test_a_batch_shows_a_square_for_each_input(server: Server, tab: chromium.Tab) -> None:
    tab.open(server.page(CORPUS, "&task=embed&map=-1"))
    tab.until("Boolean(document.querySelector('.input-failed[d]'))")
    assert "9,896 succeeded" in tab.ask("document.querySelector('.counts').textContent")
    assert "104 × ValueError: <img" in tab.ask("document.querySelector('.causes').textContent")
    tab.click(".causes button")
    tab.until("document.querySelector('.input').textContent.includes('nothing of it is stored any more')")
    assert tab.ask("document.querySelectorAll('img').length") == 0
    assert tab.troubles() == []
    picture(tab, "airflow-page-batch")


def test_who_is_signed_out_is_told(server: Server, tab: chromium.Tab) -> None:
    tab.call("Network.clearBrowserCookies")
    tab.open(server.page("sweep"))
    tab.until("document.querySelector('#troubles')?.textContent.includes('Sign in to Airflow again')")
