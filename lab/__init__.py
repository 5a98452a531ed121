"""The given code, a room for each step. Each ``__init__.py`` says what is in its room.

Imports go one way: utils, ``lab.data``, datasets and models, ``lab.train``, ``lab.decode``, ``lab.more``, solver,
``lab.experiments``. A module imports only from what stands before it.
"""
