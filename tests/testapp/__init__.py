"""A project's app, as small as it can be."""
