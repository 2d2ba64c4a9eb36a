"""Published measurements of running engines that predictions are compared with; nothing is fitted to them here.

Batches: median prompt times and mean token times of Llama-2-70B on A100 80 GB and H100 80 GB, an engine of 2023,
published with the Splitwise simulator (MIT licence; Patel et al., Splitwise, ISCA 2024). CPU times: an engine of
early 2024 on A100, from the history of the Vidur simulator's repository (MIT licence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BATCH_SOURCE = (
    "median prompt times and mean token times of Llama-2-70B, published with the Splitwise simulator (MIT; "
    "Patel et al., ISCA 2024)"
)
CPU_SOURCE = (
    "CPU times per decode batch, from the history of the Vidur simulator's repository (MIT), early 2024"
)

MODEL = "llama2-70b"
"""Model of all measured batches."""


@dataclass(frozen=True)
class Deployment:
    """GPUs that a model was measured on.

    Attributes:
        gpu: name in :data:`kvgym.batch_time.hardware.presets.GPUS`.
        tensor_parallel: how many.
        hardware: hardware file of their kernels with this model; "" = there is none.
    """

    gpu: str
    tensor_parallel: int
    hardware: str = ""

    @property
    def label(self) -> str:
        """Name for tables and figures."""
        return f"{self.gpu.split('-')[0].upper()} TP {self.tensor_parallel}"


@dataclass(frozen=True)
class MeasuredBatch:
    """Equal requests sent at once: their prompts in a batch, then their decodes.

    Attributes:
        prompt: tokens of each prompt.
        requests: how many.
        output: requested output tokens of each.
        prompt_ms: median time of the prompts of all, milliseconds.
        token_ms: mean time of a decode iteration, milliseconds.
        e2e_ms: time from first to last, milliseconds.
    """

    prompt: int
    requests: int
    output: int
    prompt_ms: float
    token_ms: float
    e2e_ms: float

    @property
    def decodes(self) -> float:
        """Decode iterations that fit into the end-to-end time."""
        return (self.e2e_ms - self.prompt_ms) / self.token_ms

    @property
    def whole(self) -> bool:
        """Whether all requests ran as one batch: the end-to-end time holds no more decodes than requested."""
        return self.decodes < 1.05 * self.output


@dataclass(frozen=True)
class MeasuredCpu:
    """CPU time of an engine for a batch of decodes.

    Attributes:
        model: name in :data:`kvgym.batch_time.hardware.presets.MODELS`.
        tensor_parallel: number of A100.
        decodes: size of the batch.
        schedule_ms: milliseconds of scheduling.
        sampler_ms: of sampling.
        prepare_ms: of preparing inputs.
        process_ms: of processing outputs.
        communication_ms: between the processes of the engine.
    """

    model: str
    tensor_parallel: int
    decodes: int
    schedule_ms: float
    sampler_ms: float
    prepare_ms: float
    process_ms: float
    communication_ms: float

    @property
    def total_ms(self) -> float:
        """All components, milliseconds."""
        return self.schedule_ms + self.sampler_ms + self.prepare_ms + self.process_ms + self.communication_ms


def _batches(*rows: tuple[int, int, int, float, float, float]) -> tuple[MeasuredBatch, ...]:
    return tuple(MeasuredBatch(*row) for row in rows)


REFERENCE = Deployment("a100-80gb", 2, "llama2-70b-a100-tp2")
"""Deployment with the engines that other deployments borrow."""

BATCHES: Mapping[Deployment, tuple[MeasuredBatch, ...]] = {
    REFERENCE: _batches(
        (128, 1, 128, 81.08, 53.679, 6901.2),
        (256, 1, 128, 112.93, 54.099, 6986.1),
        (512, 1, 128, 196.86, 54.856, 7165.3),
        (1024, 1, 128, 377.06, 54.771, 7336.4),
        (2048, 1, 128, 688.05, 54.886, 7662.7),
        (4096, 1, 128, 1485.35, 55.869, 8548.9),
        (8192, 1, 128, 2990.18, 57.32, 10316.5),
        (512, 2, 128, 416.49, 59.924, 8029.2),
        (512, 4, 128, 845.37, 60.521, 8537.9),
        (512, 8, 128, 1596.83, 61.692, 9439.4),
        (512, 16, 128, 3238.85, 65.462, 11575.8),
        (512, 32, 128, 6632.63, 72.19, 18482.3),
        (512, 64, 128, 794.22, 67.243, 159625.4),
        (512, 1, 256, 195.0, 60.016, 15503.2),
        (512, 1, 512, 194.52, 59.949, 30835.1),
        (512, 1, 1024, 194.89, 59.699, 19244.7),
        (512, 1, 2048, 195.18, 60.349, 34964.6),
        (512, 1, 4096, 195.53, 60.27, 34919.5),
        (512, 1, 8192, 194.89, 60.215, 34887.3),
    ),
    Deployment("a100-80gb", 4): _batches(
        (128, 1, 128, 63.65, 42.419, 5452.9),
        (256, 1, 128, 78.57, 42.176, 5437.2),
        (512, 1, 128, 126.96, 44.991, 5843.8),
        (1024, 1, 128, 227.08, 44.948, 5953.6),
        (2048, 1, 128, 403.33, 44.983, 6121.1),
        (4096, 1, 128, 965.15, 46.375, 6852.5),
        (8192, 1, 128, 2278.45, 46.059, 8113.9),
        (512, 2, 128, 253.93, 45.005, 5973.7),
        (512, 4, 128, 571.43, 45.085, 6302.2),
        (512, 8, 128, 1233.02, 45.799, 7063.6),
        (512, 16, 128, 2892.58, 48.518, 9041.1),
        (512, 32, 128, 5131.73, 52.345, 11802.6),
        (512, 64, 128, 10947.82, 72.947, 20217.1),
        (512, 1, 256, 127.06, 44.507, 11459.1),
        (512, 1, 512, 126.82, 44.48, 22721.2),
        (512, 1, 1024, 126.95, 44.375, 25945.4),
        (512, 1, 2048, 127.14, 44.496, 26043.4),
        (512, 1, 4096, 127.01, 43.342, 25439.6),
        (512, 1, 8192, 126.91, 44.782, 26281.5),
    ),
    Deployment("a100-80gb", 8): _batches(
        (128, 1, 128, 65.35, 43.031, 5531.1),
        (256, 1, 128, 66.76, 43.483, 5592.0),
        (512, 1, 128, 94.31, 44.852, 5803.0),
        (1024, 1, 128, 154.46, 44.966, 5870.5),
        (2048, 1, 128, 274.22, 45.437, 6050.0),
        (4096, 1, 128, 661.22, 46.482, 6559.9),
        (8192, 1, 128, 1549.82, 46.51, 7485.5),
        (512, 2, 128, 165.94, 44.559, 5828.6),
        (512, 4, 128, 292.28, 45.792, 6112.2),
        (512, 8, 128, 767.62, 46.465, 6677.4),
        (512, 16, 128, 2084.41, 50.435, 8484.3),
        (512, 32, 128, 3524.54, 53.017, 10295.1),
        (512, 64, 128, 7553.99, 71.605, 16495.8),
        (512, 1, 256, 92.83, 45.903, 11763.6),
        (512, 1, 512, 92.83, 44.987, 15124.3),
        (512, 1, 1024, 93.28, 44.761, 29301.3),
        (512, 1, 2048, 92.64, 45.355, 29738.1),
        (512, 1, 4096, 92.63, 45.98, 29838.9),
        (512, 1, 8192, 93.02, 45.033, 29274.8),
    ),
    Deployment("h100-80gb", 2): _batches(
        (128, 1, 128, 48.33, 37.241, 4782.7),
        (256, 1, 128, 51.85, 37.839, 4859.9),
        (512, 1, 128, 83.83, 37.0, 4785.7),
        (1024, 1, 128, 157.95, 37.387, 4910.1),
        (2048, 1, 128, 310.32, 37.367, 5061.7),
        (4096, 1, 128, 642.66, 37.536, 5411.6),
        (8192, 1, 128, 1339.84, 37.804, 6182.9),
        (512, 2, 128, 155.84, 37.389, 4908.3),
        (512, 4, 128, 299.82, 39.982, 5381.3),
        (512, 8, 128, 606.02, 40.405, 5743.5),
        (512, 16, 128, 1191.98, 41.972, 6534.6),
        (512, 32, 128, 2397.77, 52.296, 9045.6),
        (512, 64, 128, 360.55, 42.301, 83891.5),
        (512, 1, 256, 83.8, 37.233, 9583.6),
        (512, 1, 512, 84.08, 37.349, 19179.0),
        (512, 1, 1024, 83.9, 37.067, 12682.4),
        (512, 1, 2048, 83.65, 36.881, 19637.0),
        (512, 1, 4096, 83.82, 37.293, 19814.6),
        (512, 1, 8192, 84.32, 37.458, 19932.3),
    ),
    Deployment("h100-80gb", 4, "llama2-70b-h100-tp4-2023"): _batches(
        (128, 1, 128, 49.09, 28.361, 3653.0),
        (256, 1, 128, 50.98, 30.03, 3874.8),
        (512, 1, 128, 59.62, 29.718, 3836.8),
        (1024, 1, 128, 105.61, 29.441, 3848.4),
        (2048, 1, 128, 200.68, 29.816, 3993.0),
        (4096, 1, 128, 463.46, 29.584, 4236.8),
        (8192, 1, 128, 953.58, 29.718, 4767.5),
        (512, 2, 128, 103.62, 29.98, 3914.8),
        (512, 4, 128, 195.28, 29.921, 4000.3),
        (512, 8, 128, 442.2, 31.436, 4435.4),
        (512, 16, 128, 874.35, 32.843, 5082.4),
        (512, 32, 128, 1726.05, 36.885, 6435.9),
        (512, 64, 128, 3520.47, 52.356, 10180.8),
        (512, 1, 256, 59.46, 28.398, 7301.3),
        (512, 1, 512, 60.46, 29.324, 14455.5),
        (512, 1, 1024, 59.56, 29.334, 18164.0),
        (512, 1, 2048, 59.71, 29.326, 18135.8),
        (512, 1, 4096, 60.41, 29.769, 18404.7),
        (512, 1, 8192, 59.89, 29.38, 18225.3),
    ),
    Deployment("h100-80gb", 8): _batches(
        (128, 1, 128, 58.19, 29.873, 3856.8),
        (256, 1, 128, 51.66, 28.267, 3644.5),
        (512, 1, 128, 53.39, 29.762, 3837.7),
        (1024, 1, 128, 77.91, 29.74, 3860.6),
        (2048, 1, 128, 136.8, 31.048, 4085.5),
        (4096, 1, 128, 390.29, 30.561, 4258.7),
        (8192, 1, 128, 844.89, 31.412, 4867.4),
        (512, 2, 128, 76.89, 30.262, 3925.0),
        (512, 4, 128, 132.64, 31.786, 4174.3),
        (512, 8, 128, 371.63, 32.504, 4512.1),
        (512, 16, 128, 811.93, 34.166, 5142.5),
        (512, 32, 128, 1551.73, 38.619, 6476.7),
        (512, 64, 128, 2936.33, 50.161, 9337.7),
        (512, 1, 256, 53.95, 31.513, 8094.8),
        (512, 1, 512, 53.83, 30.658, 15587.0),
        (512, 1, 1024, 54.78, 31.857, 26210.5),
        (512, 1, 2048, 54.63, 30.764, 26900.6),
        (512, 1, 4096, 53.86, 30.562, 12227.3),
        (512, 1, 8192, 53.29, 30.806, 12358.6),
    ),
}
"""Batches of an engine of 2023 by deployment."""

CPU_TIMES: tuple[MeasuredCpu, ...] = (
    MeasuredCpu("llama2-7b", 1, 8, 0.16513, 0.88781, 0.29317, 0.62438, 0.15646),
    MeasuredCpu("llama2-7b", 1, 16, 0.27832, 0.94458, 0.43911, 1.13542, 0.21399),
    MeasuredCpu("llama2-7b", 1, 32, 0.57984, 1.12637, 0.67097, 2.24566, 0.30507),
    MeasuredCpu("llama2-7b", 1, 64, 0.95218, 1.37026, 1.16300, 4.10826, 0.45470),
    MeasuredCpu("llama2-70b", 2, 8, 0.17853, 1.06503, 0.38635, 0.77028, 2.62681),
    MeasuredCpu("llama2-70b", 2, 16, 0.28280, 1.10849, 0.45795, 1.21531, 3.00618),
    MeasuredCpu("llama2-70b", 2, 24, 0.38481, 1.16067, 0.57292, 1.75242, 3.93388),
    MeasuredCpu("llama2-70b", 2, 32, 0.50208, 1.34576, 0.66965, 2.25016, 3.82666),
    MeasuredCpu("llama2-70b", 4, 64, 1.22998, 1.94838, 1.31653, 4.71609, 8.48750),
)
"""CPU times of an engine of early 2024."""
