"""One module a room of the house: its faults."""
