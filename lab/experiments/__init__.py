"""Whole trainings: from a command line, side by side, with a teacher. Leave it alone."""
