"""The plots that ``make bench`` draws: of a whole run, well-formed, and ours told from others."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.plots import draw

PAIRS = {"of_socket_cpu": [0.5, 0.25, 0.4], "trips": [2.0, 2.0, 2.0]}
HANDED = {"ms": [[1.0, 3.0, 2.0], [1.5]]}
CONTENDED = {"trips": [2.0, 2.1], "most_to_least": [1.0, float("inf")]}
WAKE = "floor: redis-py raw + BLPOP wake"
RUN = {
    "Uncontended acquire + release": {"TaskLock": PAIRS, "<other>": PAIRS, "one that failed": {"trips": []}},
    "Hand-off: A to B": {"TaskLock": HANDED, WAKE: HANDED, "one that cannot wait": {"ms": []}},
    "8 processes on one key, think 2000 us": {"TaskLock": CONTENDED, "slow": {**CONTENDED, "trips": [900.0]}},
}


def test_a_whole_run(tmp_path: Path) -> None:
    written = draw(RUN, tmp_path / "plots")
    assert {path.stem for path in written} == {"pairs", "handoff", "trips", "fairness"}
    for path in written:
        root = ET.parse(path).getroot()
        labels = {text.text: text.get("class") for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert labels["TaskLock"] == "ours"
        assert not {"one that failed", "one that cannot wait"} & labels.keys()


def test_the_unit_is_the_floor(tmp_path: Path) -> None:
    [pairs] = [path for path in draw(RUN, tmp_path) if path.stem == "pairs"]
    assert ">2.5<" in pairs.read_text("utf-8"), "0.4 of the floor's rate is 2.5 times its time"
