"""Foundations of batch times: shapes of models and GPUs, KV capacity, operator tables and engine overhead."""
