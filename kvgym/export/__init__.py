"""Formats in which runs leave kvgym: per-request records, vLLM's benchmark summary, traces for Perfetto."""
