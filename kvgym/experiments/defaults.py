"""What is taken where nothing is said; it stands alone so that naming it loads nothing."""

DEFAULT_SCENARIO = "a100-llama2-70b"
"""The scenario where none is named."""

SERVER_SCENARIO = "vllm-v1"
"""The scenario whose engine rules are those of a server of today."""
