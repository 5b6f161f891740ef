"use strict";
// The console polls JSON every two seconds while its tab is visible. Texts of the
// server enter the page as text nodes only, never as markup.

const ROOT = document.body.dataset.root;
const EVERY_MS = 2000;
const STALE_AFTER_S = 6;
const CHART_S = 900;
const ALERT_SHARE = 0.001; // of failed requests, as in TollgateErrorsHigh
const TONES = ["--mild", "--middle", "--severe"];

const $ = (id) => document.getElementById(id);
const tabs = [...document.querySelectorAll("[role=tab]")];
let product = tabs.length ? tabs[0].dataset.product : "";
let timer = 0;
let answered = 0; // time of the last complete poll, ms on the monotonic clock
let answeredAt = ""; // the same, UTC
let shown = 0; // time when the tab became visible, ms on the monotonic clock
let problem = ""; // that the server reports
let failure = ""; // of a poll that the server refused
let polls = 0; // only the newest poll changes the page
let lookups = 0; // only the newest look-up does
let points = [];
let words = [];
let target = 0;
let charts = [];
const drawn = new Map(); // last data of each part of the page

// Numbers ---------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const count = (value) => whole.format(Math.round(value));
function percent(value) {
  if (value === null || value === undefined) return "–";
  const digits = value !== 0 && Math.abs(value) < 0.001 ? 3 : 1;
  return `${(value * 100).toFixed(digits).replace(/^-(0\.?0*)$/, "$1")} %`;
}
const decimal = (value, digits) =>
  value === null || value === undefined ? "–" : value.toFixed(digits);
const ms = (value) => decimal(value, value !== null && value < 10 ? 2 : 1);
const perSecond = (value) =>
  value === null || value === undefined ? "–" : value < 10 ? value.toFixed(1) : count(value);
const moment = (text) => text.slice(0, 19).replace("T", " ");
const SOURCES = { store: "store", last_known: "last known values", defaults: "defaults", fallback: "policy’s fallback" };
const KINDS = { dry: "dry runs", repeated: "repeated answers", bad: "bad rows" };
const DOCUMENTS = { "model card": "card", "parity report": "parity", "parity plot": "plot" };
function since(text) {
  const today = new Date().toISOString().slice(0, 10);
  return text.startsWith(today) ? text.slice(11, 19) : text.slice(0, 10);
}
const utc = (seconds) => moment(new Date(seconds * 1000).toISOString());
function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// Elements --------------------------------------------------------------------------

function element(tag, options = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) found.setAttribute(name, value);
  found.append(...children.map((one) => (one instanceof Node ? one : String(one))));
  return found;
}
const cell = (text, kind = "text") => element("td", { class: kind }, text);
const number = (text) => cell(text, "number");
const head = (...children) => element("th", { scope: "row", class: "text" }, ...children);
const soft = (text) => element("p", { class: "soft" }, text);

function meter(share, label, level) {
  return element("td", {},
    element("meter", { min: 0, max: 1, value: share || 0, "aria-label": label, class: `level-${level}` }));
}

// Replace a part of the page only when its data changed, so that a selection stays.
function changed(key, data) {
  const text = JSON.stringify(data);
  if (drawn.get(key) === text) return false;
  drawn.set(key, text);
  return true;
}

function fill(id, data, rows, empty) {
  if (!changed(id, data)) return;
  const body = $(id).tBodies[0];
  const columns = $(id).tHead.rows[0].cells.length;
  const found = rows();
  body.replaceChildren(...(found.length ? found
    : [element("tr", {}, element("td", { class: "soft", colspan: columns }, empty))]));
}

function tile(name, text, note = "", tone = "", noteTone = "") {
  const value = $(`tile-${name}`);
  if (value.textContent !== text) value.textContent = text;
  value.className = tone;
  $(`note-${name}`).textContent = note;
  $(`note-${name}`).className = `note ${noteTone}`;
}

// Parts of the page -----------------------------------------------------------------

function showOverview(data) {
  for (const one of data.products) {
    const tab = tabs.find((each) => each.dataset.product === one.name);
    if (!tab) continue;
    tab.className = one.ready ? "ready" : "not-ready";
    tab.querySelector(".state").textContent = one.ready ? `${perSecond(one.rate)}/s` : "not ready";
    if (one.name === product) showTiles(one);
  }
  fill("table-faults", data.faults, () => data.faults.map((one) => element("tr", {},
    cell(moment(one.time), "time"), cell(one.product || "all"), cell(one.part), cell(one.what, "long"),
    one.mended_s === null ? element("td", { class: "number bad" }, "not") : number(`${one.mended_s.toFixed(1)} s`),
    cell(one.outcome, "long"))), "No fault is recorded.");
  const stuck = Object.entries(data.stuck_loops).map(([name, why]) => `${name}: ${why}`);
  const old = data.sampled_s === null ? "" : `; figures of ${utc(data.sampled_s)} UTC`;
  problem = data.problem ? data.problem + old : stuck.length ? `stuck loops: ${stuck.join("; ")}` : "";
}

function showTiles(one) {
  tile("ready", one.ready ? "ready" : "not ready", one.problem, one.ready ? "good" : "bad", one.ready ? "" : "bad");
  let note = one.state === "converged" ? `since ${since(one.since)} UTC` : `${one.state}: ${one.desired} ${one.doing}`;
  if (one.canary) note = `canary ${one.canary}`;
  if (one.unreachable) note = `repository: ${one.unreachable}`;
  tile("release", one.release || "none", note, "", one.state === "failed" || one.unreachable ? "bad" : "");
  tile("rate", `${perSecond(one.rate)} /s`, one.rate === null ? "needs two samples" : one.rate === 0 ? "no decisions in the last 30 s" : "mean of the last 30 s");
  tile("p50", one.p50_ms === null ? "–" : `${ms(one.p50_ms)} ms`, one.p50_ms === null ? "no decisions" : "last 30 s");
  const slow = target && one.p99_ms > target;
  tile("p99", one.p99_ms === null ? "–" : `${ms(one.p99_ms)} ms`, target ? `target ${target} ms` : "", slow ? "warn" : "");
  tile("failed", percent(one.failed), one.failed === null ? "no requests" : "last 30 s, with probes", one.failed > ALERT_SHARE ? "bad" : one.failed > 0 ? "warn" : "");
  tile("degraded", percent(one.degraded), one.degraded === null ? "no decisions" : "not from the store", one.degraded > 0 ? "warn" : "");
  tile("store", one.breaker === "closed" ? "answers" : one.breaker ? "away" : "–", one.breaker ? `circuit breaker ${one.breaker}` : "", one.breaker && one.breaker !== "closed" ? "bad" : "");
}

function showLive(data) {
  const figures = data.figures;
  setWords(data.words);
  if (target !== data.target_ms) { target = data.target_ms; drawCharts(); }
  const level = (name) => Math.max(0, words.indexOf(name));
  const seconds = figures.window_s;
  const label = (id, text) => { $(`${id}-title`).querySelector("small").textContent = text; };
  const window = seconds ? `last ${Math.round(seconds)} s` : "collecting the first samples";
  label("layers", `ms, ${window}`);
  for (const one of ["mix", "sources", "degraded"]) label(one, window);
  fill("table-layers", figures.latencies, () => figures.latencies.map((one) => element("tr", {},
    head(one.layer), number(ms(one.p50_ms)), number(ms(one.p95_ms)), number(ms(one.p99_ms)), number(ms(one.mean_ms)))), "No decisions yet.");
  fill("table-mix", [figures.outcomes, words], () => figures.outcomes.map((one) => element("tr", { class: `level-${level(one.name)}` },
    head(element("i", { class: "key", "aria-hidden": "true" }), one.name),
    number(count(one.rows)), number(percent(one.share)), meter(one.share, one.name, level(one.name)), number(count(one.total)))), "No decisions yet.");
  const named = (names, found) => Object.entries(names).flatMap(([key, text]) => found.filter((one) => one.name === key).map((one) => [text, one]));
  const sources = [...named(SOURCES, figures.sources), ...named(KINDS, figures.kinds)];
  fill("table-sources", sources, () => sources.map(([name, one]) => element("tr", {},
    head(name), number(count(one.rows)), number(percent(one.share)), number(count(one.total)))), "No decisions yet.");
  fill("table-degraded", figures.reasons, () => figures.reasons.map((one) => element("tr", {},
    head(element("code", {}, one.name)), number(count(one.rows)), number(percent(one.share)), meter(one.share, one.name, 1), number(count(one.total)))), "No row was degraded since the server started.");
}

function showRecords(data) {
  fill("table-releases", [data.history, data.documents, data.trials_problem], () => data.history.map((one) => element("tr", {},
    cell(moment(one.time).slice(0, 16), "time"), cell(one.action), head(one.release),
    cell(one.approver ? `${one.actor}, approved by ${one.approver}` : one.actor), cell(one.reason, "long"),
    documentsCell(data.documents[one.release] || []))), data.trials_problem || "No release was activated yet.");
  showTrials(data);
  showDrift(data.drift);
}

function documentsCell(found) {
  const links = found.map((one) => element("a", { href: one.href, target: "_blank", rel: "noopener", title: `${one.name} of ${one.model} ${one.version}` }, DOCUMENTS[one.name] || one.name));
  return element("td", { class: "links" }, ...(links.length ? links.flatMap((one, at) => (at ? [" · ", one] : [one])) : ["–"]));
}

function showTrials(data) {
  if (!changed("trials", [data.trials, data.trials_problem])) return;
  if (data.trials_problem) { $("trials").replaceChildren(element("p", { class: "bad" }, data.trials_problem)); return; }
  if (!data.trials.length) { $("trials").replaceChildren(soft("No release is on trial.")); return; }
  $("trials").replaceChildren(...data.trials.flatMap(trial));
}

function trial(one) {
  const { champion, challenger } = one;
  const share = one.percent ? `, ${one.percent} % of the customers` : "";
  const names = [...new Set([...Object.keys(champion.shares), ...Object.keys(challenger.shares)])];
  const line = (name, a, b) => element("tr", {}, head(name), number(a), number(b));
  const gates = one.gates.map((gate) => {
    const unit = gate.gate.endsWith("_share") ? percent : (value) => decimal(value, 2);
    const tone = { holds: "good", broken: "bad", unsure: "warn" }[gate.state] || "soft";
    return element("tr", {}, head(gate.gate.replaceAll("_", " ")), cell(gate.state, tone),
      number(unit(gate.found)), number(`${unit(gate.low)} to ${unit(gate.high)}`), number(unit(gate.limit)), number(count(gate.rows)));
  });
  return [
    soft(`${one.mode} of ${challenger.release} against ${champion.release}${share}, since ${moment(one.began)} UTC; ${count(one.rows)} rows decided by both, ${percent(one.flips)} decided otherwise`),
    table("Both releases", ["", `#${champion.release}`, `#${challenger.release}`], [
      line("rows", count(champion.rows), count(challenger.rows)),
      ...names.map((name) => line(name, percent(champion.shares[name]), percent(challenger.shares[name]))),
      line("errors", percent(champion.errors), percent(challenger.errors)),
      line("degraded", percent(champion.degraded), percent(challenger.degraded)),
      line("p99, ms", ms(champion.p99_ms), ms(challenger.p99_ms))]),
    element("h3", {}, "Gates"),
    table("Gates of the trial", ["gate", "state", "#found", "#95 % interval", "#limit", "#rows"], gates),
  ];
}

function table(caption, heads, rows) {
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads.map((one) => element("th", one.startsWith("#") ? { scope: "col", class: "number" } : { scope: "col" }, one.replace("#", ""))))),
    element("tbody", {}, ...rows)));
}

function showDrift(drift) {
  const summary = $("drift-summary");
  if (changed("drift", drift)) {
    if (!drift) {
      summary.replaceChildren("No report: run ", element("code", {}, "tollgate monitor --every 60s --metrics STATE/monitor.prom --report STATE/monitor.html"), ", with this server's state folder for STATE.");
    } else {
      const judged = drift.windows.map(([release, kind, all, drifted]) => `${release}: ${count(drifted)} of ${count(all)} ${kind === "day" ? "days" : "windows"} drifted`);
      const parts = [drift.looked_s ? `the monitor looked at ${utc(drift.looked_s)} UTC` : "the monitor has not looked yet"];
      if (drift.decided_s) parts.push(`its newest decision is of ${utc(drift.decided_s)} UTC`);
      parts.push(...judged);
      summary.replaceChildren(parts.join("; "));
      if (drift.href) summary.append(" · ", element("a", { href: drift.href, target: "_blank", rel: "noopener" }, "report"));
    }
  }
  const columns = drift ? drift.columns : [];
  fill("table-drift", columns, () => columns.map((one) => element("tr", {},
    head(one.kind === "score" ? "score" : one.name), cell(one.drifted ? "drift" : one.psi === null ? "not judged" : "no drift", one.drifted ? "bad" : "soft"),
    number(decimal(one.psi, 3)), number(one.sigmas === null ? "–" : (one.sigmas >= 0 ? "+" : "") + one.sigmas.toFixed(2)), number(percent(one.missing)),
    cell(one.window, "time"), cell(one.release, "time"))), "No window was judged yet.");
}

// Charts ----------------------------------------------------------------------------

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function drawCharts() {
  for (const one of charts) one.destroy();
  charts = [];
  const rates = $("chart-rates"), latency = $("chart-latency");
  for (const one of [rates, latency]) one.replaceChildren();
  if (points.length < 2) {
    for (const one of [rates, latency]) one.replaceChildren(element("p", { class: "empty" }, "collecting …"));
    return;
  }
  const tone = words.map((_, at) => color(TONES[at] || "--soft"));
  charts = [
    chart(rates, words.map((word, at) => ({ label: word, stroke: tone[at], width: 1.5, value: (_, v) => (v === null ? "–" : `${perSecond(v)} /s`) }))),
    chart(latency, [
      { label: "p50", stroke: color("--mild"), width: 1.5, value: (_, v) => (v === null ? "–" : `${ms(v)} ms`) },
      { label: "p99", stroke: color("--middle"), width: 1.5, value: (_, v) => (v === null ? "–" : `${ms(v)} ms`) },
      { label: "target p99", stroke: color("--soft"), width: 1, dash: [4, 4], value: () => (target ? `${target} ms` : "–") }]),
  ];
  updateCharts();
}

function chart(place, series) {
  const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 }, ticks: { stroke: color("--rule"), width: 1 }, font: "11px system-ui, sans-serif" };
  return new uPlot({
    width: place.clientWidth, height: 190, padding: [8, 18, 0, 0],
    legend: { live: true },
    cursor: { sync: { key: "console" }, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { x: { range: (_, low, high) => [high - CHART_S, high] }, y: { range: (_, low, high) => [0, Math.max(high * 1.08, 1)] } },
    axes: [{ ...axis, space: 70, incrs: [60, 180, 300], values: (_, at) => at.map((one) => new Date(one * 1000).toISOString().slice(11, 16)) }, { ...axis, size: 44 }],
    series: [{ value: (_, v) => (v === null ? "–" : new Date(v * 1000).toISOString().slice(11, 19)), label: "UTC" }, ...series.map((one) => ({ ...one, points: { show: false } }))],
  }, [[], ...series.map(() => [])], place);
}

function updateCharts() {
  if (!charts.length) return;
  const times = points.map((one) => one[0]);
  charts[0].setData([times, ...words.map((_, at) => points.map((one) => one[1][at] ?? null))]);
  charts[1].setData([times, points.map((one) => one[2]), points.map((one) => one[3]), times.map(() => target || null)]);
  const last = points[points.length - 1];
  for (const one of charts) if (one.cursor.left < 0) one.setLegend({ idx: points.length - 1 });
  $("chart-rates").setAttribute("aria-label", "Decisions per second by outcome; now " + words.map((word, at) => `${word} ${perSecond(last[1][at])}`).join(", "));
  $("chart-latency").setAttribute("aria-label", `Latency of the whole decision; now p50 ${ms(last[2])} ms, p99 ${ms(last[3])} ms`);
}

// A release may change the outcomes; points of other outcomes are not theirs.
function setWords(found) {
  if (found.join() === words.join()) return;
  words = found;
  points = [];
  drawCharts();
}

function addPoints(data) {
  setWords(data.words);
  if (!data.points.length) return;
  points.push(...data.points);
  const first = points[points.length - 1][0] - CHART_S;
  points = points.filter((one) => one[0] >= first);
  if (charts.length) updateCharts(); else drawCharts();
}

// Polls -----------------------------------------------------------------------------

async function get(path, query = {}) {
  const found = await fetch(`${ROOT}/data/${path}?${new URLSearchParams(query)}`, { signal: AbortSignal.timeout(path === "decision" ? 20000 : 8000) });
  if (found.status === 401) { location.assign(ROOT); throw new Error("signed out"); }
  const data = await found.json();
  if (!found.ok) throw Object.assign(new Error(data.problem || found.statusText), { answered: true });
  return data;
}

async function poll() {
  clearTimeout(timer);
  const mine = ++polls;
  const chosen = { product };
  try {
    const after = points.length ? points[points.length - 1][0] : 0;
    const [overview, live, records] = await Promise.all([get("overview"), get("live", chosen), get("records", chosen)]);
    const chart = await get("points", { ...chosen, after });
    if (mine !== polls) return;
    showLive(live); showOverview(overview); showRecords(records); addPoints(chart);
    answered = performance.now();
    answeredAt = utc(Date.now() / 1000);
    failure = "";
  } catch (error) {
    if (mine !== polls) return;
    failure = error.answered ? error.message : "";
  }
  showAge();
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(poll, EVERY_MS);
}

// The text of the banner stays the same while it is shown: it is read aloud at a change.
function showAge() {
  const now = performance.now();
  const stale = now - Math.max(answered, shown) > STALE_AFTER_S * 1000;
  $("age").textContent = answered ? `${ago((now - answered) / 1000)} old` : "loading …";
  const figures = answered ? `the figures are those of ${answeredAt} UTC` : "no figures yet";
  const text = stale ? `${failure || "The server does not answer"}; ${figures}.` : problem;
  const banner = $("banner");
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
  document.body.classList.toggle("stale", stale && answered > 0);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) return;
  shown = performance.now();
  poll();
});

// Products as tabs ------------------------------------------------------------------

function choose(tab) {
  for (const one of tabs) {
    one.setAttribute("aria-selected", one === tab ? "true" : "false");
    one.tabIndex = one === tab ? 0 : -1;
  }
  if (product === tab.dataset.product) return;
  product = tab.dataset.product;
  $("main").setAttribute("aria-labelledby", tab.id);
  history.replaceState(null, "", `#${encodeURIComponent(product)}`);
  lookups += 1;
  $("decision").replaceChildren();
  blank();
  poll();
}

// Remove the figures of the product that was shown before.
function blank() {
  points = [];
  target = 0;
  drawn.clear();
  drawCharts();
  for (const one of document.querySelectorAll("#tiles dd")) {
    one.textContent = one.className.startsWith("note") ? "" : "…";
    one.classList.remove("good", "warn", "bad");
  }
  for (const one of document.querySelectorAll("table[id]")) {
    const columns = one.tHead.rows[0].cells.length;
    one.tBodies[0].replaceChildren(element("tr", {}, element("td", { class: "soft", colspan: columns }, "loading …")));
  }
  $("drift-summary").textContent = "loading …";
  $("trials").replaceChildren(soft("loading …"));
}

for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(tab);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const to = tabs[(next + tabs.length) % tabs.length];
    to.focus();
    choose(to);
  });
}

// Explain a decision ----------------------------------------------------------------

$("decision-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = $("decision-id").value.trim();
  if (!id) return;
  const mine = ++lookups;
  const show = (...parts) => { if (mine === lookups) $("decision").replaceChildren(...parts); };
  show(soft(`looking for ${id} …`));
  try {
    show(...explanation(await get("decision", { product, id })));
  } catch (error) {
    show(element("p", { class: "bad" }, error.answered ? error.message : "The server does not answer."));
  }
});

function explanation(one) {
  const level = Math.max(0, one.outcomes.indexOf(one.decision));
  const score = one.score === null ? "no score" : `score ${one.score.toFixed(4)}`;
  const facts = element("dl", { class: "two" });
  const fact = (name, text) => facts.append(element("dt", {}, name), element("dd", {}, text));
  fact("decided", `${one.decided} by ${one.release}`);
  fact("record", `${one.record}, ${one.place}`);
  if (one.threshold) {
    const word = one.threshold.lower ? "up to" : "from";
    const last = one.threshold.decline === null ? "" : `, ${one.outcomes[2]} ${word} ${one.threshold.decline}`;
    fact("thresholds", `${one.outcomes[1]} ${word} ${one.threshold.review}${last} (segment ${one.threshold.segment})`);
  }
  for (const rule of one.rules) fact(`rule ${rule.name}`, `${rule.value} (${rule.meaning})`);
  for (const bit of one.degraded) fact(bit.name, bit.value);
  const parts = [element("p", { class: `answer level-${level}` }, element("i", { class: "key", "aria-hidden": "true" }), `${one.decision}, ${score}`), facts];
  const reasons = one.reasons.length ? one.reasons.map((each) => each.text) : one.codes.map((each) => each.value || each.name);
  if (reasons.length) parts.push(element("h3", {}, "Reasons for the person"), element("ol", {}, ...reasons.map((text) => element("li", {}, text))));
  if (one.unexplained) parts.push(soft(`No exact contributions: ${one.unexplained}`));
  else if (!one.contributions.length) parts.push(soft("No feature contributed: the rule decided before the model."));
  else {
    const worse = one.threshold && one.threshold.lower ? -1 : 1; // the severe direction
    const most = Math.max(...one.contributions.map((each) => Math.abs(each.amount)), 1e-9);
    parts.push(element("h3", {}, `Features, by how far they moved the score’s margin (${one.expected.toFixed(4)} before, ${one.margin.toFixed(4)} after)`),
      table("Features that moved the score", ["feature", "#value", "#moved by", ""], one.contributions.map((each) => element("tr", {},
        head(each.feature), number(String(Number(each.value.toPrecision(6)))), number((each.amount >= 0 ? "+" : "") + each.amount.toFixed(4)),
        meter(Math.abs(each.amount) / most, each.feature, each.amount * worse > 0 ? 2 : 0)))));
  }
  return parts;
}

// Start -----------------------------------------------------------------------------

const linked = tabs.find((one) => `#${encodeURIComponent(one.dataset.product)}` === location.hash);
if (linked) choose(linked);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
let width = 0;
new ResizeObserver(() => {
  if (innerWidth === width) return;
  width = innerWidth;
  for (const one of charts) one.setSize({ width: one.root.parentElement.clientWidth, height: 190 });
}).observe(document.body);
setInterval(showAge, 1000);
drawCharts();
poll();
