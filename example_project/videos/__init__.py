"""Uploaded videos, and what becomes of them."""
