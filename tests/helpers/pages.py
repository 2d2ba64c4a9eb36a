"""What tests of reports share: their structure, the numbers behind their pictures, hostile names, runs of a sweep."""

import json
import re
from html.parser import HTMLParser

from kvgym.metrics.catalogue import metric_names
from kvgym.utils.frame import Frame

HOSTILE = "<script>alert('x')</script> & $x$"
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}


class Page(HTMLParser):
    """Collects tags, attributes and texts, and checks that tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def data_of(text):
    """Return the numbers of the pictures of a page."""
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found.group(1))


def pictures_of(text):
    """Return the names of the places for pictures."""
    return re.findall(r'<div class="chart[^"]*" data-chart="([^"]+)"></div>', text)


def sweep_frame(points, policies=("a", "b"), seeds=3, failed=()):
    """Runs with latency = 1 + point number + policy number + seed / 10, all other metrics twice that."""
    rows = []
    for i, point in enumerate(points):
        for j, policy in enumerate(policies):
            for seed in range(seeds):
                value = 1 + i + j + seed / 10
                error = "it got stuck <b>" if (i, policy, seed) in failed else ""
                row = dict.fromkeys(metric_names(), 2 * value) | {"e2e_latency_mean": value}
                rows.append({**point, "policy": policy, "seed": seed, "error": error, **row})
    return Frame.from_rows(rows)
