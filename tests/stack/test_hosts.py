"""A second host joins the running stack, runs jobs, loses its link, its engine and the first one, and leaves."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from failure_training import OUTAGE_SECONDS, after_a_checkpoint, crash, nothing_is_lost, recovery, reports, wait_until
from host import SCRIPTS, Stack, run, wait_for
from lab_client import printed_by_cell
from persons import administer
from second_host import CPUS, SecondHost, second_host
from secret_search import leaks, of_services, shown_by

from mlplatform.capacity.resources import Resources
from mlplatform.client.jobs import Jobs
from mlplatform.dev.environment import ENTRYPOINT, until_ready

# The second host's network does not reach the address of another S3 server on Docker's bridge.
pytestmark = pytest.mark.minio

# Prints what a process on the second host reaches: storage, tracking, and copies of the first host's files.
LOOK = """
import json, pathlib, socket, boto3, mlflow, ray

ray.init()
boto3.client("s3").list_objects_v2(Bucket="ray", MaxKeys=1)
print(json.dumps({
    "host": socket.gethostname(),
    "address": ray.util.get_node_ip_address(),
    "nodes": len([node for node in ray.nodes() if node["Alive"]]),
    "experiments": len(mlflow.search_experiments()) > 0,
    "cache": pathlib.Path("/shared/cache/second-host").read_text(),
    "photos": pathlib.Path("/mnt/second-host").read_text(),
}))

@ray.remote(num_cpus=1)
def elsewhere():
    return socket.gethostname()

others = [node for node in ray.nodes() if node["Alive"] and node["NodeManagerHostname"] == "ray-worker-0"]
to = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(others[0]["NodeID"], soft=False)
print("a task ran on", ray.get(elsewhere.options(scheduling_strategy=to).remote()))
"""

NODE = "ray-worker-second"


def starts(stack: Stack) -> dict[str, str]:
    """Start time of each container, by its id."""
    return {entry["Id"]: entry["State"]["StartedAt"] for entry in stack.containers()}


def has_node(stack: Stack, alive: bool = True) -> bool:
    return (NODE in [node["hostname"] for node in stack.alive_nodes()]) == alive


def health(stack: Stack, address: str) -> set[str]:
    """Health of each port of an address that Prometheus scrapes."""
    targets = stack.prometheus_targets()
    return {each["health"] for each in targets if each["scrapeUrl"].startswith(f"http://{address}:")}


def last_session(stack: Stack) -> int:
    """Unix time at which the second host and the hub have last agreed on keys; 0 if they have not."""
    listed = stack.execute("hub", "wg", "show", "wg0", "latest-handshakes").stdout
    return int((listed.split() or ["0"])[-1])


def peers(stack: Stack) -> list[str]:
    """Public keys of the hosts whose packets the hub accepts."""
    return stack.execute("hub", "wg", "show", "wg0", "peers").stdout.split()


def connects(host: SecondHost, address: str) -> bool:
    """Return whether a container of the second host opens a connection to Ray's control service (GCS)."""
    script = f"import socket; print(socket.socket().connect_ex(({address!r}, 6379)))"
    # Without an answer to its packets, the attempt ends with 124, the status of `timeout`.
    done = host.docker("exec", "mlplatform-joined-copier-1", "timeout", "5", "python", "-c", script, check=False)
    assert done.returncode in (0, 124), done.stderr
    return done.stdout == "0\n"


def answers_strangers(stack: Stack) -> bool:
    """Return whether the hub answers a packet that looks like WireGuard's first, but which no known key has signed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        # Connected, so that a closed port is an error.
        stranger.connect(("127.0.0.1", stack.settings.hub_port))
        stranger.settimeout(2)
        stranger.send(b"\1\0\0\0" + bytes(144))
        try:
            return bool(stranger.recv(1))
        except TimeoutError:
            return False


def assert_no_secret_visible(host: SecondHost) -> None:
    """Assert that no secret is visible in the second host's containers, or in the first host's services for it."""
    first = host.stack
    assert not leaks(first.root / "secrets", shown_by(of_services(first, "hub", "copies")))
    running = json.loads(host.docker("inspect", *host.docker("ps", "--quiet").stdout.split()).stdout)
    assert not leaks(host.checkout / "secrets", shown_by(running, host.docker))


def joined(host: SecondHost) -> None:
    host.join()
    wait_for(lambda: has_node(host.stack), "the second host's node")


def assert_environment_opens(stack: Stack, jobs: Jobs) -> None:
    """Assert that a dev environment waits for the second host's GPU, and is reached there through the first one."""
    whole = Resources(CPUS, gpus=1)
    holder = jobs.submit(["python", "-c", "import signal; signal.pause()"], None, name="holds", resources=whole)
    wait_for(lambda: jobs.get(holder).status == "RUNNING", "the job that holds the GPU")
    job = jobs.submit(ENTRYPOINT, None, job_id="dev-shared-second", resources=whole)
    try:
        wait_for(lambda: f"waits for {CPUS} CPUs and 1 GPU" in administer(stack, "why", job), "the reason")
        jobs.stop(holder)
        for _ in until_ready(jobs, job):
            pass
        assert printed_by_cell(urlsplit(jobs.lab(job)), "import socket; print(socket.gethostname())") == f"{NODE}\n"
        printed = administer(stack, "ssh", job, "--", "hostname; cd; ls lessons.md")
        assert printed == f"{NODE}\nlessons.md\n", "it has no home there"
    finally:
        for each in (holder, job):
            jobs.stop(each)
            jobs.wait(each, timeout_s=60)


@pytest.fixture
def hub(stack: Stack) -> Iterator[Stack]:
    """The stack, which is without a hub again afterwards."""
    profiles = stack.settings.compose_profiles
    yield stack
    stack.compose("rm", "--stop", "--force", "--volumes", "hub", "copies")
    stack.set_env(COMPOSE_PROFILES=profiles)
    run("docker", "volume", "rm", "--force", f"{stack.settings.stack_prefix}mlplatform_hub")


@pytest.fixture
def files(stack: Stack) -> Iterator[None]:
    """A file in the cache of jobs, and one among the photos of Food-11."""
    image = f"mlplatform-platform:{stack.settings.mlplatform_version}"
    volume = f"--volume={stack.settings.food11_volume}:/food11"
    shell = ("docker", "run", "--rm", "--user=0", volume, image, "sh", "-c")
    run(*shell, "echo -n photos >/food11/second-host")
    stack.write("ray-worker-0", "/shared/cache/second-host", "a model")
    yield
    run(*shell, "rm -f /food11/second-host")
    stack.execute("ray-worker-0", "rm", "-f", "/shared/cache/second-host")


@pytest.mark.timeout(1800)
@pytest.mark.nightly
def test_second_host_joins_without_restarts_until_it_is_removed(
    hub: Stack, files: None, jobs: Jobs, tmp_path: Path
) -> None:
    before = starts(hub)
    with second_host(hub, "platform", "link", "ray") as host:
        joined(host)
        assert before.items() <= starts(hub).items(), "a container was restarted"

        copies = ("exec", "mlplatform-joined-copier-1", "cat", "/shared/cache/second-host", "/food11/second-host")
        wait_for(lambda: host.docker(*copies, check=False).stdout == "a modelphotos", "copies of both folders", 90)

        (tmp_path / "look.py").write_text(LOOK)
        job = jobs.submit(["python", "look.py"], tmp_path, name="look", resources=Resources(CPUS))
        assert jobs.wait(job, timeout_s=120).status == "SUCCEEDED", jobs.logs(job)
        seen = json.loads(next(line for line in jobs.logs(job).splitlines() if line.startswith('{"host"')))
        address = seen.pop("address")
        assert seen == {"host": NODE, "nodes": 4, "experiments": True, "cache": "a model", "photos": "photos"}
        assert "a task ran on ray-worker-0" in jobs.logs(job)
        assert_environment_opens(hub, jobs)
        wait_for(lambda: health(hub, address) == {"up"}, "metrics of the second host", 60)
        assert "second\t10.213." in hub.make("hosts").stdout
        assert not answers_strangers(hub)
        assert_no_secret_visible(host)

        # Whole seconds: a comparison with the time of the crash would miss a session within the same second.
        earlier = last_session(hub)
        crash(hub, "hub")
        # WireGuard on the host asks for a new session after 15 s.
        wait_for(lambda: last_session(hub) > earlier, "a session with the hub that restarted", 40)

        # As when the first host reboots: all its containers stop, and start again.
        run(str(hub.root / "tests/stack/engine.sh"), "restart")
        wait_for(lambda: len(hub.alive_nodes()) == 4 and has_node(hub), "all nodes of both hosts", 480)
        again = jobs.submit(["python", "look.py"], tmp_path, name="look", resources=Resources(CPUS))
        assert jobs.wait(again, timeout_s=120).status == "SUCCEEDED", jobs.logs(again)

        # By its address, because the hub also resolves the names.
        resolve = ("exec", "mlplatform-joined-copier-1", "getent", "hosts", "ray-head")
        head = wait_for(lambda: host.docker(*resolve, check=False).stdout, "the head's address", 30).split()[0]
        assert len(peers(hub)) == 1
        assert connects(host, head)
        hub.make("remove-host", "NAME=second")
        assert peers(hub) == []
        assert not connects(host, head), "a removed host reaches the stack"
        wait_for(lambda: has_node(hub, alive=False), "the node to be gone", 60)
        assert "second" not in hub.make("hosts").stdout


@pytest.mark.nightly
def test_training_across_hosts_survives_cut_link_and_stopped_engine(hub: Stack, jobs: Jobs) -> None:
    steps = 200
    # With one node here and one there, two ranks on different nodes are on both hosts.
    hub.compose("stop", "ray-worker-1")
    with second_host(hub, "platform", "link", "ray") as host:
        joined(host)
        command = ["python", "ddp_steps.py", f"--steps={steps}"]
        job = jobs.submit(command, SCRIPTS, name="ddp", max_restarts_on_loss=5)
        with host.watched() as packets:
            after_a_checkpoint(jobs, job, more=3)
        assert packets.keys() - {"neighbour discovery"} == {"WireGuard"}, "not all traffic is encrypted"

        def cut() -> None:
            host.cut()
            wait_until(time.monotonic() + OUTAGE_SECONDS)
            host.restore()

        def stop() -> None:
            host.stop_engine()
            host.start_engine()

        print(f"link cut: {recovery(jobs, job, cut, workers_restart=True):.0f} s")
        after_a_checkpoint(jobs, job, more=3)
        print(f"engine stopped: {recovery(jobs, job, stop, workers_restart=True):.0f} s")
        after_a_checkpoint(jobs, job, more=3)
        recovery(jobs, job, lambda: crash(hub, "hub"))
        nothing_is_lost(hub, jobs, job, steps)
        for report in reports(jobs, job):
            assert (report["nodes"], report["second"], report["equal"]) == (2, 1, 1), report
        host.make("leave")
        wait_for(lambda: has_node(hub, alive=False), "the node to be gone", 30)
        assert not (host.checkout / "joined.env").exists()
        assert not list((host.checkout / "secrets").iterdir())
        assert host.docker("ps", "--all", "--quiet").stdout == ""
