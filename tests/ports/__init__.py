"""Two programs that strangers wrote, before and after they were ported to this package by its guides.

Each is small: the structure of a real one, not its code. What they must do, both versions do; and what goes wrong in
the first one on a bad day is shown with the second one.
"""
