"""Compare the gateway with the bare head, in the notebook: submitting a job, following its log, many jobs at once."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness import RESULT, authorized, interleaved, job_client
from ray.job_submission import JobSubmissionClient

GATEWAY, HEAD = "http://gateway:8265", "http://ray-head:8265"
TALK = "import time\nfor _ in range({lines}):\n    print(time.time(), flush=True)\n    time.sleep(0.25)"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")

CLIENTS = 16
"""Requests at the same time."""

POLL_SECONDS = 0.5
END_SECONDS = 1200.0


def submit(client: JobSubmissionClient) -> float:
    """Seconds of the request that submits; the job runs on a worker and ends before this returns."""
    began = time.perf_counter()
    job_id = client.submit_job(entrypoint="true", entrypoint_label_selector={"role": "worker"})
    seconds = time.perf_counter() - began
    while str(client.get_job_status(job_id)) not in ENDED:
        time.sleep(0.2)
    return seconds


async def follow(client: JobSubmissionClient, lines: int) -> float:
    """Mean seconds from printing a line to receiving it at the client."""
    command = f"python -c '{TALK.format(lines=lines)}'"
    job_id = client.submit_job(entrypoint=command, entrypoint_label_selector={"role": "worker"})
    late = []
    async for text in client.tail_job_logs(job_id):
        now = time.time()
        late += [now - float(line) for line in text.splitlines() if line.replace(".", "").isdigit()]
    return sum(late) / len(late)


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
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--burst", type=int, metavar="JOBS", help="measure so many jobs at once instead")
    args = parser.parse_args()
    gateway, head = job_client(GATEWAY, authorized("token")), job_client(HEAD, authorized("cluster_token"))
    if args.burst:
        # Plain Ray has no warm start.
        cold = {"MLPLATFORM_WARM_START": "0"}
        burst(gateway, 1, {}), burst(head, 1, cold)  # warm-up: connections
        pairs = interleaved(lambda: burst(gateway, args.burst, {}), lambda: burst(head, args.burst, cold), args.pairs)
        print(RESULT, json.dumps(pairs))
        return
    measured: dict[str, Callable[[JobSubmissionClient], float]] = {
        "submit": submit,
        "follow": lambda client: asyncio.run(follow(client, lines=4 if args.quick else 12)),
    }
    results = {}
    for name, measure in measured.items():
        if not args.quick:
            measure(gateway), measure(head)  # warm-up: connections and imports
        results[name] = interleaved(lambda do=measure: do(gateway), lambda do=measure: do(head), args.pairs)
    print(RESULT, json.dumps(results))


if __name__ == "__main__":
    main()
