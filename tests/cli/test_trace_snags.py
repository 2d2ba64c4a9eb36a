"""Unusual trace files, through the command line and the reader."""

import json

import pytest

from kvgym.errors import ConfigError, TraceFormatError
from kvgym.workloads.traces import load_trace
from kvgym.workloads.traces.own_table import OwnTable

HEADER = ("arrived_at", "prompt_tokens", "output_tokens")
ROWS = [(0.25 * k, 30 + k, 20) for k in range(40)]
SMALL = ("-p", "fcfs", "--no-progress", "--no-report")


def write(folder, name="mine.csv", sign=",", header=HEADER, rows=ROWS):
    path = folder / name
    path.write_text("\n".join(sign.join(map(str, row)) for row in (header, *rows)) + "\n")
    return path


def test_a_trace_with_fewer_requests_than_requested(kvgym, tmp_path):
    write(tmp_path)
    out = kvgym.output("compare", "--trace", "mine.csv", "-n", 10000, *SMALL, "-o", "out")
    assert "4 requests/s, 40 requests" in " ".join(out.split())
    note = "The trace has only 40 requests; 10,000 were requested."
    assert note in " ".join(out.split())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_requests"] == [40]
    assert note in config["notes"]
    assert "40 requests" in config["scenario"]["summary"]
    out = kvgym("compare", "--trace", "mine.csv", "-n", 40, *SMALL, "-o", "all")[1]
    assert "asked for" not in out
    out = kvgym("capacity provision --trace mine.csv -n 50 -p fcfs --no-progress -o many")[1]
    assert "The trace has only 40 requests; 50 were requested." in " ".join(out.split())


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_other_separators(tmp_path, sign):
    found, usual = load_trace(write(tmp_path, sign=sign)), load_trace(write(tmp_path, "usual.csv"))
    assert found.arrival_time.tolist() == usual.arrival_time.tolist()
    assert found.prompt_len.tolist() == usual.prompt_len.tolist()
    assert f"with {sign!r} between fields" in found.notes[0]
    assert "between fields" not in usual.notes[0]
    quoted = write(
        tmp_path, "quoted.csv", sign, [f'"{name}"' for name in HEADER], [("0", '"7"', "5"), ("1", "8", "6")]
    )
    assert load_trace(quoted).prompt_len.tolist() == [7, 8]
    comma = write(tmp_path, "comma.csv", ",", (f'"a{sign}b"', *HEADER), [("x", *row) for row in ROWS])
    assert len(load_trace(comma)) == 40


@pytest.mark.parametrize(
    ("sign", "rows", "says"),
    [
        (
            ";",
            [("0,5", 3, 4)],
            "'arrived_at': '0,5'; expected a number of seconds ≥ 0, with a point before decimals",
        ),
        (
            ",",
            [(0, 3, 4), (1, "", 4)],
            "line 3, column 'prompt_tokens': the cell is empty; expected a whole number of tokens ≥ 0: fill it in, "
            "write 0, which drops the row with a note, or remove the row",
        ),
        (
            ",",
            [(0, 3, 4), (" ", 3, 4)],
            "line 3, column 'arrived_at': the cell is empty; expected a number of seconds ≥ 0: fill it in or remove",
        ),
    ],
)
def test_cells_that_cannot_be_read(tmp_path, sign, rows, says):
    with pytest.raises(TraceFormatError) as caught:
        load_trace(write(tmp_path, sign=sign, rows=rows))
    assert says in str(caught.value)
    zero = load_trace(write(tmp_path, rows=[(0, 3, 4), (1, 0, 4)]))
    assert len(zero) == 1


@pytest.mark.parametrize(
    ("header", "mapping"),
    [
        (("arrived_at", "prompt_toks", "output"), "arrival=arrived_at,prompt=prompt_toks,output=output"),
        (
            ("arrival_date", "in_tokens", "out_tokens"),
            "arrival=arrival_date,prompt=in_tokens,output=out_tokens",
        ),
        (
            ("Arived", "PromptTokns", "completionTokns"),
            "arrival=Arived,prompt=PromptTokns,output=completionTokns",
        ),
        (("when", "question", "answer"), "arrival=when,prompt=question,output=answer"),
        (("a", "b", "c"), "arrival=NAME,prompt=NAME,output=NAME"),
    ],
)
def test_similar_names_are_mapped(tmp_path, header, mapping):
    path = write(tmp_path, header=header)
    for form in ("auto", "azure"):
        with pytest.raises(TraceFormatError) as caught:
            load_trace(path, form)
        assert f'--columns "{mapping}"' in str(caught.value)
    if "NAME" not in mapping:
        mapped = dict(part.split("=") for part in mapping.split(","))
        assert load_trace(path, columns=mapped).prompt_len.tolist() == [row[1] for row in ROWS]


def test_a_wrong_format_is_an_error(tmp_path):
    with pytest.raises(
        TraceFormatError, match=r"column 'TIMESTAMP' is missing; found .*; leave format azure out$"
    ):
        load_trace(write(tmp_path), "azure")


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"prompt_toks": "prompt"}, "write prompt=prompt_toks; valid"),
        ({"arrived_at": "ts"}, "write arrival=ts; valid"),
        ({"nothing": "ts"}, "'nothing' is not a column of a request; valid"),
    ],
)
def test_mappings_the_wrong_way_round(mapping, says):
    with pytest.raises(ConfigError, match=says):
        OwnTable(mapping)


def test_a_folder_is_not_a_trace(kvgym, tmp_path):
    (tmp_path / "traces").mkdir()
    code, _, err = kvgym("run", "-p", "fcfs", "--trace", "traces")
    assert (code, err.strip()) == (2, "error: traces: a folder, not a trace file; name a file in it")
    write(tmp_path / "traces", "a.csv")
    assert (
        "a folder, not a trace file; name a file in it: a.csv"
        in kvgym("run", "-p", "fcfs", "--trace", "traces")[2]
    )
    assert "none.csv: no such file" in kvgym("run", "-p", "fcfs", "--trace", "none.csv")[2]
    assert (
        "/dev/null: cannot be read: not a plain file" in kvgym("run", "-p", "fcfs", "--trace", "/dev/null")[2]
    )
