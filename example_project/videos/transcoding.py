"""From an upload to an HLS stream with two renditions and a thumbnail."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from videos import ffmpeg
from videos.models import MASTER, THUMBNAIL

__all__ = ["SIZES", "remove_older", "transcode", "workspace"]

SEGMENT = 4  # seconds
SIZES = ((240, "400k"), (480, "1200k"))
"""Height and bit rate of each rendition."""


@contextmanager
def workspace(home: Path, epoch: int) -> Iterator[Path]:
    """Make a new directory in ``home`` for one claim; remove it afterwards unless it was renamed into place.

    Each claim has its own: a worker that was overtaken must not write into its successor's files.
    """
    home.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{epoch}-", suffix=".part", dir=home))
    try:
        part.chmod(0o755)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_older(home: Path, epoch: int) -> None:
    """Delete the files of claims before ``epoch`` in ``home``: they cannot be published any more."""
    for entry in home.iterdir():
        found = re.match(r"\d+", entry.name)
        if found and int(found[0]) < epoch:
            shutil.rmtree(entry, ignore_errors=True)


def transcode(source: Path, target: Path, on_progress: Callable[[int], None]) -> None:
    """Make the stream and the thumbnail of ``source`` in ``target``; call ``on_progress`` with each whole per cent.

    Raises ``TranscodeError`` if the file is not a video. An exception of ``on_progress`` stops ffmpeg.
    """
    found = ffmpeg.probe(source)
    reported = -1

    def on_time(seconds: float) -> None:
        nonlocal reported
        percent = min(99, int(100 * seconds / found.duration)) if found.duration else 0
        if percent > reported:
            reported = percent
            on_progress(percent)

    middle = str(found.duration / 2)
    picture = ["-frames:v", "1", "-vf", "scale=320:-2", "-update", "1", str(target / THUMBNAIL)]
    ffmpeg.run(["-ss", middle, *ffmpeg.input_options(source), *picture])
    ffmpeg.run([*ffmpeg.input_options(source), *_hls_options(target, found.has_audio)], on_time)


def _hls_options(target: Path, has_audio: bool) -> list[str]:
    # One thread each, so that the worker's --concurrency decides how many cores are used.
    scaled = ";".join(f"[s{n}]scale=-2:'min({height},trunc(ih/2)*2)'[v{n}]" for n, (height, _) in enumerate(SIZES))
    splits = "".join(f"[s{n}]" for n in range(len(SIZES)))
    options = ["-filter_complex", f"[0:v:0]split={len(SIZES)}{splits};{scaled}", "-filter_complex_threads", "1"]
    streams = []
    for n, (height, rate) in enumerate(SIZES):
        options += ["-map", f"[v{n}]", f"-b:v:{n}", rate, *(["-map", "0:a:0"] if has_audio else [])]
        streams.append(f"v:{n},{f'a:{n},' if has_audio else ''}name:{height}p")
    return [
        *options,
        *("-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-threads", "1"),
        *("-force_key_frames", f"expr:gte(t,n_forced*{SEGMENT})"),
        *("-c:a", "aac", "-b:a", "96k", "-ac", "2"),
        *("-f", "hls", "-hls_time", str(SEGMENT), "-hls_playlist_type", "vod"),
        *("-hls_segment_filename", str(target / "%v" / "%04d.ts")),
        *("-master_pl_name", MASTER, "-var_stream_map", " ".join(streams)),
        str(target / "%v" / "index.m3u8"),
    ]
