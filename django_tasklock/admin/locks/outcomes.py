"""What came of an act, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from django.contrib import messages
from django.utils.translation import gettext as _, ngettext

from django_tasklock.operations.values import Outcome, Result


def sentence(result: Result) -> tuple[int, str]:
    """The level of the message, and the message."""
    name = {"name": result.name}
    if result.outcome is Outcome.RELEASED:
        text = _("The lock “%(name)s” was released.") % name
        if result.fenced:
            text += " " + _("Its row was taken from the old holder, who can write nothing to it any more.")
        return messages.SUCCESS, text
    if result.outcome is Outcome.ASKED:
        return messages.SUCCESS, _(
            "The holder of “%(name)s” was asked to give it back. It sees that at its next heartbeat."
        ) % name
    if result.fenced:  # and then the lock had gone
        return messages.WARNING, _(
            "The row of “%(name)s” was taken from the old holder, who had lost the lock meanwhile. Nobody was released."
        ) % name
    if result.outcome is Outcome.CHANGED_HANDS:
        return messages.WARNING, _(
            "Nothing was done: “%(name)s” changed hands since the page was shown. Look at who holds it now."
        ) % name
    return messages.WARNING, _("Nothing was done: nobody holds “%(name)s” any more.") % name


def sentences(results: Iterable[Result], undone: int = 0) -> Iterator[tuple[int, str]]:
    """The same for several locks; ``undone``: how many are left because the store went down."""
    counts = Counter(result.outcome for result in results)
    if count := counts[Outcome.RELEASED]:
        yield (
            messages.SUCCESS,
            ngettext("%(count)d lock was released.", "%(count)d locks were released.", count) % {"count": count},
        )
    if count := counts[Outcome.CHANGED_HANDS]:
        yield (
            messages.WARNING,
            ngettext(
                "%(count)d lock changed hands since the page was shown, and was left alone.",
                "%(count)d locks changed hands since the page was shown, and were left alone.",
                count,
            )
            % {"count": count},
        )
    if count := counts[Outcome.NOT_HELD]:
        yield (
            messages.WARNING,
            ngettext(
                "%(count)d lock was held by nobody any more.", "%(count)d locks were held by nobody any more.", count
            )
            % {"count": count},
        )
    if undone:
        yield (
            messages.ERROR,
            ngettext(
                "The lock store cannot be reached. %(count)d lock was not released, as far as is known.",
                "The lock store cannot be reached. %(count)d locks were not released, as far as is known.",
                undone,
            )
            % {"count": undone},
        )
