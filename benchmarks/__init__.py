"""What a lock costs: ``TaskLock`` beside a bare socket, raw redis-py and the other Python locks."""
