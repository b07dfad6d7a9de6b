"""The names of before, for who has not moved yet."""

from django_tasklock.backends.redis.client import Idle, connect as make, throw_away

__all__ = ["Idle", "make", "throw_away"]
