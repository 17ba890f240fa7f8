"""Ask the gateway for the list of jobs, with the token of this attempt, until it is refused; print each answer once."""

import os
import time
import urllib.error
import urllib.request

address, token = f"{os.environ['RAY_API_SERVER_ADDRESS']}/api/jobs/", os.environ["MLPLATFORM_ATTEMPT_TOKEN"]
request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - the gateway
former = ""
while not former.startswith("403"):
    try:
        with urllib.request.urlopen(request, timeout=10) as accepted:  # noqa: S310 - the gateway's own address
            answer = str(accepted.status)
    except urllib.error.HTTPError as error:
        answer = f"{error.code} {error.read().decode()}"
    if answer != former:
        print("answer:", answer, flush=True)
    former = answer
    time.sleep(0.5)
