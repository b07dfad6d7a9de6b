"""The alert rules and the dashboard that come with the package do what their page says, with metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_tasklock.metrics import collector

FOLDER = Path(__file__).parents[2] / "docs" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
CASES = yaml.safe_load((FOLDER / "alerts_test.yml").read_text("utf-8"))["tests"]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
RECORDED = {rule["record"]: rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
HEALTHY = "a healthy day"


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
    def test_prometheus_takes_them_and_the_queries_of_the_dashboard(self, promtool: str, tmp_path: Path) -> None:
        lint = (promtool, "check", "rules", "--lint=all", "--lint-fatal")
        assert f"{len(ALERTS) + len(RECORDED)} rules found" in ran(*lint, "alerts.yml")
        assert "SUCCESS" in ran(promtool, "test", "rules", "alerts_test.yml")
        queries = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
        rules = [
            {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
            for number, query in enumerate(queries)
        ]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
        ran(promtool, "check", "rules", tmp_path / "rules.yml")

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
        used = {metric for rule in (*ALERTS.values(), *RECORDED.values()) for metric in metrics_in(rule["expr"])}
        assert used - RECORDED.keys() == seen


def metrics_in(text: str) -> set[str]:
    """The metrics that a query names."""
    text = re.sub(r"\{[^}]*\}|\[[^]]*\]|(?:by|without|on|ignoring) \([^)]*\)|\$\w+", "", text)
    return set(re.findall(r"\b(?:tasklock|db|\w+_rate_limiter)_\w+", text))


def panels() -> list[dict[str, Any]]:
    return DASHBOARD["panels"]  # type: ignore[no-any-return]


class TestMetrics:
    """What is named exists."""

    def known(self) -> dict[str, tuple[str, ...]]:
        """Each series that is shown to its labels; of a limiter called ``tavily``."""
        found: dict[str, tuple[str, ...]] = dict.fromkeys(RECORDED, ())
        for metric in collector.COUNTERS.values():
            found[f"{metric.name}_total"] = metric.labels
        for metric in collector.HISTOGRAMS.values():
            found |= {f"{metric.name}_{part}": metric.labels for part in ("bucket", "sum", "count")}
        others = [one for one in vars(collector).values() if isinstance(one, collector.Metric)]
        found |= {metric.name: metric.labels for metric in (*collector.GAUGES.values(), *others)}
        return found

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
