"""What a user asks before he takes a lock, measured beside the others: ``python -m benchmarks``."""
