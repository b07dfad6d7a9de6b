"""Whether the process that a lock names still runs: three answers, and the third is that nobody here can know."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from django_tasklock.backends.contract.codec import holder_of, json_object
from django_tasklock.host import Task
from django_tasklock.locks import holder as holders
from django_tasklock.locks.holder import alive, holder_json
from django_tasklock.types import Holder
from tests.support.public import forked
from tests.support.stores import eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look at")

SAY_WHO = "from django_tasklock.locks import holder; print(holder.holder_json(), flush=True); input()"


def read(text: str) -> Holder:
    """A holder as it comes back from a store."""
    return holder_of(json_object(text))


@pytest.fixture
def other():
    """Another process and the holder it is: of this package, started on its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAY_WHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, read(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def stat_of(pid: int | str) -> list[str]:
    """State, ..., start time as the 20th, in the words of proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class TestKnown:
    def test_another_process_until_it_ends(self, other):
        process, holder = other
        assert holder.pid == process.pid
        assert holder.boot != holders.boot()
        assert alive(holder) is True
        process.kill()
        process.wait()
        assert alive(holder) is False

    def test_a_stopped_process_lives(self, other):
        process, holder = other
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: stat_of(process.pid)[0] == "T")
        assert alive(holder) is True
        process.send_signal(signal.SIGCONT)

    def test_a_process_that_ended_and_was_not_waited_for_is_dead(self, other):
        process, holder = other
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: stat_of(process.pid)[0] == "Z")
        assert alive(holder) is False

    def test_a_later_process_with_that_pid_is_another(self, other):
        _, holder = other
        machine, _, began = holder.proc.rpartition(":")
        assert alive(replace(holder, proc=f"{machine}:{int(began) - 1}")) is False

    def test_a_process_of_another_user(self):
        """The kernel refuses to signal it, which says that it is there."""
        if os.geteuid() == 0:
            mine = read(holder_json())

            def as_nobody() -> bool | None:
                os.setuid(65534)
                with pytest.raises(PermissionError):
                    os.kill(mine.pid, 0)
                return alive(mine)

            assert forked(as_nobody) is True
        else:
            machine, _, _ = read(holder_json()).proc.rpartition(":")
            assert alive(Holder("h", 1, "b", proc=f"{machine}:{stat_of(1)[19]}")) is True


class TestForked:
    @pytest.mark.parametrize("task", [None, Task("videos.convert", "1", 0), Task("videos.convert", "1", 2)], ids=str)
    def test_a_forked_child_is_another_holder(self, task):
        mine = read(holder_json(task))
        child = read(forked(lambda: holder_json(task)))
        assert (child.task, child.task_id) == (mine.task, mine.task_id)
        assert child.boot != mine.boot
        assert child.pid != mine.pid
        assert child.proc != mine.proc
        assert alive(child) is False  # it has ended


class TestNotKnown:
    def test_another_machine_or_namespace(self, other):
        """A container of the same machine has the same boot id and other processes with the same pids."""
        _, holder = other
        boot, _, rest = holder.proc.partition(".")
        assert alive(replace(holder, proc=f"{'0' * len(boot)}.{rest}")) is None
        machine, _, began = holder.proc.rpartition(":")
        assert alive(replace(holder, proc=f"{machine}0:{began}")) is None

    @pytest.mark.parametrize("began", ["", "x", "-1"])
    @pytest.mark.parametrize("pid", [0, -1, 2**31 - 1, 2**70, -(2**70)])
    def test_garbage(self, pid, began):
        machine, _, _ = read(holder_json()).proc.rpartition(":")
        assert alive(Holder("h", pid, "b", proc=f"{machine}:{began}")) in (None, False)
        assert alive(Holder("h", pid, "b", proc=began)) is None

    def test_a_process_that_may_not_be_read(self, other, monkeypatch):
        """hidepid: it can be told that there is one, and not which."""
        _, holder = other
        monkeypatch.setattr(holders, "_state", lambda pid: None)
        assert alive(holder) is None


class TestWritten:
    def test_what_is_kept_of_a_process(self):
        holder = json.loads(holder_json(Task("app.t", "id-1", 2)))
        assert holder["task"] == "app.t"
        assert holder["task_id"] == "id-1"
        assert holder["retries"] == 2
        assert holder["proc"].endswith(":" + stat_of("self")[19])
