"""Wrong use of commands: options of other commands, arguments for which there are options, lists."""

import pytest

from kvgym.cli.app import Commands
from kvgym.errors import LIMIT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--seeds", 3), "run has no option --seeds; options of kvgym compare, sweep,"),
        (("run", "--seeds", 3), "; did you mean --seed?"),
        (("capacity", "--price", 2), "capacity has no option --price; it is an option of kvgym capacity provision"),
        (("compare", "--tolerance=0.1"), "compare has no option --tolerance; it is an option of kvgym capacity"),
        (("run", "--policy", "fcfs"), "kvgym run has no option --policy; did you mean --policies?"),
        (("tune", "--metric", "ttft_p99"), "kvgym tune has no option --metric; did you mean --metrics?"),
        (("list", "--nothing"), "kvgym list has no option --nothing; kvgym list --help lists its options"),
        (("run", "fcfs"), "unexpected argument 'fcfs'; give policies with --policies, a scenario with --scenario"),
        (("warm-up", "all"), "kvgym warm-up: unexpected argument 'all'; see kvgym warm-up --help"),
        (("compare", "--rate", "10,20"), "--rate 10,20: expected one value; for several: kvgym sweep rate=10,20"),
        (("capacity", "-n=50:200:50"), "-n 50:200:50: expected one value; for several: kvgym sweep num_requests=50:"),
        (("tune", "--tbt-slo", "0.1,0.2"), "for several: kvgym sweep tbt_slo=0.1,0.2"),
        (("run", "--tp", "1,2"), "for several: kvgym sweep hardware.tp=1,2"),
        (("run",), "kvgym run needs a policy: --policies NAME"),
        (("run", "-p", "fcfs,mc_sf"), "--policies fcfs, mc_sf: kvgym run runs one policy; kvgym compare runs several"),
        (("server", "validate", "x.csv", "-p", "fcfs", "-p", "mc_sf"), "kvgym server validate runs one policy"),
    ],
)  # fmt: skip
def test_mistakes_name_what_to_do(kvgym, arguments, message):
    code, out, err = kvgym(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert len(err.strip()) <= len("error: ") + LIMIT


def test_lists_are_valid_where_an_option_takes_several_values(kvgym):
    for given in (("capacity", "--workers", "1,2"), ("capacity", "provision", "--hardware", "a,b")):
        assert "unknown scenario" in kvgym(*given, "--scenario", "nowhere")[2]


def test_the_commands_with_an_option_are_known_also_by_its_negation():
    owners = Commands().owners
    assert "compare" in owners("--no-report")
    assert owners("--records") == ["run"]
