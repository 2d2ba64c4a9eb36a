"""The options of the command line that choose and change a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioOption = Annotated[
    str, typer.Option("--scenario", "-s", help="Name (see kvgym list scenarios) or YAML file of a scenario.")
]
HardwareOption = Annotated[
    str | None, typer.Option(help="Replace the scenario's hardware: name (kvgym list hardware) or YAML file.")
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        help="Replace the engine: its name in the hardware file, none, or e.g. base_ms=5,per_request_ms=0.1."
    ),
]
BatchTimeOption = Annotated[
    str | None,
    typer.Option(
        help="Replace the batch-time model: e.g. unit, or affine:constant=0.02,per_context_token=1e-6."
    ),
]
CapacityOption = Annotated[int | None, typer.Option(help="Replace the KV capacity, tokens.")]
BlockSizeOption = Annotated[
    int | None,
    typer.Option(help="Replace the block size: KV memory is handed out in blocks of so many tokens."),
]
WorkloadOption = Annotated[
    str | None, typer.Option(help="Replace the scenario's workload by a preset (kvgym list workloads).")
]
TraceOption = Annotated[
    Path | None, typer.Option(help="Replay a request trace: CSV, JSON, JSONL or Parquet, format detected.")
]
TraceFormatOption = Annotated[str, typer.Option(help="Format of the trace (kvgym list traces).")]
RateScaleOption = Annotated[float, typer.Option(help="Multiply the trace's arrival rate.")]
RateOption = Annotated[float | None, typer.Option(help="Requests per second, instead of the workload's.")]
NumRequestsOption = Annotated[
    int | None, typer.Option("--num-requests", "-n", help="Number of requests (of a trace: the first n).")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Run a cluster of so many equal workers instead of the scenario's.")
]
RouterOption = Annotated[
    str | None, typer.Option(help="Which worker serves a request, in a cluster (kvgym list routers).")
]
RoutersOption = Annotated[
    str | None,
    typer.Option(
        help="Which worker serves a request, in a cluster (kvgym list routers), or an evolved router; several, "
        "separated by commas, are compared with one another."
    ),
]
HorizonOption = Annotated[
    float | None, typer.Option(help="Stop after so many seconds instead of when all have finished.")
]
PredictionsOption = Annotated[
    str | None, typer.Option(help="What schedulers know of output lengths: exact, none, noisy:epsilon=0.5, …")
]
TooLongOption = Annotated[
    str, typer.Option(help="Requests longer than the KV capacity: error, drop or clip (both reported).")
]
