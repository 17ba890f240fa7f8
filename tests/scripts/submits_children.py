"""Submit jobs from within a job, by Ray's own clients and the platform's, and try to stop somebody else's.

Prints one line of JSON with the ids of the children, what came of the tries, and the number of live nodes that the
state API lists.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import ray
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient
from ray.util.state import list_nodes


def typed(*words: str) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words} failed: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


@ray.remote(num_cpus=0)
def submitted_by_worker() -> str:
    """Submit a job from another process of this one."""
    return str(JobSubmissionClient().submit_job(entrypoint="true"))


def with_clusters_token(path: str) -> int:
    """Status of the gateway for the token that Ray's nodes have."""
    token = Path("/run/secrets/cluster_token").read_text().strip()
    request = urllib.request.Request(f"http://gateway:8265{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - the gateway's own address
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main() -> None:
    foreign = sys.argv[1]
    printed = typed("ray", "job", "submit", "--", "echo", "hello from the child")
    assert "hello from the child" in printed, printed
    client = JobSubmissionClient()
    Path("child.py").write_text("print('hello')\n")
    ours = typed("mlplatform", "submit", "child.py", "--no-wait")
    children = {
        "ray": re.findall(r"Job '(\S+)' submitted", printed)[0],
        "sdk": client.submit_job(entrypoint="sleep 2", entrypoint_num_cpus=1),
        "platform": re.findall(r"Submitted job (\S+);", ours)[0],
        "worker": ray.get(submitted_by_worker.remote()),
    }
    try:
        client.stop_job(foreign)
        refused = ""
    except AuthenticationError as error:
        refused = str(error)
    paths = ("/api/jobs/", "/platform/health", "/", "/nodes", "/platform/attempt/secrets")
    statuses = [with_clusters_token(path) for path in paths]
    found = {
        "children": children,
        "refused": refused,
        "statuses": statuses,
        "nodes": sum(node.state == "ALIVE" for node in list_nodes()),
    }
    print("found:", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
