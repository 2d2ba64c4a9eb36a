"""Readers of users' files: sizes, encodings, YAML beyond plain values, archives with false sizes."""

import io
import json
import zipfile

import numpy as np
import pytest

from kvgym.errors import ConfigError
from kvgym.utils import reading
from kvgym.utils.reading import parse_fields, parse_json, parse_yaml, read_arrays, read_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"line 3, column 1: 'a' occurs twice"),
        ("1: 2", "keys must be texts, got 1; put it in quotes"),
        ("a: 2024-01-01", "type date; put it in quotes"),
        ("a: &a [*a]", "contains it"),
        ("- " * 70 + "x", "nested more than 64 deep"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: !!bool x", "not valid YAML: 'x'"),
        ("a: [1\nb: 2", "line 2, column 2"),
        ("- 1", "must be a mapping of fields, got list"),
        ("", "must be a mapping of fields, got NoneType"),
    ],
)
def test_invalid_yaml_is_refused(text, message):
    with pytest.raises(ConfigError, match=f"^x.yaml: .*{message}"):
        parse_fields(text, "x.yaml")


def test_valid_yaml():
    text = "a: &x {k: [1, 2.5, null, true, text]}\nb: *x\n'1': '<<'\nc: {<<: *x, l: 2}"
    same = {"k": [1, 2.5, None, True, "text"]}
    assert parse_fields(text, "x") == {"a": same, "b": same, "1": "<<", "c": {**same, "l": 2}}


def test_values_repeated_by_aliases_count_each_time(monkeypatch):
    monkeypatch.setattr(reading, "MAX_VALUES", 20)
    assert parse_yaml("[&a [1, 1, 1], *a, *a]", "x") == [[1, 1, 1]] * 3  # 13 values
    with pytest.raises(ConfigError, match="more than 20 values, aliases included"):
        parse_yaml("[&a [1, 1, 1], *a, *a, *a, *a]", "x")  # 21


def test_json():
    assert parse_json(b'{"a": NaN}', "x").keys() == {"a"}
    for text, message in (
        ('{"a": NaN}', "NaN; all numbers must be finite"),
        ("{\n 1", "line 2, column 2"),
        ("9" * 5000, "digits"),
        ("[" * 100_000, "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ):
        with pytest.raises(ConfigError, match=f"^f: not valid JSON.*{message}|not valid JSON"):
            parse_json(text, "f", finite=True)


def test_files(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"\xef\xbb\xbfa\nb\xff")
    with pytest.raises(ConfigError, match=r"recipe .*f, line 2: not UTF-8 text"):
        read_text(path, "recipe")
    path.write_bytes(b"\xef\xbb\xbfab")
    assert read_text(path, "recipe") == "ab"
    monkeypatch.setattr(reading, "MAX_BYTES", 4)
    with pytest.raises(ConfigError, match="larger than 4 bytes"):
        read_text(path, "recipe")
    for name in (tmp_path, tmp_path / "none", tmp_path / "a\x00b", tmp_path / ("x" * 400)):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_text(name, "recipe")


def _zip(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


def _array(shape, data=b"", kind="<f4"):
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def test_arrays(tmp_path, monkeypatch):
    path, given = (
        tmp_path / "a.npz",
        {"a": np.arange(6.0).reshape(2, 3), "b": np.array("text"), "c": np.zeros((0, 2))},
    )
    np.savez_compressed(path, **given)
    found = read_arrays(path, "agent")
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(given["a"]))
    _zip(path, a=buffer.getvalue())
    np.testing.assert_array_equal(read_arrays(path, "agent")["a"], given["a"])
    for member in (
        _array((2**60, 8)),
        _array((3,), b"1234"),
        _array((-1,)),
        _array((1,), b"12345678", "|O"),
        b"x",
        b"",
    ):
        _zip(path, a=member)
        with pytest.raises(ConfigError, match=r"agent .*a.npz: not an .npz file, or a damaged one"):
            read_arrays(path, "agent")
    _zip(path, a=_array((10**6,), bytes(4 * 10**6)))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(reading, "MAX_BYTES", 10**6)
    with pytest.raises(ConfigError, match=r"it would take 4,000,0.. bytes unpacked; at most 1,000,000"):
        read_arrays(path, "agent")


def test_shortened_text_is_complete_in_the_details():
    fields = json.dumps({"x" * 200: 1})
    with pytest.raises(ConfigError) as caught:
        reading.validate_fields(_model(), parse_fields(fields, "f"), "file f")
    assert "valid fields: size" in caught.value.details
    assert len(str(caught.value)) <= 300


def _model():
    from pydantic import BaseModel

    class Model(BaseModel, extra="forbid"):
        size: int = 1

    return Model
