"""Messages as signed ASCII text that any database column can store, and back.

With write access to the table an attacker must gain no more than keeping messages away: no code runs when a row is
read, and no task runs that the project did not publish.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from celery.canvas import Signature
from django.core.signing import BadSignature, Signer
from kombu.exceptions import EncodeError
from kombu.serialization import (  # type: ignore[attr-defined]
    dumps,
    loads,
    prepare_accept_content,
    registry,
)

from django_tasklock.backends.contract.codec import json_object
from django_tasklock.backends.database.names import key_of, name_of
from django_tasklock.celery.sending import other_serializers, own_serializer
from django_tasklock.models import ParkedMessage

SALT = "django_tasklock.parked"


class UnusableMessage(Exception):
    """The reason why this app cannot put a parked message back into the broker."""


def seal(name: str, signature: Signature[Any], task: Any) -> str:
    """Return the message and its lock's name as signed ASCII text. Raises what the serializer raises.

    If the task's own serializer cannot write the arguments, because the publisher chose another one, others are tried.
    """
    kind, encoding, body = _dumped(signature, task)
    content = {"name": name, "type": kind, "encoding": encoding}
    try:
        content["text"] = body.decode() if isinstance(body, bytes) else body
    except UnicodeDecodeError:
        content["bytes"] = base64.b64encode(body).decode()
    return sign(content)


def sign(content: dict[str, Any]) -> str:
    """Return the text of a row: this content, signed."""
    return Signer(salt=SALT).sign(json.dumps(content))


def check(text: str) -> dict[str, Any]:
    """Return the stored content if this project signed it. Raises ``UnusableMessage``."""
    try:
        return json_object(Signer(salt=SALT).unsign(text))
    except BadSignature:
        raise UnusableMessage("its signature is not of SECRET_KEY or one of SECRET_KEY_FALLBACKS") from None


def full_name(row: ParkedMessage) -> str:
    """Return the lock's name: as the row shows it, or from its message if it is truncated there.

    Whoever wrote the row: check it with ``key_of``.
    """
    found = json_object(row.message.rpartition(":")[0]).get("name")
    return name_of(row.name, row.key) or (found if isinstance(found, str) and key_of(found) == row.key else row.name)


def read(text: str, app: Any) -> tuple[str, Signature[Any]]:
    """Return the lock's name and the message. Raises ``UnusableMessage``.

    The serializer that a row names must be in the app's ``accept_content``.
    """
    content = check(text)
    accepted = prepare_accept_content(app.conf.accept_content) or set()
    if content["type"] not in accepted:
        raise UnusableMessage(f"its serializer {content['type']!r} is not in this app's accept_content")
    body = base64.b64decode(content["bytes"]) if "bytes" in content else content["text"]
    try:
        found = loads(body, content["type"], content["encoding"], accept=accepted)
        return content["name"], Signature.from_dict(found, app=app)
    except Exception as error:  # a pickle may need code that no longer exists
        raise UnusableMessage(f"it cannot be read any more: {error!r}") from error


def unseal(text: str, app: Any) -> tuple[str, Signature[Any]]:
    """Return the lock's name and a message that the app's own workers accept. Raises ``UnusableMessage``."""
    name, signature = read(text, app)
    task = app.tasks.get(signature.task)
    if task is None:
        raise UnusableMessage(f"this app has no task {signature.task!r}")
    serializer = signature.options.get("serializer") or task.serializer or app.conf.task_serializer
    accepted = prepare_accept_content(app.conf.accept_content) or set()
    if registry.name_to_type.get(serializer, serializer) not in accepted:
        raise UnusableMessage(f"its serializer {serializer!r} is not in this app's accept_content")
    return name, signature


def _dumped(signature: Signature[Any], task: Any) -> Any:
    try:
        return dumps(dict(signature), serializer=own_serializer(task))
    except (EncodeError, TypeError):
        for serializer in other_serializers(task):
            try:
                return dumps(dict(signature.clone().set(serializer=serializer)), serializer=serializer)
            except (EncodeError, TypeError):
                continue
        raise
