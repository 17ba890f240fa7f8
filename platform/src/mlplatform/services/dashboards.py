"""Write Ray's Grafana dashboards into a folder: `python -m mlplatform.services.dashboards FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path


def write_dashboards(folder: Path) -> list[Path]:
    """Generate the dashboards of the Ray that is installed, one JSON file each.

    Returns:
        The files written.
    """
    from ray.dashboard.modules.metrics import grafana_dashboard_factory as factory

    generators = {
        "core": factory.generate_default_grafana_dashboard,
        "train": factory.generate_train_grafana_dashboard,
        "data": factory.generate_data_grafana_dashboard,
        "serve": factory.generate_serve_grafana_dashboard,
        "serve-deployment": factory.generate_serve_deployment_grafana_dashboard,
    }
    files = []
    for name, generate in generators.items():
        content, _uid = generate()
        path = folder / f"ray-{name}.json"
        path.write_text(content)
        files.append(path)
    return files


if __name__ == "__main__":
    for file in write_dashboards(Path(sys.argv[1])):
        print(file)
