"""Lists of everything that can be chosen by name, for ``kvgym list``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from kvgym.errors import UnknownNameError

if TYPE_CHECKING:
    from kvgym.policies.policy import PolicyInfo

LISTS = (
    "policies", "agents", "scenarios", "hardware", "workloads", "environments", "routers", "autoscalers", "training",
    "sweeps", "traces", "metrics", "models", "gpus", "engines", "cache-rules", "tasks", "fields",
)  # fmt: skip
SHOWN_ERRORS = ("linear", "attention_decode", "attention_decode_homogeneous", "attention_prefill")
"""Operator groups with median held-out errors in the list of hardware."""

OPTIONS = "hyperparameters"
POLICY_HEADINGS = (
    "name", "what it does", OPTIONS, "needs", "chunks", "pauses", "evicts", "source",
)  # fmt: skip


HARDWARE_HEADINGS = (
    "name", "what it is", "KV tokens", "engine", "errors: linear, decode (equal contexts), prefill", "measured up to",
)  # fmt: skip


MODEL_HEADINGS = (
    "name", "weights", "per token", "memory", "KV per token", "layers", "heads / KV heads", "MLP",
)  # fmt: skip
GPU_HEADINGS = (
    "name", "16-bit TFLOP/s", "smaller types", "memory", "bandwidth", "link, one way", "attained",
    "measured kernels",
)  # fmt: skip

FIELD_HEADINGS = ("name", "what it sets", "option")

ENGINE_HEADINGS = ("name", "year", "figures", "fitted to", "tried on")


Listing: TypeAlias = tuple[str, Sequence[str], Mapping[str, Sequence[str]]]
"""A title, headings and rows by name."""


def details(what: str, name: str) -> list[Listing]:
    """Return the details of an entry of a list; for schedulers and routers with options and their meaning.

    Scenarios and hardware may also be files, and hardware a roofline.

    Raises:
        UnknownNameError: the list has no such entry.
    """
    if what in ("scenarios", "hardware"):
        from kvgym.cli.list_details import hardware_facts, scenario_facts

        known = scenario_facts(name) if what == "scenarios" else hardware_facts(name)
        return [("", (name, ""), {term: (text,) for term, text in known})]
    headings, rows = listing(what, full=True)
    if what == "models":
        rows = model_rows(True, name)
    if name not in rows:
        raise UnknownNameError(f"entry of {what}", name, rows)
    facts = {head: (text,) for head, text in zip(headings[1:], rows[name], strict=True) if head != OPTIONS}
    found: list[Listing] = [("", (name, ""), facts)]
    if what in ("policies", "routers", "autoscalers"):
        from kvgym.policies.policy import POLICIES
        from kvgym.policies.routing import ROUTERS
        from kvgym.policies.scaling import AUTOSCALERS

        classes: dict[str, Any] = {"policies": POLICIES, "routers": ROUTERS, "autoscalers": AUTOSCALERS}
        options = option_rows(classes[what][name])
        if options:
            found.append(
                (f"Options, as in {name}:{next(iter(options))}=…", ("option", "default", "meaning"), options)
            )
    return found


def option_rows(cls: type[Any]) -> dict[str, tuple[str, str]]:
    """Return the default and the meaning of each hyperparameter by name."""
    from kvgym.policies.policy import policy_defaults
    from kvgym.utils.hyperparameters import meanings_of

    meaning = meanings_of(cls)
    return {
        name: (str(value), meaning.get(name, "").replace("``", ""))
        for name, value in policy_defaults(cls).items()
    }


def field_rows() -> dict[str, tuple[str, str]]:
    """Return the rows of the fields of scenarios; columns as in ``FIELD_HEADINGS``."""
    from kvgym.cli.fields import FIELDS

    return {
        name: (field.text.removesuffix("."), ", ".join(field.flags(name)) or f"--set {name}=…")
        for name, field in FIELDS.items()
    }


def policy_rows() -> dict[str, tuple[str, ...]]:
    """Return the rows of policies by name, sorted by paper; columns as in ``POLICY_HEADINGS``."""
    from kvgym.policies.policy import POLICIES
    from kvgym.utils.hyperparameters import describe_arguments

    rows: dict[str, tuple[str, ...]] = {}
    for name in sorted(POLICIES, key=lambda name: POLICIES[name].info.paper or "~"):
        info = POLICIES[name].info
        rows[name] = (
            info.summary,
            describe_arguments(POLICIES[name]),
            known_to(info) or "–",
            *("yes" if able else "–" for able in (info.chunks_prefill, info.pauses, info.evicts)),
            info.origin,
        )
    return rows


def known_to(info: PolicyInfo) -> str:
    """Return what a policy needs and, in brackets, uses if available; clairvoyant policies are marked."""
    known = ", ".join([*sorted(info.needs), *(f"({name})" for name in sorted(info.uses))])
    return f"{known}: clairvoyant" if info.clairvoyant else known


def hardware_rows() -> dict[str, tuple[str, ...]]:
    """Return the rows of hardware files by name, with their errors; columns as in ``HARDWARE_HEADINGS``."""
    from kvgym.batch_time.deployments.load import hardware_names, load_calibrated

    rows: dict[str, tuple[str, ...]] = {}
    for name in hardware_names():
        hardware = load_calibrated(name)
        errors, most = hardware.fit_error, {k: v[1] for k, v in hardware.valid_range.items()}
        rows[name] = (
            hardware.description,
            f"{hardware.kv_capacity:,}",
            hardware.engine,
            "{}, {} ({}), {}".format(*(f"{errors[group].median:.1%}" for group in SHOWN_ERRORS)),
            f"{most['tokens']:,.0f} tokens, {most['decodes']:,.0f} decodes, "
            f"{most['decode_context_each']:,.0f} of context, chunks of {most['prefill_chunk']:,.0f}",
        )
    return rows


def model_rows(full: bool, one: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the rows of model presets by name; columns as in ``MODEL_HEADINGS``.

    Args:
        full: show the source and the other names.
        one: only this model, by any of its names or by a file.

    Raises:
        UnknownNameError: there is no such model.
        ConfigError: the file cannot be read.
    """
    from kvgym.batch_time.hardware.presets import MODELS

    rows: dict[str, tuple[str, ...]] = {}
    for name in MODELS if one is None else (one,):
        model = MODELS.find(name)
        attention = "latent" if model.latent else f"{model.num_heads} / {model.num_kv_heads}"
        mixture = model.experts
        window = f", {model.window.label}" if model.window else ""
        mlp = f"{mixture.per_token} of {mixture.count} experts" if mixture else "dense"
        figures = (
            f"{model.weights / 1e9:.1f} B",
            f"{model.active_weights / 1e9:.1f} B",
            f"{model.weight_bytes / 2**30:,.1f} GiB",
            f"{model.kv_bytes_per_token / 1024:.1f} KiB",
        )
        rows[name] = (
            *figures,
            f"{model.num_layers}{window}",
            attention,
            mlp,
            *((MODELS.source(name), ", ".join(MODELS.names(name)) or "–") if full else ()),
        )
    return rows


def gpu_rows(full: bool) -> dict[str, tuple[str, ...]]:
    """Return the rows of GPU presets by name; columns as in ``GPU_HEADINGS``.

    Args:
        full: show the source.
    """
    from kvgym.batch_time.hardware.presets import GPUS
    from kvgym.batch_time.operators.files import load_operators, operator_gpus

    rows: dict[str, tuple[str, ...]] = {}
    for name, gpu in GPUS.items():
        fast = ", ".join(f"{dtype} {flops / 1e12:,.0f}" for dtype, flops in (gpu.fast_flops or {}).items())
        figures = (
            f"{gpu.peak_flops / 1e12:,.0f}",
            fast or "–",
            f"{gpu.memory / 2**30:,.1f} GiB",
            f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
            f"{gpu.link_bandwidth / 1e9:,.0f} GB/s",
            ", ".join(f"{dtype} {a:.0%} / {b:.0%}" for dtype, (a, b) in (gpu.attained or {}).items()) or "–",
            load_operators(name).measured if name in operator_gpus() else "–",
        )
        rows[name] = (*figures, *((GPUS.source(name),) if full else ()))
    return rows


def engine_rows(full: bool) -> dict[str, tuple[str, ...]]:
    """Return the rows of engines by name, those of single hardware files included; columns as in ``ENGINE_HEADINGS``.

    Args:
        full: show all that an engine was tried on; else the part before a colon.
    """
    from kvgym.batch_time.deployments.load import hardware_names, load_hardware
    from kvgym.batch_time.hardware.overhead import ENGINES, ENGINES_OF_SEVERAL

    found = dict(ENGINES)
    found |= {f"{name}, two GPUs or more": engine for name, engine in ENGINES_OF_SEVERAL.items()}
    for file in hardware_names():
        found |= {f"{name}, {file}": engine for name, engine in load_hardware(file).engines.items()}
    return {
        name: (
            str(engine.year or "–"),
            engine.formula(),
            engine.source,
            (engine.validated if full else engine.validated.partition(":")[0]) or "–",
        )
        for name, engine in found.items()
    }


def listing(
    what: str, *, full: bool = False, brief: bool = False
) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return headings and rows of one list.

    Args:
        what: one of :data:`LISTS`.
        full: add columns that do not fit a terminal.
        brief: leave out figures of hardware, for which all of its tables have to be read.
    """
    if what == "policies":
        rows = policy_rows()
        shown = len(POLICY_HEADINGS) if full else 2
        return POLICY_HEADINGS[:shown], {name: row[: shown - 1] for name, row in rows.items()}
    if what == "hardware" and not brief:
        return HARDWARE_HEADINGS, hardware_rows()
    if what == "models":
        return (*MODEL_HEADINGS, *(("source", "other names") if full else ())), model_rows(full)
    if what == "gpus":
        return (*GPU_HEADINGS, *(("source",) if full else ())), gpu_rows(full)
    if what == "engines":
        return ENGINE_HEADINGS, engine_rows(full)
    if what == "fields":
        return FIELD_HEADINGS, field_rows()
    if what == "tasks":
        from kvgym.studies.benchmark.tasks import TASK_HEADINGS, task_rows

        shown = len(TASK_HEADINGS) - (0 if full else 1)
        return TASK_HEADINGS[:shown], {name: row[: shown - 1] for name, row in task_rows().items()}
    if what == "metrics":
        from kvgym.metrics.catalogue import metric_info, metric_names

        figures = {n: (metric_info(n).unit, metric_info(n).summary) for n in metric_names()}
        return ("name", "unit", "what it is"), figures
    lines: dict[str, str]
    if what == "scenarios":
        from kvgym.experiments.scenario import scenario_names

        lines = scenario_names()
    elif what == "hardware":
        from kvgym.batch_time.deployments.load import hardware_names

        lines = hardware_names()
    elif what == "agents":
        from kvgym.agents.library import agent_names

        lines = agent_names()
    elif what == "sweeps":
        from kvgym.studies.sweeping.plan import plan_names

        lines = plan_names()
    elif what == "training":
        from kvgym.agents.runs.config import training_names

        lines = training_names()
    elif what == "routers":
        from kvgym.policies.routing import ROUTERS

        lines = {name: ROUTERS[name].info.summary for name in ROUTERS}
    elif what == "autoscalers":
        from kvgym.policies.scaling import AUTOSCALERS

        lines = {name: AUTOSCALERS[name].info.summary for name in AUTOSCALERS}
    elif what == "cache-rules":
        from kvgym.simulator.prefix.rules import rule_lines

        lines = rule_lines()
    elif what == "environments":
        from kvgym.envs import environment_names

        lines = environment_names()
    elif what == "workloads":
        from kvgym.workloads import describe_presets

        lines = describe_presets()
    else:
        from kvgym.workloads import trace_formats

        lines = trace_formats()
    return ("name", "what it is"), {name: (line,) for name, line in lines.items()}
