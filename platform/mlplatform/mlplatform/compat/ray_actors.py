"""End of actors by id, run as a program inside the cluster; seen in Ray 2.60.0.

`ray.kill` needs a handle, which only named actors give to other jobs, and neither the Jobs API nor the state API can
end an actor. The head's service (GCS) can; this calls it as Ray's own processes do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

SHARED = frozenset(
    {
        "ActorLocationTracker",
        "TrainStateActor",
        "_AutoscalingCoordinatorActor",
        "_MemActor",
        "_StatsActor",
        "_StatsSummaryActor",
        "_UsageCollectionActor",
    }
)
"""Classes of detached actors that Ray Data and Ray Train create once per cluster, for all later jobs."""

_TIMEOUT_SECONDS = 30.0

CLEANER = "PlacementGroupCleaner"
"""Ray Train's detached actor that removes the placement group of a killed controller and then ends itself."""


def end(address: str, actor_ids: Sequence[str]) -> None:
    """End actors, for good; ignore those that have ended.

    Args:
        address: `host:port` of the GCS.
        actor_ids: as hexadecimal numbers, as the state API lists them.

    Raises:
        grpc.RpcError: the GCS does not answer.
    """
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import KillActorViaGcsRequest
    from ray.core.generated.gcs_service_pb2_grpc import ActorInfoGcsServiceStub

    with init_grpc_channel(address) as channel:
        service = ActorInfoGcsServiceStub(channel)
        for actor_id in actor_ids:
            request = KillActorViaGcsRequest(actor_id=bytes.fromhex(actor_id), force_kill=True, no_restart=True)
            service.KillActorViaGcs(request, timeout=_TIMEOUT_SECONDS)


def main() -> None:
    """End the actors that the command line names, in the cluster that this job belongs to."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    end(canonicalize_bootstrap_address_or_die(None), sys.argv[1:])


if __name__ == "__main__":
    main()
