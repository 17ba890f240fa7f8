"""Grafana's dashboards have a layout without overlaps, their own identifiers, and no undefined variable."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

GRAFANA = Path(__file__).parents[2] / "docker/grafana"
DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((GRAFANA / "dashboards").iterdir())}
COLUMNS = 24
TYPES = {"stat", "timeseries", "table"}


@pytest.fixture(params=sorted(DASHBOARDS))
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each dashboard."""
    return DASHBOARDS[request.param]


def test_each_subject_has_a_dashboard() -> None:
    assert set(DASHBOARDS) == {"gpus", "job", "overview", "storage", "tracking"}


def test_grafana_finds_the_dashboards() -> None:
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/platform.yaml").read_text())["providers"][0]
    grafana = yaml.safe_load((GRAFANA.parents[1] / "compose/monitoring.yaml").read_text())["services"]["grafana"]
    folder = provider["options"]["path"]
    assert f"../docker/grafana/dashboards:{folder}:ro" in grafana["volumes"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == f"{folder}/overview.json"


def test_dashboards_have_identifiers_of_their_own() -> None:
    for key in ("uid", "title"):
        assert len({dashboard[key] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS)
    assert all("mlplatform" in dashboard["tags"] for dashboard in DASHBOARDS.values()), "the links find them by tag"


def test_panels_fill_the_grid_without_overlap(dashboard: dict[str, Any]) -> None:
    cells: Counter[tuple[int, int]] = Counter()
    for panel in dashboard["panels"]:
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= COLUMNS, panel["title"]
        columns, rows = range(where["x"], where["x"] + where["w"]), range(where["y"], where["y"] + where["h"])
        cells.update((column, row) for column in columns for row in rows)
    assert max(cells.values()) == 1


def test_panels_are_numbered_and_have_queries(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    for panel in panels:
        assert panel["type"] in TYPES, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references == ["A", "B", "C"][: len(references)], panel["title"]
        assert all(target["expr"] for target in panel["targets"]), panel["title"]


def test_queries_use_defined_variables_only(dashboard: dict[str, Any]) -> None:
    defined = {variable["name"] for variable in dashboard.get("templating", {}).get("list", [])}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard.get("templating", {}).get("list", [])]
    used = {name for query in queries for name in re.findall(r"\$(\w+)", query)}
    assert used <= defined | {"__rate_interval", *"123456789"}
