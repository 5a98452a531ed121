"""Whole trainings: from a command line, side by side, from a teacher. Leave it alone."""
