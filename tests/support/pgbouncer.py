"""A PgBouncer of a test's own before the PostgreSQL of this run, in transaction pooling."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.redis_server import free_port

__all__ = ["NoPgBouncer", "PgBouncer"]

PROGRAM = "TASKLOCK_TEST_PGBOUNCER"
"""The program, if it is not on PATH."""


class NoPgBouncer(Exception):
    """There is none on this machine."""


class PgBouncer:
    """One process, with so many connections to the server for all clients together."""

    def __init__(self, database: Mapping[str, Any], servers: int) -> None:
        self.port = free_port()
        self._database = dict(database)  # a test puts the pooler's own address there: it would ask itself
        self._servers = servers
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="tasklock-pgbouncer-"))

    def start(self) -> Self:
        """Start it, and wait until it answers. Raises ``NoPgBouncer``."""
        program = os.environ.get(PROGRAM) or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            if os.environ.get("CI") == "true":
                raise AssertionError("there is no pgbouncer on this machine: apt-get install pgbouncer")
            raise NoPgBouncer("there is no pgbouncer on PATH: apt-get install pgbouncer")
        given, user = self._database, {}
        (self._directory / "users.txt").write_text(f'"{given["USER"]}" "{given["PASSWORD"]}"\n')
        password = f" password={given['PASSWORD']}" if given["PASSWORD"] else ""
        (self._directory / "pgbouncer.ini").write_text(
            f"[databases]\n"
            f"* = host={given['HOST']} port={given['PORT'] or 5432} user={given['USER']}{password}\n"
            f"[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._directory}/users.txt\nadmin_users = {given['USER']}\n"
            f"pool_mode = transaction\ndefault_pool_size = {self._servers}\nmax_client_conn = 100\n"
            f"server_round_robin = 1\nignore_startup_parameters = extra_float_digits\nlogfile =\n"
        )
        if os.getuid() == 0:  # which it refuses to be
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
            self._directory.chmod(0o755)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-q", str(self._directory / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **user,
            )
        ends = time.monotonic() + 20
        while not self._answers():
            said = (self._directory / "log").read_text()
            assert self._process.poll() is None, said
            assert time.monotonic() < ends, said
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def restart(self) -> None:
        """Kill it in the middle of whatever it does, and start it again at the same address."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)
        self.start()

    def show(self, what: str) -> dict[str, str]:
        """Return what its console says: ``CONFIG``."""
        import psycopg

        with psycopg.connect(
            f"host=127.0.0.1 port={self.port} dbname=pgbouncer user={self._database['USER']}",
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        ) as console:
            return {row[0]: row[1] for row in console.execute(f"SHOW {what}")}

    def stop(self) -> None:
        """End it, and leave nothing lying about."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
        shutil.rmtree(self._directory, ignore_errors=True)
