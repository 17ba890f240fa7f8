"""Use a package that the platform's image lacks: Ray installs it for this job only, before the job starts.

    mlplatform submit food11/own_packages.py --pip roman==5.1 --env SUBMITTED=$(date +%s)
    cd food11 && ray job submit --runtime-env runtime.json --working-dir . -- python own_packages.py

The lesson: the first job with a list waits until its node has installed what the image lacks. Later jobs with exactly
the same list start at once, until the node is recreated. `runtime-uv.json` makes Ray install the list with uv. Packages
that many jobs need belong in images/ray/extra-requirements.in.
"""

import json
import os
import time

import roman

if __name__ == "__main__":
    print(f"{roman.__name__} is installed: 11 classes of food are {roman.toRoman(11)}")
    if submitted := os.environ.get("SUBMITTED"):
        print(f"Seconds from submission to the first line: {json.dumps(round(time.time() - float(submitted), 1))}")
