"""Style sheet and content security policy of the HTML page of a decision."""

# The page may use its inline style and nothing else, even if a name contains HTML.
SAFE = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --raised: #ffffff; --ink: #1d2126; --soft: #5c6570;
  --rule: #dde1e5; --approve: #2c7a4b; --review: #9a6200; --decline: #b3261e;
  --mark: #2f6f9f; --track: #e6e9ec;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --raised: #1d2126; --ink: #e6e8ea; --soft: #9aa4ae;
    --rule: #343a41; --approve: #77c796; --review: #e5b04f; --decline: #ff897d;
    --mark: #7db4de; --track: #2b3138;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem;
  background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
header { border-left: .4rem solid var(--tone); padding-left: 1rem; }
header p { margin: 0; color: var(--soft); }
h1 { margin: 0; font-size: 2rem; line-height: 1.25; color: var(--tone); }
h2 { margin: 2.25rem 0 .5rem; font-size: 1.15rem; }
p { margin: .5rem 0; max-width: 46rem; }
code {
  font: .86em/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere;
}
.approve { --tone: var(--approve); } .review { --tone: var(--review); }
.decline { --tone: var(--decline); }
.tiles {
  display: grid; gap: .75rem; margin: 1.25rem 0 0;
  grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
}
.tile {
  padding: .7rem 1rem; border: 1px solid var(--rule); border-radius: .5rem;
  background: var(--raised);
}
.tile dt, .soft { color: var(--soft); font-size: .88rem; }
.tile dd { margin: 0; font-size: 1.2rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td {
  padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--rule);
  text-align: left; vertical-align: top;
}
thead th { color: var(--soft); font-weight: 500; }
tbody th { font-weight: 500; white-space: nowrap; }
td.number {
  text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
}
.scroll { overflow-x: auto; margin-bottom: .75rem; }
.track {
  position: relative; display: block; width: 9rem; height: .45rem; margin-top: .5rem;
  border-radius: .25rem; background: var(--track);
}
.track i {
  position: absolute; top: -.2rem; width: .28rem; height: .85rem; margin-left: -.14rem;
  border-radius: .14rem; background: var(--mark);
}
.track.out i { background: var(--decline); }
.bad { color: var(--decline); } .good { color: var(--approve); }
summary { cursor: pointer; color: var(--mark); }
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
