"""kvgym: scheduling LLM inference under a limited KV cache."""

__version__ = "0.1.0"
