"""Programs that start warm end like others, and templates leave nothing behind."""

import ctypes
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import wait_for
from warm import ROOT, Warm, is_running, start_template

from mlplatform_warm import client

PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
PR_CAPBSET_DROP = 24
CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}
"""Each lets root read the memory of processes that are closed to their own user."""

SLEEPER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""

TERMINATED = """
import os, signal, sys, time
def end(number, frame):
    print("got", number, flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    """A template that the test may harm."""
    running = start_template(tmp_path / "sockets")
    processes = [running.process.pid, *(child.pid for child in psutil.Process(running.process.pid).children(True))]
    yield running
    running.kill()
    wait_for(lambda: not any(is_running(pid) for pid in processes), "the templates to end with their keeper")


def start(warm: Warm, code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(warm.command(["-c", code]), env=warm.environment(variables), text=True, **PIPES)


def pids(process: subprocess.Popen[str]) -> list[int]:
    """Return the process IDs that the program prints first."""
    assert process.stdout
    return [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_program(number: signal.Signals, disposition: signal.Handlers, warm: Warm) -> None:
    # A shell starts programs in the background with SIGINT ignored; the program handles it nevertheless.
    before = signal.signal(number, disposition)
    try:
        process = start(warm, TERMINATED)
    finally:
        signal.signal(number, before)
    (pid,) = pids(process)
    assert pid != process.pid
    process.send_signal(number)
    output, _errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (5, f"got {int(number)}\n")
    assert warm.reasons() == [None]


def test_killed_client_takes_program_and_its_children_along(warm: Warm) -> None:
    process = start(warm, SLEEPER)
    found = pids(process)
    process.kill()
    process.wait()
    wait_for(lambda: not any(is_running(pid) for pid in found), "the program to end")


def test_killed_client_ends_program_that_replaced_itself(warm: Warm) -> None:
    process = start(warm, "import os; print(os.getpid(), flush=True); os.execvp('sleep', ['sleep', '60'])")
    (pid,) = pids(process)
    wait_for(lambda: psutil.Process(pid).name() == "sleep", "the program to replace itself")
    process.kill()
    process.wait()
    wait_for(lambda: not is_running(pid), "the program to end")


def test_killed_program_ends_client_by_same_signal(warm: Warm) -> None:
    process = start(warm, SLEEPER)
    pid, child = pids(process)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=20) == -signal.SIGKILL
    # As after a cold start, which ends no children.
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("name", ["keeper", "base", "driver"])
def test_program_outlives_killed_template(name: str, warm: Warm) -> None:
    process = start(warm, TERMINATED)
    (pid,) = pids(process)
    killed = warm.pids()[name]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not is_running(killed), "the template to end")
    assert is_running(pid)
    process.terminate()
    output, _errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (5, "got 15\n")


def test_programs_start_cold_without_template(warm: Warm) -> None:
    found = warm.pids()
    for name in ("base", "driver"):
        os.kill(found[name], signal.SIGKILL)
    process = start(warm, "print('cold')")
    assert process.communicate(timeout=20)[0] == "cold\n"
    assert process.returncode == 0
    (reason,) = warm.reasons()
    assert reason is not None


def test_woken_template_does_not_start_program_again(warm: Warm, tmp_path: Path) -> None:
    frozen = warm.pids()["driver"]
    os.kill(frozen, signal.SIGSTOP)
    process = start(warm, f"open({str(tmp_path / 'runs')!r}, 'a').write('run')")
    process.wait(timeout=20)
    os.kill(frozen, signal.SIGCONT)
    # The template serves in order, so it is done with the first client when it has served the second.
    assert start(warm, "print()").wait(timeout=20) == 0
    assert (tmp_path / "runs").read_text() == "run"
    assert [reason is None for reason in warm.reasons()] == [False, True]


def test_error_after_start_does_not_start_program_again(warm: Warm) -> None:
    broken = "from mlplatform_warm import client\ndef fail(*_): raise OSError('full')\nclient.guard = fail\n"
    shim = f"import sys; sys.path.insert(0, {ROOT!r})\n{broken}client.python()"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", shim, "-c", "print('ran')"],
        env=warm.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "ran\n")
    assert warm.reasons() == [None]


def test_program_with_half_a_character_keeps_template(warm: Warm) -> None:
    before = warm.pids()
    name = "open('/proc/self/comm', 'wb').write('\u00fc'.encode()[:1])"
    assert start(warm, name).wait(timeout=20) == 0
    # The template serves in order, so it is done with the first client when it has served the second.
    assert start(warm, "print()").wait(timeout=20) == 0
    assert warm.pids() == before
    assert warm.reasons() == [None, None]


def test_nothing_is_left_of_ended_program(warm: Warm) -> None:
    assert start(warm, "print()").wait(timeout=20) == 0
    before = {process.pid for process in psutil.Process(warm.process.pid).children(recursive=True)}
    files = psutil.Process(warm.pids()["driver"]).num_fds()
    for _run in range(3):
        assert start(warm, "print()").wait(timeout=20) == 0
    wait_for(
        lambda: {process.pid for process in psutil.Process(warm.process.pid).children(recursive=True)} == before,
        "the programs to be reaped",
    )
    wait_for(lambda: psutil.Process(warm.pids()["driver"]).num_fds() == files, "their files to be closed")


def start_worker(warm: Warm, job: str, title: str) -> subprocess.Popen[str]:
    """Start a program as a worker of Ray, which gives its process a title and prints its job."""
    environment = {**warm.environment(), "RAY_JOB_ID": job}
    program = (
        "import os, pathlib; pathlib.Path('/proc/self/comm').write_text(os.environ['TITLE']); "
        "print(os.environ['RAY_JOB_ID'], flush=True)"
    )
    code = (
        f"import sys, os; sys.path.insert(0, {ROOT!r}); from mlplatform_warm import client; "
        f"client.run(['-c', {program!r}], dict(os.environ), {client.job_template(environment)!r})"
    )
    command = [sys.executable, "-IS", "-c", code]
    return subprocess.Popen(command, env={**environment, "TITLE": title}, text=True, **PIPES)


def template_of(warm: Warm, job: str) -> Path:
    """Return the socket of a job's template."""
    return warm.folder / f"{client.job_template({**warm.environment(), 'RAY_JOB_ID': job})}.sock"


def test_template_of_job_ends_with_its_last_process(warm: Warm) -> None:
    workers = [start_worker(warm, "01000000", "python") for _worker in range(3)]
    assert [worker.communicate(timeout=60)[0] for worker in workers] == ["01000000\n"] * 3
    assert warm.reasons() == [None] * 3
    wait_for(lambda: not template_of(warm, "01000000").exists(), "the job's template to end", 30)
    # None of its processes has worked for Ray.
    assert not list(warm.folder.glob("job-*"))


def test_template_of_next_job_is_prepared(warm: Warm) -> None:
    assert start_worker(warm, "ff000000", "ray::task").communicate(timeout=60)[0] == "ff000000\n"
    wait_for(template_of(warm, "00010000").exists, "the next job's template", 30)
    wait_for(lambda: not template_of(warm, "ff000000").exists(), "the first job's template to end", 30)
    assert start_worker(warm, "00010000", "ray::task").communicate(timeout=60)[0] == "00010000\n"
    # It is one of a kind: the one before is used up, and the next one takes its place.
    wait_for(lambda: list(warm.folder.glob("job-*.sock")) == [template_of(warm, "01010000")], "one template", 30)
    assert warm.reasons() == [None, None]


def test_prepared_template_ends_when_another_takes_its_place(warm: Warm) -> None:
    for job, prepared in (("01000000", "02000000"), ("07000000", "08000000")):
        assert start_worker(warm, job, "ray::task").communicate(timeout=60)[0] == f"{job}\n"
        wait_for(template_of(warm, prepared).exists, "the next job's template", 30)
    wait_for(lambda: list(warm.folder.glob("job-*.sock")) == [template_of(warm, "08000000")], "one template", 30)


@pytest.mark.parametrize("title", ["ray::JobSupervisor", "ray::_job_supervisor"])
def test_template_of_supervisors_stays(title: str, warm: Warm) -> None:
    assert start_worker(warm, "01000000", title).communicate(timeout=60)[0] == "01000000\n"
    wait_for((warm.folder / "job-server").exists, "the template to stay", 30)
    assert start_worker(warm, "07000000", "python").communicate(timeout=60)[0] == "07000000\n"
    # By then the other one would have ended too.
    wait_for(lambda: not template_of(warm, "07000000").exists(), "another job's template to end", 30)
    assert template_of(warm, "01000000").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user; CI runs as root")
def test_template_of_other_user_is_not_used() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "driver.sock"))
        listener.listen()
        (folder / "driver.sock").chmod(0o666)
        if (pid := os.fork()) == 0:
            os.setuid(65534)
            try:
                client.connect(str(folder), "driver", {})
            except client.Cold as reason:
                os._exit(0 if str(reason) == "the template belongs to another user" else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
    shutil.rmtree(folder)


def drop_capabilities() -> None:
    """Keep this process from getting the capabilities by executing a program, as it does if it is root."""
    for number in CAPABILITIES.values():
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, number, 0, 0, 0)


def test_own_user_reads_memory_of_program_and_not_of_template(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys, pathlib
from warm import start_template
warm = start_template(pathlib.Path(sys.argv[1]) / "sockets")
sleeper = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
program = subprocess.Popen(
    warm.command(["-c", sleeper]), env=warm.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
def readable(pid):
    try:
        return bool(open(f"/proc/{pid}/environ").read())
    except PermissionError:
        return False
print(readable(program.stdout.readline().strip()), [readable(warm.pids()[name]) for name in ("base", "driver")])
program.communicate("")
warm.kill()
"""
    path = f"{Path(inspect.getfile(Warm)).parent}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
        preexec_fn=drop_capabilities,
    )  # fmt: skip
    assert done.stdout == "True [False, False]\n", done.stderr


def checked(code: str) -> str:
    """Run code in a process of its own, because this one has the threads of other tests; return the last error."""
    script = f"from pathlib import Path\nfrom mlplatform_warm.template import check_forkable\n{code}"
    command, env = [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.strip().rpartition("\n")[2]


def test_threads_keep_process_from_being_template() -> None:
    code = """
import threading
stop = threading.Event()
threading.Thread(target=stop.wait, name="left over").start()
try:
    check_forkable()
finally:
    stop.set()
"""
    assert checked(code) == "RuntimeError: The imports have left threads running: left over."


def test_open_device_keeps_process_from_being_template() -> None:
    assert checked("check_forkable(('/dev/full',))") == ""
    code = "file = Path('/dev/full').open('wb')\ncheck_forkable(('/dev/full',))"
    assert checked(code) == "RuntimeError: The imports have opened the device /dev/full."
