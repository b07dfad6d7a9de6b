"""A claimed row that its closing write does not find: deleted by the body, or an unknown, which is never a success."""

from __future__ import annotations

import logging
import threading

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_tasklock import StaleClaim, current_claim, model_lock
from django_tasklock.signals import claim_stale
from tests.support.guards import ONCE, database_hangs_up, elsewhere, heard, states
from tests.testapp.models import Channel, Clip, Draft, Import, PlainVideo, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.tasklock("memory")]


def run(row, body):
    """``body(row)`` under a lock and a claim on the row."""

    @model_lock(type(row), "unseen:{pk}", guard=ONCE)
    def work(pk):
        return body(row)

    return work(row.pk)


def delete_in_another_session(row):
    """Another process deletes the row: nothing here is told of it."""

    def delete():
        with connections["default"].cursor() as cursor:
            cursor.execute(f"DELETE FROM {row._meta.db_table} WHERE id = %s", [row.pk])

    elsewhere(delete)


class TestUnknown:
    @pytest.mark.parametrize("model", [Video, PlainVideo])
    def test_the_call_fails_and_says_so(self, model, caplog):
        row = model.objects.create()
        with heard(claim_stale) as told, pytest.raises(StaleClaim, match="was claimed here and is not found") as caught:
            run(row, delete_in_another_session)
        assert not caught.value.gone
        assert [(one["model"], one["pk"], one["attempted"]) for one in told] == [(model, row.pk, ("status",))]
        assert [(record.levelname, record.message) for record in caplog.records] == [("ERROR", str(caught.value))]

    def test_a_row_that_its_base_manager_hides(self):
        draft = Draft.objects.create()
        with heard(claim_stale) as told, pytest.raises(StaleClaim, match="base manager, 'objects', leaves it out"):
            run(draft, lambda row: current_claim().update(hidden=True))
        assert len(told) == 1

    def test_another_row_that_was_deleted_here_does_not_explain_it(self):
        def body(row):
            Video.objects.create().delete()
            delete_in_another_session(row)

        with pytest.raises(StaleClaim, match="not found"):
            run(Video.objects.create(), body)


class TestKnown:
    """Who deletes the row through the ORM, in this process, meant it: the call ends as its body did."""

    @pytest.mark.parametrize(
        "delete",
        [
            lambda row: row.delete(),
            lambda row: Video.objects.all().delete(),
            lambda row: Import.objects.filter(pk=row.pk).delete(),
        ],
        ids=["instance", "queryset", "proxy"],
    )
    def test_deleted_by_the_body(self, delete, caplog):
        caplog.set_level(logging.INFO, "django_tasklock")

        def body(row):
            delete(row)
            return "deleted"

        with heard(claim_stale) as told:
            assert run(Video.objects.create(), body) == "deleted"
        assert told == []
        assert [record.levelname for record in caplog.records if "is gone" in record.message] == ["INFO"]
        assert not [record for record in caplog.records if record.levelno > logging.INFO]

    def test_deleted_with_another_one(self):
        clip = Clip.objects.create(channel=Channel.objects.create())
        with heard(claim_stale) as told:
            run(clip, lambda row: row.channel.delete())
        assert told == []


@pytest.fixture
def tenant():
    """PostgreSQL shows a video to its tenant only; ``tenant(recipe=...)`` connects this thread as the project does."""
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has row-level security")
    table, role = Video._meta.db_table, f"tenant_of_{connection.settings_dict['NAME']}"
    here, connects = threading.current_thread(), []

    def execute(*statements):
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def connect(*, recipe):
        def prepare(connection, **details):
            if threading.current_thread() is here:
                execute(f"SET ROLE {role}", *(["SET app.tenant = 'a'"] if recipe else []))

        connection_created.connect(prepare)
        connects.append(prepare)
        connection.close()

    execute(
        f"CREATE ROLE {role}",
        f"GRANT ALL ON {table} TO {role}",
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY tenants ON {table} USING (current_setting('app.tenant', true) = 'a')",
    )
    try:
        yield connect
    finally:
        for prepare in connects:
            connection_created.disconnect(prepare)
        connection.close()
        execute(
            f"DROP POLICY tenants ON {table}",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
            f"DROP OWNED BY {role}",
            f"DROP ROLE {role}",
        )


def hangs_up(row):
    """During a long body the server drops its connection."""
    database_hangs_up().__enter__()


def test_a_tenant_that_only_the_first_connection_knew(tenant):
    video = Video.objects.create()
    tenant(recipe=False)
    with connection.cursor() as cursor:
        cursor.execute("SET app.tenant = 'a'")
    with heard(claim_stale) as told, pytest.raises(StaleClaim, match="row-level security"):
        run(video, hangs_up)
    assert len(told) == 1


def test_a_tenant_that_every_connection_knows(tenant):
    """The recipe of docs/connections.md."""
    video = Video.objects.create()
    tenant(recipe=True)
    run(video, hangs_up)
    assert states(video) == ("ready", 0, 1)
