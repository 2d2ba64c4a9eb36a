"""What tests of traces share."""

FILES = [
    ("kvgym", ".csv"),
    ("kvgym", ".jsonl"),
    ("kvgym", ".parquet"),
    ("azure", ".csv"),
    ("azure", ".parquet"),
    ("burstgpt", ".csv"),
    ("bailian", ".jsonl"),
    ("bailian", ".parquet"),
    ("mooncake", ".jsonl"),
    ("mooncake_sessions", ".jsonl"),
    ("weka", ".jsonl"),
    ("vidur", ".csv"),
    ("sharegpt", ".json"),
    ("lmsys", ".jsonl"),
    ("lmsys", ".parquet"),
    ("lmcache", ".jsonl"),
    ("lmcache", ".parquet"),
    ("table", ".csv"),
    ("table", ".jsonl"),
    ("table", ".parquet"),
]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


OWN = "arrival_time,prompt_len,output_len\n"


def write(tmp_path, text: str | bytes, name: str = "trace.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# What is refused, and how.
JSON = '{"timestamp": 0, "input_length": 5, "output_length": 6}\n'
