"""Compare the gateway with the bare head, in the notebook: submitting a job and following its log."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable

from harness import RESULT, authorized, interleaved, job_client
from ray.job_submission import JobSubmissionClient

GATEWAY, HEAD = "http://gateway:8265", "http://ray-head:8265"
TALK = "import time\nfor _ in range({lines}):\n    print(time.time(), flush=True)\n    time.sleep(0.25)"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    gateway, head = job_client(GATEWAY), job_client(HEAD, authorized("cluster_token"))
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
