"""Programs behave the same whether they start warm or cold."""

import os
import py_compile
import random
import signal
import subprocess
import sys
import textwrap
import zipapp
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from warm import PATIENCE_SECONDS, Warm, inherited, running_template

from mlplatform_warm import client, notes
from mlplatform_warm.variables import OF_DRIVERS

PROGRAMS, MANY_PROGRAMS = 50, 200


NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Otherwise the second run of a program would load what the first one has compiled."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A template for all tests."""
    with running_template(tmp_path_factory.mktemp("warm") / "sockets", {**inherited(), **NO_BYTECODE}) as running:
        running.silence_s = PATIENCE_SECONDS
        yield running


def result(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: bytes
) -> tuple[int, str, str, dict[str, str]]:
    """Run a program in a new folder with its script; return its status, output, errors, and the files it wrote."""
    done = subprocess.run(
        command, cwd=folder, env=dict(environment), input=stdin, capture_output=True, check=False, timeout=60
    )
    files = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.txt"))}
    for path in folder.rglob("*.txt"):
        path.unlink()
    return done.returncode, done.stdout.decode(), done.stderr.decode(), files


def assert_same(
    warm: Warm,
    folder: Path,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    cold: str | None = None,
    within: Sequence[str] = (),
) -> str:
    """Assert that a program has the same results warm and cold, and that it started as expected; return its output."""
    variables = {**NO_BYTECODE, **(environment or {})}
    started_warm = result([*within, *warm.command(arguments)], folder, warm.environment(variables), stdin)
    of_cold = {**inherited(), **OF_DRIVERS, **variables}
    started_cold = result([*within, sys.executable, *arguments], folder, of_cold, stdin)
    assert started_warm == started_cold
    reason = warm.reasons()[-1]
    assert (reason is None) if cold is None else (reason is not None and cold in reason), reason
    return started_warm[1]


def script(folder: Path, text: str, name: str = "program.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


@pytest.mark.parametrize(
    "text",
    [
        "import sys; print(sys.argv, __name__, __file__, sys.executable, sys.path)",
        "import sys; print('error', file=sys.stderr); sys.exit(7)",
        "raise SystemExit('a sentence')",
        "raise SystemExit",
        "def broken():\n    raise ValueError('text')\nbroken()",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; print('lost?', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
        "raise KeyboardInterrupt",
        "import os; print('kept', flush=True); os._exit(3)",
        "import os; os.abort()",
        "import atexit; atexit.register(print, 'the end'); print('begin')",
        "open('left-open.txt', 'w').write('flushed')",
        "class Left:\n    def __del__(self): print('finalized')\nleft = Left()",
        "import threading, time\nthreading.Timer(0.1, print, ['thread']).start(); print('main')",
        "import sys; print(sys.stdin.read().upper(), input.__name__)",
        "import os, subprocess; print(subprocess.check_output(['sh', '-c', 'umask; pwd'])); os.system('echo hi')",
        "import sys; sys.stdout.write('no line end'); print(sys.stdout.encoding, sys.stdout.errors)",
        "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr): print(s.line_buffering, s.write_through, s.name)",
        "import sys; sys.excepthook = lambda *error: print('hooked', error[0].__name__); raise OSError",
        "import inspect, sys; print(sys.modules['__main__'].__file__, __spec__, __builtins__.__name__, __cached__)",
        "import os; print(sorted(name for name in os.environ if not name.startswith('MLPLATFORM_WARM')))",
        "import signal; print([signal.getsignal(n) for n in (2, 13, 15)]); print(signal.pthread_sigmask(0, []))",
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))",
        "import os; os.execvp('echo', ['echo', 'replaced'])",
        "import os; print(os.getpid() == os.getpgrp() or True, os.getcwd(), os.umask(0))",
        "def f(: pass",
        "print(open('/proc/self/cmdline').read().split(chr(0)), open('/proc/self/comm').read())",
        "print(sorted(v for v in open('/proc/self/environ').read().split(chr(0)) if 'MLPLATFORM_WARM' not in v))",
        "import random; random.random(); print(random.Random(3).random())",
        "import sys; sys.stdout.close()",
        "import logging; logging.warning('to stderr'); logging.getLogger('a').error('b')",
        "def f(x: int) -> str: ...\nprint(f.__annotations__)",
        "import warnings; warnings.warn('a warning')\ndef f(): warnings.warn('deeper', stacklevel=2)\nf()",
    ],
)  # fmt: skip
def test_script_behaves_the_same(text: str, warm: Warm, tmp_path: Path) -> None:
    assert_same(warm, tmp_path, [script(tmp_path, text), "one", "two words", "ü"], stdin=b"some input\n")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_behaves_the_same(method: str, warm: Warm, tmp_path: Path) -> None:
    text = f"""
        import multiprocessing
        def square(value):
            print("in child", flush=True)
            return value * value
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            with context.Pool(1) as pool:
                print(pool.map(square, [1, 2, 3]))
    """
    assert_same(warm, tmp_path, [script(tmp_path, text)])


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "import sys; print(sys.argv, sys.path[0], __name__)", "x"],
        ["-c", "raise ValueError('text')"],
        ["-c", "def f(x: int) -> str: ...\nprint(f.__annotations__)"],
        ["-m", "package", "x"],
        ["-m", "package.module"],
        ["-m", "json.tool", "--help"],
        ["-m", "missing"],
        ["-m", "trace", "--trace", "program.py", "x"],
        ["-m", "pdb", "-c", "continue", "program.py"],
        ["-u", "program.py"],
        ["folder/inner.py"],
        ["./program.py"],
        ["link.py"],
    ],
    ids=" ".join,
)
def test_command_line_behaves_the_same(arguments: list[str], warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    script(tmp_path, "", "package/__init__.py")
    for name in ("package/__main__.py", "package/module.py", "program.py"):
        script(tmp_path, "import sys; print(sys.argv, sys.path[0], __name__, __package__, __file__)", name)
    (tmp_path / "folder").mkdir()
    script(tmp_path, "import sys, helper; print(sys.path[0], helper.VALUE)", "folder/inner.py")
    script(tmp_path, "VALUE = 3", "folder/helper.py")
    (tmp_path / "link.py").symlink_to("folder/inner.py")
    assert_same(warm, tmp_path, arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-O", "program.py"], "option -O"),
        (["-X", "utf8", "program.py"], "option -X"),
        (["-"], "standard input"),
        (["--version"], "option --version"),
        (["missing.py"], "is not a file"),
        (["package"], "is not a file"),
        (["program.pyz", "x"], "bytecode or an archive"),
        (["program.pyc", "x"], "bytecode or an archive"),
    ],
    ids=str,
)
def test_other_command_line_starts_cold(arguments: list[str], reason: str, warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    script(tmp_path, "print('package')", "package/__main__.py")
    script(tmp_path, "import sys; print(sys.flags, sys.argv)")
    zipapp.create_archive(tmp_path / "package", tmp_path / "program.pyz", sys.executable)
    py_compile.compile(str(tmp_path / "program.py"), str(tmp_path / "program.pyc"))
    assert_same(warm, tmp_path, arguments, stdin=b"print('from stdin')\n", cold=reason)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PYTHONOPTIMIZE": "1"}, "PYTHONOPTIMIZE"),
        ({"OMP_PROC_BIND": "true"}, "OMP_PROC_BIND"),
        ({"LC_ALL": "C"}, "LC_ALL"),
        ({"HOME": "/nowhere"}, "HOME"),
        ({client.SWITCH: "0"}, "off"),
    ],
    ids=str,
)
def test_variable_that_imports_read_starts_cold(
    environment: dict[str, str], reason: str, warm: Warm, tmp_path: Path
) -> None:
    text = "import os, sys; print(sys.flags.optimize, sys.stdout.encoding, os.environ.get('HOME'))"
    assert_same(warm, tmp_path, [script(tmp_path, text)], environment=environment, cold=reason)


def test_other_variables_reach_warm_program(warm: Warm, tmp_path: Path) -> None:
    text = "import os, sys; print(os.environ['TOKEN'], os.popen('echo $TOKEN').read(), sys.stdout.write_through)"
    environment = {"TOKEN": "secret", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "3"}
    assert_same(warm, tmp_path, [script(tmp_path, text)], environment=environment)


@pytest.mark.parametrize("name", ["json.py", "json/__init__.py", "sitecustomize.py", "httpx.py"])
@pytest.mark.parametrize("where", ["beside the script", "on PYTHONPATH"])
def test_module_that_shadows_a_loaded_one_starts_cold(name: str, where: str, warm: Warm, tmp_path: Path) -> None:
    folder = tmp_path / "modules" if where == "on PYTHONPATH" else tmp_path
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("print('mine')")
    arguments = [script(tmp_path, f"import {name.removesuffix('.py').partition('/')[0]}")]
    assert_same(warm, tmp_path, arguments, environment={"PYTHONPATH": str(tmp_path / "modules")}, cold="comes before")


def test_own_modules_are_imported(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    script(tmp_path, "VALUE = 1", "modules/mine.py")
    arguments = [script(tmp_path, "import mine, sys; print(mine.VALUE, sys.path)")]
    assert_same(warm, tmp_path, arguments, environment={"PYTHONPATH": f"{tmp_path}/modules:relative:"})


@pytest.mark.parametrize("then", ["", "import json, sys; del sys.modules['json']; import json"])
def test_objects_of_own_modules_are_finalized(then: str, warm: Warm, tmp_path: Path) -> None:
    script(tmp_path, "class Left:\n    def __del__(self): print('finalized')\nleft = Left()", "helper.py")
    assert_same(warm, tmp_path, [script(tmp_path, f"import helper\n{then}")])


def test_open_files_are_inherited(warm: Warm, tmp_path: Path) -> None:
    text = "import os; print(os.read(9, 5), sorted(map(int, os.listdir('/proc/self/fd')))[:4])"
    (tmp_path / "data").write_text("whole")
    shell = ("bash", "-c", 'exec 9<data; exec "$@"', "bash")
    assert assert_same(warm, tmp_path, [script(tmp_path, text)], within=shell).startswith("b'whole'")


def test_coverage_counts_the_same_lines(warm: Warm, tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    script(tmp_path, "import sys\nif len(sys.argv) > 1:\n    print('never')\nprint('always')\n")
    run = ["-m", "coverage", "run", "program.py"]
    report = "from coverage import Coverage; data = Coverage(); data.load(); print(data.analysis('program.py')[1:])"
    outputs = []
    for command, environment in (
        (warm.command(run), warm.environment(NO_BYTECODE)),
        ([sys.executable, *run], dict(os.environ)),
    ):
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        outputs.append(subprocess.check_output([sys.executable, "-c", report], cwd=tmp_path, text=True))
    assert outputs[0] == outputs[1]
    assert warm.reasons()[-1] is None


def test_fault_handler_shows_frames_of_program(warm: Warm, tmp_path: Path) -> None:
    text = """
        import faulthandler, os, signal
        faulthandler.enable()
        def broken():
            os.kill(os.getpid(), signal.SIGSEGV)
        broken()
    """
    errors = []
    for command in (warm.command([script(tmp_path, text)]), [sys.executable, "program.py"]):
        done = subprocess.run(
            command, cwd=tmp_path, env=warm.environment(NO_BYTECODE), capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGSEGV
        errors.append([line for line in done.stderr.splitlines() if str(tmp_path) in line or "Fatal" in line])
    assert errors[0] == errors[1]
    assert [line.rpartition(" ")[2] for line in errors[0]] == ["fault", "broken", "<module>"]
    assert warm.reasons()[-1] is None


def test_ignored_signals_limits_and_priority_are_inherited(warm: Warm, tmp_path: Path) -> None:
    text = """
        import os, resource, signal
        print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT), os.nice(0))
        print([resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")])
        print(os.sched_getaffinity(0), oct(os.umask(0)))
    """
    limits = "trap '' HUP INT; umask 027; ulimit -c 0 -n 512 -s 4096 -v 8000000; exec nice -n 3 taskset -c 0 \"$@\""
    printed = assert_same(warm, tmp_path, [script(tmp_path, text)], within=("bash", "-c", limits, "bash"))
    assert printed.startswith(f"1 1 {min(os.nice(0) + 3, 19)}\n")


def random_program(rng: random.Random) -> str:
    """Compose a program from statements whose effects are visible from outside."""
    pieces = [
        lambda: f"print({rng.random()!r}, sys.argv[1:])",
        lambda: f"print('e{rng.randrange(9)}', file=sys.stderr)",
        lambda: f"atexit.register(print, 'exit {rng.randrange(99)}')",
        lambda: f"open('file{rng.randrange(3)}.txt', 'a').write('{rng.randrange(99)}')",
        lambda: f"left{rng.randrange(9)} = open('left{rng.randrange(3)}.txt', 'a')",
        lambda: f"threading.Thread(target=print, args=('thread {rng.randrange(9)}',)).start(); time.sleep(0.05)",
        lambda: (
            f"print(subprocess.run([sys.executable, '-c', 'print({rng.randrange(9)})'], capture_output=True).stdout)"
        ),
        lambda: f"os.system('echo shell {rng.randrange(9)} $NAME')",
        lambda: "print(sys.stdin.readline())",
        lambda: "print(os.environ.get('NAME'), os.environ.get('HOME'))",
        lambda: "os.environ['NAME'] = 'changed'",
        lambda: "signal.signal(signal.SIGUSR1, lambda *_: print('signal')); os.kill(os.getpid(), signal.SIGUSR1)",
        lambda: "print(json.dumps(sorted(vars(sys.modules['__main__']))[:5]))",
        lambda: "import helper; print(helper.__file__, helper.counter()); import helper",
        lambda: "sys.stdout.flush()",
        lambda: "pid = os.fork()\nif pid == 0: os._exit(4)\nprint(os.waitpid(pid, 0)[1])",
    ]
    ends = [
        lambda: "", lambda: "", lambda: f"sys.exit({rng.choice([0, 1, 2, 77, 256, -1, None, 'text'])!r})",
        lambda: "raise RuntimeError('end')", lambda: "1 / 0", lambda: "os.kill(os.getpid(), signal.SIGTERM)",
        lambda: "os._exit(5)", lambda: "raise KeyboardInterrupt", lambda: "del sys.stdout",
    ]  # fmt: skip
    lines = ["import atexit, json, os, signal, subprocess, sys, threading, time"]
    lines += [rng.choice(pieces)() for _ in range(rng.randrange(1, 8))]
    return "\n".join([*lines, rng.choice(ends)()])


@pytest.mark.parametrize(
    "seed",
    [*range(PROGRAMS), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(PROGRAMS, MANY_PROGRAMS))],
)
def test_random_program_behaves_the_same(seed: int, warm: Warm, tmp_path: Path) -> None:
    rng = random.Random(seed)  # noqa: S311 - reproducible
    text = random_program(rng)
    script(tmp_path, "calls = []\ndef counter():\n    calls.append(1)\n    return len(calls)", "helper.py")
    name = script(tmp_path, text)
    arguments: Any = rng.choice([[name], ["-u", name], ["-m", "program"], ["-c", text]])
    environment = {"NAME": rng.choice(["", "value", "with space"])}
    assert_same(warm, tmp_path, [*arguments, "a", "b"], environment=environment, stdin=b"one\ntwo\n" * rng.randrange(3))


def test_note_of_warm_start_precedes_output(warm: Warm, tmp_path: Path) -> None:
    """Also if writing it takes longer than the program."""
    command = warm.command(["-c", "import sys; sys.stderr.write('ran\\n')"])
    slow = "import time; note = client.note; client.note = lambda *a, **b: (time.sleep(0.5), note(*a, **b))"
    command[3] = command[3].replace("client.python()", f"{slow}; client.python()")
    log = tmp_path / "job-driver-mine.log"
    with log.open("wb") as errors:
        subprocess.run(command, stderr=errors, env=warm.environment(NO_BYTECODE), check=True)
    assert log.read_text() == f"{notes.WARM}\nran\n"
