"""Short labels: names with their main setting, different from each other, and their place in texts."""

import pytest

from kvgym.experiments.labels import label_note, short_labels, shortener

VLLM = "vllm_v1:max_num_seqs=64,max_num_batched_tokens=8192"


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["fcfs", VLLM], ["fcfs", "vllm_v1 8192"]),  # the budget is the main setting, wherever it stands
        (["alpha_beta:alpha=0.2,beta=0.1"], ["alpha_beta 0.2"]),
        (["a:x=1", "a:x=1,y=2", "a:x=1,y=3"], ["a 1", "a 1 2", "a 1 3"]),
        (["a:x=1", "a:y=1"], ["a x=1", "a y=1"]),
        (["a 1", "a:x=1"], ["a 1", "a x=1"]),  # the first is a label of the user's
        (["a:x=true", "a:x=false", "a:x=None"], ["a x", "a no x", "a x none"]),
        (["fcfs via weighted:weights=/some/where/best.npz ×4"], ["fcfs via weighted best ×4"]),
        (["sarathi:order=spf, 1 prefill 2 decode"], ["sarathi spf, 1 prefill 2 decode"]),
        (["llama: fcfs"], ["llama: fcfs"]),
    ],
)
def test_labels_are_short_and_different(labels, short):
    assert list(short_labels(labels).values()) == short


def test_texts_get_short_labels_and_keep_other_specs():
    labels = ["sarathi:token_budget=512", "sarathi:token_budget=512,order=spf"]
    text = "sarathi:token_budget=512,order=spf (sarathi:token_budget=512). Try sarathi:token_budget=5120."
    assert shortener(labels)(text) == "sarathi 512 spf (sarathi 512). Try sarathi:token_budget=5120."
    assert shortener(["fcfs"])("fcfs:a=1") == "fcfs:a=1"


def test_a_note_has_the_whole_labels():
    assert label_note(["fcfs", VLLM]) == [f"Short labels: vllm_v1 8192 = {VLLM}."]
    assert label_note(["fcfs"]) == []
