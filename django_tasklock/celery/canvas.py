"""What follows a message, in its canvas or by its links: who waits for it, and what they are told if it will not run.

A message carries the rest of its chain as signatures. One of these may be a chord or a group, whose own tasks lie
inside of it, and those may again be any of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery import states
from celery.app.task import Context
from celery.utils.functional import maybe_list

Signature = Mapping[str, Any]
"""A signature as a message has it."""


def is_member(request: Any) -> bool:
    """Return whether a group or a chord waits for the result of this message, or for that of what follows it."""
    return bool(request.group or request.chord or any(map(_is_member, _next_of(request))))


def links_of_skipped(request: Any) -> list[Signature]:
    """Return the links that a message calls although its body was not run: those for which somebody waits.

    In a chain, a group or a chord that is each, as others may wait for what it leads to. Elsewhere it is a link whose
    id was given to somebody: with Celery's task protocol 1, the rest of a chain.
    """
    links: list[Signature] = list(maybe_list(request.callbacks) or ())
    if request.chain or is_member(request):
        return links
    return [link for link in links if "task_id" in (link.get("options") or {})]


def drop_links(request: Any) -> None:
    """Make Celery call no link of a message whose body was not run, except those that ``links_of_skipped`` names."""
    request.callbacks = links_of_skipped(request)


def end_without_run(backend: Any, request: Any, error: Exception, *, store: bool = True) -> None:
    """Store that a message, and with it all that follows it, has ended without a run: ``REVOKED``, with ``error``.

    Their chords are told. ``store``: whether the message's own result is wanted. Raises what the result backend raises.
    """
    if store:
        backend.store_result(request.id, error, states.REVOKED, request=request)
    if request.chord:
        backend.on_chord_part_return(request, states.REVOKED, error)
    for link in _next_of(request):
        for task in _tasks_of(link):
            options = task["options"]
            if "task_id" not in options:
                continue  # nobody was given its id, so nobody waits for it
            lost = Context(options, task=task["task"], id=options["task_id"], group=options.get("group_id"))
            if not lost.ignore_result:
                backend.store_result(lost.id, error, states.REVOKED, request=lost)
            if lost.chord:
                backend.on_chord_part_return(lost, states.REVOKED, error)


def _next_of(request: Any) -> list[Signature]:
    """Return what follows a message: the rest of its chain. With Celery's task protocol 1 that is among its links."""
    return [*(request.chain or ()), *(maybe_list(request.callbacks) or ())]


def _is_member(signature: Signature) -> bool:
    """Return whether a group or a chord outside of the signature waits for its result."""
    options, parts = signature.get("options") or {}, _parts_of(signature)
    if options.get("group_id") or options.get("chord"):
        return True
    return signature.get("subtask_type") != "group" and any(map(_is_member, parts))


def _tasks_of(signature: Signature) -> Iterator[Signature]:
    """Yield the single tasks of a signature whose results its whole result is made of, and those that lead to them."""
    if signature.get("subtask_type") in ("chord", "group", "chain"):
        for part in _parts_of(signature):
            yield from _tasks_of(part)
    else:
        yield signature
        for link in maybe_list(signature["options"].get("link")) or ():
            yield from _tasks_of(link)


def _parts_of(signature: Signature) -> list[Signature]:
    """Return the signatures inside of one. Not the header of a chord, for which only its body waits."""
    given = signature.get("kwargs") or {}
    if signature.get("subtask_type") == "chord":
        return [given["body"]] if given.get("body") else []
    return list(given.get("tasks") or ()) if signature.get("subtask_type") in ("group", "chain") else []
