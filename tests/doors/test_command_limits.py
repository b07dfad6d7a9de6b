"""``manage.py limits``: what an operator reads in a terminal, and what scripts go by."""

from __future__ import annotations

import io
import json
import re
import secrets
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_tasklock import ConcurrencyLimiter, RateLimiter
from django_tasklock.models import AuditEntry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def name() -> str:
    return f"limit:{secrets.token_hex(6)}"


def limits(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("limits", *arguments, stdout=out, **options)
    return out.getvalue()


def test_list(name: str) -> None:
    limiter = RateLimiter(name, "1/m", "9/d")
    limiter.reserve()
    limiter.reserve()
    with ConcurrencyLimiter(name, 3):
        text = limits("--search", name)
        found = json.loads(limits("--search", name, "--json"))
    assert f"{name}  full  1/m: 1 of 1, 1 ahead, 9/d: 1 of 9, 1 ahead  0 refused" in text
    assert f"{name}  1 of 3 permits taken, 0 waiting" in text
    assert "1 shown of 1 rate limits." in text
    assert (found["limits"][0]["usage"]["windows"][0]["used"], found["concurrency"][0]["limit"]) == (1, 3)


def test_one(name: str) -> None:
    limiter = RateLimiter(name, "10/m", tenants="2/m")
    limiter.tenant("acme").acquire()
    limiter.penalize(3000)
    limiter.adjust(0.5)
    with ConcurrencyLimiter(name, 3) as permits:
        [member] = permits.members()
        text = limits(name)
        assert json.loads(limits(name, "--json"))["permits"]["members"][0]["fingerprint"] == member.fingerprint
    for part in (f"{name}:tenant:acme", "paused for 49 min", "50% in force", "1 tenants", member.fingerprint):
        assert part in text, part
    with pytest.raises(CommandError, match="No limiter"):
        limits(f"{name}:other")


def test_acts(name: str) -> None:
    """Each is in the audit trail with its reason; what did nothing is an error."""
    limiter = RateLimiter(name, "10/m")
    limiter.acquire()
    assert f"50 % of the rate limit “{name}” is in force now." in limits(
        name, "--share", "0.5", "--reason", "slow down"
    )
    assert limiter.usage().share == 0.5
    assert "was reset." in limits(name, "--reset")
    assert limiter.usage().used == 0
    with ConcurrencyLimiter(name, 3) as permits:
        [member] = permits.members()
        assert json.loads(limits(name, "--release", member.fingerprint, "--json"))["outcome"] == "released"
        with pytest.raises(CommandError, match="has no permit") as failed:
            limits(name, "--release", member.fingerprint)
    assert failed.value.returncode == 1
    assert [entry.reason for entry in AuditEntry.objects.order_by("id")] == ["slow down", "", ""]
    AuditEntry.objects.filter(reason="slow down").update(at="2026-03-01T20:30:00Z")
    with timezone.override("Asia/Shanghai"):
        told = limits(name)
    assert re.search(r"2026-03-02 04:30:00 .*: change_limit: changed from 100 % to 50 % of 10/m \(slow down\)", told)
    for wrong in (
        [""],
        ["--reset"],
        ["", "--reset"],
        [f"{name}:other", "--reset"],
        [name, "--share", "2"],
        [name, "--share", "nan"],
    ):
        with pytest.raises(CommandError):
            limits(*wrong)
    assert AuditEntry.objects.count() == 3
