"""SSH into running jobs of people, with OpenSSH's clients on a person's laptop."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from host import SCRIPTS, Stack, wait_for
from persons import Person, administer, submit

from mlplatform.client.jobs import Jobs

SERVER = """
import http.server, os, socketserver, subprocess, sys
# A command line like the one of Ray's workers, cut short.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", '--serialized-runtime-env-context={"env_vars'])
class Server(socketserver.UnixStreamServer):
    def get_request(self):
        return super().get_request()[0], ("", 0)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"from the job")
Server(f"/tmp/{os.environ['MLPLATFORM_JOB_ID']}.sock", Answer).serve_forever()
"""


@pytest.fixture
def alices(people: dict[str, Person], jobs: Jobs, tmp_path: Path) -> Iterator[str]:
    """A job of alice that answers HTTP on a Unix socket."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "serve.py").write_text(SERVER)
    job = submit(people["alice"], "python", "serve.py", folder=folder)
    wait_for(lambda: jobs.get(job).status == "RUNNING", "the job to run")
    yield job
    jobs.stop(job)


@pytest.fixture
def config(people: dict[str, Person]) -> Path:
    """The file of alice's laptop with the entry that editors read."""
    alice = people["alice"]
    file = alice.home / "ssh_config"
    file.write_text(alice.types("mlplatform", "ssh", "--config"))
    return file


def variables(config: Path) -> dict[str, str]:
    """Environment of a program that a desktop has started."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(config.parent)}


def client(config: Path, program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run an OpenSSH client with the entry, and none of the variables of a terminal."""
    command = [program, "-F", str(config), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, env=variables(config))


def test_command_has_folder_variables_and_python_of_job(people: dict[str, Person], alices: str, jobs: Jobs) -> None:
    program = "import os, ray, torch; print(os.getcwd(), os.environ['API_KEY'], os.environ['MLPLATFORM_JOB_ID'])"
    nodes = "import ray; ray.init(logging_level='ERROR'); print(sum(node['Alive'] for node in ray.nodes()), 'nodes')"
    printed = people["alice"].types(
        "mlplatform", "ssh", alices, "--", f'ls; git --version; python -c "{program}"; python -c "{nodes}"; exit 0'
    )
    assert "serve.py" in printed, printed
    assert "git version" in printed
    assert "\n3 nodes" in printed, "a script there is not in the cluster"
    assert re.search(rf"working_dir_files/\S+ \S+ {alices}$", printed, re.M), printed


def test_editors_way_works_with_entry_alone(config: Path, alices: str, tmp_path: Path) -> None:
    host = f"{alices}.mlplatform"
    by_stdin = client(config, "ssh", host, "bash", "-s", given="echo $((6 * 7)); exit 5\n")
    assert (by_stdin.stdout, by_stdin.returncode) == ("42\n", 5), by_stdin.stderr
    terminal = client(config, "ssh", "-tt", host, "tty && touch ~/writable && echo written")
    assert "/dev/pts/" in terminal.stdout, terminal
    assert "written" in terminal.stdout
    content = b"\0\xff\r\n" * (1 << 18)
    (tmp_path / "sent").write_bytes(content)
    for flags, name in ([], "of two words"), (["-O"], "by-the-old-protocol"):
        sent = client(config, "scp", *flags, str(tmp_path / "sent"), f"{host}:{name}")
        assert sent.returncode == 0, sent.stderr
        assert client(config, "scp", *flags, f"{host}:{name}", str(tmp_path / "back")).returncode == 0
        assert (tmp_path / "back").read_bytes() == content
    listed = client(config, "sftp", "-b", "-", host, given="ls -l\n")
    assert "serve.py" in listed.stdout, listed.stderr


def test_ports_and_sockets_are_forwarded(config: Path, alices: str, tmp_path: Path) -> None:
    local = tmp_path / "local.sock"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    forwards = ["-N", "-D", f"127.0.0.1:{port}", "-L", f"{local}:/tmp/{alices}.sock", f"{alices}.mlplatform"]
    tunnel = subprocess.Popen(["ssh", "-F", str(config), *forwards], env=variables(config))
    try:
        wait_for(local.exists, "the forwarded socket", 30)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(local))) as through:
            assert through.get("http://job/").text == "from the job"
        # Through the SOCKS proxy, an address that only the node reaches: its own agent.
        command = ["curl", "--silent", "--socks5-hostname", f"127.0.0.1:{port}"]
        answer = subprocess.run(
            [*command, "http://127.0.0.1:52365/api/local_raylet_healthz"], capture_output=True, text=True
        )
        assert "success" in answer.stdout, answer
    finally:
        tunnel.kill()
        tunnel.wait()


def test_each_rank_of_a_training_is_reached_on_its_node(people: dict[str, Person], config: Path, jobs: Jobs) -> None:
    job = submit(people["alice"], "python", "steps.py", "--steps=1000", "--pause=1", folder=SCRIPTS)
    try:
        wait_for(lambda: "mlplatform report" in jobs.logs(job), "a report", 240)
        seen = {}
        for rank in (0, 1):
            program = "hostname; echo $MLPLATFORM_JOB_ID; pwd"
            printed = people["alice"].types("mlplatform", "ssh", job, "--rank", str(rank), "--", program)
            seen[rank] = printed.split()
            assert seen[rank][1] == job, printed
        assert {words[0] for words in seen.values()} == {"ray-worker-0", "ray-worker-1"}
        stacks = ("mlplatform", "ssh", job, "--rank", "1", "--", "py-spy dump --pid $(pgrep --newest RayTrainWo)")
        assert "steps.py" in people["alice"].types(*stacks)
        by_name = client(config, "ssh", f"{job}+1.mlplatform", "hostname")
        assert by_name.stdout.strip() == seen[1][0], by_name.stderr
        none = people["alice"].types("mlplatform", "ssh", job, "--rank", "7", "--", "true")
        assert "has no training of Ray Train with a rank 7" in none
    finally:
        jobs.stop(job)


def test_nobody_else_opens_a_shell(stack: Stack, people: dict[str, Person], alices: str, jobs: Jobs) -> None:
    alice = people["alice"]
    alice.types("mlplatform", "ssh", alices, "--", "true")
    for role in ("tom", "lea", "bob"):
        printed = people[role].types("mlplatform", "ssh", alices, "--", "echo", "inside")
        assert f"cannot open a shell in it; only {alice.name} can" in printed, printed
        assert "inside" not in printed
    key = (alice.home / ".ssh/mlplatform.pub").read_text().rsplit(" ", 1)[0]
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "QUJDREVGR0hJSktMTU5PUA==",
    }
    path = f"/platform/jobs/{alices}/ssh"
    answer = stack.ray.get(path, params={"key": key}, headers=upgrade)
    assert (answer.status_code, "cannot open a shell" in answer.text) == (403, True), "the administrator's token"
    with httpx.Client(base_url=stack.ray.base_url, timeout=30) as browser:
        browser.post("/platform/login", data={"token": alice.token_file.read_text().strip()})
        answer = browser.get(path, params={"key": key}, headers=upgrade)
    assert (answer.status_code, "A browser opens no shell" in answer.text) == (403, True), answer.text
    rows = [json.loads(line) for line in administer(stack, "audit", "--limit", "200", "--json").splitlines()]
    assert (alice.name, f"job {alices}") in {
        (row["principal"], row["object"]) for row in rows if row["verb"] == "shell"
    }


def test_session_ends_with_its_job_and_revoked_token(
    people: dict[str, Person], config: Path, jobs: Jobs, stack: Stack
) -> None:
    job = submit(people["alice"], "sleep", "1000")
    wait_for(lambda: jobs.get(job).status == "RUNNING", "the job to run")
    host = f"{job}.mlplatform"
    left = client(config, "ssh", host, "nohup sleep 12345 >/dev/null 2>&1 & hostname")
    node = left.stdout.strip()
    shell = subprocess.Popen(["ssh", "-F", str(config), host, "sleep 54321"], env=variables(config))

    def left_there() -> str:
        pattern = "^sleep (12345|54321)"
        return stack.execute(node, "pgrep", "--full", "--count", pattern, check=False).stdout.strip()

    wait_for(lambda: left_there() == "2", "both programs", 30)
    jobs.stop(job)
    assert shell.wait(timeout=60) != 0
    wait_for(lambda: left_there() == "0", "the end of what the sessions left", 30)
    assert not stack.execute(node, "sh", "-c", "ls -d /dev/shm/mlplatform-ssh-*", check=False).stdout
    ended = people["alice"].types("mlplatform", "ssh", job, "--", "true")
    assert f"Job {job} is STOPPED; a shell can be opened while it runs." in ended
