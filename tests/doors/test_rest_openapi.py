"""The OpenAPI document, and that the end points answer what it says, whatever they are sent."""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from drf_spectacular.management.commands.spectacular import Command
from hypothesis import HealthCheck, Phase, given, settings as example_settings

from django_tasklock import RateLimiter, TaskLock, force_release_task_lock
from django_tasklock.operations.sweep import stream
from django_tasklock.rest import problems
from django_tasklock.rest.access import RATES
from tests.support.rest import KEY, PREFIX

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db

LIMIT_ACT = {"200", "400", "401", "403", "404", "413", "415", "429", "501", "503"}
MESSAGE_ACT = {"200", "400", "401", "403", "404", "409", "413", "415", "429", "503"}
CREDENTIALS = ("Authorization", "X-API-Key")
SUBJECTS = ("held", "made up", "nobody's")
"""Whose names examples have, in turn: what is made up comes from constants of our own code, too, and any edit of that
changes it."""
FEW, MANY = 4, 20  # examples for each operation, way of breaking it, and caller


@pytest.fixture
def document(rest, settings):
    """The whole document, as ``manage.py spectacular`` writes it."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework", "drf_spectacular"]
    rest(API_KEY_IN_QUERY=True)
    written = io.StringIO()
    call_command(Command(), validate=True, fail_on_warn=True, format="openapi-json", stdout=written)
    return json.loads(written.getvalue())


def explore(cases, number, send):
    """``send`` so many of them, always the same ones."""

    @example_settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case):
        send(case, SUBJECTS[next(turns) % len(SUBJECTS)])

    turns = itertools.count()
    run()


class TestDocument:
    def test_every_end_point_and_every_answer(self, document):
        found = {
            (method, path): operation
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if path.startswith(PREFIX)
        }
        assert {key: set(operation["responses"]) for key, operation in found.items()} == {
            ("get", PREFIX + "locks"): {"200", "400", "401", "403", "429", "501", "503"},
            ("get", PREFIX + "{name}/lock"): {"200", "304", "400", "401", "403", "404", "429", "503"},
            ("post", PREFIX + "{name}/release-lock"):
                {"200", "400", "401", "403", "404", "409", "412", "413", "415", "429", "503"},
            ("post", PREFIX + "{name}/ask-release"):
                {"200", "400", "401", "403", "404", "409", "412", "413", "415", "429", "503"},
            ("get", PREFIX + "limits"): {"200", "400", "401", "403", "429", "501", "503"},
            ("get", PREFIX + "limits/{name}"): {"200", "400", "401", "403", "404", "429", "501", "503"},
            ("post", PREFIX + "limits/{name}/reset"): LIMIT_ACT,
            ("post", PREFIX + "limits/{name}/change"): LIMIT_ACT,
            ("post", PREFIX + "limits/{name}/pause"): LIMIT_ACT,
            ("post", PREFIX + "limits/{name}/resume"): LIMIT_ACT,
            ("get", PREFIX + "{name}/waiters"): {"200", "400", "401", "403", "429", "503"},
            ("get", PREFIX + "parked"): {"200", "400", "401", "403", "429", "503"},
            ("get", PREFIX + "parked/{task_id}"): {"200", "400", "401", "403", "404", "429", "503"},
            ("post", PREFIX + "parked/{task_id}/requeue"): MESSAGE_ACT,
            ("post", PREFIX + "parked/{task_id}/publish"): MESSAGE_ACT,
            ("post", PREFIX + "parked/{task_id}/discard"): MESSAGE_ACT,
            ("post", PREFIX + "sweep"): {"200", "400", "401", "403", "413", "415", "429", "503"},
            ("get", PREFIX + "sweeps"): {"200", "400", "401", "403", "429", "503"},
            ("get", PREFIX + "sweeps/{number}"): {"200", "400", "401", "403", "404", "429", "503"},
            ("get", PREFIX + "audit"): {"200", "400", "401", "403", "429", "503"},
            ("get", PREFIX + "concurrency"): {"200", "400", "401", "403", "429", "501", "503"},
            ("get", PREFIX + "concurrency/{name}"): {"200", "400", "401", "403", "404", "429", "501", "503"},
            ("post", PREFIX + "concurrency/{name}/release"): LIMIT_ACT,
        }  # fmt: skip
        for operation in found.values():
            assert operation["summary"]
            assert operation["description"]
            assert operation["tags"] in (["locks"], ["limits"], ["messages"], ["sweep"], ["audit"])
            assert all(
                parameter["description"] for parameter in operation.get("parameters", []) if parameter["in"] != "query"
            )
            for status, answer in operation["responses"].items():
                if status >= "400":
                    reference = answer["content"]["application/json"]["schema"]["$ref"]
                    assert reference == "#/components/schemas/TaskLockProblem"
                    assert answer["description"]
                assert ("Retry-After" in answer.get("headers", {})) is (status in ("429", "503"))
                assert ("WWW-Authenticate" in answer.get("headers", {})) is (status == "401")
        assert "ETag" in found["get", PREFIX + "{name}/lock"]["responses"]["200"]["headers"]
        scopes = {key: operation["x-tasklock-scope"] for key, operation in found.items()}
        assert {path for (_, path), scope in scopes.items() if scope == "limits"} == {
            f"{PREFIX}{path}"
            for path in (
                "limits/{name}/reset",
                "limits/{name}/change",
                "limits/{name}/pause",
                "limits/{name}/resume",
                "concurrency/{name}/release",
            )
        }
        assert {path for (_, path), scope in scopes.items() if scope == "release"} == {
            f"{PREFIX}{path}" for path in ("{name}/release-lock", "{name}/ask-release", "sweep")
        }
        assert {path for (_, path), scope in scopes.items() if scope == "messages"} == {
            f"{PREFIX}parked/{{task_id}}/{act}" for act in ("requeue", "publish", "discard")
        }
        assert scopes.pop(("get", PREFIX + "audit")) == "audit"
        assert {scope for (method, _), scope in scopes.items() if method == "get"} == {"read"}
        assert all(f"`{scope}`" in found[key]["description"] for key, scope in scopes.items())

    def test_one_way_to_log_in_is_enough(self, document, rest):
        ways = [next(iter(way)) for way in document["paths"][PREFIX + "locks"]["get"]["security"] if len(way) == 1]
        assert ways == ["tasklockKey", "tasklockKeyHeader", "tasklockKeyQuery", "cookieAuth", "basicAuth"]
        assert set(ways) <= document["components"]["securitySchemes"].keys()

    def test_its_names_are_no_other_apps(self, document):
        """``Lock``, ``Result`` or ``StateEnum`` may well be the project's."""
        assert all(name.startswith("TaskLock") for name in document["components"]["schemas"])

    @pytest.mark.parametrize("keys", [{}, {"grafana": KEY}])
    def test_only_the_ways_that_there_are(self, document, rest, keys):
        rest(API_KEYS=keys)
        written = io.StringIO()
        call_command(Command(), validate=True, fail_on_warn=True, format="openapi-json", stdout=written)
        schemes = set(json.loads(written.getvalue())["components"]["securitySchemes"])
        expected = {"tasklockKey", "tasklockKeyHeader"} if keys else set()
        assert schemes == {"cookieAuth", "basicAuth"} | expected


class TestWhateverIsSent:
    """schemathesis over the document, against the WSGI application: no 5xx, no answer that is not in it."""

    @pytest.fixture(autouse=True)
    def _one_connection(self, monkeypatch):
        """That of the test, whose transaction the application must not end: as Django's own client does it. And nobody
        acts between the two looks of a sweep.
        """
        monkeypatch.setattr(stream, "sleep", lambda pause: None)
        signals = request_started, request_finished
        for signal in signals:
            signal.disconnect(close_old_connections)
        yield
        for signal in signals:
            signal.connect(close_old_connections)

    @pytest.fixture
    def headers(self, request, user):
        if request.param == "key":
            return {"X-API-Key": KEY}
        user(is_superuser=True)
        return {"Authorization": "Basic " + base64.b64encode(b"nobody:secret").decode()}

    @pytest.mark.parametrize(
        ("headers", "number"),
        [
            ("superuser", MANY),
            ("key", FEW),
        ],
        indirect=["headers"],
    )
    @pytest.mark.parametrize("mode", ["positive", "negative"])
    @pytest.mark.slow
    def test_it_is_answered_as_documented(self, document, headers, name, mode, number):
        import schemathesis  # here alone: it takes longer to import than most files of tests take
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks

        expected = [
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_headers_conformance,
            checks.response_schema_conformance,
        ]
        schema = schemathesis.openapi.from_dict(document)
        schema.app = WSGIHandler()
        numbers, statuses = itertools.count(), {}

        def send(case, subject):
            held = subject == "held"
            if subject != "made up" and "name" in case.path_parameters:
                case.path_parameters["name"] = f"{name}:{next(numbers)}"
                if held:  # nobody guesses the name of a lock that is held
                    assert TaskLock(case.path_parameters["name"], timeout=60, lease=None).acquire(blocking=False)
                    RateLimiter(case.path_parameters["name"], "9/m").reserve()
            if subject != "made up":  # what is made up instead of these is refused before anything else is looked at
                case.headers = {key: value for key, value in (case.headers or {}).items() if key not in CREDENTIALS}
            response = case.call(headers=headers)
            case.validate_response(response, checks=expected)
            if held:
                force_release_task_lock(case.path_parameters.get("name", name))
            statuses.setdefault((case.method.lower(), case.path.removeprefix(PREFIX)), set()).add(response.status_code)

        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.startswith(PREFIX):
                most = number if operation.tags[0] in ("locks", "limits") else FEW // 2
                explore(operation.as_strategy(schemathesis.GenerationMode(mode)), most, send)
        if mode == "positive" and number == FEW:
            assert all(200 in statuses["get", path] for path in ("locks", "{name}/lock", "limits", "concurrency"))
        elif mode == "positive":
            assert statuses["get", "locks"] >= {200}
            assert statuses["get", "{name}/lock"] >= {200, 404}
            assert statuses["post", "{name}/release-lock"] >= {200, 404}
            assert statuses["post", "{name}/ask-release"] >= {200, 404}
            assert statuses["get", "limits"] >= {200}
            assert statuses["get", "limits/{name}"] >= {200, 404}
            assert statuses["post", "limits/{name}/reset"] >= {200, 404}
            assert statuses["post", "limits/{name}/change"] >= {200, 404}
            assert statuses["get", "concurrency"] >= {200}
            assert statuses["post", "concurrency/{name}/release"] >= {404}
        elif number == MANY:
            assert statuses["get", "locks"] >= {400}
            assert statuses["post", "{name}/release-lock"] >= {400}
            assert statuses["post", "limits/{name}/change"] >= {400}


class TestPage:
    """docs/rest.md says what there is."""

    PAGE = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()

    def test_every_code_and_status(self, document):
        assert not [code for code in get_args(problems.Code) if f"`{code}`" not in self.PAGE]
        answers = (set(op["responses"]) for ops in document["paths"].values() for op in ops.values())
        statuses = set.union(*answers) - {"200"}
        table = {
            status for row in re.findall(r"^\| ([\d, ]+) \|", self.PAGE, re.MULTILINE) for status in row.split(", ")
        }
        assert table == statuses | {"405"}  # a method that there is not is not in the document

    def test_every_parameter_scope_operation_and_path(self, document):
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if path.startswith(PREFIX):
                    assert f"`{path.removeprefix(PREFIX)}`" in self.PAGE
                    assert f"`{operation['operationId']}`" in self.PAGE
                    names = [one["name"] for one in operation.get("parameters", [])]
                    assert not [
                        name for name in names if f"`{name}" not in self.PAGE and f"{{{name}}}" not in self.PAGE
                    ]
        assert all(f'"{scope}"' in self.PAGE for scope in RATES)

    def test_its_example_is_what_is_sent(self, document, by_key, name):
        example = json.loads(re.search(r"```json\n(.*?)```", self.PAGE, re.DOTALL)[1])
        shapes = document["components"]["schemas"]
        assert example.keys() == shapes["TaskLockLockPage"]["properties"].keys()
        assert example["locks"][0].keys() == shapes["TaskLockLock"]["properties"].keys()
        assert example["locks"][0]["row"].keys() == shapes["TaskLockRow"]["properties"].keys()
        assert example["counts"].keys() == shapes["TaskLockCounts"]["properties"].keys()
