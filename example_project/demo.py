"""``make demo``: real videos, real workers, many duplicate messages, and a worker that is killed.

``VIDEO=path`` in the environment uses that file instead of the samples. ``SERVE=1`` keeps the site
and the admin running until Ctrl-C. The exit code is 0 only if every video was transcoded exactly once.
All output goes to ``.demo/run`` beside ``example_project``, which the next run deletes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
HOME = ROOT / ".demo"
RUN = HOME / "run"
LEASE, MESSAGE_LEASE = 5, 8  # seconds, instead of a minute
CALLS, WINDOW = 20, 3  # what the limited API allows, in how many seconds


def main() -> int:
    """Delete the last run, run the demo, and stop all processes at the end, also after an error."""
    sys.path[:0] = [str(SITE), str(ROOT)]
    given = os.environ.get("VIDEO")
    if given and not Path(given).is_file():
        raise SystemExit(f"VIDEO={given} is not a file (looked from {Path.cwd()}).")
    video = Path(given).resolve() if given else None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    HOME.mkdir(exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"Another demo is running in {HOME}: stop it first.") from None
        shutil.rmtree(RUN, ignore_errors=True)
        (RUN / "logs").mkdir(parents=True)
        with contextlib.suppress(KeyboardInterrupt):
            return _show(video, os.environ.get("SERVE", "0") not in ("", "0"))
    return 130


def _show(video: Path | None, serve: bool) -> int:
    from tests.support.redis_server import RedisServer, find, free_port

    with RedisServer() as redis:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATA_DIR": str(RUN),
            "REDIS_URL": f"redis://127.0.0.1:{redis.port}",
            "TASKLOCK_LEASE": str(LEASE),
            "MESSAGE_LEASE": str(MESSAGE_LEASE),
            "CATALOGUE_RATE": f"{CALLS}/{WINDOW}s",
            "DEBUG": "1",
        }
        import django

        django.setup()
        from django.contrib.auth import get_user_model
        from django.core.management import call_command

        from demokit import after, others, verdict
        from demokit.show import Show
        from demokit.stage import Crew, say

        say(f"{find()} on port {redis.port}. Leases are short: {LEASE} s of a lock, {MESSAGE_LEASE} s of a message.")
        call_command("migrate", verbosity=0)
        crew = Crew(SITE, RUN / "logs")
        show = Show(crew)
        try:
            if serve:
                address, password = f"127.0.0.1:{free_port()}", secrets.token_urlsafe(9)
                get_user_model().objects.create_superuser("demo", "", password)
                crew.start("site", "manage.py", "runserver", "--noreload", address)
                site = f"http://{address}/  admin: http://{address}/admin/  user: demo  password: {password}"
                say(f"The site: {site}")
            show.run(video, RUN)
            first = min(show.lengths)
            faults = [*verdict.give(show), *others.call_api(first, CALLS, WINDOW), *others.add_chapters(first)]
            for fault in faults:
                print(f"WRONG  {fault}")
            if not faults:
                print("\nEvery video was transcoded exactly once, and every frame of every stream can be decoded.")
            print(f"What the workers said: {crew.logs}")
            if serve:
                after.prepare(crew, first)
                print(
                    f"\nThe site stays up: {site}\nLook at Task locks in the admin. Ctrl-C stops everything.",
                    flush=True,
                )
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
            else:
                print("To look at it: make demo SERVE=1 leaves the site up, with locks to release in its admin.")
        finally:
            crew.stop(5)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
