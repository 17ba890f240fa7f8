"""Link of a joined host to the stack, `python -m mlplatform.services.link NETWORK ADDRESS ENDPOINT HUB_KEY KEY_FILE`.

Sets up WireGuard in the network namespace that it shares with the host's worker, and runs as long as the interface
exists. NETWORK is the first three numbers of the addresses at the stack, ADDRESS this host's own one.
"""

from __future__ import annotations

import signal
import sys

from mlplatform.errors import PlatformError
from mlplatform.services import wireguard


def main(arguments: list[str]) -> int:
    """Connect, then wait; errors are one sentence on standard error."""
    network, address, endpoint, hub_key, key_file = arguments
    try:
        process = wireguard.create()
        wireguard.run("wg", "set", wireguard.INTERFACE, "private-key", key_file)
        wireguard.run(
            *("wg", "set", wireguard.INTERFACE, "peer", hub_key, "endpoint", endpoint),
            *("allowed-ips", f"{network}.0/24", "persistent-keepalive", str(wireguard.KEEPALIVE_SECONDS)),
        )
        wireguard.run("ip", "address", "replace", f"{address}/32", "dev", wireguard.INTERFACE)
        wireguard.run("ip", "link", "set", wireguard.INTERFACE, "up")
        wireguard.run("ip", "route", "replace", f"{network}.0/24", "dev", wireguard.INTERFACE, "src", address)
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if process is None:
        signal.pause()
        return 0
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
