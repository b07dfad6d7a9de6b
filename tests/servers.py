"""``python -m tests.servers KIND COMMAND...``: run a command beside a server of its own.

``postgres``, ``mariadb`` and ``rabbitmq``, as this machine has them, on a free port of 127.0.0.1, in a directory that
is gone afterwards, without a password and without care for power cuts. The command finds the address in the variable
that the tests read: ``python -m tests.servers mariadb make test ARGS="-m database"``. Needs nothing but Python.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import create_connection

from tests.support.environment import BROKER, DATABASE
from tests.support.redis_server import free_port

__all__ = ["SERVERS", "NoServer", "mariadb", "postgres", "rabbitmq"]


MISSING = 77
"""The exit status where there is no such server: neither passed nor failed, by an old custom."""


class NoServer(Exception):
    """It is not installed, or does not start."""


def program(*names: str) -> str:
    """The first of these that there is; the last of those that a pattern finds."""
    for name in names:
        found = sorted(map(str, Path("/").glob(name[1:]))) if "*" in name else [shutil.which(name)]
        if found and found[-1]:
            return found[-1]
    raise NoServer(f"{names[0]} is not installed")


@contextmanager
def running(
    folder: Path, command: list[str], port: int, *, end: int = signal.SIGTERM, user: str = "", **environment: str
) -> Iterator[Path]:
    """Start it, wait until its port answers, and end it; gives the file with what it says."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            cwd="/",
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the command; the server ends after it
            **_as(user),
        )
    try:
        _wait(server, log, lambda: _answers(port))
        yield log
    finally:
        server.send_signal(end)
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        server.kill()
        server.wait()


def _as(user: str) -> dict[str, object]:
    """What makes a process of root's another user's: some servers refuse to be root."""
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def _answers(port: int) -> bool:
    with suppress(OSError), create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _wait(server: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not ready():
        if server.poll() is not None or time.monotonic() > ends:
            raise NoServer(f"{server.args[0]} does not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def _run(*command: str, **options: object) -> str:
    made = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if made.returncode:
        raise NoServer(made.stdout)
    return made.stdout


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The newest PostgreSQL that is installed."""
    initdb = program("/usr/lib/postgresql/*/bin/initdb", "initdb")
    server, port, data = str(Path(initdb).with_name("postgres")), free_port(), folder / "data"
    user = "nobody" if os.getuid() == 0 else ""
    if user:
        shutil.chown(folder, user)
    new = ["--auth=trust", "--username=tasklock", "--encoding=UTF8", "--no-locale", "--no-sync", str(data)]
    _run(initdb, *new, cwd="/", **_as(user))
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"]
    command = [server, "-D", str(data), "-p", str(port), "-k", str(folder), *options]
    with running(folder, command, port, end=signal.SIGINT, user=user):  # SIGTERM would wait for connections
        print(f"On {_run(server, '--version')}", end="", flush=True)
        yield f"postgres://tasklock@127.0.0.1:{port}/tasklock"


@contextmanager
def mariadb(folder: Path) -> Iterator[str]:
    """MariaDB. ``TASKLOCK_TEST_DATABASE`` can name a MySQL as well."""
    server, install = program("/usr/sbin/mariadbd", "mariadbd"), program("mariadb-install-db")
    port, user = free_port(), pwd.getpwuid(os.getuid()).pw_name
    common = ["--no-defaults", f"--user={user}", f"--datadir={folder / 'data'}"]
    _run(install, *common, "--skip-test-db", "--auth-root-authentication-method=normal")
    options = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder / 'socket'}", "--skip-log-bin"]
    options += ["--innodb-flush-log-at-trx-commit=0", "--max-connections=200", "--character-set-server=utf8mb4"]
    with running(folder, [server, *common, *options], port):
        print(f"On {_run(server, '--version')}", end="", flush=True)
        yield f"mysql://root@127.0.0.1:{port}/tasklock"


@contextmanager
def rabbitmq(folder: Path) -> Iterator[str]:
    """RabbitMQ, with everything that would be in /etc and /var in its folder."""
    server = program("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH changes to a user who owns nothing here
    port, names = free_port(), free_port()
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.local = 127.0.0.1:{port}\ndisk_free_limit.absolute = 10MB\n")
    (folder / "plugins").write_text("[].")
    paths = {"MNESIA_BASE": "mnesia", "LOG_BASE": "log", "CONFIG_FILE": "rabbitmq.conf", "PID_FILE": "pid"}
    paths |= {"ADVANCED_CONFIG_FILE": "none", "CONFIG_FILES": "none", "ENABLED_PLUGINS_FILE": "plugins"}
    settings = {f"RABBITMQ_{name}": str(folder / path) for name, path in paths.items()}
    settings |= {"RABBITMQ_NODENAME": "tasklock@localhost", "RABBITMQ_DIST_PORT": str(free_port())}
    settings |= {"RABBITMQ_LOGS": "-", "RABBITMQ_CONF_ENV_FILE": "/dev/null", "HOME": str(folder)}
    settings |= {"ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(names)}
    settings |= {"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"}
    settings |= {"RUNNING_UNDER_SYSTEMD": "1"}  # the script becomes the server, so that this is what is ended
    with ExitStack() as started:
        # Erlang starts its name server by itself where none answers, and leaves it running.
        epmd = [program("epmd"), "-address", "127.0.0.1", "-port", str(names)]
        started.enter_context(running(folder, epmd, names))
        log = started.enter_context(running(folder, [server], port, **settings))
        said = log.read_text().partition("Starting RabbitMQ")[2].splitlines()
        print(f"On RabbitMQ{said[0] if said else ''}", flush=True)
        yield f"amqp://guest:guest@127.0.0.1:{port}//"


SERVERS = {"postgres": (postgres, DATABASE), "mariadb": (mariadb, DATABASE), "rabbitmq": (rabbitmq, BROKER)}


def main() -> int:
    """Start, run, end."""
    if len(sys.argv) < 3 or sys.argv[1] not in SERVERS:
        print(f"{__doc__}\nKinds: {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    server, variable = SERVERS[sys.argv[1]]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so through what ends the server
    with tempfile.TemporaryDirectory(prefix=f"tasklock-{sys.argv[1]}-") as folder:
        Path(folder).chmod(0o755)
        try:
            with server(Path(folder)) as url:
                return subprocess.run(sys.argv[2:], env=os.environ | {variable: url}, check=False).returncode
        except NoServer as problem:
            print(problem, file=sys.stderr)
            return MISSING


if __name__ == "__main__":
    raise SystemExit(main())
