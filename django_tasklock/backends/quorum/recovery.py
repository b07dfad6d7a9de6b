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

from django_tasklock.backends.quorum.asking import Instances
from django_tasklock.backends.quorum.scripts import ADMIT, STATE, QuorumKeys, padded

ATTEMPTS = 4
"""How often a request to an instance without an answer is repeated, where giving up would cost the whole wait."""


class Recovery:
    """Admits empty instances. ``longest``: the milliseconds that a lock can live, where the others cannot tell."""

    def __init__(self, instances: Instances, keys: QuorumKeys, longest: int) -> None:
        self._instances = instances
        self._keys = keys
        self._longest = padded(longest)

    def admit(self) -> bool:
        """Check all instances, and admit those that are empty. Return whether one votes at once."""
        states = self._states()
        empty = {index: state[0] for index, state in states.items() if is_empty(state)}
        if not empty:
            return True  # another thread has done so
        voting = [state for state in states.values() if not is_empty(state)]
        floor = max(int(state[3]) for state in states.values())
        if len(empty) == len(self._instances.of):
            wait = 0
        else:
            wait = max((int(state[2]) for state in voting), default=0)
            if len(voting) < self._instances.needed:
                wait = max(wait, self._longest)
        those = set(empty)
        for _ in range(ATTEMPTS):  # an instance that is not admitted while others vote already would have to abstain
            arguments = wait, floor, *empty.values()
            answers = self._instances.ask(ADMIT, [self._keys.marker], arguments, only=those, again=False)
            those -= {index for index in those if answers[index].error is None}
            if not those:
                break
        return wait == 0

    def _states(self) -> dict[int, Any]:
        """Return the state of each instance that answers.

        If no majority votes, they are asked again: one without an answer may be back, and knows how long the others
        have to abstain.
        """
        states: dict[int, Any] = {}
        for _ in range(ATTEMPTS):
            answers = self._instances.ask(STATE, self._keys.state, patient=True)
            states = {index: answer.reply for index, answer in enumerate(answers) if answer.error is None}
            voting = len(states) - sum(map(is_empty, states.values()))
            if len(states) == len(self._instances.of) or voting >= self._instances.needed:
                break
        return states


def is_empty(state: Any) -> bool:
    """Return whether an instance reports that it came back empty, or has never voted."""
    return bool(state[1] < 0)
