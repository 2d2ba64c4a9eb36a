"""Named workloads from the literature."""

from __future__ import annotations

from kvgym.utils.registry import Registry
from kvgym.workloads.adversarial import theorem_4_1_workload
from kvgym.workloads.arrivals import AllAtOnce, PoissonArrivals, SlottedArrivals
from kvgym.workloads.base import FloatRange, IntRange
from kvgym.workloads.lengths import (
    ConstantLength,
    FillLengths,
    IndependentLengths,
    LogNormalLength,
    UniformLength,
)
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.prefix.prefixes import Gap, Level, Prefixes, Turns
from kvgym.workloads.spec import RequestClass, WorkloadSpec

PRESETS: Registry[WorkloadSpec] = Registry("workload")
"""All presets by name."""


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets, in the order of the papers."""
    return tuple(PRESETS)


def describe_presets() -> dict[str, str]:
    """Return the one-line description of each preset, by name."""
    return {name: PRESETS[name].description for name in PRESETS}


def _add(spec: WorkloadSpec) -> None:
    PRESETS.add(spec.name, spec)


# MC-SF, Section 5.2: word counts of LMSYS-Chat-1M. The licence of the conversations forbids redistribution, so the
# preset has lognormal lengths with the published means and medians. The maxima keep every request servable
# (M = 16,492) and lower the means by less than 1 %.
_LMSYS = IndependentLengths(
    prompt=LogNormalLength(median=11, mean=40.62), output=LogNormalLength(median=45, mean=85.32)
)
_LMSYS_LIMITS = LengthLimits(max_prompt_len=4096, max_output_len=2048)

for _name, _rate, _n, _what in (
    ("lmsys", 50.0, 1000, "high demand, 50/s, 1,000 requests (MC-SF 5.2, Table 1)"),
    ("lmsys-low", 10.0, 1000, "low demand, 10/s, 1,000 requests (MC-SF 5.2)"),
    ("lmsys-50k", 50.0, 50_000, "50/s, 50,000 requests (FLOW 4.2)"),
):
    _add(
        WorkloadSpec(
            name=_name,
            description=f"LMSYS chat lengths (lognormal by mean and median), {_what}",
            arrivals=PoissonArrivals(rate=_rate),
            lengths=_LMSYS,
            limits=_LMSYS_LIMITS,
            num_requests=_n,
        )
    )

# MC-SF, Section 5.1. The paper draws the memory M per trial, as the scenarios do; 40 is the middle.
_FILL = FillLengths(prompt=UniformLength(low=1, high=5), kv_capacity=40)
_add(
    WorkloadSpec(
        name="mcsf-model-1",
        description="40 to 60 small requests at time 0, for memory M = 40 (MC-SF 5.1, Model 1)",
        arrivals=AllAtOnce(),
        lengths=_FILL,
        num_requests=IntRange(low=40, high=60),
    )
)
_add(
    WorkloadSpec(
        name="mcsf-model-2",
        description="small requests over 40 to 60 slots, 0.5 to 1.5 a slot, for M = 40 (MC-SF 5.1, Model 2)",
        arrivals=SlottedArrivals(rate=FloatRange(low=0.5, high=1.5), start=1),
        lengths=_FILL,
        duration=IntRange(low=40, high=60),
    )
)

# MC-SF, Theorem 4.1, for two small memories that can be inspected; theorem_4_1_workload makes the others.
for _memory in (64, 1024):
    _add(theorem_4_1_workload(_memory))


def _classes(
    prompts: tuple[int, ...], outputs: tuple[int, ...], rates: tuple[float, ...], weights: bool = False
) -> tuple[RequestClass, ...]:
    """Return classes of constant lengths with Poisson rates, or with weights."""
    return tuple(
        RequestClass(
            name=f"{prompt}+{output}",
            prompt=ConstantLength(value=prompt),
            output=ConstantLength(value=output),
            weight=rate if weights else None,
            rate=None if weights else rate,
        )
        for prompt, output, rate in zip(prompts, outputs, rates, strict=True)
    )


# FLOW, Section 4.1: three independent Poisson streams of rate 5 per slot are one of rate 15 with equal
# shares. The paper varies the horizon from 1,000 to 10,000 slots.
_add(
    WorkloadSpec(
        name="flow",
        description="3 classes (10+20, 10+40, 10+60 tokens), 5 per slot each, 1,000 slots (FLOW 4.1)",
        arrivals=SlottedArrivals(rate=15.0),
        classes=_classes((10, 10, 10), (20, 40, 60), (1.0, 1.0, 1.0), weights=True),
        duration=1000,
    )
)

# WAIT, Section 6. The paper gives no number of requests; 10,000 here.
_add(
    WorkloadSpec(
        name="wait-low",
        description="2 classes (10+10, 10+20 tokens), 1,000/s each (WAIT 6.1, low demand)",
        classes=_classes((10, 10), (10, 20), (1000.0, 1000.0)),
        num_requests=10_000,
    )
)
_add(
    WorkloadSpec(
        name="wait-high",
        description="3 classes (20 + 100, 200, 300 tokens), 6,000, 4,000 and 2,000/s (WAIT 6.1, high demand)",
        classes=_classes((20, 20, 20), (100, 200, 300), (6000.0, 4000.0, 2000.0)),
        num_requests=10_000,
    )
)
# Only the ratio 20 : 40 : 80 : 160 is published; here these are rates per second.
_add(
    WorkloadSpec(
        name="wait-nested",
        description="4 classes (10 + 20, 40, 80, 160 tokens), 20, 40, 80 and 160/s (WAIT 6.2, synthetic)",
        classes=_classes((10,) * 4, (20, 40, 80, 160), (20.0, 40.0, 80.0, 160.0)),
        num_requests=10_000,
    )
)
for _name, _qps in (("wait-bins-low", 55.0), ("wait-bins-high", 550.0)):
    _add(
        WorkloadSpec(
            name=_name,
            description=f"10 classes (60 + 50 … 500 tokens) in LMSYS proportions, {_qps:g}/s (WAIT 6.2)",
            arrivals=PoissonArrivals(rate=_qps),
            classes=_classes(
                (60,) * 10, tuple(range(50, 501, 50)), (23, 11, 8, 7, 6, 4, 3, 2, 1, 1), weights=True
            ),
            num_requests=10_000,
        )
    )

# SLAI, Section 7 and Table 1. The table's decode standard deviation contradicts its median and P90; these
# two are fitted. Rates run from 0.2 to 1.6 per second.
for _name, _share in (("slai", 0.05), ("slai-paying-50", 0.5), ("slai-paying-95", 0.95)):
    _add(
        WorkloadSpec(
            name=_name,
            description=f"ShareGPT-4 lengths, 1/s, 35 min, {_share:.0%} paying, TBT 0.1 or 0.5 s (SLAI 7)",
            arrivals=PoissonArrivals(rate=1.0),
            lengths=IndependentLengths(
                prompt=LogNormalLength(median=1730, p90=5696), output=LogNormalLength(median=415, p90=834)
            ),
            classes=(
                RequestClass(name="paying", weight=_share, priority=1, tbt_slo=0.1),
                RequestClass(name="free", weight=1 - _share, priority=0, tbt_slo=0.5),
            ),
            limits=LengthLimits(max_total_len=8192),
            duration=2100,
        )
    )

# STAB, Section 5. The text ties outputs to prompts, but the printed rates follow only from independent
# lengths with these maxima. 5/s is the smallest rate at which all three saturate one GPU.
for _name, _prompt, _output in (
    ("stab-1-1", (10, 1600), (10, 1600)),
    ("stab-2-1", (10, 2133), (5, 1066)),
    ("stab-1-2", (10, 1066), (10, 2133)),
):
    _add(
        WorkloadSpec(
            name=_name,
            description=(
                f"prompts uniform on {_prompt[0]} … {_prompt[1]}, "
                f"outputs on {_output[0]} … {_output[1]}, 5/s (STAB 5)"
            ),
            arrivals=PoissonArrivals(rate=5.0),
            lengths=IndependentLengths(
                prompt=UniformLength(low=_prompt[0], high=_prompt[1]),
                output=UniformLength(low=_output[0], high=_output[1]),
            ),
            num_requests=10_000,
        )
    )

# A coding agent: 610 runs of Codex on SWE-bench Pro (Inferact, codex_swebenchpro_traces, 2026, MIT licence). Per run:
# 33 calls (median 30, p90 57); 12,367 tokens in the first prompt, 84,482 in the last; 17,239 tokens of output; 94 % of
# the prompts' tokens were cached. So a call adds 2,254 tokens, 522 of them output. Assumed, as not published: all runs
# share 11,000 tokens of the first prompt; the spread of lengths; the times of tools.
_add(
    WorkloadSpec(
        name="coding-agent",
        description="agents on SWE-bench Pro, 50 at a time, 33 calls each, prompts grow to 84k tokens, 1/s (Codex)",
        arrivals=PoissonArrivals(rate=1.0),
        lengths=IndependentLengths(
            prompt=LogNormalLength(median=1200, mean=1732), output=LogNormalLength(median=300, mean=522)
        ),
        prefixes=Prefixes(
            levels=(Level(count=1, tokens=11_000),),
            turns=Turns(
                number=LogNormalLength(median=30, p90=57),
                open=50,
                max_context=200_000,
                gaps=(Gap(kind="tool", median=1.0, mean=5.0),),
            ),
        ),
        num_requests=2000,
    )
)
