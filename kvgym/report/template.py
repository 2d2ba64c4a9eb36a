"""The page, as a Jinja2 template."""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>{{ css }}</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>

{% if failures %}
<section class="warning" aria-labelledby="failures">
<h2 id="failures">Failed</h2>
<p>These policies have no means, because their runs did not end by themselves. The others are not affected.</p>
<dl>
{% for f in failures %}
<dt>{{ f.policy }} ({{ f.seeds | length }} of {{ f.total }} seed{{ "s" if f.total > 1 }})</dt>
<dd>{{ f.message }}</dd>
{% endfor %}
</dl>
</section>
{% endif %}
{% if unfinished %}
<section class="warning" aria-labelledby="unfinished">
<h2 id="unfinished">Unfinished requests</h2>
<p>The run stopped before these policies had finished all requests. Latencies cover finished requests only, so
compare them with care:
{% for policy, count in unfinished.items() %}{{ policy }} ({{ "{:,}".format(count) }} over all seeds)
{{- ", " if not loop.last else "." }} {% endfor %}</p>
</section>
{% endif %}

<section aria-labelledby="setting">
<h2 id="setting">What was compared</h2>
<table class="plain"><tbody>
{% for term, text in setting %}<tr><th scope="row">{{ term }}</th><td>{{ text }}</td></tr>
{% endfor %}
{% for note in notes %}<tr><th scope="row">Note</th><td>{{ note }}</td></tr>
{% endfor %}
<tr><th scope="row">Completion</th><td>{{ completion }}</td></tr>
</tbody></table>
</section>

<section aria-labelledby="results">
<h2 id="results">Results</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Results">
<table class="numbers"><thead><tr><th scope="col">Policy</th>
{% for c in table.columns %}<th scope="col">{{ c.title }}{% if c.unit %} <span class="unit">({{ c.unit }})</span>
{%- endif %}</th>{% endfor %}</tr></thead><tbody>
{% for row in table.rows %}<tr><th scope="row">{{ swatch(row.policy) }}{{ row.policy }}</th>
{% for cell in row.cells %}<td>{% if cell.best %}<strong>{{ cell.text }}</strong>{% else %}{{ cell.text }}{% endif %}
{%- if cell.interval %}<span class="interval">{{ cell.interval }}</span>{% endif %}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
</div>
<p class="small">
{% if num_seeds > 1 %}Means over {{ num_seeds }} seeds; small: 95 % bootstrap intervals over seeds, for the ratio
resampled in pairs, since every policy ran the same requests.
{% else %}
One seed, so there are no intervals: how much the figures vary is not known.
{% endif %}
Bold: best of the column (by the first of two percentiles), even if by less than the intervals can tell
apart. E2E: arrival to completion. TTFT: time to first token. TBT: time between tokens. Recomputed tokens: KV
tokens thrown away by evictions. Fairness: 1 = all requests got equal token rates.</p>
</section>

<section aria-labelledby="plots">
<h2 id="plots">Plots</h2>
{% for plot in plots %}
<figure>{{ plot.svg }}<figcaption>{{ plot.caption }}</figcaption></figure>
{% endfor %}
{% if no_examples %}<p>The comparison kept no single runs, so there are no plots over time and no distributions.
<code>compare(..., keep_examples=True)</code> keeps them.</p>{% endif %}
</section>

<section aria-labelledby="policies">
<h2 id="policies">Policies</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Policies">
<table><thead><tr><th scope="col">Policy</th><th scope="col">Rule</th><th scope="col">Source</th>
<th scope="col">Needs to know</th><th scope="col">Hyperparameters</th></tr></thead><tbody class="text">
{% for p in policies %}<tr><th scope="row">{{ swatch(p.label) }}{{ p.label }}</th><td>{{ p.summary }}</td>
<td>{{ p.paper }}</td><td>{{ p.needs }}</td><td>{{ p.options }}</td></tr>
{% endfor %}
</tbody></table>
</div>
</section>

<section aria-labelledby="details">
<h2 id="details">Details</h2>
<details><summary>All metrics</summary>
<div class="scroll" tabindex="0" role="region" aria-label="All metrics">
<table class="numbers"><thead><tr><th scope="col">Metric</th>
<th scope="col" class="text">Unit</th><th scope="col" class="text">Meaning</th>
<th scope="col" class="text">Better</th>
{% for p in policies %}<th scope="col" class="name">{{ swatch(p.label) }}{{ p.label }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in metrics %}<tr><th scope="row"><code>{{ row.name }}</code></th><td class="text">{{ row.unit }}</td>
<td class="text meaning">{{ row.summary }}</td><td class="text">{{ row.better }}</td>
{% for cell in row.cells %}<td>{{ cell.text }}{% if cell.interval %}<span class="interval">{{ cell.interval }}</span>
{%- endif %}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
</div>
</details>
<details><summary>How the metrics are defined</summary>
{% for block in definitions %}
{% if block.bullets %}<ul>{% for item in block["items"] %}<li>{{ inline(item) }}</li>{% endfor %}</ul>
{% else %}<p>{{ inline(block["items"][0]) }}</p>
{% endif %}
{% endfor %}
</details>
<details><summary>Configuration and versions</summary>
{% for title, text in configuration %}<h3>{{ title }}</h3>
<pre><code>{{ text }}</code></pre>
{% endfor %}
</details>
</section>

<section aria-labelledby="repeat">
<h2 id="repeat">How to repeat this</h2>
<p>Equal versions, configuration and seeds give equal results.</p>
<pre><code>pip install "kvgym[report]=={{ version }}"</code></pre>
{% if command %}<p>The command that was run:</p>
<pre><code>{{ command }}</code></pre>
<p>The same from Python:</p>{% endif %}
<pre><code>{{ code }}</code></pre>
</section>
</main>
<footer>Made by kvgym {{ version }}.</footer>
</body>
</html>
"""

CSS = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0;
  --stripe: #f6f8fa; --warn: #fff4e5; --warn-line: #b35900; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --ink: #e6e9ec; --soft: #a3adb8; --line: #3a424b;
  --stripe: #1c2229; --warn: #33260f; --warn-line: #e09b4a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main, footer { max-width: 75rem; margin: 0 auto; padding: 0 1.25rem; }
footer { color: var(--soft); font-size: .875rem; padding: 1.5rem 1.25rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 2rem 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .75rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
.lead { font-size: 1.0625rem; max-width: 52rem; }
.small, figcaption { font-size: .875rem; color: var(--soft); max-width: 56rem; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { vertical-align: bottom; font-weight: 600; }
tbody th, thead th:first-child { text-align: left; font-weight: 600; }
tbody th, thead .name, .numbers td { white-space: nowrap; } .numbers td.text { white-space: normal; }
tbody tr:nth-child(even) { background: var(--stripe); }
.text td, td.text, thead th.text, .plain td { text-align: left; }
td.meaning { min-width: 13rem; }
.plain { font-size: .875rem; } .plain th { font-weight: 600; }
.plain th, .plain td { border-bottom: none; padding: .2rem 1rem .2rem 0; overflow-wrap: anywhere; }
.plain tbody tr:nth-child(even) { background: none; }
thead:has(+ .text) th { text-align: left; }
.unit { font-weight: 400; color: var(--soft); white-space: nowrap; }
.interval { display: block; font-size: .75rem; color: var(--soft); white-space: nowrap; }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .5em; }
.warning { background: var(--warn); border-left: 4px solid var(--warn-line); padding: .25rem 1rem .5rem;
  margin: 1.25rem 0; }
.warning h2 { border: none; margin: .5rem 0 .25rem; font-size: 1.0625rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0 2rem; }
svg { display: block; width: 100%; max-width: 56rem; height: auto; }
pre { background: var(--stripe); border: 1px solid var(--line); border-radius: 6px; padding: .75rem 1rem;
  overflow-x: auto; font-size: .8125rem; line-height: 1.45; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid #0072b2; outline-offset: 2px; }
@media print {
  @page { margin: 12mm; }
  :root { color-scheme: light; --back: #fff; --ink: #000; --soft: #444; --line: #bbb; --stripe: #fff; --warn: #fff; }
  main, footer { max-width: none; padding: 0; }
  body { font-size: 10pt; } table { font-size: 8pt; } .numbers { font-size: 6.5pt; } .interval { font-size: 5.5pt; }
  th, td { padding: .15rem .25rem; } td.meaning { min-width: 0; }
  .scroll { overflow: visible; } figure, tr, .warning { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .swatch { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
