"""What each verb says and how it ends, on real jobs of the local backend."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.backends.base import open_backend
from kinetic_core.backends.local.layout import Layout
from kinetic_core.client import default_client
from kinetic_core.connections import default_connections
from kinetic_core.settings import read_settings
from tests.conftest import Kinetic
from tests.person import KINETIC, Person

on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def double(x: int) -> int:
    print(f"doubling {x}")
    return 2 * x


@on_cpu
def sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


@pytest.mark.promise("command: `run`, with the log and the value, and `--detach`")
@pytest.mark.promise("command: Plain output when piped")
def test_run_prints_the_log_and_the_value(kinetic: Kinetic, sample: str) -> None:
    done = kinetic("run", f"{sample}:scaled", "21", "factor=2")
    assert (done.code, done.out) == (0, "[bold]scaling[/bold]\n42\n")


def test_run_and_result_show_what_they_wait_for(sample: str, no_slot_is_free: Callable[[], None]) -> None:
    with Person(KINETIC, "run", f"{sample}:scaled", "21") as person:
        person.awaits("no CPU slot is free")
        job_id = re.search(r"submitted (job-[0-9a-f]+)", person.seen)
        assert job_id
        with Person(KINETIC, "jobs", "result", job_id[1]) as other:
            other.awaits("no CPU slot is free")
            no_slot_is_free()
            assert [each.ends() for each in (person, other)] == [0, 0]
    for seen in (person.seen, other.seen):
        assert re.search(r"kinetic: succeeded in [\d.]+ s: .*waiting \(WaitingForSlot\) [\d.]+ s", seen), seen
        assert seen.endswith("21\r\n")


def test_a_pipe_gets_lines_of_run_on_stderr_only(sample: str, kinetic: Kinetic) -> None:
    done = kinetic("run", f"{sample}:retried", "--json")
    assert (done.code, done.json["result"]) == (0, 2)
    told = "kinetic: attempt 1 of 2 failed: OSError: shard 3 is corrupt; starting again\n"
    assert told in done.err
    assert "\nkinetic: succeeded in " in done.err
    again = kinetic("jobs", "result", done.json["job_id"])
    assert (again.code, again.out, again.err) == (0, "2\n", "")  # it had ended: nobody waits


@pytest.mark.promise("command: `run`, with the log and the value, and `--detach`")
def test_run_a_plain_function_detached(kinetic: Kinetic, sample: str) -> None:
    done = kinetic("run", f"{sample}:plain", "a=b", "--accelerator", "cpu")
    assert done.code == 2
    assert "missing a required argument: 'x'" in done.err
    done = kinetic("run", f"{sample}:plain", "word", "-a", "cpu", "--detach")
    job_id = done.out.strip()
    assert kinetic("jobs", "result", job_id).out == "{'word'}\n"


@pytest.mark.promise("command: Exit codes tell user, cloud and job apart")
def test_a_failed_job_is_exit_code_1_with_its_own_exception(kinetic: Kinetic, sample: str) -> None:
    done = kinetic("run", f"{sample}:failing")
    assert done.code == 1
    assert "KeyError: 'no [such] key'" in done.err
    assert 'in failing\n    raise KeyError("no [such] key")' in done.err
    told = kinetic("run", f"{sample}:failing", "--json").json
    assert (told["schema"], told["error"], told["exit_code"]) == ("error/1", "KeyError", 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nowhere.py"], "nowhere.py is not a file"),
        (["run", "SAMPLE"], "say which to run"),
        (["run", "SAMPLE:absent"], "no function 'absent'; it has: scaled, failing, waiting, retried"),
        (["run", "SAMPLE:plain"], "--accelerator cpu"),
        (["run", "SAMPLE:scaled", "x=1", "2"], "'2' comes after a NAME=VALUE"),
        (["run", "SAMPLE:scaled", "1", "-a", "tpu-v99"], "tpu-v99"),
        (["jobs", "status", "job-0000000000000000"], "no job job-0000000000000000"),
        (["jobs", "status", "../x"], "is not a job id"),
        (["jobs", "logs", "x", "--follow", "--tail", "3"], "--follow goes with neither"),
        (["batch", "status", "grp-0"], "no batch grp-0"),
        (["jobs", "list", "--profile", "absent"], "no profile 'absent'"),
        (["profile", "create", "x", "zone=z"], "no project and no cluster"),
        (["profile", "show"], "no profile is in use"),
        (["accelerators", "--kind", "npu"], "'npu' is neither tpu nor gpu"),
        (["config", "set"], "kinetic config set: it only shows"),
        (
            ["jobs", "list", "--backend", "slurm"],
            "error: --backend='slurm' is not one of local, gke, pathways\n",
        ),
        (["jobs", "list", "--backend", "lcoal"], "error: --backend='lcoal' is not one of"),
        (["jobs", "list", "--backend", "lcoal"], "Did you mean 'local'?"),
        (["jobs", "list", "--backend", "gke"], "needs a bucket: set KINETIC_BUCKET"),
        (["up", "--project", "my-project", "--zone", "us-west1b", "--dry-run"], "mean 'us-west1-b'?"),
        (["status", "--project", "my-project", "--zone", "us-west1b"], "Did you mean 'us-west1-b'?"),
        (["up", "--project", "my-project", "--accelerator", "gpu-l44", "--dry-run"], "'gpu-l4-4'"),
    ],
)
def test_user_errors_say_what_to_do(words: list[str], said: str, kinetic: Kinetic, sample: str) -> None:
    done = kinetic(*(word.replace("SAMPLE", sample) for word in words))
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jobs", "status", "job-0000000000000000"], ["jobs", "list"]),
        (["jobs", "cancel", "job-0000000000000000"], ["jobs", "list"]),
        (["batch", "status", "grp-0"], ["batch", "list"]),
        (["jobs", "status", "grp-0"], ["batch", "status", "grp-0"]),
        (["jobs", "explain", "grp-0"], ["batch", "status", "grp-0"]),
        (["jobs", "logs", "grp-0"], ["batch", "status", "grp-0"]),
        (["jobs", "result", "grp-0"], ["batch", "status", "grp-0"]),
        (["jobs", "status", "grp-0-1"], ["jobs", "list"]),
        (["up"], ["profile", "create", "NAME"]),
    ],
)
def test_an_error_ends_with_the_command_to_run(
    words: list[str], said: list[str], kinetic: Kinetic, own_jobs: None
) -> None:
    done = kinetic(*words)
    assert done.code == 2
    assert f"\nhint: `kinetic {' '.join(said)}` " in done.err
    assert kinetic(*said, "--help").code == 0


def test_a_name_of_two_machines_is_told(kinetic: Kinetic) -> None:
    (line,) = [line for line in kinetic("accelerators", "v6e-8").out.splitlines() if "is also" in line]
    assert line == (
        "tpu-v6e-8 is also tpu-v6e-2x4-4t, 8 chips, 2x4, 2 hosts of ct6e-standard-4t: where the cluster "
        "has a pool of that only"
    )
    listed = kinetic("accelerators", "v6e-8", "--json").json["accelerators"]
    assert [(one["also"], one["means"]) for one in listed] == [(["tpu-v6e-2x4-4t"], None), ([], None)]


@pytest.mark.promise("command: `accelerators`, `--live` too")
def test_the_list_is_printed_though_pools_are_unknown(
    kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = kinetic("accelerators", "l4")
    told = kinetic("accelerators", "l4", "--live")
    assert (told.code, told.out, "set KINETIC_PROJECT" in told.err) == (0, plain.out, True)
    default_client().close()
    monkeypatch.setenv("KINETIC_PROJECT", "my-project")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    told = kinetic("accelerators", "l4", "--live")
    assert (told.code, told.out) == (0, plain.out)
    assert "gcloud auth application-default login" in told.err
    listed = kinetic("accelerators", "l4", "--live", "--json").json["accelerators"]
    assert {one["pools"] for one in listed} == {None}


@pytest.mark.promise("command: Every verb of the spec that is not provisioning, plus these")
@pytest.mark.promise("command: `jobs list/status/logs/watch/result/cancel/cleanup/explain/outputs`")
def test_a_job_from_every_side(kinetic: Kinetic, local_jobs: Path) -> None:
    job_id = double.run_async(4).job_id
    assert kinetic("jobs", "result", job_id, "--no-cleanup").out == "8\n"
    assert kinetic("jobs", "status", job_id).out.startswith(f"{job_id}: SUCCEEDED")
    assert kinetic("jobs", "logs", job_id).out == "doubling 4\n"
    assert kinetic("jobs", "logs", job_id, "-n", "1").out == "doubling 4\n"
    assert kinetic("jobs", "logs", job_id, "-f").out == "doubling 4\n"
    assert "function: your own code" in kinetic("jobs", "explain", job_id).out
    listed = kinetic("jobs", "list").out.splitlines()
    assert listed[0].split()[:2] == ["JOB", "STATUS"]
    assert any(re.search(rf"{job_id} .* \d+s( |$)", line) for line in listed), listed  # its age
    assert next(line for line in listed if job_id in line).split()[1:3] == ["SUCCEEDED", "double"]
    assert kinetic("jobs", "cleanup", job_id).out == f"cleaned up {job_id}\n"
    assert kinetic("jobs", "status", job_id).code == 2


@pytest.mark.promise("command: `jobs list/status/logs/watch/result/cancel/cleanup/explain/outputs`")
def test_a_job_is_cancelled(kinetic: Kinetic, local_jobs: Path) -> None:
    handle = sleep.run_async(60)
    ending = ("--cleanup-timeout", "1", "--cleanup-poll-interval", "1")
    assert kinetic("jobs", "result", handle.job_id, "--timeout", "0.1", *ending).code == 4
    assert kinetic("jobs", "cleanup", handle.job_id, *ending).code == 2
    assert kinetic("jobs", "cancel", handle.job_id).out == f"cancelled {handle.job_id}\n"
    assert kinetic("jobs", "cancel", handle.job_id, *ending).out == f"{handle.job_id} had ended\n"
    listed = kinetic("jobs", "list").out.splitlines()
    assert next(line for line in listed if handle.job_id in line).split()[1] == "CANCELLED"
    assert kinetic("jobs", "result", handle.job_id).code == 1
    watched = kinetic("jobs", "watch", handle.job_id)
    assert (watched.code, "CANCELLED" in watched.out) == (1, True)


@pytest.mark.promise("command: Job of another version")
def test_a_job_of_another_version(kinetic: Kinetic, local_jobs: Path) -> None:
    handle = double.run_async(1)
    fields = {**handle.to_dict(), "job_id": "job-00000000000000ff", "protocol": 99}
    store = open_backend("local", default_connections()).store
    store.create_if_absent("jobs/job-00000000000000ff/handle.json", json.dumps(fields).encode())
    done = kinetic("jobs", "status", "job-00000000000000ff")
    assert (done.code, "speaks wire protocol 99" in done.err) == (2, True)


def test_watch_takes_all_that_have_not_ended(kinetic: Kinetic, own_jobs: None) -> None:
    handle = sleep.run_async(1)
    watched = kinetic("jobs", "watch", "--json")
    states = {one["job_id"]: one["status"] for one in watched.json["jobs"]}
    assert states[handle.job_id] == "SUCCEEDED"
    assert kinetic("jobs", "watch").out == "no job is waiting or running\n"


def test_a_damaged_record_spoils_no_list(kinetic: Kinetic, own_jobs: None) -> None:
    broken, fine = double.run_async(1), double.run_async(2)
    fine.result(stream_logs=False)
    broken.result(stream_logs=False, cleanup=False)
    Path(Layout(str(read_settings().local_store)).record("default", broken.job_id)).write_text("{")
    told = kinetic("jobs", "list")
    assert (told.code, told.out.count("SUCCEEDED")) == (0, 2)


def test_a_file_that_cannot_be_imported(kinetic: Kinetic, tmp_path: Path) -> None:
    for number, text in enumerate(("import nowhere_at_all", "raise SystemExit(3)", "def f(:")):
        (tmp_path / f"cli_sample_{number}.py").write_text(text)
        done = kinetic("run", str(tmp_path / f"cli_sample_{number}.py"))
        assert (done.code, "cannot be imported" in done.err) == (2, True)


@pytest.mark.promise("command: Every verb of the spec that is not provisioning, plus these")
@pytest.mark.promise("command: `batch list/status/results/cancel` (W62)")
def test_batches(kinetic: Kinetic, local_jobs: Path) -> None:
    batch = double.run_async_map([1, 2, "x"], name="some")
    assert batch.results(return_exceptions=True)[:2] == [2, 4]
    assert batch.group_id in kinetic("batch", "list").out
    told = kinetic("batch", "status", batch.group_id).out
    assert told.startswith(f"{batch.group_id}: 3 inputs: 3 SUCCEEDED")
    found = kinetic("batch", "results", batch.group_id, "--json")
    assert (found.code, [one["result"] for one in found.json["results"]]) == (0, [2, 4, "xx"])
    assert kinetic("batch", "cancel", batch.group_id).code == 0


def leave(name: str) -> None:
    Path(os.environ["KINETIC_OUTPUT_DIR"], name).write_text("weights")


@pytest.mark.promise("command: `jobs list/status/logs/watch/result/cancel/cleanup/explain/outputs`")
def test_outputs_are_listed_and_downloaded(kinetic: Kinetic, local_jobs: Path, tmp_path: Path) -> None:
    handle = kinetic_core.run(accelerator="cpu")(leave).run_async("model")
    handle.result()
    assert kinetic("jobs", "outputs", handle.job_id).out.split() == ["BYTES", "FILE", "7", "model"]
    assert kinetic("jobs", "outputs", handle.job_id, "m*", "--to", str(tmp_path / "here")).code == 0
    assert (tmp_path / "here" / "model").read_text() == "weights"
    told = kinetic("jobs", "outputs", handle.job_id, "*.csv", "--to", str(tmp_path))
    assert (told.code != 0, "has no file like '*.csv'" in told.err) == (True, True)


@pytest.mark.promise("command: `package --dry-run`")
def test_package_says_what_ships_and_stores_it(
    kinetic: Kinetic, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(sample).parent))
    dry = kinetic("package", f"{sample}:scaled", "1", "--dry-run", "--json").json
    assert [file["path"] for file in dry["files"]] == ["cli_sample.py"]
    assert dry["manifest"]["kind"] == "Job"
    assert "1 files" in kinetic("package", f"{sample}:scaled").out


def test_a_collected_job_has_its_log_and_its_times(kinetic: Kinetic, local_jobs: Path) -> None:
    job_id = double.run_async(4).job_id
    assert kinetic("jobs", "result", job_id, "--cleanup").out == "8\n"
    assert kinetic("jobs", "logs", job_id, "-f").out == "doubling 4\n"
    told = kinetic("jobs", "status", job_id, "--json").json
    assert told["created_at"] <= told["started_at"] <= told["finished_at"]


@pytest.mark.parametrize("words", [(), ("jobs",), ("jobs", "list")])
def test_help_has_a_short_name(words: tuple[str, ...], kinetic: Kinetic) -> None:
    assert kinetic(*words, "-h").out == kinetic(*words, "--help").out != ""


def test_the_list_of_commands_has_whole_summaries(kinetic: Kinetic) -> None:
    told = " ".join(kinetic("--help").out.split())
    assert "Look at the workers that run calls of warm functions, start and stop them." in told


def test_numbers_of_the_configuration_are_numbers(kinetic: Kinetic) -> None:
    told = {one["name"]: one["value"] for one in kinetic("config", "--json").json["settings"]}
    assert isinstance(told["debug_wait"], int | float)


@pytest.mark.promise("command: `config`: each value and where it came from")
def test_profiles_are_made_chosen_and_removed(kinetic: Kinetic) -> None:
    assert kinetic("profile", "create", "team", "--project", "p", "zone=us-west1-a", "cluster=c").code == 0
    again = kinetic("profile", "create", "team", "--project", "p", "zone=us-west1-a", "cluster=c")
    assert (again.code, "--force replaces it" in again.err) == (2, True)
    assert kinetic("profile", "create", "here", "--backend", "local").code == 0
    told = kinetic("config", "--cluster", "mine", "--json").json
    origins = {one["name"]: (one["value"], one["origin"]) for one in told["settings"]}
    assert origins["zone"] == ("us-west1-a", "profile team")
    assert origins["cluster"] == ("mine", "--cluster")
    assert origins["namespace"] == ("default", "default")
    assert "state" not in " ".join(origins)
    assert kinetic("config", "show").out == kinetic("config").out
    assert told["profile"] == "team"
    assert kinetic("--profile", "here", "config", "--json").json["profile"] == "here"
    assert kinetic("config", "--profile", "here", "--json").json["profile"] == "here"
    assert kinetic("profile", "use", "here").out == "current profile: here\n"
    listed = kinetic("profile", "list").out.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["*", "here"], ["team", "p"]]
    assert kinetic("profile", "remove", "here").code == 0
    assert kinetic("profile", "show").code == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["backend=lcoal"], "backend='lcoal' of profile x is not one of local, gke, pathways. Did you mean"),
        (["zone=z"], "--zone 'z' is neither a zone (us-central1-a) nor a region"),
        (["zone=us-west1b"], "Did you mean 'us-west1-b'?"),
        (["kubeconfig=kind.yaml"], "kubeconfig='kind.yaml' of profile x is a relative path"),
        (["kubeconfig=/k:kind.yaml"], "'kind.yaml' of profile x is a relative path"),
        (["backend=local", "local_store=jobs"], f"write {Path.cwd() / 'jobs'}"),
    ],
)
def test_a_profile_that_cannot_be_used_is_not_kept(fields: list[str], said: str, kinetic: Kinetic) -> None:
    done = kinetic("profile", "create", "x", "project=p", "zone=us-west1-a", "cluster=c", *fields)
    assert (done.code, said in done.err) == (2, True), done.err
    assert kinetic("profile", "list", "--json").json["profiles"] == []
    at_home = ("kubeconfig=~/.kube/config:/k", "local_store=~/jobs")
    assert kinetic("profile", "create", "x", *at_home).code == 0


def test_only_the_first_profile_becomes_current(kinetic: Kinetic) -> None:
    def create(name: str) -> bool:
        return bool(kinetic("profile", "create", name, "backend=local", "--json").json["current"])

    assert create("first")
    assert kinetic("profile", "use", "--none").code == 0
    assert not create("second")
    assert not kinetic("profile", "create", "first", "backend=local", "--force", "--json").json["current"]
    assert "(in use)" not in kinetic("profile", "show", "second").out


@pytest.mark.promise("command: Profiles and precedence as specified (W76)")
def test_profiles_by_their_other_names(kinetic: Kinetic) -> None:
    kinetic("profile", "create", "here", "--backend", "local")
    assert kinetic("profile", "ls").out == kinetic("profile", "list").out
    assert kinetic("profile", "unset").out == "current profile: none\n"
    assert kinetic("profile", "use", "--none").out == "current profile: none\n"
    unasked = kinetic("profile", "rm", "here", "--json")
    assert (unasked.code, "pass --yes to remove" in unasked.json["message"]) == (2, True)
    assert kinetic("profile", "rm", "here", "--yes").out == "removed profile here\n"
    told = kinetic("profile", "rm", "here", "--yes")
    assert (told.code, "no profile 'here'" in told.err) == (2, True)
    assert "  ls" not in kinetic("profile", "--help").out


@pytest.mark.promise("command: A corrupt file survives with a message")
def test_a_broken_profiles_file_is_named_by_every_verb(kinetic: Kinetic, tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text("{")
    for words in (
        ["jobs", "list"],
        ["config"],
        ["profile", "list"],
        ["profile", "create", "x", "backend=local"],
    ):
        done = kinetic(*words)
        assert (done.code, "profiles.json cannot be used" in done.err) == (2, True)
    assert (tmp_path / "profiles.json").read_text() == "{"


def test_doctor_looks_for_no_program(
    kinetic: Kinetic, local_jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    done = kinetic("doctor")
    assert done.code == 0, done.out
    assert "gcloud" not in done.out
    assert "kubectl" not in done.out


@pytest.mark.promise("command: … a real one-second job on the chosen accelerator")
@pytest.mark.promise("command: … on GKE, a kubeconfig and the local backend")
def test_doctor_finds_what_is_wrong_and_runs_a_job(
    kinetic: Kinetic, local_jobs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = kinetic("doctor", "--job")
    assert done.code == 0
    assert "ran for a second" in done.out
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(file / "x"))
    broken = kinetic("doctor", "--job")
    assert broken.code == 5
    assert [line.split()[0] for line in broken.out.splitlines() if "needs" in line] == ["skip", "skip"]
