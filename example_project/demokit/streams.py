"""Sample videos, and a check of the streams that are made of them; both by ffmpeg."""

from __future__ import annotations

from pathlib import Path

from videos import ffmpeg
from videos.transcoding import SIZES

__all__ = ["SAMPLES", "faults", "make"]

SAMPLES = {
    "Feature film": (120, "testsrc2=size=854x480:rate=24"),
    "Trailer": (30, "colorspectrum=size=854x480:rate=24,hue=H=t"),
    "Interview": (30, "testsrc=size=854x480:rate=24"),
    "Weather": (30, "smptehdbars=size=854x480:rate=24"),
}
"""Seconds and picture of each. The first is the longest: the one whose worker is killed."""
TOLERANCE = 1.0  # seconds: sound and picture of one file rarely end together


def make(title: str, folder: Path) -> Path:
    """Generate the file of a sample."""
    seconds, picture = SAMPLES[title]
    path = folder / f"{title}.mp4"
    inputs = [option for source in (picture, "sine") for option in ("-f", "lavfi", "-t", str(seconds), "-i", source)]
    ffmpeg.run([*inputs, *("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"), str(path)])
    return path


def faults(master: Path, seconds: float) -> list[str]:
    """Return the faults of a stream of so many seconds: every rendition must be whole, and every frame decodable."""
    playlists = [master.parent / name for name in _named(master)]
    found = [] if len(playlists) == len(SIZES) else [f"{master} names {len(playlists)} renditions, not {len(SIZES)}"]
    for playlist in playlists:
        missing = [name for name in _named(playlist) if not (playlist.parent / name).is_file()]
        if (
            missing or "#EXT-X-ENDLIST" not in playlist.read_text()
        ):  # ffmpeg passes over the one, and waits for the other
            found.append(f"{playlist} is not whole: {missing or 'it has no end'}")
            continue
        decoded = [0.0]
        try:
            ffmpeg.run(["-xerror", "-i", str(playlist), "-f", "null", "-"], decoded.append)
        except ffmpeg.TranscodeError as error:
            found.append(f"{playlist} cannot be played: {error}")
        else:
            if abs(decoded[-1] - seconds) > TOLERANCE:
                found.append(f"{playlist} lasts {decoded[-1]:.1f} s, the upload {seconds:.1f} s")
    return found


def _named(playlist: Path) -> list[str]:
    return [line for line in playlist.read_text().splitlines() if line and not line.startswith("#")]
