"""The code that is given. A room per step: ``data``, ``train``, ``decode``, and over them ``more`` and ``experiments``.

A module imports only from the rooms before its own.
"""
