"""Link of a joined host: `python -m mlplatform_stack.hosts.link NETWORK ADDRESSES ENDPOINT HUB_KEY KEY_FILE`.

Forwards packets between the host's containers and the hub, and answers the containers' ARP requests for the stack's
addresses. NETWORK is the first three numbers of the network of jobs, ADDRESSES the part (CIDR) that is this host's.
"""

from __future__ import annotations

import signal
import sys

from mlplatform.errors import PlatformError
from mlplatform_stack.hosts import wireguard


def main(network: str, addresses: str, endpoint: str, hub_key: str, key_file: str) -> int:
    """Connect, then wait; return the exit status of the interface's process.

    Raises:
        HostError: the interface cannot be created or set up.
    """
    everything = f"{network}.0/24"
    process = wireguard.create()
    wireguard.run("wg", "set", wireguard.INTERFACE, "private-key", key_file)
    wireguard.run(
        *("wg", "set", wireguard.INTERFACE, "peer", hub_key, "endpoint", endpoint),
        *("allowed-ips", everything, "persistent-keepalive", str(wireguard.KEEPALIVE_SECONDS)),
    )
    wireguard.run("ip", "link", "set", wireguard.INTERFACE, "up")
    # Docker's route says that the whole network is here; all but this host's addresses is at the stack.
    wireguard.run("ip", "route", "replace", addresses, "dev", wireguard.LAN)
    wireguard.run("ip", "route", "replace", everything, "dev", wireguard.INTERFACE)
    wireguard.succeeds("ip", "route", "delete", everything, "dev", wireguard.LAN)
    wireguard.answer_for_others()
    if process is None:
        signal.pause()
        return 0
    return process.wait()


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except PlatformError as error:
        sys.exit(str(error))
