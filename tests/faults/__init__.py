"""Workers on guarded rows while their world fails: ``python -m tests.faults``. What comes of it is a table."""
