"""The compiled core: request tables, worker state, KV memory, look-ahead and engine."""
