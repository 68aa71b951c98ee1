"""The examples under deploy/ ask for metrics that exist, and give a server the time that its settings need."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway.metric_table import METRICS, Kind
from services.runtime.settings import ServerSettings
from services.runtime.supervisor import FAREWELL_S

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"\b(?:tandem|vllm):?_?[a-z_]+")


def exported() -> set[str]:
    """Every name that a query may use."""
    names: set[str] = set()
    for metric in METRICS:
        for name in (metric.name, *metric.aliases):
            suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
            names |= {metric.exported(name) + suffix for suffix in suffixes}
    return names


def strings(value: Any) -> Iterator[tuple[str, str]]:
    """Every text of a document, with the key it stands under."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from ((key, below),) if isinstance(below, str) else strings(below)
    elif isinstance(value, list):
        for below in value:
            yield from strings(below)


def documents(name: str) -> list[Any]:
    text = (DEPLOY / name).read_text()
    return [json.loads(text)] if name.endswith(".json") else list(yaml.safe_load_all(text))


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yaml", "keda.yaml"])
def test_every_metric_that_is_asked_for_is_exported(name: str) -> None:
    queries = [text for document in documents(name) for key, text in strings(document) if key in ("expr", "query")]
    asked = {found for query in queries for found in NAME.findall(query)} - {"tandem"}
    assert asked and asked <= exported(), asked - exported()


def test_a_dashboard_has_panels_that_do_not_overlap() -> None:
    (dashboard,) = documents("grafana.json")
    taken = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24
    assert all(panel["targets"] and panel["title"] for panel in dashboard["panels"])


OBJECTS: dict[str, Any] = {document["kind"]: document for document in documents("kubernetes.yaml")}
SETTINGS = msgspec.convert(tomllib.loads(OBJECTS["ConfigMap"]["data"]["tandem.toml"]), ServerSettings).gateway
POD: dict[str, Any] = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


class TestKubernetes:
    """The manifest."""

    def test_the_grace_period_outlasts_a_drain(self) -> None:
        assert POD["terminationGracePeriodSeconds"] > SETTINGS.drain_delay_s + SETTINGS.drain_s + FAREWELL_S + 2
        assert SETTINGS.drain_delay_s > 0

    def test_readiness_is_lost_within_the_delay(self) -> None:
        probe = CONTAINER["readinessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] < SETTINGS.drain_delay_s

    def test_probes_ask_the_ports_that_are_listened_on(self) -> None:
        ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
        assert {SETTINGS.listen, SETTINGS.metrics_listen} == {f"0.0.0.0:{port}" for port in ports.values()}
        assert CONTAINER["readinessProbe"]["grpc"]["port"] == ports["grpc"]
        assert CONTAINER["startupProbe"]["grpc"]["port"] == ports["grpc"]
        assert CONTAINER["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}

    def test_the_service_is_headless_so_that_clients_see_every_pod(self) -> None:
        service = OBJECTS["Service"]["spec"]
        assert service["clusterIP"] == "None"
        assert {port["port"] for port in service["ports"]} == {port["containerPort"] for port in CONTAINER["ports"]}
        assert service["selector"] == OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
