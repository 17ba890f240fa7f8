"""Time a command, to its end or to the first line of output that contains a text; standard library only."""

import argparse
import json
import re
import subprocess
import sys
import time

# The line that `mlplatform submit` or `ray job submit` prints about the new job.
JOB = re.compile(r"^Submitted job (\S+);|Job '(\S+)' submitted successfully", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", default="")
    parser.add_argument("--no-job", action="store_true", help="the command submits no job")
    parser.add_argument("--exit-code", type=int, default=0, help="the one that is expected")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    seen, seconds = [], None
    start = time.perf_counter()
    with subprocess.Popen(args.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            seen.append(line)
            if args.until and args.until in line and seconds is None:
                seconds = time.perf_counter() - start
    if not args.until:
        seconds = time.perf_counter() - start
    output = "".join(seen)
    job = JOB.search(output)
    if process.returncode != args.exit_code or seconds is None or (job is None and not args.no_job):
        sys.exit(f"exit code {process.returncode}, {seconds} s\n{output}")
    print(json.dumps({"seconds": seconds, "job": job and (job[1] or job[2])}))


if __name__ == "__main__":
    main()
