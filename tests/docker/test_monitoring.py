"""The dashboard and the alerts ask for metrics that servers export, in the way that their kind allows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from composition import services
from dspark_client.paths import REPOSITORY

MONITOR = REPOSITORY / "build" / "docker" / "monitor"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
RATED = re.compile(r"\b(?:rate|increase)\((dspark_\w+)\[")
NAME = re.compile(r"\bdspark_\w+")
LEFT_OUT: set[str] = set()           # exported, but on no panel


class Family:
    """Triton's MetricFamily, which says what it was made as."""

    COUNTER, GAUGE, HISTOGRAM = COUNTER, GAUGE, HISTOGRAM
    made: dict[str, str]

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert description
        self.made[name] = kind

    def Metric(self, labels: dict[str, str], buckets: list[float] | None = None) -> Any:
        return MagicMock()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The kind of every metric that a server makes, by name."""
    Family.made = {}
    stand_in = MagicMock(MetricFamily=Family)
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in)
    from dspark.triton.metrics import RoundMetrics

    RoundMetrics(gamma=2, profiled=True).close()
    yield dict(Family.made)
    for name in set(sys.modules) - before:
        if name.startswith("dspark.triton"):
            del sys.modules[name]


def dashboard() -> dict[str, Any]:
    return dict(json.loads((MONITOR / "dashboards" / "dspark.json").read_text("utf-8")))


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    alerts = yaml.safe_load((MONITOR / "alerts.yml").read_text("utf-8"))
    return panels + [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]


def series(exported: dict[str, str]) -> dict[str, str]:
    """What Prometheus sees: of a histogram three counters."""
    parts = ("_bucket", "_sum", "_count")
    histograms = {name + part: COUNTER for name, kind in exported.items() if kind == HISTOGRAM for part in parts}
    return {name: kind for name, kind in exported.items() if kind != HISTOGRAM} | histograms


def test_every_metric_asked_for_is_exported(exported: dict[str, str]) -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert asked and asked <= set(series(exported))


def test_every_metric_exported_is_on_a_panel(exported: dict[str, str]) -> None:
    text = " ".join(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    assert {name for name in exported if name not in text} == LEFT_OUT


def test_counters_are_seen_as_rates_and_gauges_as_they_are(exported: dict[str, str]) -> None:
    kinds = series(exported)
    for expression in expressions():
        rated = RATED.findall(expression)
        plain = NAME.findall(RATED.sub("", expression))
        assert {kinds[name] for name in rated} <= {COUNTER}, expression
        assert {kinds[name] for name in plain} <= {GAUGE}, expression


def test_panels_have_a_place_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & own and place["x"] + place["w"] <= 24
        cells |= own
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def test_grafana_is_given_the_dashboard_and_the_source_that_its_panels_name() -> None:
    provisioned = MONITOR / "provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"]
    (provider,) = yaml.safe_load((provisioned / "dashboards" / "dspark.yml").read_text("utf-8"))["providers"]
    assert {panel["datasource"]["uid"] for panel in dashboard()["panels"]} == {source["uid"]}
    grafana = services()["grafana"]
    mounted = {mount.split(":")[1]: mount.split(":")[0] for mount in grafana["volumes"]}
    assert (REPOSITORY / mounted[provider["options"]["path"]] / "dspark.json").is_file()
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_asks_the_metrics_port_that_servers_publish() -> None:
    (job,) = yaml.safe_load((MONITOR / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    for name in ("server", "server-cpu"):
        service = services()[name]
        assert host in service["networks"]["default"]["aliases"]
        assert f"127.0.0.1:{port}:{port}" in service["ports"]


def test_prometheus_is_given_its_files() -> None:
    mounted = {Path(mount.split(":")[1]).name for mount in services()["prometheus"]["volumes"]}
    rules = yaml.safe_load((MONITOR / "prometheus.yml").read_text("utf-8"))["rule_files"]
    assert {"prometheus.yml", *rules} <= mounted
