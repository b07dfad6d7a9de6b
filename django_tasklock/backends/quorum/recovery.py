"""When instances vote again that came back empty, or restarted with older data from their disk.

Such an instance may have forgotten a lock that it had granted, so that a second majority could be found for the lock.
So it abstains until every lease has ended that was running when it was found empty. The other instances tell how long
that is, if a majority of them can: a forgotten lock had a majority, so one of them still has it. They also tell the
greatest fence, from which it continues. If too few of them vote, the time is unknown, and the instance abstains for the
longest time that the settings let a lock live.

If all instances answer and all are empty, no lock was ever granted, as far as can be known, and they vote at once. That
is so in a new project, and after a loss of all data at once, as with a single Redis. So if no majority votes, an
instance without an answer is given more time than elsewhere before the others begin to abstain.

An instance that runs but cannot be reached, or was stopped for a while, has forgotten nothing. Each new connection
checks whether the server has restarted.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.quorum.scripts import ADMIT, STATE, QuorumKeys, padded
from django_tasklock.backends.redis.script import bulk

ATTEMPTS = 4
"""How often a request to an instance without an answer is repeated, where giving up would cost the whole wait."""


class Recovery:
    """Admits empty instances. ``longest``: the milliseconds that a lock can live, where the others cannot tell."""

    def __init__(self, keys: QuorumKeys, number: int, needed: int, longest: int) -> None:
        self._keys = keys
        self._number = number
        self._needed = needed
        self._longest = padded(longest)

    def admit(self) -> Verb[bool]:
        """Check all instances, and admit those that are empty. Return whether one votes at once."""
        states = yield from self._states()
        empty = {index: state[0] for index, state in states.items() if is_empty(state)}
        if not empty:
            return True  # another thread has done so
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
        for _ in range(ATTEMPTS):  # an instance that is not admitted while others vote already would have to abstain
            answers = yield Question(ADMIT.sized(3 + len(empty), 1), tail, again=False, only=frozenset(those))
            those -= {index for index in those if answers[index].error is None}
            if not those:
                break
        return wait == 0

    def _states(self) -> Verb[dict[int, Any]]:
        """Return the state of each instance that answers.

        If no majority votes, the others are asked again, including one that is backing off after a failure: it may be
        back, and knows how long the others have to abstain.
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
    """Return whether an instance reports that it came back empty, or has never voted."""
    return bool(state[0].startswith(b"E"))
