"""Rooflines in one line, in files and in scenarios: capacity, times and errors, worked by hand."""

import pytest

from kvgym.batch_time import (
    GPU,
    MODELS,
    ModelShape,
    RooflineBatchTime,
    RooflineHardware,
    load_calibrated,
    load_hardware,
)
from kvgym.batch_time.deployments.described import HardwareName, Kernels
from kvgym.batch_time.deployments.load import hardware_label
from kvgym.errors import ConfigError, UnknownNameError

GIB = 2**30
GPU_100 = GPU(
    name="toy", peak_flops=1000.0, memory_bandwidth=100.0, memory=1e9, fast_flops={"fp8": 4000.0},
    link_bandwidth=10.0, link_latency=0.5,
)  # fmt: skip
SHAPE = {
    "name": "toy",
    "num_layers": 2,
    "hidden": 4,
    "num_heads": 2,
    "num_kv_heads": 1,
    "ffn": 8,
    "vocab": 10,
}
FULL = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "overhead": 0.0}

SIXTEEN = "16-bit weights and KV cache"


def test_experts_that_a_batch_reads_by_hand():
    shape = ModelShape(**SHAPE, experts={"count": 4, "per_token": 1, "ffn": 6})
    model = RooflineBatchTime(GPU_100, shape, **FULL)
    # Attention 2 * 16 + 2 * 8, two norms, a router of 4 x 4, two layers of 2 bytes at 100 bytes/s.
    rest = 2 * (48 + 8 + 16) * 2 / 100
    experts = 2 * 4 * 3 * 4 * 6 * 2 / 100
    # Activations per token and layer: 8 * 4 + 2 * 4 + 2 * 2, and 4 * 6 of the one expert.
    activations = 2 * (44 + 24) * 2 / 100
    head = 40 * 2 / 100
    attention = (
        2 * 2 * 2 * 2 / 100
    )  # one key and one value of 2 in 2 layers, of 2 bytes, for each token it attends to
    for decodes, share in ((1, 1 / 4), (2, 1 - (3 / 4) ** 2), (50, 1 - (3 / 4) ** 50)):
        linear = max(2 * 2 * (72 + 72) * decodes / 1000, rest + experts * share + activations * decodes)
        keys = attention * decodes * 3
        expected = linear + keys + max(head, 2 * 40 * decodes / 1000)
        assert model(num_decodes=decodes, decode_context=2 * decodes) == pytest.approx(expected)


def test_latent_attention_by_hand():
    latent = {"kv_rank": 6, "nope_dim": 3, "rope_dim": 2, "value_dim": 4}
    shape = ModelShape(**SHAPE, latent=latent)
    one, two = (RooflineBatchTime(GPU_100, shape, tensor_parallel=gpus, **FULL).figures for gpus in (1, 2))
    # Two heads: a pair of a prefill has 3 + 2 + 4 entries, of a decode 6 + 2 + 6; a token is expanded from 6.
    assert one.prefill_pair == pytest.approx(2 * 2 * (3 + 2 + 4) * 2 / 1000)
    assert one.decode_pair == pytest.approx(2 * 2 * (6 + 2 + 6) * 2 / 1000)
    assert one.expanded == pytest.approx(2 * 6 * 2 * (3 + 4) * 2 / 1000)
    assert one.kv_token == pytest.approx(2 * (6 + 2) * 2 / 100)
    # Each GPU holds a copy: what one reads is not divided.
    assert two.kv_token == pytest.approx(one.kv_token)
    for name in ("prefill_pair", "decode_pair", "expanded"):
        assert getattr(two, name) == pytest.approx(getattr(one, name) / 2), name


def test_windows_by_hand():
    """Of two layers one has a window of 4 tokens; heads of 2, two query heads, so 4 FLOPs x 4 per pair and layer."""
    windowed = RooflineBatchTime(GPU_100, ModelShape(**SHAPE, window={"layers": 1, "tokens": 4}), **FULL)
    plain = RooflineBatchTime(GPU_100, ModelShape(**SHAPE), **FULL)
    token, pair = plain.figures.kv_token, plain.figures.prefill_pair
    # Each of 3 decodes after 9 tokens has 10 keys, or 4; after 3 tokens or fewer all of them.
    for context, less in ((9, 3 * 6), (3, 0), (1, 0)):
        loads = {"num_decodes": 3, "decode_context": 3 * context}
        assert plain(**loads) - windowed(**loads) == pytest.approx(
            max(token, plain.figures.decode_pair) * less / 2
        )
    # A prompt of 100 tokens has 5,050 pairs, or at most 4 for each; a chunk of 50 behind 200 has 11,275.
    for tokens, context, less in ((100, 0, 5050 - 400), (50, 200, 11_275 - 200), (4, 0, 0)):
        loads = {"num_prefills": 1, "prefill_tokens": tokens, "prefill_squares": tokens**2}
        loads |= {"prefill_context": context, "prefill_products": tokens * context}
        assert plain(**loads) - windowed(**loads) == pytest.approx(pair * less / 2), tokens


def test_measured_kernels_with_windows():
    """Layers with a window take the attention of the window, the others all of it."""
    shape, models = MODELS["gemma-3-27b"].model_dump(), {}
    for layers in (0, 52, 62):
        window = {"window": {"layers": layers, "tokens": 1024}} if layers else {}
        given = {**shape, "window": None, **window}
        models[layers] = (
            Kernels(model=ModelShape(**given), gpu="h100").hardware("x").batch_time(engine="none")
        )
    for context in (10, 1000):
        short = {"num_decodes": 8, "decode_context": 8 * context}
        assert models[0](**short) == pytest.approx(models[62](**short), rel=0.01)
    at_window, long = ({"num_decodes": 8, "decode_context": 8 * context} for context in (1024, 60_000))
    assert models[62](**long) == pytest.approx(models[62](**at_window), rel=0.01)
    none, some, all_ = (models[layers](**long) for layers in (0, 52, 62))
    assert some == pytest.approx(all_ + (none - all_) * 10 / 62, rel=1e-3)
    # A chunk of 512 has the pairs of 512 tokens with 1,024 cached ones, however many there are.
    chunk = {"num_prefills": 1, "prefill_tokens": 512, "prefill_squares": 512**2}
    times = [
        models[62](**chunk, prefill_context=cached, prefill_products=512 * cached)
        for cached in (0, 1024, 16_384)
    ]
    assert times[0] < times[1] == times[2]
    assert models[0](**chunk, prefill_context=16_384, prefill_products=512 * 16_384) > times[2]
    # What a prompt saves grows with the square of its tokens behind the window.
    prompts = [{"num_prefills": 1, "prefill_tokens": n, "prefill_squares": n**2} for n in (512, 4096, 8192)]
    saved = [models[0](**prompt) - models[62](**prompt) for prompt in prompts]
    assert saved[0] == pytest.approx(0, abs=1e-12)
    assert saved[2] / saved[1] == pytest.approx((7168 / 3072) ** 2, rel=0.2)


def test_data_types_and_overhead_per_request():
    plain = RooflineBatchTime(GPU_100, ModelShape(**SHAPE), **FULL).figures
    eight = ModelShape(**SHAPE, weight_dtype="fp8", kv_dtype="fp8")
    fast = RooflineBatchTime(GPU_100, eight, overhead_per_request=0.25, **FULL).figures
    halved = plain._replace(
        token=plain.token / 4, weights=plain.weights / 2, kv_token=plain.kv_token / 2, request=0.25
    )
    assert fast == pytest.approx(halved)  # activations, pairs and LM head stay
    four = RooflineBatchTime(GPU_100, ModelShape(**SHAPE, weight_dtype="int4"), **FULL).figures
    assert (four.token, four.weights) == pytest.approx((plain.token, plain.weights / 4))
    loads = {
        "num_decodes": 2,
        "decode_context": 4,
        "num_prefills": 1,
        "prefill_tokens": 3,
        "prefill_squares": 9,
    }
    with_, without = (
        RooflineBatchTime(GPU_100, ModelShape(**SHAPE), overhead_per_request=seconds, **FULL)(**loads)
        for seconds in (0.25, 0.0)
    )
    assert with_ - without == pytest.approx(0.75)


def test_capacity_of_a_roofline_by_hand():
    """H200 of 143,771 MiB, 70,553,706,496 weights of 2 bytes; 327,680 bytes per token; four GPUs."""
    hardware = load_hardware("roofline:model=llama3-70b,gpu=h200,tp=4")
    free = 143_771 * 2**20 * 0.9 - 70_553_706_496 * 2 / 4 - 2 * GIB
    assert hardware.kv_capacity == int(free // (327_680 / 4 * 16)) * 16
    less = load_hardware(
        "roofline:model=llama3-70b,gpu=h200,tp=4,memory_fraction=0.5,reserve_gib=1,kv_dtype=fp8"
    )
    free = 143_771 * 2**20 * 0.5 - 70_553_706_496 * 2 / 4 - GIB
    assert less.kv_capacity == int(free // (163_840 / 4 * 16)) * 16
    # Eight GPUs hold eight copies of the latent cache of DeepSeek-V3, 70,272 bytes per token each.
    deep = load_hardware("roofline:model=deepseek-v3,gpu=h200,tp=8")
    free = 143_771 * 2**20 * 0.9 - deep.model.weight_bytes / 8 - 2 * GIB
    assert deep.kv_capacity == int(free // (70_272 * 16)) * 16


def test_a_roofline_is_hardware():
    hardware = load_hardware("roofline:model=mixtral-8x7b,gpu=h100,tp=2,weights=fp8")
    assert isinstance(hardware, RooflineHardware)
    assert (hardware.kind, hardware.engine) == ("roofline, not validated", "vllm-2026")
    assert hardware.description == "Mixtral-8x7B-v0.1 on 2 x H100 80GB, fp8 weights, 16-bit KV cache"
    assert "config.json of mistralai" in hardware.source
    assert "NVIDIA H100 data sheet" in hardware.source
    assert "not validated" not in hardware.source  # its kind says so, and stands next to it
    assert "not validated" in hardware.batch_time().source
    assert hardware.batch_time()() == hardware.batch_time(engine="none")() == 0.0
    figures = hardware.batch_time(engine={"base_ms": 5, "per_request_ms": 1}).figures
    assert (figures.overhead, figures.request) == (0.005, 0.001)
    with pytest.raises(ConfigError, match="composition = 'vidur'"):
        hardware.batch_time(composition="vidur")
    with pytest.raises(UnknownNameError, match="early-2024"):
        hardware.batch_time(engine="vllm-2022")
    with pytest.raises(ConfigError, match="no tables"):
        load_calibrated("roofline:model=mixtral-8x7b,gpu=h100,tp=2")


@pytest.mark.parametrize("kind", ["kernels", "roofline"])
@pytest.mark.parametrize(
    ("types", "stated"),
    [
        ("", SIXTEEN),
        (",weights=fp8", "fp8 weights, 16-bit KV cache"),
        (",kv_dtype=fp8", "16-bit weights, fp8 KV cache"),
        (",weights=fp8,kv_dtype=fp8", "fp8 weights and KV cache"),
    ],
)
def test_types_of_weights_and_cache_are_chosen_and_stated(kind, types, stated):
    plain, chosen = (load_hardware(f"{kind}:model=llama3-8b,gpu=h100{given}") for given in ("", types))
    assert chosen.description == f"Llama-3-8B on 1 x H100 80GB, {stated}"
    assert "roofline for" not in chosen.kind
    usual, model = plain.batch_time(engine="none"), chosen.batch_time(engine="none")
    one, long = {"num_decodes": 1}, {"num_decodes": 64, "decode_context": 64 * 8192}
    assert (model(**one) < 0.8 * usual(**one)) == ("weights" in types)
    assert (model(**long) - model(**one) < 0.8 * (usual(**long) - usual(**one))) == ("kv_dtype" in types)
    assert (chosen.kv_capacity > 1.9 * plain.kv_capacity) == ("kv_dtype" in types)


@pytest.mark.parametrize("kind", ["kernels", "roofline"])
def test_kv_of_layers_with_windows_is_counted_for_a_stated_context(kind):
    usual, long = (
        load_hardware(f"{kind}:model=gemma-3-27b,gpu=h100{given}") for given in ("", ",kv_context=32768")
    )
    assert (usual.kv_capacity, long.kv_capacity) == (112_208, 222_032)
    assert usual.description == f"gemma-3-27b on 1 x H100 80GB, {SIXTEEN}, KV of requests of 4,096 tokens"
    assert "in blocks of 16, KV of requests of 32,768 tokens; not validated" in long.kv_capacity_origin
    short = load_hardware(f"{kind}:model=gemma-3-27b,gpu=h100,kv_context=1024")
    plain = load_hardware(f"{kind}:model=llama3-8b,gpu=h100,kv_context=32768")
    assert "KV of requests" not in short.description + short.kv_capacity_origin + plain.description
    with pytest.raises(ConfigError, match=r"kv_context\) must be 1"):
        load_hardware(f"{kind}:model=gemma-3-27b,gpu=h100,kv_context=0")


def test_labels_of_rooflines_say_not_validated(tmp_path):
    assert hardware_label("llama3-8b-a100-tp1") == "llama3-8b-a100-tp1"
    assert (
        hardware_label("roofline:model=qwen3-8b,gpu=l4")
        == f"Qwen3-8B on 1 x L4, {SIXTEEN} (roofline, not validated)"
    )
    path = tmp_path / "mine.yaml"
    path.write_text("kind: roofline\nmodel: qwen3-8b\ngpu: l4\ndescription: ours\n")
    assert hardware_label(str(path)) == "ours (roofline, not validated)"
    path.unlink()
    assert (hardware_label(str(path)), hardware_label(None)) == (str(path), "")


def test_files(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "kind: roofline\nmodel: {name: Mine, num_layers: 16, hidden: 2048, num_heads: 16, num_kv_heads: 4, ffn: 8192, "
        "vocab: 32000}\ngpu: {name: Ours, peak_flops: 1.0e+14, memory_bandwidth: 1.0e+12, memory: 2.4e+10}\n"
        "engine: ours\nengines: {ours: {base_ms: 5, per_request_ms: 0.1}}\n"
    )
    hardware = load_hardware(path)
    assert (hardware.name, hardware.description) == (
        str(path),
        f"Mine on 1 x Ours, {SIXTEEN}",
    )
    assert hardware.overhead().base_ms == 5
    assert hardware.batch_time()() == pytest.approx(0.005)
    path.write_text("kind: roofline\nmodel: qwen3-8b\ngpu: l4\ntensor_parallel: 2\n")
    with pytest.raises(
        ConfigError, match=r"mine\.yaml: field tensor_parallel: .*valid there: model, gpu, tp"
    ):
        load_hardware(path)


@pytest.mark.parametrize("last", ["gpu", "model"])
def test_a_roofline_may_end_with_a_file(tmp_path, last):
    path = tmp_path / "mine.yaml"
    path.write_text({
        "gpu": "name: Ours\npeak_flops: 1.0e+14\nmemory_bandwidth: 1.0e+12\nmemory: 2.4e+10\n",
        "model": "name: Mine\nnum_layers: 16\nhidden: 2048\nnum_heads: 16\nnum_kv_heads: 4\nffn: 8192\nvocab: 32000\n",
    }[last])  # fmt: skip
    options = {"model": "qwen3-8b", "gpu": "l4"} | {last: str(path)}
    first = "gpu" if last == "model" else "model"
    hardware = load_hardware(f"roofline:{first}={options[first]},{last}={options[last]}")
    assert hardware.gpu.name == ("Ours" if last == "gpu" else "L4")
    assert hardware.model.name == ("Mine" if last == "model" else "Qwen3-8B")


def test_descriptions_are_canonical():
    text = HardwareName.of({"tp": 2, "gpu": "MI300X", "model": "Llama-3-70B", "weights": None})
    assert text == "roofline:model=llama3-70b,gpu=mi300x,tp=2"
    assert HardwareName.of({"gpu": "H200", "model": "Llama-3-70B"}) == "kernels:model=llama3-70b,gpu=h200"
    assert HardwareName.of({"gpu": "H200", "model": "meta-llama/Llama-3.3-70B-Instruct"}) == (
        "kernels:model=llama3-70b,gpu=h200"
    )
    assert (
        HardwareName.of({"gpu": "l4", "model": "Qwen/Qwen3-8B-FP8"}) == "roofline:model=qwen3-8b-fp8,gpu=l4"
    )
    assert HardwareName.of({"tp": 4}) == "tp=4"
    for line in (text, "tp=4", "gpu=mine.yaml,model=llama3-8b"):
        assert HardwareName(line).described
    for other in ("llama3-8b-a100-tp1", "roofline.yaml", "", "x:gpu=h200"):
        assert not HardwareName(other).described
    for part, whole in (
        ("tp=4", "roofline:model=llama3-70b,gpu=mi300x,tp=4"),
        ("gpu=a10g,weights=fp8", "roofline:model=llama3-70b,gpu=a10g,tp=2,weights=fp8"),
        ("roofline:gpu=l4,model=qwen3-8b", "roofline:model=qwen3-8b,gpu=l4"),
        ("mine.yaml", "mine.yaml"),
    ):
        assert HardwareName(part).completed(text) == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("roofline:gpu=h200", ["model missing", "--model llama3-70b"]),
        ("roofline:", ["model and gpu missing"]),
        ("roofline:model=llama3-70b,gpu=h200,speed=2", ["option of a roofline 'speed'", "memory_fraction"]),
        ("roofline:model=lama3-70b,gpu=h200", ["unknown model", "'llama3-70b'"]),
        ("roofline:model=llama3-70b,gpu=h20", ["unknown GPU", "'h200'"]),
        ("roofline:model=llama3-70b,gpu=h200,weights=fp9", ["weights", "'fp8'"]),
        ("roofline:model=llama3-70b,gpu=h200,memory_fraction=2", ["memory_fraction", "(0, 1]"]),
        ("roofline:model=qwen2.5-7b,gpu=h200,tp=8", ["28 heads (4 KV heads)", "1, 2, 4, 28"]),
        # 131.4 GiB of weights and 2 of reserve on 22.5 * 0.9; each of eight: 16.4 + 2 of 20.2.
        ("roofline:model=llama3-70b,gpu=l4", ["lacks 113.2 GiB", "(--tp) = 8 is the smallest"]),
        ("roofline:model=llama3.1-405b,gpu=a10g", ["(--tp) = 64 is the smallest"]),
        ("roofline:model=llama3.1-405b,gpu=a10g,memory_fraction=0.1", ["no number of GPUs"]),
    ],
)
def test_errors_name_the_mistake_and_the_remedy(text, words):
    with pytest.raises(ConfigError) as caught:
        load_hardware(text)
    for word in words:
        assert word in str(caught.value)
