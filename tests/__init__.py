"""The tests of django_tasklock."""
