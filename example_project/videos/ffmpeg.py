"""Run ffmpeg: probe a file, and run a command with its progress."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

from videos.processes import tied

__all__ = ["Source", "TranscodeError", "input_options", "probe", "run"]

FORMATS = "mov,matroska,webm,avi"


class TranscodeError(Exception):
    """ffmpeg cannot read the file; the message is the end of its output. A retry would not help."""


@dataclass(frozen=True)
class Source:
    """What ffmpeg found in a file."""

    duration: float
    """Seconds; 0.0 if the file does not contain it."""
    has_audio: bool


def input_options(path: Path) -> list[str]:
    """Return the options to read an upload with.

    An upload may be anything, also a playlist that names other files of this machine:
    only containers that hold their own picture and sound are opened.
    """
    return ["-protocol_whitelist", "file", "-format_whitelist", FORMATS, "-i", f"file:{path}"]


def probe(path: Path) -> Source:
    """Probe a file; raise ``TranscodeError`` if ffmpeg finds no picture in it."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-nostdin", *input_options(path)]
    # Without an output ffmpeg ends with an error, after it has described the input.
    said = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stderr
    if not re.search(r"Stream #0.*: Video: ", said):
        reason = "there is no picture in it" if "Input #0" in said else _last_words(said)
        raise TranscodeError(f"{path.name} is not a video: {reason}")
    found = re.search(r"Duration: (\d+):(\d+):([\d.]+)", said)
    hours, minutes, seconds = found.groups() if found else ("0", "0", "0")
    return Source(
        int(hours) * 3600 + int(minutes) * 60 + float(seconds), bool(re.search(r"Stream #0.*: Audio: ", said))
    )


def run(arguments: Sequence[str], on_time: Callable[[float], None] = lambda seconds: None) -> None:
    """Run ffmpeg to its end, and call ``on_time`` with the seconds of the video that are done.

    ``TranscodeError`` if ffmpeg fails. Whatever ``on_time`` raises stops ffmpeg.
    """
    exe = imageio_ffmpeg.get_ffmpeg_exe()
    options = ["-hide_banner", "-nostdin", "-v", "error", "-nostats", "-stats_period", "0.5", "-progress", "pipe:1"]
    command, pipe = tied([exe, *options, *arguments]), subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                key, _, value = line.partition("=")
                if key == "out_time_us" and value.strip().isdecimal():  # "N/A" until the first frame is out
                    on_time(int(value) / 1_000_000)
        except BaseException:
            process.kill()
            raise
        if code := process.wait():
            errors.seek(0)
            raise TranscodeError(f"ffmpeg ended with {code}: {_last_words(errors.read())}")


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-2:])[-300:] or "it said nothing"
