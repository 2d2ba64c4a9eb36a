"""Schedulers published since the five papers: by predicted lengths, by clients, by future memory."""

from __future__ import annotations

from kvgym.baselines.newer import by_length, clients, deficits, past_future

__all__ = ["by_length", "clients", "deficits", "past_future"]
