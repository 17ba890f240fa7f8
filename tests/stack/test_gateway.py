"""Ray's client, which `ray job` uses too, works with the gateway as with its head: the answers of both are compared."""

from __future__ import annotations

import json
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from host import Stack, run

ADDRESSES = {"head": "http://ray-head:8265", "gateway": "http://gateway:8265"}

TAKEN = "409: Job with submission_id job-whole already exists. Please use a different submission_id."
OPEN = "409: Attempted to delete job 'job-stopped', but it is in a non-terminal state \\w+; stop it first."
NO_PACKAGE = "Package gcs://<package> of the job does not exist; submit the job again."

# Intended differences from the head's answers, by the name of the call; everything else must be equal.
DELIBERATE = {
    # The head answers 500 with a traceback although the caller made the mistake.
    "whole: again": TAKEN,
    "open: delete": OPEN,
    # The head detects a missing package only on a worker, and reports it in a traceback but not in the log.
    "no package: info": NO_PACKAGE,
    "no package: list": NO_PACKAGE,
    "no package: logs": NO_PACKAGE,
}

# The project of a job: a module next to the entry point, one in its own package, a file, variables.
MAIN = """
import os, sys
from helper import own
from shared import other

print("module", own, "package", other, "file", open("data.txt").read().strip())
print("variable", os.environ["NOTE"], "metadata", "kept" in os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
print("an error", file=sys.stderr)
if sys.argv[1:]:
    import ray
    ray.init()
    print("nodes", len(ray.nodes()) > 1)
"""

SDK = '''
import asyncio, dataclasses, json, os, sys, time
from ray.job_submission import JobSubmissionClient
from ray.util.state import get_log

address, tag = sys.argv[1:]
client = JobSubmissionClient(address)
seen = {}


def do(name, call, *args, **kwargs):
    """Record what a call returns or raises."""
    try:
        value = call(*args, **kwargs)
        seen[name] = value.dict() if hasattr(value, "dict") else value
    except Exception as error:
        seen[name] = {"raised": type(error).__name__, "text": str(error)}
    return seen[name]


def states_to_the_end(name, job, until=("SUCCEEDED", "FAILED", "STOPPED")):
    states, deadline = [], time.monotonic() + 120
    while (not states or states[-1] not in until) and time.monotonic() < deadline:
        state = str(client.get_job_status(job).value)
        if state not in states[-1:]:
            states.append(state)
        time.sleep(0.02)
    seen[name] = states


async def tail(job):
    return "".join([chunk async for chunk in client.tail_job_logs(job)])


def calls_on(what, job, tailed=True):
    """Make every read call about a job. The head delays each tail by 5 s."""
    do(f"{what}: info", client.get_job_info, job)
    do(f"{what}: status", client.get_job_status, job)
    do(f"{what}: logs", client.get_job_logs, job)
    if tailed:
        do(f"{what}: tail", lambda: asyncio.run(tail(job)))
    do(f"{what}: list", lambda: [entry.dict() for entry in client.list_jobs() if entry.submission_id == job])


do("version", client.get_version)
do("ray version", lambda: client._do_request("GET", "/api/version").json())

whole = f"{tag}-whole"
do("whole: submit", client.submit_job, submission_id=whole, entrypoint="python main.py ray", entrypoint_num_cpus=0.5,
   entrypoint_memory=1 << 20, entrypoint_resources={}, metadata={"note": "kept"},
   runtime_env={"working_dir": "project", "py_modules": ["shared"], "env_vars": {"NOTE": "a b"}})
states_to_the_end("whole: states", whole)
calls_on("whole", whole)
do("whole: by Ray's id", client.get_job_info, client.get_job_info(whole).job_id)
do("whole: log of the state API", lambda: list(get_log(address, submission_id=whole)))
do("whole: again", client.submit_job, submission_id=whole, entrypoint="true")
do("whole: stop", client.stop_job, whole)
do("whole: delete", client.delete_job, whole)
calls_on("whole, deleted", whole)
do("whole, deleted: delete", client.delete_job, whole)

failing = do("failing: submit", client.submit_job, entrypoint="sleep 1; echo before; echo why >&2; exit 3",
             metadata={"max_restarts_on_loss": "0"})
states_to_the_end("failing: states", failing)

calls_on("failing", failing)
do("failing: delete", client.delete_job, failing)

stopped = f"{tag}-stopped"
do("stopped: submit", client.submit_job, submission_id=stopped, entrypoint="exec sleep 600")
states_to_the_end("stopped: states at first", stopped, until=("RUNNING",))
do("open: info", client.get_job_info, stopped)
do("open: delete", client.delete_job, stopped)
do("stopped: stop", client.stop_job, stopped)
states_to_the_end("stopped: states", stopped)
seen["stopped: states"] = seen["stopped: states"][-1:]  # it may have ended by now
calls_on("stopped", stopped, tailed=False)
do("stopped: stop again", client.stop_job, stopped)
do("stopped: delete", client.delete_job, stopped)

unknown = f"{tag}-unknown"
calls_on("unknown", unknown)
do("unknown: stop", client.stop_job, unknown)
do("unknown: delete", client.delete_job, unknown)

do("bad type: submit", lambda: client._do_request("POST", "/api/jobs/", json_data={"entrypoint": 1}).status_code)
do("no entrypoint: submit", lambda: client._do_request("POST", "/api/jobs/", json_data={}).status_code)
missing = f"{tag}-missing"
do("no package: submit", client.submit_job, submission_id=missing, entrypoint="true",
   runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
states_to_the_end("no package: states", missing)
seen["no package: states"] = seen["no package: states"][-1:]  # it may fail before the first call
calls_on("no package", missing, tailed=False)
do("no package: delete", client.delete_job, missing)
print(json.dumps(seen, default=str))
'''


def driven(stack: Stack) -> dict[str, dict[str, Any]]:
    """Output of the calls at each address, by name of the call, without parts that always differ."""

    def through(server: str) -> dict[str, Any]:
        # Each server has its own packages.
        tag = f"t{secrets.token_hex(4)}{server[0]}"
        folder = f"/tmp/clients/{tag}"
        stack.write("notebook", f"{folder}/project/main.py", MAIN)
        stack.write("notebook", f"{folder}/project/helper.py", "own = 'own'\n")
        stack.write("notebook", f"{folder}/project/data.txt", tag)
        stack.write("notebook", f"{folder}/shared/__init__.py", f"other = '{tag}'\n")
        stack.write("notebook", f"{folder}/script.py", SDK)
        # Only nodes have the cluster's token, which the head requires.
        token = [f"--env=RAY_AUTH_TOKEN={stack.secret('cluster_token')}"] if server == "head" else []
        environment = ("--env", f"RAY_ADDRESS={ADDRESSES[server]}", *token, "--workdir", folder)
        command = ("python", "script.py", ADDRESSES[server], tag)
        printed = run("docker", "exec", *environment, stack.container("notebook"), *command).stdout
        return {
            name: plain(value, tag, ADDRESSES[server]) for name, value in json.loads(printed.splitlines()[-1]).items()
        }

    with ThreadPoolExecutor() as pool:
        return dict(zip(ADDRESSES, pool.map(through, ADDRESSES), strict=True))


def plain(value: Any, tag: str, address: str) -> Any:
    """A value without ids, times, addresses and the paths in tracebacks."""
    if isinstance(value, dict):
        return {key: plain(one, tag, address) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one, tag, address) for one in value]
    if isinstance(value, int) and value > 1e12:
        return "<time>"
    if not isinstance(value, str):
        return value
    text = value.replace(tag, "job").replace(address, "<address>")
    for pattern, instead in _VARYING:
        text = re.sub(pattern, instead, text)
    if "Traceback" in text and "Request failed with status code" in text:
        text = f"{text.split(': ')[0].split()[-1]}: {text.rstrip(' .').splitlines()[-1]}"
    return text


_VARYING = [
    (r"\x1b\[\d*m", ""),  # the gateway's logs have no colors
    # Logged where Ray's head runs a driver itself; the gateway starts none there.
    (r"[\d-]+ [\d:,]+(\t|\\t)INFO job_manager.py:\d+ -- Runtime env is setting up\.(\n|\\n)", ""),
    (r"mlplatform: the program started (warm|cold: .*?)(\n|\\n)", ""),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "<moment>"),
    (r"\b\d{13}\b", "<time>"),
    (r"\b\d+\.\d+\.\d+\.\d+\b", "<ip>"),
    (r"\b[0-9a-f]{56}\b", "<node>"),
    (r"\b[0-9a-f]{2}000000\b", "<driver>"),
    (r"pid='\d+'", "pid"),
    (r"raysubmit_\w{16}\b", "raysubmit_<random>"),
    (r"_ray_pkg_[0-9a-f]{16}\.zip", "<package>"),
    (r".*Job has not exited yet.*\n", ""),
]


def test_ray_python_client_behaves_equally_through_gateway(stack: Stack) -> None:
    seen = driven(stack)
    # Process ids always differ.
    for server in seen.values():
        for name in ("whole: info", "whole: by Ray's id"):
            server[name]["driver_info"].pop("pid")
        for entry in server["whole: list"]:
            entry["driver_info"].pop("pid")
    head, gateway = seen["head"], seen["gateway"]
    assert list(head) == list(gateway)
    different = {name: (head[name], gateway[name]) for name in head if head[name] != gateway[name]}
    undeclared = {name: pair for name, pair in different.items() if name not in DELIBERATE}
    assert not undeclared, json.dumps(undeclared, indent=1)
    for name, (_, answer) in different.items():
        assert re.search(DELIBERATE[name], json.dumps(answer)), (name, answer)
    assert gateway["whole: states"] == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert "module own package job file job\nvariable a b metadata True\nan error\n" in gateway["whole: logs"]
    assert gateway["whole: tail"] == gateway["whole: logs"]
    assert gateway["failing: info"]["driver_exit_code"] == 3
