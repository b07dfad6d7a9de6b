"""The parts of ``demo.py``."""
