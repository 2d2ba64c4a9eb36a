"""Places of declared names."""

from kvgym.compiling.places import constants, places


def test_places_follow_the_declaration():
    found = places((("kv", "memory in use"), ("class", "its class")))
    assert (found.kv, found.class_, len(found)) == (0, 1, 2)
    assert places(("ask_every", "answer")) == (0, 1)
    assert constants({"low": 4, "in": 8}).in_ == 8
