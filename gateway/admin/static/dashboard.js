// The dashboard: one stream of snapshots for the page, and one request every two seconds for the topic that is open.

import { Picture, countChart, latencyChart, milliseconds } from "./picture.js";

const $ = (id) => document.getElementById(id);
const picture = new Picture($("network"));
const DETAIL_EVERY = 2000, MESSAGE_FOR = 5000, AGAIN_AFTER = 2000, NEWEST_WAYS = 10;
const state = { role: "", snapshot: null, topic: null, detail: null, found: null, opened: new Set(), touched: false, timer: 0, messageTimer: 0 };

// Small helpers.

function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

// Rows keep their elements from one second to the next, so that focus and selection stay where they are.
function sync(parent, items, key, make) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item)), print = JSON.stringify(item);
    let row = old.get(name);
    old.delete(name);
    if (row && row.dataset.print !== print) {
      const fresh = make(item), focused = document.activeElement?.dataset?.focus, inside = row.contains(document.activeElement);
      row.replaceWith(fresh);
      if (place === row) place = fresh;
      row = fresh;
      if (inside && focused) row.querySelector(`[data-focus="${focused}"]`)?.focus();
    } else if (!row) row = make(item);
    row.dataset.key = name; row.dataset.print = print;
    if (row === place) place = place.nextElementSibling;
    else parent.insertBefore(row, place);
  }
  for (const row of old.values()) row.remove();
}

const number = (value) => (value ?? 0).toLocaleString("en");
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
function ago(at, now) {
  if (at == null) return "–";
  const seconds = Math.round(now - at), size = Math.abs(seconds);
  const text = size < 90 ? `${size} s` : size < 5400 ? `${Math.round(size / 60)} min` : size < 129600 ? `${Math.round(size / 3600)} h` : `${Math.round(size / 86400)} d`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}
const shortId = (id) => (id && id.length > 24 ? `${id.slice(0, 12)}…${id.slice(-8)}` : id ?? "");

function say(text) {
  clearTimeout(state.messageTimer);
  $("message").textContent = text;
  $("message").hidden = !text;
  if (text) state.messageTimer = setTimeout(() => say(""), MESSAGE_FOR);
}

// Talking to the gateway.

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
  if (answer.status === 401) { signIn(); throw new Error("a token is needed"); }
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer;
}

function signIn() {
  const before = sessionStorage.getItem("token");
  sessionStorage.removeItem("token");
  $("main").hidden = true; $("login").hidden = false;
  if (before) say("This token is not known");
  $("token").focus();
}

async function follow() {
  for (;;) {
    try {
      state.role = (await (await ask("api/who")).json()).role;
      const reader = (await ask("api/stream")).body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        const last = parts.pop();
        if (last?.startsWith("data: ")) show(JSON.parse(last.slice(6)));
      }
    } catch (error) {
      if (!$("login").hidden) return;
    }
    badge("no connection", false);
    await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER));
  }
}

// The overview.

function badge(text, good) {
  $("ready").textContent = text;
  $("ready").className = `badge ${good ? "good" : "bad"}`;
}

function show(snapshot) {
  state.snapshot = snapshot;
  $("login").hidden = true; $("main").hidden = false;
  const { about, totals, network, charts, at } = snapshot;
  const bad = snapshot.health.filter((check) => !check.ok);
  document.title = `${about.name} – psph`;
  $("name").textContent = about.name;
  badge(bad.length ? `not ready: ${bad.map((check) => check.name).join(", ")}` : "ready", !bad.length);
  $("about").textContent = `hub ${about.hub} · ids ${about.naming} · version ${about.version} · up since ${clock(about.started)} · ${state.role} · ${snapshot.viewers} looking`;
  const rate = charts.delivered.filter((p) => p[0] >= at - 11).reduce((sum, p) => sum + p[1], 0) / 10;
  const tiles = [["deliveries a second", rate.toFixed(rate < 10 ? 1 : 0)], ["delivered", number(totals.delivered)], ["failed tries", number(totals.failed), totals.failed > 0],
    ["owed now", number(totals.owed), totals.owed > 0], ["given up", number(totals.given_up), totals.given_up > 0], ["into the network", number(totals.published)],
    ["from the network", number(totals.arrived)], ["topics", number(totals.topics)], ["subscriptions", number(totals.subscribers)]];
  sync($("tiles"), tiles, (tile) => tile[0], ([name, value, alarming]) => h("div", { class: alarming ? "bad" : "" }, h("dt", {}, name), h("dd", {}, value)));
  for (const element of document.querySelectorAll(".of-network")) element.hidden = about.alone;
  picture.show(network);
  if (state.detail) picture.light(state.detail.paths.filters);
  $("network-text").textContent = network.trouble ?? `${network.nodes.length + network.left_out} nodes and ${network.links.length} links, seen from ${network.name}` + (network.left_out ? `; ${network.left_out} are not drawn` : "");
  showCharts(charts, at);
  if (!state.found) showTopics(snapshot.topics, `The ${snapshot.topics.length} in which something happened last. Choose one to see its way.`);
  sync($("health"), [...snapshot.health, ...snapshot.queues.map((queue) => ({ queue: true, ...queue }))], (one) => (one.queue ? `q ${one.name}` : one.name), (one) => one.queue
    ? h("li", {}, `${one.name}: ${number(one.waiting)} of ${number(one.bound)}`)
    : h("li", {}, h("b", { class: one.ok ? "good-text" : "bad-text" }, one.ok ? "✓ " : "✗ "), `${one.name}: ${one.text}`));
  showNode(network);
  showSessions(snapshot);
  sync($("events"), snapshot.events, (event) => event.number, eventRow);
}

function showCharts(charts, now) {
  const latest = (points) => points.at(-1), sum = (points) => points.reduce((total, p) => total + p[1], 0);
  const first = Math.min(...Object.values(charts).flat().map((p) => p[0]));
  const span = Math.min(120, Math.max(20, now - first));
  const latency = (title, hint, points) => [title, hint, latencyChart(points, now, span), latest(points) ? `${milliseconds(latest(points)[2])}, 95 %: ${milliseconds(latest(points)[3])}` : "nothing yet"];
  const all = [
    ["Deliveries a second", "answers of callbacks; failures in red", countChart(charts.delivered, charts.failed, now, span), `${number(latest(charts.delivered)?.[1] ?? 0)} delivered, ${number(sum(charts.failed))} failed`],
    ["Crossings a second", "from the network, and into it", countChart(charts.arrived, charts.published, now, span, "other"), `${number(sum(charts.arrived))} came, ${number(sum(charts.published))} went`],
    latency("PuSH delivery", "from acceptance to the callback's answer", charts.delivery),
    latency("PuSH intake", "from a ping to the publication", charts.intake),
    latency("PSIRP crossing", "from another gateway to here", charts.crossing),
    latency("PSIRP export", "from acceptance into the network", charts.export),
  ];
  $("charts").replaceChildren(...all.map(([title, hint, drawing, text]) => h("div", { class: "chart" }, h("h3", {}, title), h("p", { class: "quiet" }, hint), drawing, h("p", {}, text))));
}

function showNode(network) {
  const rows = [["items it publishes", network.publishes], ["items it subscribes to", network.subscribes], ["publications handed out", network.handed_out], ["filters it sends along", network.filters]];
  rows.push(["rendezvous matches for this gateway", `${number(network.matched)} of ${number(network.wanted)} wanted items`]);
  rows.push(["rendezvous matches in the network", network.matches ?? `known to ${network.topology.join(", ") || "nobody yet"}`]);
  for (const one of network.doubted) rows.push([`${one.node} is not believed to be ${one.roles}`, one.reason]);
  for (const [what, count] of Object.entries(network.forwarder)) rows.push([`frames ${what}`, count]);
  const drops = Object.entries(network.drops);
  if (!drops.length) rows.push(["dropped", 0]);
  for (const [reason, count] of drops) rows.push([`dropped, ${reason}`, count]);
  sync($("node"), rows.flatMap(([name, value]) => [{ name }, { name, value }]), (one) => `${one.name} ${"value" in one}`, (one) => "value" in one
    ? h("dd", {}, typeof one.value === "number" ? number(one.value) : one.value) : h("dt", {}, one.name));
}

function showSessions({ sessions, protocols, at }) {
  const panels = protocols.flatMap((protocol) => protocol.rows.map(([name, value]) => `${name}: ${typeof value === "number" ? number(value) : value}`));
  $("sessions-text").textContent = [`The first ${sessions.length}; psph sessions shows all, and what each wants.`, ...panels].join(" · ");
  const shown = sessions.map((one) => ({ ...one, age: ago(one.since, at), role: state.role }));
  sync($("sessions").tBodies[0], shown, (one) => `${one.protocol} ${one.who}`, (one) => h("tr", {},
    h("td", {}, one.who || "everything that enters here", h("span", { class: "id" }, `${one.protocol}${one.durable ? "" : ", ends with its connection"}`)),
    h("td", { "data-label": "State", class: one.state === "live" ? "good-text" : "" }, one.state),
    h("td", { class: "number", "data-label": "Subscriptions" }, number(one.subscriptions)),
    h("td", { class: `number ${one.behind ? "bad-text" : ""}`, "data-label": "Behind on" }, number(one.behind)),
    h("td", { "data-label": "Since" }, one.age),
    h("td", {}, one.role === "operator" ? h("div", { class: "actions" },
      one.durable ? (one.state === "live" ? onSession("pause", "Pause", one) : onSession("resume", "Resume", one)) : null, onSession("end", "End", one)) : null)));
}

function onSession(name, label, { protocol, who }) {
  const run = async () => {
    if (name === "end" && !confirm("End this session? What it wanted is forgotten.")) return;
    try {
      const answer = await (await ask(`api/sessions/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ protocol, who }) })).json();
      say(answer.done ? { pause: "paused", resume: "resumed", end: "ended" }[name] : "there was nothing to do");
    } catch (error) { say(error.message); }
  };
  return h("button", { type: "button", class: "small", "data-action": name, "data-focus": name, onclick: run }, label);
}

function eventRow(event) {
  const { number: _, at, event: name, ...rest } = event;
  const bad = /Failed|Refused|Gone|Broke|Reached|GaveUp/.test(name);
  const text = Object.entries(rest).filter(([key, value]) => value != null && key !== "at").map(([key, value]) => `${key} ${typeof value === "string" && value.startsWith("::") ? shortId(value) : value}`).join(" · ");
  return h("li", { class: bad ? "bad" : "" }, h("time", {}, clock(at)), h("b", {}, name), h("span", {}, text));
}

function showTopics(rows, text) {
  $("topics-text").textContent = text;
  const now = state.snapshot?.at ?? Date.now() / 1000;
  const shown = rows.map((row) => ({ ...row, age: ago(row.last, now), chosen: row.topic === state.topic }));
  sync($("topics").tBodies[0], shown, (row) => row.topic, (row) => h("tr", { class: row.chosen ? "chosen" : "" },
    h("td", {}, h("button", { type: "button", class: "link", "data-focus": "open", onclick: () => choose(row.topic) }, row.topic), row.sid ? h("span", { class: "id" }, `${shortId(row.sid)} / ${shortId(row.rid)}`) : null),
    h("td", { "data-label": "State" }, row.state, row.publisher ? h("span", { class: "id" }, `served by ${row.publisher}`) : null),
    h("td", { class: "number", "data-label": "Subscribers" }, number(row.subscribers)),
    h("td", { class: "number", "data-label": "Delivered" }, number(row.delivered)),
    h("td", { class: `number ${row.failed ? "bad-text" : ""}`, "data-label": "Failed" }, number(row.failed)),
    h("td", { "data-label": "Last" }, row.age)));
}

// One topic.

function choose(topic) {
  location.hash = topic ? `topic=${encodeURIComponent(topic)}` : "";
}

function chosen() {
  const found = /^#topic=(.*)$/.exec(location.hash);
  let topic = null;
  try { topic = found ? decodeURIComponent(found[1]) : null; } catch { topic = null; }
  if (topic === state.topic) return;
  state.topic = topic; state.detail = null; state.opened.clear(); state.touched = false;
  clearTimeout(state.timer);
  $("detail").hidden = !topic;
  picture.light([]);
  if (!topic) return;
  $("detail-title").textContent = topic;
  $("detail-body").replaceChildren(h("p", { class: "quiet" }, "asking…"));
  refresh(true);
}

async function refresh(first = false) {
  clearTimeout(state.timer);
  const topic = state.topic;
  if (!topic) return;
  try {
    const detail = await (await ask(`api/topic?topic=${encodeURIComponent(topic)}`)).json();
    if (topic !== state.topic) return;
    state.detail = detail;
    picture.light(detail.paths.filters);
    showDetail(detail);
    if (first) { $("detail-title").focus({ preventScroll: true }); $("detail").scrollIntoView({ block: "nearest" }); }
  } catch (error) {
    if (first && topic === state.topic) $("detail-body").replaceChildren(h("p", { class: "bad-text" }, error.message));
  }
  if (topic === state.topic && !document.hidden) state.timer = setTimeout(refresh, DETAIL_EVERY);
}

function showDetail(detail) {
  const { row, why, source } = detail, now = state.snapshot?.at ?? Date.now() / 1000;
  const focus = document.activeElement?.dataset?.focus;
  const inside = $("detail-body").contains(document.activeElement);
  const filters = detail.paths.filters, mistaken = filters.reduce((sum, one) => sum + one.mistaken.length, 0);
  const parts = [
    h("p", {}, h("span", { class: "id" }, `Sid ${row.sid ?? "–"}`), h("span", { class: "id" }, `Rid ${row.rid ?? "–"}`)),
    h("p", {}, h("b", { class: why.matched ? "good-text" : "bad-text" }, why.reason), ` · ${row.state}`),
    h("p", { class: "quiet" }, `publishers ${why.publishers.join(", ") || "none"} · subscribers ${why.subscribers.join(", ") || "none"}`),
    ...detail.said.map((text) => h("p", { class: "quiet" }, text)),
    ...why.refusals.map((text) => h("p", { class: "bad-text" }, `refused: ${text}`)),
    filters.length ? h("p", { class: "quiet" }, filters.map((one) => `filter from ${one.publisher} to ${one.subscribers.join(", ")}: ${one.links.length} links, ${(one.fill * 100).toFixed(0)} % full${one.as_sent ? "" : " (as planned)"}`).join("; "), ` · ${mistaken} false positive${mistaken === 1 ? "" : "s"}`) : null,
    source ? h("p", { class: "quiet" }, `last fetch ${ago(source.fetched_at, now)}: ${source.outcome ?? "–"}`) : null,
    state.role === "operator" ? h("div", { class: "actions" }, action("fetch", "Re-fetch", null)) : null,
    h("h3", {}, `Subscribers (${number(row.subscribers)})`),
    subscribers(detail, now),
    h("h3", {}, "The way of the last publications"),
    ...ways(detail),
  ];
  if (detail.dead.length) parts.push(h("h3", {}, "Given up"), h("ul", { class: "plain" }, detail.dead.map((one) => h("li", {}, `publication ${one.publication} for ${one.callback}, ${ago(one.at, now)}: ${one.reason} `, state.role === "operator" ? action("replay", "Replay", null, false, one.number) : null))));
  $("detail-body").replaceChildren(...parts.filter(Boolean));
  if (inside && focus) $("detail-body").querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
}

function subscribers(detail, now) {
  if (!detail.subscribers.length) return h("p", { class: "quiet" }, "nobody here has subscribed");
  const rows = detail.subscribers.map((one) => {
    const what = one.paused ? "paused" : one.owed ? "behind" : "up to date";
    const owed = one.owed ? `${number(one.owed)} owed, ${number(one.tries)} tries` + (one.next_try && !one.paused ? `, next ${ago(one.next_try, now)}` : "") : "nothing owed";
    return h("tr", {},
      h("td", {}, one.callback, h("span", { class: "id" }, `${one.dialect}${one.signed ? ", signed" : ""}, lease ends ${ago(one.lease_until, now)}`)),
      h("td", { "data-label": "State", class: what === "up to date" ? "good-text" : "bad-text" }, what, h("span", { class: "id" }, owed)),
      h("td", { "data-label": "Last failure" }, one.failure ? `${one.failure}${one.failed_at ? ` (${ago(one.failed_at, now)})` : ""}` : "none"),
      state.role === "operator" ? h("td", {}, h("div", { class: "actions" },
        action("retry", "Retry now", one.callback, !one.owed || one.paused),
        one.paused ? action("resume", "Resume", one.callback) : action("pause", "Pause", one.callback),
        action("verify", "Re-verify", one.callback), action("unsubscribe", "Unsubscribe", one.callback))) : null);
  });
  const table = h("table", { class: "cards" }, h("thead", {}, h("tr", {}, ["Callback", "State", "Last failure", ...(state.role === "operator" ? ["Actions"] : [])].map((text) => h("th", {}, text)))), h("tbody", {}, rows));
  return h("div", { class: "scroll" }, table, detail.more_subscribers ? h("p", { class: "quiet" }, `and ${number(detail.more_subscribers)} more`) : null);
}

const QUESTIONS = {
  unsubscribe: "End this subscription? The callback is told that it was denied.",
  verify: "Ask the callback again? If it does not confirm, its subscription ends.",
};
const DONE = { retry: "it is tried now", pause: "paused", resume: "resumed", verify: "the callback is asked", unsubscribe: "ended", fetch: "it is fetched now", replay: "it is tried again" };

function action(name, label, callback, disabled = false, letter = null) {
  const run = async () => {
    if (QUESTIONS[name] && !confirm(QUESTIONS[name])) return;
    try {
      const answer = await (await ask(`api/actions/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ topic: state.topic, callback, letter }) })).json();
      say(answer.done ? DONE[name] : "there was nothing to do");
      refresh();
    } catch (error) { say(error.message); }
  };
  return h("button", { type: "button", class: "small", "data-action": name, "data-focus": `${name} ${callback ?? letter}`, disabled, onclick: run }, label);
}

function ways(detail) {
  const mine = detail.ways.slice(0, NEWEST_WAYS);
  if (!mine.length) return [h("p", { class: "quiet" }, "nothing was published since this gateway started")];
  const keyOf = (way) => way.version ?? `publication ${way.publication}`, keys = mine.map(keyOf);
  for (const key of state.opened) if (!keys.includes(key)) state.opened.delete(key);
  if (!state.opened.size && !state.touched) state.opened.add(keys[0]);
  return mine.map((way) => {
    const others = detail.elsewhere.filter((one) => one.version === way.version);
    // What another gateway says of its own step is better than our guess of it.
    const own = way.steps.filter((step) => !(others.length && step.what === "published by another gateway"));
    const here = state.snapshot?.about.name ?? "here";
    const steps = [...own.map((step) => ({ ...step, where: here })), ...others.flatMap((one) => one.steps.map((step) => ({ ...step, where: one.gateway })))].sort((a, b) => a.at - b.at);
    const began = steps[0]?.at ?? way.began, reached = way.last_delivery ?? steps.at(-1)?.at ?? began;
    const key = keyOf(way), open = state.opened.has(key);
    const title = `${clock(began)} · ${way.publication ? `publication ${way.publication}` : "publication"} · ${steps.length} steps in ${milliseconds(reached - began)} · ${way.delivered} delivered` + (way.failed ? `, ${way.failed} failed` : "");
    const made = h("details", { open }, h("summary", { "data-focus": key }, title, way.version ? h("span", { class: "id" }, way.version) : null),
      h("ol", { class: "steps" }, steps.map((step) => h("li", { class: step.domain }, h("time", {}, `+${milliseconds(step.at - began)}`), h("b", {}, step.domain === "psirp" ? "PSIRP" : "PuSH", h("span", { class: "id" }, step.where)), h("span", {}, step.what, step.detail ? h("span", { class: "id" }, step.detail) : null)))),
      way.left_out ? h("p", { class: "quiet" }, `${number(way.left_out)} more steps were not kept`) : null);
    made.addEventListener("toggle", () => {
      if (made.open) state.opened.add(key);
      else if (made.isConnected) { state.opened.delete(key); state.touched = true; }
    });
    return made;
  });
}

// People.

$("search").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("query").value.trim();
  if (!text) { state.found = null; if (state.snapshot) show(state.snapshot); return; }
  try {
    state.found = await (await ask(`api/topics?q=${encodeURIComponent(text)}`)).json();
    showTopics(state.found, `${state.found.length} found for “${text}”. An empty search shows the last ones again.`);
    if (state.found.length === 1) choose(state.found[0].topic);
    else if (!state.found.length) say("nothing found");
  } catch (error) { say(error.message); }
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  $("token").value = "";
  $("login").hidden = true;
  follow();
});
$("close").addEventListener("click", () => choose(""));
addEventListener("hashchange", chosen);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement?.tagName ?? "")) { event.preventDefault(); $("query").focus(); }
  if (event.key === "Escape" && state.topic) { choose(""); $("topics").querySelector("button")?.focus(); }
});
chosen();
follow();
