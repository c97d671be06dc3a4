// SPDX-License-Identifier: Apache-2.0
// The page of `resurgo web`: what the server's events say, as tables and a timeline. Text from the job only becomes text.
"use strict";

const token = new URLSearchParams(location.search).get("token") || "";
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MOST_LINES = 300, MOST_OUTPUT = 65536, MOST_MARKS = 20000;
const ROW = 18, LEFT = 64, TOP = 18;

let state = null;
// Each rank's lives: {life, from, to, image, replayed, end}.
const lives = new Map();
// Of all ranks: {kind, time, rank, text}.
const marks = [];
const places = new Map();
let view = { from: 0, to: 10 };

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Draws into this picture; the text is what the pointer tells.
function drawing(svg) {
  return (name, attributes, text) => {
    const made = drawn(name, attributes);
    if (text) made.append(Object.assign(drawn("title", {}), { textContent: text }));
    svg.append(made);
    return made;
  };
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at++; }
  return `${at ? bytes.toFixed(1) : bytes} ${units[at]}`;
}

function time(seconds) {
  if (seconds == null || !isFinite(seconds)) return "?";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

// The table's rows with these cells: {text, name (a class), node (an element)}. Rows and buttons that are there stay.
function fill(id, titles, rows) {
  const table = byId(id);
  if (!table.tHead.rows.length) {
    const row = table.tHead.insertRow();
    for (const [title, name] of titles) row.append(element("th", { scope: "col", className: name || "" }, title));
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] || body.insertRow();
    cells.forEach((cell, place) => {
      const there = row.cells[place] || row.insertCell();
      if (cell.button) {
        if (!there.firstChild) there.append(element("button", { type: "button" }));
        const button = there.firstChild;
        button.textContent = cell.button;
        button.setAttribute("aria-label", cell.label);
        button.onclick = cell.press;
        button.disabled = !!cell.disabled;
        return;
      }
      const text = String(cell.text ?? "");
      if (there.textContent !== text) there.textContent = text;
      there.className = cell.name || "";
    });
    while (row.cells.length > cells.length) row.deleteCell(-1);
  });
}

const number = (value) => ({ text: value, name: "number" });

async function order(what) {
  byId("said").textContent = "…";
  try {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    const answer = await fetch("do", { method: "POST", headers, body: JSON.stringify(what) });
    const told = await answer.json();
    byId("said").textContent = told.said;
  } catch (error) {
    byId("said").textContent = `no answer: ${error.message}`;
  }
}

function ask(question, what) {
  const dialog = byId("question");
  byId("asked").textContent = question;
  dialog.returnValue = "no";
  dialog.onclose = () => { if (dialog.returnValue === "yes") order(what); };
  dialog.showModal();
}

function showFigures() {
  const image = state.last_image;
  const what = image && (image.rank == null ? `wave ${image.number}` : `image ${image.number} of rank ${image.rank}`);
  const last = image ? `${what}, ${time(image.seconds)} ago` : "none yet";
  const figures = {
    protocol: state.protocol, time: time(state.seconds), failures: state.failures, restarts: state.restarts,
    images: state.images, "last image": last, messages: state.messages, sent: size(state.bytes), logs: size(state.log_bytes),
  };
  const list = byId("figures");
  const boxes = Object.entries(figures).map(([name, value]) =>
    element("div", { "data-figure": name }, element("dt", {}, name), element("dd", {}, String(value))));
  list.replaceChildren(...boxes);
}

function showNodes() {
  const titles = [["Node", "number"], ["Name"], ["State"], ["Ranks", "number"], ["Logs", "number"], ["Holds", "number"],
    ["Silent", "number"]];
  const several = state.control && state.nodes.length > 1;
  fill("nodes", several ? [...titles, [""]] : titles, state.nodes.map((node) => {
    const cells = [number(node.node), { text: node.name ?? "this machine" },
      { text: node.state, name: `state ${node.state}` }, number(node.ranks), number(size(node.log_bytes)),
      number(size(node.held_bytes)), number(node.silent_seconds == null ? "-" : time(node.silent_seconds))];
    if (several) {
      const name = node.name ?? String(node.node);
      cells.push({ button: "Drain", label: `drain node ${name}`, disabled: node.state !== "there",
        press: () => ask(`Shall all ranks of ${name} go to other nodes?`, { do: "drain", node: name }) });
    }
    return cells;
  }));
}

function doing(rank) {
  let text = rank.state.replaceAll("_", " ");
  if (rank.replayed != null) text += ` ${Math.floor(rank.replayed * 100)} %`;
  const waits = rank.state === "waiting" ? "" : ", waits";
  if (rank.waits_for != null) text += `${waits} for rank ${rank.waits_for}`;
  if (rank.writes_image) text += ", writes an image";
  return text;
}

function showRanks() {
  const titles = [["Rank", "number"], ["Node", "number"], ["Process", "number"], ["Life", "number"], ["Does"],
    ["Messages", "number"], ["Sent", "number"], ["Log", "number"]];
  fill("ranks", state.control ? [...titles, [""]] : titles, state.ranks.map((rank) => {
    const cells = [number(rank.rank), number(rank.node), number(rank.pid ?? "-"), number(rank.life),
      { text: doing(rank), name: `state ${rank.state}` }, number(rank.messages), number(size(rank.bytes)),
      number(size(rank.log_bytes))];
    if (state.control) {
      cells.push({ button: "Kill", label: `kill rank ${rank.rank}`, disabled: rank.pid == null,
        press: () => ask(`Kill rank ${rank.rank} on purpose? Resurgo recovers it.`, { do: "kill", rank: rank.rank }) });
    }
    return cells;
  }));
}

// A row for each sender, a column for each receiver, up to the newest image of each sender.
function showTraffic() {
  const count = state.ranks.length;
  const pairs = state.ranks.flatMap((rank) => rank.sent_to.map(([to, sent]) => ({ from: rank.rank, to, sent })));
  byId("traffic-section").hidden = !pairs.length;
  if (!pairs.length) return;
  const busiest = pairs.reduce((most, pair) => pair.sent > most.sent ? pair : most);
  byId("traffic-about").textContent = "Rows send, columns receive: messages by the last image. "
    + `The most, ${busiest.sent}, went from rank ${busiest.from} to rank ${busiest.to}.`;
  const side = Math.max(6, Math.min(26, Math.floor(560 / count))), table = count * side;
  const [width, height] = [LEFT + table + 8, TOP + table];
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  const add = drawing(svg);
  add("rect", { x: LEFT, y: TOP, width: table, height: table, class: "none" });
  for (let rank = 0; rank < count; rank += Math.ceil(20 / side)) {
    const middle = (rank + 0.5) * side;
    add("text", { x: LEFT - 6, y: TOP + middle + 4, "text-anchor": "end" }).textContent = `rank ${rank}`;
    add("text", { x: LEFT + middle, y: TOP - 5, "text-anchor": "middle" }).textContent = rank;
  }
  for (const { from, to, sent } of pairs) {
    const shade = 0.15 + 0.85 * Math.log1p(sent) / Math.log1p(busiest.sent);
    add("rect", { x: LEFT + to * side, y: TOP + from * side, width: side - 1, height: side - 1, class: "sends",
      "fill-opacity": shade, "data-from": from, "data-to": to, "data-sent": sent },
    `rank ${from} has sent ${sent} messages to rank ${to}`);
  }
  byId("traffic").replaceChildren(svg);
}

function showPlaces() {
  byId("places-section").hidden = !places.size;
  fill("places", [["Place"], ["Last wave", "number"], ["Taken at", "number"], ["Bytes", "number"], ["Sent", "number"],
    ["Rate", "number"], ["Trouble"]],
  [...places].map(([place, known]) => [{ text: place }, number(known.wave ?? "-"), number(time(known.time)),
    number(size(known.bytes ?? 0)), number(size(known.put ?? 0)),
    number(known.seconds ? `${size(known.put / known.seconds)}/s` : "-"), { text: known.trouble ?? "" }]));
}

function line(event) {
  const words = Object.entries(event).filter(([key]) => !["event", "time", "number"].includes(key));
  const text = words.map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return `${time(event.time)}  ${event.event.replaceAll("_", " ")} ${text.join(" ")}`;
}

function showEvents(events) {
  const list = byId("events");
  list.prepend(...events.slice(-MOST_LINES).reverse().map((event) =>
    element("li", { "data-event": event.event, "data-number": event.number }, line(event))));
  while (list.children.length > MOST_LINES) list.lastChild.remove();
}

// Output that has not ended with a line yet goes on in the same place. The page follows it while its end is in sight.
function showOutput(told) {
  const box = byId("output");
  byId("output-section").hidden = false;
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
  for (const part of told.parts) {
    box.append(part.is_error ? element("span", { className: "error" }, part.text) : part.text);
  }
  let length = box.textContent.length;
  while (length > MOST_OUTPUT && box.childNodes.length > 1) {
    length -= box.firstChild.textContent.length;
    box.firstChild.remove();
  }
  if (follows) box.scrollTop = box.scrollHeight;
}

function lastLife(rank) {
  const all = lives.get(rank);
  return all && all[all.length - 1];
}

// What an event means for the timeline and the places.
function take(event) {
  const mark = (kind) => {
    marks.push({ kind, time: event.time, rank: event.rank, text: line(event) });
    if (marks.length > MOST_MARKS) marks.shift();
  };
  const end = (how) => {
    const life = lastLife(event.rank);
    if (life && life.to == null) { life.to = event.time; life.end = how; }
  };
  switch (event.event) {
    case "started": {
      end("ended");
      if (!lives.has(event.rank)) lives.set(event.rank, []);
      lives.get(event.rank).push({ life: event.life, from: event.time, image: event.image, text: line(event) });
      break;
    }
    case "failed": end("failed"); mark("failed"); break;
    case "finished": case "aborted": case "lost": end("finished"); break;
    case "caught_up": { const life = lastLife(event.rank); if (life) life.replayed = event.time; break; }
    case "checkpointed": mark("image"); break;
    case "wave_complete": mark("wave"); break;
    case "returned": mark("returned"); break;
    case "node_lost": mark("node-lost"); break;
    case "wave_flushed": places.set(event.place, { ...event }); break;
    case "wave_not_flushed": case "place_away": case "place_behind":
      places.set(event.place, { ...(places.get(event.place) || {}), trouble: line(event) }); break;
  }
}

function whole() {
  return Math.max(state ? state.seconds : 0, 1);
}

function tick(span) {
  const rough = span / 6, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

function draw() {
  if (!state) return;
  const box = byId("timeline"), width = Math.max(box.clientWidth, 280);
  const ranks = state.ranks.map((rank) => rank.rank);
  const height = TOP + ranks.length * ROW + 6;
  if (byId("follow").checked) {
    const span = view.to - view.from;
    view = view.all ? { from: 0, to: whole() * 1.02, all: true } : { from: Math.max(0, whole() - span), to: Math.max(span, whole()) };
  }
  const x = (at) => LEFT + (at - view.from) / (view.to - view.from) * (width - LEFT - 8);
  const seen = (from, to) => to >= view.from && from <= view.to;
  const within = (at) => Math.min(Math.max(x(at), LEFT), width - 8);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height });
  const add = drawing(svg);
  const step = tick(view.to - view.from);
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    add("line", { x1: x(at), x2: x(at), y1: TOP - 4, y2: height, class: "row" });
    add("text", { x: x(at), y: 11, "text-anchor": "middle" }).textContent = `${+at.toPrecision(6)} s`;
  }
  const rows = new Map();
  ranks.forEach((rank, at) => {
    const y = TOP + at * ROW;
    rows.set(rank, y);
    add("text", { x: 6, y: y + 13 }).textContent = `rank ${rank}`;
    for (const life of lives.get(rank) || []) {
      const to = life.to ?? whole();
      if (!seen(life.from, to)) continue;
      const bar = (from, until, name, text) => add("rect", { x: within(from), y: y + 4,
        width: Math.max(within(until) - within(from), 1), height: ROW - 8, class: name, "data-rank": rank,
        "data-life": life.life }, text);
      bar(life.from, to, life.life % 2 ? "life" : "life odd",
        `rank ${rank}, life ${life.life}, ${time(life.from)} to ${life.to == null ? "now" : time(to)}`
        + (life.image ? `, from image ${life.image}` : life.life > 1 ? ", from the beginning" : ""));
      if (life.life > 1 && life.replayed != null) {
        bar(life.from, life.replayed, "replay", `rank ${rank} repeats what it did, ${time(life.replayed - life.from)}`);
      }
    }
  });
  // Of marks at the same place one is enough.
  const taken = new Set();
  for (const mark of marks) {
    if (!seen(mark.time, mark.time)) continue;
    const at = x(mark.time), y = rows.get(mark.rank), place = `${mark.kind} ${mark.rank} ${Math.round(at)}`;
    if (taken.has(place)) continue;
    taken.add(place);
    if (mark.kind === "failed" && y != null) {
      add("path", { d: `M${at - 5} ${y + 4}l10 10m0 -10l-10 10`, class: "failed", "data-rank": mark.rank }, mark.text);
    } else if (mark.kind === "image" && y != null) {
      add("line", { x1: at, x2: at, y1: y + 2, y2: y + ROW - 2, class: "image", "data-rank": mark.rank }, mark.text);
    } else if (y == null || mark.kind === "wave" || mark.kind === "returned") {
      add("line", { x1: at, x2: at, y1: TOP, y2: height, class: mark.kind }, mark.text);
    }
  }
  box.replaceChildren(svg);
}

function zoom(factor, about) {
  const middle = about ?? (view.from + view.to) / 2;
  const span = Math.min(Math.max((view.to - view.from) * factor, 0.01), whole() * 1.1);
  const part = (middle - view.from) / (view.to - view.from);
  view = { from: Math.max(0, middle - span * part), to: 0 };
  view.to = view.from + span;
  if (factor < 1 && about != null) byId("follow").checked = false;
  draw();
}

function move(part) {
  const by = (view.to - view.from) * part;
  const from = Math.min(Math.max(0, view.from + by), whole());
  view = { from, to: from + view.to - view.from };
  byId("follow").checked = false;
  draw();
}

function showAll() {
  view = { from: 0, to: whole() * 1.02, all: true };
  byId("follow").checked = true;
  draw();
}

function handleTimeline() {
  const box = byId("timeline");
  byId("in").onclick = () => zoom(0.5);
  byId("out").onclick = () => zoom(2);
  byId("earlier").onclick = () => move(-0.5);
  byId("later").onclick = () => move(0.5);
  byId("all").onclick = showAll;
  byId("follow").onchange = draw;
  box.onkeydown = (event) => {
    const does = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": showAll,
      ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25) }[event.key];
    if (does) { event.preventDefault(); does(); }
  };
  const at = (event) => view.from + (event.clientX - box.getBoundingClientRect().left - LEFT)
    / (box.clientWidth - LEFT - 8) * (view.to - view.from);
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, at(event));
  }, { passive: false });
  let held = null;
  box.onpointerdown = (event) => { held = { x: event.clientX, from: view.from, to: view.to }; };
  window.addEventListener("pointerup", () => { held = null; });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    const by = (held.x - event.clientX) / (box.clientWidth - LEFT - 8) * (held.to - held.from);
    if (Math.abs(held.x - event.clientX) < 4) return;
    const from = Math.max(0, held.from + by);
    view = { from, to: from + held.to - held.from };
    byId("follow").checked = false;
    draw();
  });
  box.addEventListener("pointerover", (event) => {
    const title = event.target.querySelector && event.target.querySelector("title");
    byId("about").textContent = title ? title.textContent : "";
  });
  window.addEventListener("resize", draw);
}

function standing(name, text) {
  const shown = byId("standing");
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.standing = name;
}

function listen() {
  const events = new EventSource(`events?token=${encodeURIComponent(token)}`);
  events.addEventListener("state", (message) => {
    state = JSON.parse(message.data);
    document.title = `resurgo: job ${state.job}`;
    byId("title").textContent = `job ${state.job}`;
    byId("command").textContent = state.command;
    byId("orders").hidden = !state.control;
    standing("runs", state.is_ending ? "is ending" : "runs");
    state.events.forEach(take);
    showFigures();
    showNodes();
    showRanks();
    showTraffic();
    showPlaces();
    showEvents(state.events);
    draw();
    document.body.dataset.event = state.last_event;
  });
  events.addEventListener("output", (message) => showOutput(JSON.parse(message.data)));
  events.addEventListener("silent", () => standing("silent", "does not answer"));
  events.addEventListener("over", (message) => {
    events.close();
    standing("over", JSON.parse(message.data).how);
    for (const button of document.querySelectorAll("#orders button, td button")) button.disabled = true;
  });
  events.onerror = () => {
    if (events.readyState !== EventSource.CLOSED) standing("gone", "resurgo web does not answer");
    else standing("gone", token ? "resurgo web has ended, or the token is another one's" : "the address has no token");
  };
}

view.all = true;
byId("checkpoint").onclick = () => order({ do: "checkpoint" });
handleTimeline();
listen();
