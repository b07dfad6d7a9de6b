"""Sample videos, drawn and sung by ffmpeg itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from videos import ffmpeg

__all__ = ["SAMPLES", "Sample", "make"]


@dataclass(frozen=True)
class Sample:
    """A video to make."""

    title: str
    seconds: int
    picture: str
    tone: int


SAMPLES = (
    Sample("Feature film", 120, "testsrc2=size=854x480:rate=24", 220),
    Sample("Trailer", 30, "mandelbrot=size=854x480:rate=24:maxiter=200", 330),
    Sample("Interview", 30, "testsrc=size=854x480:rate=24", 440),
    Sample("Weather", 30, "gradients=size=854x480:rate=24:speed=0.02", 550),
)
"""The first is the longest: the one whose worker is killed."""


def make(sample: Sample, folder: Path) -> Path:
    """Make the file of a sample."""
    path = folder / f"{sample.title.lower().replace(' ', '-')}.mp4"
    length = str(sample.seconds)
    inputs = ["-f", "lavfi", "-t", length, "-i", sample.picture]
    inputs += ["-f", "lavfi", "-t", length, "-i", f"sine=frequency={sample.tone}"]
    ffmpeg.run(
        ["-y", *inputs, "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", str(path)]
    )
    return path
