"""Check an HLS stream: every named file must exist, and every frame must be decodable."""

from __future__ import annotations

import re
from pathlib import Path

from videos import ffmpeg

__all__ = ["problems"]

TOLERANCE = 1.0  # seconds: sound and picture of one file rarely end together


def problems(master: Path, duration: float, renditions: int) -> list[str]:
    """Return the faults of the stream of ``master``; empty if there is none."""
    if not master.is_file():
        return [f"{master} is missing"]
    names = [line for line in master.read_text().splitlines() if line and not line.startswith("#")]
    found = [] if len(names) == renditions else [f"{master} names {len(names)} renditions, not {renditions}"]
    for name in names:
        found += _rendition(master.parent / name, duration)
    return found


def _rendition(playlist: Path, duration: float) -> list[str]:
    if not playlist.is_file():
        return [f"{playlist} is missing"]
    text = playlist.read_text()
    if "#EXT-X-ENDLIST" not in text:
        return [f"{playlist} has no end"]
    segments = [playlist.parent / line for line in text.splitlines() if line and not line.startswith("#")]
    found = [
        f"{segment} is missing or empty" for segment in segments if not (segment.is_file() and segment.stat().st_size)
    ]
    total = sum(map(float, re.findall(r"#EXTINF:([\d.]+)", text)))
    if abs(total - duration) > TOLERANCE:
        found.append(f"{playlist} lasts {total:.1f} s, the upload {duration:.1f} s")
    if not found:
        try:
            ffmpeg.run(["-xerror", "-i", str(playlist), "-f", "null", "-"])
        except ffmpeg.TranscodeError as error:
            found.append(f"{playlist} cannot be played: {error}")
    return found
