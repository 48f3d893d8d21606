// The network as a picture, and numbers over time as small charts: SVG made by hand, no library.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 300, EDGE = 34;

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Nodes push each other away and links pull; the longest direction is then turned to lie flat.
function layout(nodes, links) {
  const count = nodes.length;
  const place = nodes.map((_, i) => {
    const turn = (2 * Math.PI * i) / Math.max(count, 1);
    return { x: Math.cos(turn), y: Math.sin(turn) };
  });
  const index = new Map(nodes.map((name, i) => [name, i]));
  const pairs = links.map(([one, other]) => [index.get(one), index.get(other)]);
  const rest = 1 / Math.sqrt(Math.max(count, 1));
  const rounds = count > 150 ? 60 : 300;
  for (let round = 0; round < rounds; round++) {
    const step = 0.12 * (1 - round / rounds) + 0.005;
    const force = place.map(() => ({ x: 0, y: 0 }));
    for (let i = 0; i < count; i++) for (let j = i + 1; j < count; j++) {
      let x = place[i].x - place[j].x, y = place[i].y - place[j].y;
      const square = x * x + y * y + 1e-6, push = (rest * rest) / square;
      x *= push; y *= push;
      force[i].x += x; force[i].y += y; force[j].x -= x; force[j].y -= y;
    }
    for (const [i, j] of pairs) {
      const x = place[i].x - place[j].x, y = place[i].y - place[j].y, far = Math.hypot(x, y), pull = far / rest;
      force[i].x -= x * pull; force[i].y -= y * pull; force[j].x += x * pull; force[j].y += y * pull;
    }
    place.forEach((p, i) => {
      const size = Math.hypot(force[i].x, force[i].y) || 1, move = Math.min(size, step) / size;
      p.x += force[i].x * move; p.y += force[i].y * move;
    });
  }
  return fitted(place);
}

function fitted(place) {
  const mean = (key) => place.reduce((sum, p) => sum + p[key], 0) / place.length;
  const mx = mean("x"), my = mean("y");
  let xx = 0, yy = 0, xy = 0;
  for (const p of place) { p.x -= mx; p.y -= my; xx += p.x * p.x; yy += p.y * p.y; xy += p.x * p.y; }
  const turn = -0.5 * Math.atan2(2 * xy, xx - yy), c = Math.cos(turn), s = Math.sin(turn);
  for (const p of place) [p.x, p.y] = [p.x * c - p.y * s, p.x * s + p.y * c];
  if (place.length > 1 && place[0].x > place.at(-1).x) for (const p of place) p.x = -p.x;
  const most = (key) => Math.max(...place.map((p) => Math.abs(p[key])), 1e-6);
  const wide = (WIDTH / 2 - EDGE) / most("x"), high = (HEIGHT / 2 - EDGE) / most("y");
  const spread = Math.min(high, wide * 1.4);
  return place.map((p) => ({ x: WIDTH / 2 + p.x * wide, y: HEIGHT / 2 + p.y * spread }));
}

// Both directions of a link are one line in the picture.
const pair = (one, other) => (one < other ? `${one}\n${other}` : `${other}\n${one}`);

export class Picture {
  constructor(holder) {
    this.holder = holder;
    this.signature = "";
    this.lines = new Map();
    this.dots = new Map();
  }

  show(network) {
    const signature = JSON.stringify([network.name, network.nodes, network.links, network.rendezvous, network.topology, network.doubted]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.lines.clear(); this.dots.clear();
    if (!network.nodes.length) { this.holder.replaceChildren(); return; }
    const place = layout(network.nodes, network.links);
    const at = new Map(network.nodes.map((name, i) => [name, place[i]]));
    const flat = place.every((p) => Math.abs(p.y - HEIGHT / 2) < 30);
    const top = flat ? HEIGHT / 2 - 60 : 0, tall = flat ? 120 : HEIGHT;
    const drawing = svg("svg", { viewBox: `0 ${top} ${WIDTH} ${tall}`, role: "img" });
    const told = `${network.nodes.length} nodes, ${network.links.length} links; this gateway's node is ${network.name}`;
    drawing.append(svg("title", {}, told));
    for (const [one, other] of network.links) {
      const a = at.get(one), b = at.get(other);
      const line = svg("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: "edge" }, svg("title", {}, `${one} – ${other}`));
      this.lines.set(pair(one, other), line);
      drawing.append(line);
    }
    const named = network.nodes.length <= 60, radius = network.nodes.length > 60 ? 5 : 10;
    for (const name of network.nodes) {
      const p = at.get(name), roles = [];
      if (network.rendezvous.includes(name)) roles.push("rendezvous");
      if (network.topology.includes(name)) roles.push("topology");
      const doubt = network.doubted.find((one) => one.node === name);
      const classes = ["dot", doubt ? "doubted" : "", roles.length ? "role" : "", name === network.name ? "own" : ""].join(" ").trim();
      const dot = svg("circle", { cx: p.x, cy: p.y, r: radius, class: classes }, svg("title", {}, [name, ...roles, ...(doubt ? [`claims to be ${doubt.roles}: ${doubt.reason}`] : [])].join(", ")));
      this.dots.set(name, dot);
      drawing.append(dot);
      if (named) drawing.append(svg("text", { x: p.x, y: p.y - radius - 6, "text-anchor": "middle" }, name));
      if (named && roles.length) drawing.append(svg("text", { x: p.x, y: p.y + radius + 14, "text-anchor": "middle", class: "role-text" }, roles.join(" + ")));
    }
    this.holder.replaceChildren(drawing);
  }

  light(filters) {
    const lit = new Set(), mistaken = new Set(), ends = new Set();
    for (const one of filters) {
      for (const [tail, head] of one.links) lit.add(pair(tail, head));
      for (const [tail, head] of one.mistaken) mistaken.add(pair(tail, head));
      for (const name of [one.publisher, ...one.subscribers]) ends.add(name);
    }
    for (const [key, line] of this.lines) {
      line.classList.toggle("lit", lit.has(key));
      line.classList.toggle("false", mistaken.has(key) && !lit.has(key));
    }
    for (const [name, dot] of this.dots) dot.classList.toggle("end", ends.has(name));
  }
}

const CHART_WIDTH = 240, CHART_HEIGHT = 60;

export function milliseconds(seconds) {
  if (seconds == null) return "–";
  if (seconds >= 10) return `${seconds.toFixed(0)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
}

// Points are [second, count, median, high].
export function latencyChart(points, now, span) {
  const drawing = svg("svg", { viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const most = Math.max(...points.map((p) => p[3]), 1e-4) * 1.1;
  const x = (p) => CHART_WIDTH * (1 - (now - p[0]) / span), y = (value) => CHART_HEIGHT * (1 - value / most);
  const line = (place) => points.map((p) => `${x(p).toFixed(1)},${y(p[place]).toFixed(1)}`).join(" ");
  if (points.length) {
    const first = x(points[0]).toFixed(1), last = x(points.at(-1)).toFixed(1);
    drawing.append(
      svg("polygon", { points: `${first},${CHART_HEIGHT} ${line(2)} ${last},${CHART_HEIGHT}`, class: "area" }),
      svg("polyline", { points: line(3), class: "high", "vector-effect": "non-scaling-stroke" }),
      svg("polyline", { points: line(2), class: "middle", "vector-effect": "non-scaling-stroke" }),
    );
  }
  return drawing;
}

export function countChart(good, bad, now, span, second = "bad") {
  const drawing = svg("svg", { viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const most = Math.max(...good.map((p) => p[1]), ...bad.map((p) => p[1]), 1) * 1.1, width = CHART_WIDTH / span;
  for (const [points, name] of [[good, "bar"], [bad, second]]) for (const p of points) {
    const height = (CHART_HEIGHT * p[1]) / most;
    drawing.append(svg("rect", { x: CHART_WIDTH * (1 - (now - p[0]) / span), y: CHART_HEIGHT - height, width: width * 0.9, height, class: name }));
  }
  return drawing;
}
