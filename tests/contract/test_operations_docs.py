"""docs/operations.md tells of every metric, order and setting that operators have, as they are."""

import re
from pathlib import Path

import msgspec

from gateway.metric_table import METRICS
from services.runtime.settings import GatewaySettings
from tandem.v1 import control_pb2

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
ROW = re.compile(r"^\| `(tandem_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_the_table_of_metrics_is_the_exported_one() -> None:
    told = [tuple(match.groups()) for match in ROW.finditer(TEXT)]
    assert told == [
        (
            metric.exported(metric.name),
            metric.kind.value,
            quoted(metric.labels),
            quoted(tuple(metric.exported(alias) for alias in metric.aliases)),
            metric.help,
        )
        for metric in METRICS
    ]


def test_every_order_is_told() -> None:
    methods = control_pb2.DESCRIPTOR.services_by_name["ControlService"].methods
    assert [method.name for method in methods if f"`{method.name}`" not in TEXT] == []


def test_settings_that_are_told_exist_and_have_the_defaults_that_are_told() -> None:
    defaults = msgspec.to_builtins(GatewaySettings())
    for name in ("drain_delay_s", "drain_s", "goodput_ttft_ms", "goodput_itl_ms", "goodput_window"):
        (number,) = set(re.findall(rf"`{name}`\D{{0,8}}\((\d+)|`{name}` \((\d+) by default\)", TEXT)) or {("", "")}
        assert float("".join(number)) == defaults[name], name
    for name in re.findall(r"`((?:admin|metrics|otlp|trace|goodput|drain)_\w+)[` ]", TEXT):
        assert name in defaults, name
