"""Wrong fields of descriptions are named, with all the forms that they take, and without pydantic's own names."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from kvgym.errors import ConfigError, field_errors, suggestion
from kvgym.experiments.changes import build_scenario
from kvgym.workloads import make_workload
from kvgym.workloads.base import IntRange


class Inner(BaseModel):
    size: Annotated[int, Field(gt=1, le=8)] | Literal["auto"] = "auto"


class Outer(BaseModel, extra="forbid"):
    inner: Inner = Inner()
    count: Annotated[int, Field(ge=1)] | IntRange | None = None
    groups: int | tuple[Inner, ...] = 1
    share: float = Field(default=0.5, ge=0, lt=1)
    name: str = "x"
    ends: tuple[float, float] = (0.0, 1.0)
    terms: dict[str, float] = {}
    tags: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 3:
            raise ValueError(f"{value} is too long")
        return value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": 0}, ["count: expected a whole number ≥ 1 or a mapping of low, high (got 0)"]),
        ({"count": {"low": 3, "high": 1}}, ["count: high = 1 is below low = 3"]),
        ({"inner": {"size": 9}}, ["inner.size: expected a whole number > 1 and ≤ 8 or one of 'auto' (got 9)"]),
        ({"groups": "two"}, ["groups: expected a whole number or a list, each a mapping of size (got 'two')"]),
        ({"share": 1}, ["share: Input should be less than 1 (got 1)"]),
        (
            {"name": "long", "shape": 2},
            ["name: long is too long",
             "shape: there is no such field; did you mean 'share'? "
             "valid there: inner, count, groups, share, name, ends, terms, tags"],
        ),
        ({"ends": 3}, ["ends: expected a list of 2, each a number (got 3)"]),
        ({"terms": "latency"}, ["terms: expected a mapping, each value a number (got 'latency')"]),
        ({"tags": "one"}, ["tags: expected a list, each a text (got 'one')"]),
    ],
)  # fmt: skip
def test_fields_and_forms(given: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(ValidationError) as found:
        Outer.model_validate(given)
    assert field_errors(found.value, Outer, given) == expected


def test_suggestions() -> None:
    """Names that are alike, and where there are none those of which the unknown one is a part."""
    assert suggestion("mc_fs", ["mc_sf", "vllm"]) == "Did you mean 'mc_sf'?"
    assert (
        suggestion("h100", ["llama2-70b-h100-tp4-2023", "llama2-7b-a100-tp1"])
        == "Did you mean 'llama2-70b-h100-tp4-2023'?"
    )
    assert suggestion("", ["llama"]) == suggestion("a1", ["llama2-7b-a100-tp1"]) == ""


def test_of_descriptions() -> None:
    with pytest.raises(
        ConfigError, match=r"^num_requests: expected a whole number ≥ 1 or a mapping of low, h"
    ):
        build_scenario("a100-llama2-70b", num_requests=0).make_workload()
    with pytest.raises(ConfigError, match="kv_capacity: expected a whole number ≥ 2 or a mapping"):
        build_scenario("a100-llama2-70b", kv_capacity=1)
    with pytest.raises(ConfigError, match=r"arrivals: 'kind' is 'poison', valid are: .*'poisson'"):
        make_workload("lmsys", arrivals={"kind": "poison", "rate": 1})
    with pytest.raises(ConfigError, match=r"lengths: path: Field required$"):
        make_workload("lmsys", lengths={"kind": "trace"})
