"""Work of a gateway, to be killed: it submits what schedules are due for, and starts and ends jobs, until its end.

`killed_work.py FOLDER` has the gateway's database in that folder, and prints a line when it begins.
"""

import asyncio
import sys
from pathlib import Path

from gateway_parts import Gateway, parts
from stored import SUCCEEDED

from mlplatform_gateway.jobs.admission import Admission
from mlplatform_gateway.jobs.schedules import Schedules
from mlplatform_gateway.monitoring.disks import Disks
from mlplatform_gateway.queue.planner.queue import Rules


async def work(gateway: Gateway) -> None:
    schedules = Schedules(gateway.services, Admission(gateway.services, Disks({}, 0)), gateway.reconciler.wake)
    print("begun", flush=True)
    while True:
        await schedules.look()
        for job in await gateway.store.open_jobs():
            if await gateway.store.begin_attempt(job.id) is None and job.attempts:
                await gateway.store.end_attempt(job.id, job.attempts[-1].number, SUCCEEDED, None, False)


if __name__ == "__main__":
    asyncio.run(work(parts(Path(sys.argv[1]), Rules())))
