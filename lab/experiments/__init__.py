"""Whole trainings: from a command line, and side by side. Leave it alone."""
