"""Seconds that opening the job's run takes; once per job, because later calls rejoin it."""

import time

from scripts.common import arguments, print_result

import mlplatform

TARGET_SECONDS = 0.3


if __name__ == "__main__":
    arguments()
    began = time.perf_counter()
    with mlplatform.job_run(experiment="bench"):
        seconds = time.perf_counter() - began
    print_result(open_run=[(seconds, TARGET_SECONDS)])
