"""`mlplatform top`: its tables, its live screen, and its errors."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from command_line import Serve, mlplatform

USE: dict[str, Any] = {
    "nodes": [
        {"name": "ray-worker-0", "cpus": 8, "cpus_reserved": 2.5, "memory_used": 3 << 30, "memory_total": 8 << 30},
        {"name": "ray-worker-1", "cpus": 8, "cpus_reserved": 0, "memory_used": None, "memory_total": None},
    ],
    "gpus": [
        {
            **{"node": "ray-worker-0", "index": 0, "name": "NVIDIA H100", "percent": 87, "memory_of": {}},
            **{"memory_used": 61 << 30, "memory_total": 80 << 30, "holders": {"a": 0.5, "b": 0.5}},
        },
        {
            **{"node": "ray-worker-1", "index": 0, "name": "", "percent": None, "memory_of": {}},
            **{"memory_used": None, "memory_total": None, "holders": {}},
        },
    ],
    "jobs": [
        {
            **{"id": "a", "user": "ada", "command": "python train.py\n--epochs 8", "cpus": 1.25, "memory": 1 << 30},
            "gpus": [{"node": "ray-worker-0", "index": 0, "amount": 0.5, "percent": 87}],
        },
        {"id": "plain", "user": "", "command": "./run", "cpus": None, "memory": None, "gpus": []},
    ],
    "running": 2,
}

TABLES = """\
Node          CPUs reserved  Memory
ray-worker-0  2.5 of 8       3.0 of 8.0 GiB
ray-worker-1  0 of 8         -

GPU             Model        Use   Memory            Jobs
ray-worker-0:0  NVIDIA H100  87 %  61.0 of 80.0 GiB  a (0.5), b (0.5)
ray-worker-1:0  -            -     -                 free

Job    User  CPUs  Memory   GPUs                           Command
a      ada   1.2   1.0 GiB  0.5 of ray-worker-0:0 at 87 %  python train.py --epochs 8
plain        -     -        -                              ./run
"""


def top(*words: str, address: str) -> subprocess.CompletedProcess[str]:
    return mlplatform("top", *words, RAY_ADDRESS=address)


@pytest.mark.parametrize("words", [["--once"], []])
def test_top_prints_once_without_terminal(words: list[str], serve: Serve) -> None:
    done = top(*words, address=serve(lambda method, path: (200, json.dumps(USE))))
    assert (done.stdout, done.stderr, done.returncode) == (TABLES, "", 0)


def test_empty_cluster_is_described(serve: Serve) -> None:
    empty = {"nodes": [], "gpus": [], "jobs": [], "running": 0}
    done = top("--once", address=serve(lambda method, path: (200, json.dumps(empty))))
    assert done.stdout == "No node has joined yet.\n\nNo job is running.\n"


def test_cut_list_names_number_of_running_jobs(serve: Serve) -> None:
    address = serve(lambda method, path: (200, json.dumps({**USE, "running": 60})))
    assert "The first 2 of 60 running jobs.\n" in top("--once", address=address).stdout


def test_terminal_is_refreshed_until_ctrl_c_and_restored(serve: Serve) -> None:
    asked = []

    def answer(method: str, path: str) -> tuple[int, str]:
        asked.append(path)
        # The second request fails: the screen shows why, and the third is drawn again.
        return (503, "Ray's head does not answer.") if len(asked) == 2 else (200, json.dumps(USE))

    ours, theirs = pty.openpty()
    env = {**os.environ, "RAY_ADDRESS": serve(answer), "COLUMNS": "30", "LINES": "40"}
    command = [sys.executable, "-m", "mlplatform", "top"]
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, deadline = "", time.monotonic() + 30
    while shown.count("ray-worker-0  2.5 of 8") < 2:
        assert time.monotonic() < deadline, shown
        shown += os.read(ours, 65536).decode()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0, shown
    shown += os.read(ours, 65536).decode()
    os.close(ours)
    assert "does not answer." in shown, "the error is wrapped"
    assert "Traceback" not in shown
    assert "87 %" not in shown, "tables are cut at the terminal's width"
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
