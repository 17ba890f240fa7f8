"""Write Ray's Grafana dashboards into a folder: `python -m mlplatform.node.dashboards FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from mlplatform.compat.ray_commands import write_dashboards

if __name__ == "__main__":
    for file in write_dashboards(Path(sys.argv[1])):
        print(file)
