"""Use a package that the platform's image does not have: Ray installs it for this job alone, before it starts.

    mlplatform submit food11/own_packages.py --pip roman==5.1 --env SUBMITTED=$(date +%s)
    cd food11 && ray job submit --runtime-env runtime.json --working-dir . -- python own_packages.py

The lesson: the list makes a copy of the image's whole Python environment on the node, so the first job with it waits
for minutes; the next ones with the very same list find the copy, until the node is made anew. `runtime-uv.json` has
the list in the form that Ray hands to uv. A package that many jobs need belongs into images/ray/extra-requirements.txt.
"""

import json
import os
import time

import roman

if __name__ == "__main__":
    print(f"{roman.__name__} is here: 11 classes of food are {roman.toRoman(11)}")
    if submitted := os.environ.get("SUBMITTED"):
        print(f"Seconds from submission to the first line: {json.dumps(round(time.time() - float(submitted), 1))}")
