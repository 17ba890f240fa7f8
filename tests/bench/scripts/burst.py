"""Many trivial jobs at once, through the gateway and through the bare head, in the notebook."""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from harness import RESULT, authorized, interleaved, job_client
from ray.job_submission import JobSubmissionClient

GATEWAY, HEAD = "http://gateway:8265", "http://ray-head:8265"
CLIENTS = 16
"""Requests at the same time."""

POLL_SECONDS = 0.5
END_SECONDS = 1200.0


def burst(client: JobSubmissionClient, count: int, environment: dict[str, str]) -> tuple[float, float]:
    """Submit jobs; return the seconds until all are accepted, and until all have succeeded."""

    def submit(_: int) -> str:
        return client.submit_job(
            entrypoint='python -c "print(1)"',
            entrypoint_label_selector={"role": "worker"},
            runtime_env={"env_vars": environment} if environment else None,
        )

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        ids = set(pool.map(submit, range(count)))
    accepted = time.perf_counter() - began
    while True:
        statuses = [str(job.status) for job in client.list_jobs() if job.submission_id in ids]
        seconds = time.perf_counter() - began
        if failed := len(statuses) - sum(map(statuses.count, ("PENDING", "RUNNING", "SUCCEEDED"))):
            sys.exit(f"{failed} of {count} jobs failed")
        if statuses.count("SUCCEEDED") == count:
            # Ray's head becomes slower with each job that it keeps, which would slow down the next burst.
            for job_id in ids:
                client.delete_job(job_id)
            return accepted, seconds
        if seconds > END_SECONDS:
            sys.exit(f"{statuses.count('SUCCEEDED')} of {count} jobs have succeeded after {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=160)
    args = parser.parse_args()
    gateway, head = job_client(GATEWAY, authorized("token")), job_client(HEAD, authorized("cluster_token"))
    # Plain Ray has no warm start.
    cold = {"MLPLATFORM_WARM_START": "0"}
    burst(gateway, 1, {}), burst(head, 1, cold)  # warm-up: connections
    pairs = interleaved(lambda: burst(gateway, args.jobs, {}), lambda: burst(head, args.jobs, cold), args.pairs)
    print(RESULT, json.dumps(pairs))


if __name__ == "__main__":
    main()
