"""The table of what routers know."""


def test_every_view_has_a_row(fleets, capsys):
    script = fleets("compare_router_views")
    script.main(["--seeds", "1", "--num-requests", "40"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(script.VIEWS)
    assert len({row.split(" | ", 1)[1] for row in rows}) > 3
