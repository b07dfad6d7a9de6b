"""The alert rules and the dashboard that come with the package do what their page says, with metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_tasklock.metrics.table import METRICS

FOLDER = Path(__file__).parents[2] / "docs" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
CASES = yaml.safe_load((FOLDER / "alerts_test.yml").read_text("utf-8"))["tests"]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
HEALTHY = "a healthy day"
LEFT_OUT = {
    "tasklock_limiter_expired_total",
    "tasklock_limiter_forced_total",
    "tasklock_limiter_hold_seconds",
    "tasklock_transferred_total",
    "{limiter}_rate_limiter_requests_per_minute",
    "{limiter}_rate_limiter_throttled_count",
    "{limiter}_rate_limiter_wait_time",
}
"""Metrics that no panel shows: what is rare, and what others there show for all limiters at once."""


@pytest.fixture
def promtool() -> str:
    """The path of Prometheus' own tool. Without one, tests are skipped; with ``CI=true`` they fail."""
    program = os.environ.get("TASKLOCK_TEST_PROMTOOL") or shutil.which("promtool")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no promtool on PATH: apt-get install prometheus")
        pytest.skip("no promtool on PATH: apt-get install prometheus")
    return program


def ran(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class TestRules:
    @pytest.mark.slow
    def test_prometheus_takes_them(self, promtool: str) -> None:
        assert f"{len(ALERTS)} rules found" in ran(
            promtool, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"
        )

    @pytest.mark.slow
    def test_each_fires_in_its_case_and_none_on_a_healthy_day(self, promtool: str) -> None:
        assert "SUCCESS" in ran(promtool, "test", "rules", "alerts_test.yml")

    def test_each_has_a_case_in_which_it_fires_and_is_silent_on_a_healthy_day(self) -> None:
        fired, silent = set(), set()
        for case in CASES:
            for check in case["alert_rule_test"]:
                if check.get("exp_alerts"):
                    fired.add(check["alertname"])
                elif case["name"] == HEALTHY:
                    silent.add(check["alertname"])
        assert fired == silent == ALERTS.keys()

    def test_a_healthy_day_has_every_metric_of_the_rules(self) -> None:
        """Silence because there is nothing to look at proves nothing."""
        (healthy,) = [case for case in CASES if case["name"] == HEALTHY]
        seen = {series["series"].partition("{")[0] for series in healthy["input_series"]}
        assert {metric for rule in ALERTS.values() for metric in metrics_in(rule["expr"])} == seen

    def test_each_has_its_part_of_the_page(self) -> None:
        page = (FOLDER.parent / "alerts.md").read_text("utf-8")
        parts = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
        assert list(parts) == list(ALERTS)
        assert all("*Do*:" in part for part in parts.values())

    def test_each_says_how_bad_it_is_and_what_it_is(self) -> None:
        for rule in ALERTS.values():
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"].keys() == {"summary", "description"}


def metrics_in(text: str) -> set[str]:
    """The metrics that a query names."""
    text = re.sub(r"\{[^}]*\}|\[[^]]*\]|(?:by|without|on|ignoring) \([^)]*\)|\$\w+", "", text)
    return set(re.findall(r"\b(?:tasklock|db|\w+_rate_limiter)_\w+", text))


def panels() -> list[dict[str, Any]]:
    return DASHBOARD["panels"]  # type: ignore[no-any-return]


class TestDashboard:
    def test_grafana_knows_every_field_of_it(self) -> None:
        """Read and written by the types that Grafana generates from its schema: what they do not know is gone."""
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard

        register_default_plugins()
        read = json.loads(json.dumps(Dashboard.from_json(DASHBOARD), cls=JSONEncoder))
        assert missing(DASHBOARD, read, "dashboard") == []

    def test_panels_stand_beside_each_other(self) -> None:
        assert len({panel["id"] for panel in panels()}) == len(panels())
        taken: dict[tuple[int, int], str] = {}
        for panel in panels():
            place = panel["gridPos"]
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert x < 24
                    assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                    taken[x, y] = panel["title"]

    def test_each_says_what_it_shows(self) -> None:
        shown = [panel for panel in panels() if panel["type"] != "row"]
        assert all(panel["title"] and panel["description"].endswith(".") and panel["targets"] for panel in shown)
        assert all(a["title"] != b["title"] or a["type"] != b["type"] for a, b in combinations(shown, 2))

    def test_its_variables_are_used_and_there(self) -> None:
        names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
        queries = json.dumps(panels())
        assert set(re.findall(r"\$\{?(\w+)", queries)) - {"__rate_interval"} == names

    @pytest.mark.slow
    def test_prometheus_takes_its_queries(self, promtool: str, tmp_path: Path) -> None:
        queries = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
        assert len(queries) > 20
        rules = [
            {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
            for number, query in enumerate(queries)
        ]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
        ran(promtool, "check", "rules", tmp_path / "rules.yml")


def missing(given: Any, read: Any, where: str) -> list[str]:
    """What of a document is not, or otherwise, in the other one."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [
            one
            for key, value in given.items()
            for one in (
                missing(value, read[key], f"{where}.{key}") if key in read or value is None else [f"{where}.{key}"]
            )
        ]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [
            one for number in range(len(given)) for one in missing(given[number], read[number], f"{where}[{number}]")
        ]
    return [] if given == read else [f"{where}: {given!r} is {read!r}"]


class TestMetrics:
    """What is named exists: the table of metrics, which docs/metrics.md is held against, has all there are."""

    def known(self) -> dict[str, tuple[str, ...]]:
        """Each series that is shown to its labels; of a limiter called ``tavily``."""
        found = {}
        for metric in METRICS:
            parts = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
            for part in parts:
                found[metric.name.replace("{limiter}", "tavily") + part] = metric.labels
        return found

    def test_those_of_the_rules(self) -> None:
        assert {one for rule in ALERTS.values() for one in metrics_in(rule["expr"])} <= self.known().keys()

    def test_those_of_the_rules_tests_with_their_labels(self) -> None:
        for case in CASES:
            for series in case["input_series"]:
                name, labels = re.fullmatch(r"(\w+)\{(.*)\}", series["series"]).groups()
                given = set(re.findall(r"(\w+)=", labels)) - {"job", "instance", "le"}
                assert given == set(self.known()[name]), series["series"]

    def test_those_of_the_dashboard_with_their_labels(self) -> None:
        known = self.known()
        for panel in panels():
            for target in panel.get("targets", ()):
                query = target["expr"]
                assert metrics_in(query), panel["title"]
                labels = {label for name in metrics_in(query) for label in known[name]} | {
                    "job",
                    "instance",
                    "pod",
                    "le",
                }
                used = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]) + re.findall(r"(\w+)=~", query)
                used += [
                    word for words in re.findall(r"(?:by|without) \(([\w, ]+)\)", query) for word in words.split(", ")
                ]
                assert set(used) <= labels, panel["title"]
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
                assert label in (*known[metric], "job")

    def test_every_metric_is_on_the_dashboard_or_left_out_on_purpose(self) -> None:
        shown = {
            name for panel in panels() for target in panel.get("targets", ()) for name in metrics_in(target["expr"])
        }
        shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
        assert {metric.name for metric in METRICS} - shown == LEFT_OUT

    def test_those_of_the_pages(self) -> None:
        """In queries, and in the page of alerts. What is counted in one process has names of its own."""
        own = {
            f"tasklock_{event}_total" for event in ("lost", "unavailable", "claims_stale", "messages_late", "conflicts")
        }
        own |= {"tasklock_locks", "tasklock_parked"}
        for page in FOLDER.parent.glob("*.md"):
            text = page.read_text("utf-8")
            named = {one for query in re.findall(r"expr: (.*)", text) for one in metrics_in(query)}
            if page.name == "alerts.md":
                named |= set(re.findall(r"`((?:tasklock|db|tavily)_\w+)`", text)) - {"django_tasklock"}
            assert named <= self.known().keys() | own, page.name
