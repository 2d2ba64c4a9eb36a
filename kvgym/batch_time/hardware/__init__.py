"""What batch times are made of: shapes of models and GPUs, KV capacity, operator tables and engine overhead."""
