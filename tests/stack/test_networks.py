"""Networks: a job reaches the services that docs/security.md lists, and no others."""

from __future__ import annotations

import json

from figures import count
from host import Stack

from mlplatform_stack.services import STORE

# What a job can connect to, besides Ray's own ports. Each of them asks for credentials (CLOSED in test_security.py).
REACHABLE = {
    ("gateway", 8265),
    ("mlflow", 8000),
    (STORE, 9000),
    (STORE, 9001),
    ("notebook", 8888),
    ("prometheus", 9090),
}
HIDDEN = {("postgres", 5432), ("alertmanager", 9093), ("postgres-exporter", 9187), ("grafana", 3000)}

CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def connects(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return True
    except OSError:
        return False
with ThreadPoolExecutor(32) as threads:
    print(json.dumps(list(threads.map(lambda place: connects(*place), json.loads(sys.argv[1])))))
"""


def test_job_connects_to_documented_services_only(stack: Stack) -> None:
    places, networks = {}, {}
    for entry in stack.containers():
        name = entry["Config"]["Labels"]["com.docker.compose.service"]
        found = entry["NetworkSettings"]["Networks"]
        networks[name] = set(found)
        for port in {port for place, port in REACHABLE | HIDDEN if place == name}:
            # By name, and by each address, as jobs could guess it.
            places |= {(host, port): (name, port) for host in {name, *(net["IPAddress"] for net in found.values())}}
    reachable = {place for place in REACHABLE if stack.own_store or place[0] != STORE}
    assert set(places.values()) == reachable | HIDDEN
    connected = json.loads(stack.execute("ray-worker-0", "python", "-c", CONNECT, json.dumps(list(places))).stdout)
    assert {place for place, connects in zip(places.values(), connected, strict=True) if connects} == reachable
    count("services tried from a job", len(reachable | HIDDEN))
    of_ray = networks["ray-worker-0"]
    assert networks["ray-head"] == of_ray
    assert not [name for name in ("log-shipper", "storage-init") if networks.get(name, set()) & of_ray]
