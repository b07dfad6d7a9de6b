"""``make demo``: real videos, real workers, many duplicate messages, and a worker that is killed.

``VIDEO=path`` in the environment uses that file instead of the samples. ``SERVE=1`` keeps the site
and the admin running until Ctrl-C. The exit code is 0 only if every video was transcoded exactly once.
All output goes to ``.demo/run`` beside ``example_project``, which the next run deletes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
HOME = ROOT / ".demo"
RUN = HOME / "run"
LEASE = 5
MESSAGE_LEASE = 8


def main() -> int:
    """Delete the last run, run the demo, and stop all processes at the end, also after an error."""
    sys.path[:0] = [str(SITE), str(ROOT)]
    video = _given_video()
    HOME.mkdir(exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"Another demo is running in {HOME}: stop it first.") from None
        shutil.rmtree(RUN, ignore_errors=True)
        (RUN / "logs").mkdir(parents=True)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)
        return _show(video, os.environ.get("SERVE", "0") not in ("", "0"))


def _show(video: Path | None, serve: bool) -> int:
    from demokit.redis import prepare

    redis, program = prepare()
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATA_DIR": str(RUN),
        "REDIS_URL": f"redis://127.0.0.1:{redis.port}",
        "TASKLOCK_LEASE": str(LEASE),
        "MESSAGE_LEASE": str(MESSAGE_LEASE),
        "CATALOGUE_RATE": "20/3s",
        "DEBUG": "1",
    }

    import django

    django.setup()
    from demokit.crew import Crew
    from demokit.screen import Screen
    from demokit.show import Show

    screen, crew = Screen(), Crew(SITE, RUN / "logs")
    try:
        with redis:
            screen.say(
                f"Redis: {program}, port {redis.port}. Lease of the lock: {LEASE} s, of a message: {MESSAGE_LEASE} s."
            )
            try:
                status = Show(screen, crew, RUN).run(video, serve)
                crew.stop()
            finally:
                crew.stop(1)  # after an interruption: do not wait for a transcode
        return status
    except KeyboardInterrupt:
        return 130
    finally:
        left = crew.left()
        screen.say(f"Still running, and should not: {left}" if left else "Nothing is left running.")


def _given_video() -> Path | None:
    given = os.environ.get("VIDEO")
    if given and not Path(given).is_file():
        raise SystemExit(f"VIDEO={given} is not a file (looked from {Path.cwd()}).")
    return Path(given).resolve() if given else None


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
