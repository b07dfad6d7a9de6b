"""Instances that came back empty, or were started again with what was on their disk: when they vote again.

Such an instance may have forgotten a lock that it had granted: with it, a second majority could be found for it. So
it abstains until every lease has ended that was running when it was seen to be empty. How long that is the others
say, if a majority of them can: a lock that the instance has forgotten had a majority, so one of those has it still.
They also say how far the fences were, which is its floor. If too few of them vote, nobody can say, and it abstains
for as long as the settings let a lock live.

Where all instances answer and all are empty, nothing was ever granted, as far as anybody can know: they vote at once.
That is how a new project starts, and what a loss of all data at once comes to, as with a single Redis. So where no
majority votes, one that is silent is given more time than elsewhere before the others begin to abstain.

An instance that runs but cannot be reached, or was stopped for a while, has forgotten nothing. After each connection is
made it is asked whether its server was started again since.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.quorum.scripts import ADMIT, STATE, QuorumKeys, padded
from django_tasklock.backends.redis.script import bulk

ATTEMPTS = 4
"""How often an instance that is silent is asked, or told, what may else cost the whole wait."""


class Recovery:
    """Admits empty instances. ``longest``: ms that a lock lives at the most where nobody can say."""

    def __init__(self, keys: QuorumKeys, number: int, needed: int, longest: int) -> None:
        self._keys = keys
        self._number = number
        self._needed = needed
        self._longest = padded(longest)

    def admit(self) -> Verb[bool]:
        """Look at all of them, and admit those that are empty; whether one votes at once."""
        states = yield from self._states()
        empty = {index: state[0] for index, state in states.items() if is_empty(state)}
        if not empty:
            return True  # somebody else was faster
        voting = [state for index, state in states.items() if index not in empty]
        floor = max((int(state[2]) for state in states.values()), default=0)
        if len(empty) == self._number:
            wait = 0
        elif len(voting) >= self._needed:
            wait = max(int(state[1]) for state in voting)
        else:
            wait = max([self._longest, *(int(state[1]) for state in voting)])
        tail = self._keys.marker + bulk(wait) + bulk(floor) + b"".join(map(bulk, empty.values()))
        those = set(empty)
        for _ in range(ATTEMPTS):  # one that was not told while others vote already would have to abstain
            answers = yield Question(ADMIT.sized(3 + len(empty), 1), tail, again=False, only=frozenset(those))
            those -= {index for index in those if answers[index].error is None}
            if not those:
                break
        return wait == 0

    def _states(self) -> Verb[dict[int, Any]]:
        """Return what each says of itself that answers. Where no majority votes those that are silent are asked again,
        also one that is left alone because it failed: it may be back, and knows how long the others have to abstain.
        """
        states: dict[int, Any] = {}
        only = None
        for _ in range(ATTEMPTS):
            answers = yield Question(STATE, self._keys.state, patient=True, only=only)
            states = {index: answer.reply for index, answer in enumerate(answers) if answer.error is None}
            voting = len(states) - sum(map(is_empty, states.values()))
            if len(states) == self._number or voting >= self._needed:
                break
            only = frozenset(range(self._number))
        return states


def is_empty(state: Any) -> bool:
    """Return whether an instance says that it came back empty, or has never voted."""
    return bool(state[0].startswith(b"E"))
