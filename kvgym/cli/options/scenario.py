"""The options of the command line that choose and change a scenario."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym.cli.options.completion import names
from kvgym.cli.times import time_option
from kvgym.errors import ConfigError

ScenarioOption = Annotated[
    str,
    typer.Option(
        "--scenario",
        "-s",
        help="Name (see kvgym list scenarios) or YAML file of a scenario.",
        autocompletion=names("scenarios"),
    ),
]
HardwareOption = Annotated[
    str | None,
    typer.Option(
        help="Replace the scenario's hardware: name (kvgym list hardware), YAML file, or roofline:model=…,gpu=…,tp=…",
        autocompletion=names("hardware"),
    ),
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
    str | None,
    typer.Option(
        help="Replace the scenario's workload by a preset (kvgym list workloads).",
        autocompletion=names("workloads"),
    ),
]
TraceOption = Annotated[
    Path | None, typer.Option(help="Replay a request trace: CSV, JSON, JSONL or Parquet, format detected.")
]
TraceFormatOption = Annotated[
    str, typer.Option(help="Format of the trace (kvgym list traces).", autocompletion=names("traces"))
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(help="Columns of a trace of your own: arrival=timestamp,prompt=input_tokens,output=…"),
]
TimeUnitOption = Annotated[
    str | None, typer.Option(help="Unit of the times in a trace of your own: s, ms, us or ns.")
]
RateScaleOption = Annotated[float, typer.Option(help="Multiply the trace's arrival rate.")]
RateOption = Annotated[float | None, typer.Option(help="Requests per second, instead of the workload's.")]
NumRequestsOption = Annotated[
    int | None, typer.Option("--num-requests", "-n", help="Number of requests (of a trace: the first n).")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Run a cluster of so many equal workers instead of the scenario's.")
]
RouterOption = Annotated[
    str | None,
    typer.Option(
        help="Which worker serves a request, in a cluster (kvgym list routers).",
        autocompletion=names("routers"),
    ),
]
RoutersOption = Annotated[
    str | None,
    typer.Option(
        help="Which worker serves a request, in a cluster (kvgym list routers), or an evolved router; several, "
        "separated by commas, are compared with one another.",
        autocompletion=names("routers"),
    ),
]
HorizonOption = Annotated[
    float | None, time_option("--horizon", "Stop after so much time instead of when all have finished")
]
PredictionsOption = Annotated[
    str | None, typer.Option(help="What schedulers know of output lengths: exact, none, noisy:epsilon=0.5, …")
]
TtftSloOption = Annotated[
    float | None,
    time_option("--ttft-slo", "Target of every request's time to first token: goodput counts what meets it"),
]
TbtSloOption = Annotated[
    float | None, time_option("--tbt-slo", "The same for every gap between two tokens of a request")
]
WarmUpOption = Annotated[
    str | None,
    typer.Option(help="Measure from so long (30, 30s, 500ms), or requests (200r), after the first arrival."),
]
CoolDownOption = Annotated[
    str | None,
    typer.Option(help="Measure up to so long (30, 30s, 500ms), or requests (200r), before the last arrival."),
]
TooLongOption = Annotated[
    str, typer.Option(help="Requests longer than the KV capacity: error, drop or clip (both reported).")
]

ROOFLINE_OPTIONS: dict[str, Any] = {
    "model": Annotated[
        str | None,
        typer.Option(
            help="Serve a model by a roofline, not validated: preset (kvgym list models) or YAML file.",
            autocompletion=names("models"),
        ),
    ],
    "gpu": Annotated[
        str | None,
        typer.Option(help="GPU of it: preset (kvgym list gpus) or YAML file.", autocompletion=names("gpus")),
    ],
    "tp": Annotated[int | None, typer.Option(help="GPUs that it is split over (default: 1).")],
    "weights": Annotated[
        str | None,
        typer.Option(help="Type of its weights: bf16, fp16, fp8, int8, fp4, int4 (default: its own)."),
    ],
    "kv_dtype": Annotated[str | None, typer.Option(help="Type of its KV cache (default: 16-bit).")],
    "memory_fraction": Annotated[
        float | None, typer.Option(help="Share of the GPUs' memory that the engine may use (default: 0.9).")
    ],
}
"""What options say of a roofline, by the names of :class:`kvgym.batch_time.deployments.roofline_spec.Roofline`."""


def roofline_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the :data:`ROOFLINE_OPTIONS`: ``--gpu h200`` is short for ``--hardware roofline:gpu=h200``.

    Args:
        command: the command; ``hardware`` is one of its options.
    """

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        from kvgym.batch_time.deployments.roofline_spec import roofline_text

        said = {name: given.pop(name) for name in ROOFLINE_OPTIONS}
        if said := {name: value for name, value in said.items() if value is not None}:
            if given["hardware"] is not None:
                names = ", ".join(f"--{name.replace('_', '-')}" for name in said)
                raise ConfigError(f"--hardware and {names} exclude each other: these describe hardware")
            given["hardware"] = roofline_text(said)
        command(**given)

    parameters = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        parameters.append(parameter)
        if parameter.name == "hardware":
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters += [
                inspect.Parameter(name, kind, default=None, annotation=option)
                for name, option in ROOFLINE_OPTIONS.items()
            ]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped
