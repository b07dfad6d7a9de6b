"""The operators' pages in a real Chromium, against the example project in a process of its own."""
