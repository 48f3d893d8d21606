// The chat page. Texts of people are only ever put into the page as text (textContent), never as markup.
"use strict";

const KEY = "psph-chat-token";
// In the order in which a message goes through them.
const TICKS = {
  waiting: ["…", "waiting for the network"],
  sent: ["✓", "sent: the network has it"],
  delivered: ["✓✓", "delivered: it is at your partner's gateway"],
  failed: ["✗", "the network refused it"],
};
const STATES = Object.keys(TICKS);
const FIRST_WAIT = 500, LONGEST_WAIT = 15000;
const SILENCE = 60000; // the gateway says something at least every 20 seconds

const at = (id) => document.getElementById(id);
const state = { token: null, me: "", partner: null, partners: [], unread: new Map(), change: 0, maxText: 4000, life: 0 };

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function ask(method, path, body) {
  const headers = {};
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused(0, "the gateway cannot be reached");
  }
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, text.trim());
  return text ? JSON.parse(text) : null;
}

// ---- beginning

async function begin() {
  let wait = FIRST_WAIT;
  for (;;) {
    try {
      const about = await ask("GET", "about");
      at("domain").textContent = `@${about.domain}`;
      state.maxText = about.max_text;
      state.token = localStorage.getItem(KEY);
      if (state.token) return enter(await ask("GET", "session"));
      return welcome();
    } catch (error) {
      if (error.status === 401) return welcome();
      await pause(wait);
      wait = Math.min(2 * wait, LONGEST_WAIT);
    }
  }
}

function welcome() {
  state.life += 1;
  state.token = null;
  localStorage.removeItem(KEY);
  at("app").hidden = true;
  at("welcome").hidden = false;
  at("user").focus();
}

function enter(session) {
  state.me = session.address;
  state.partners = session.partners;
  state.change = session.change;
  state.partner = null;
  state.unread.clear();
  at("me").textContent = session.address;
  document.title = `Chat: ${session.address}`;
  at("welcome").hidden = true;
  at("app").hidden = false;
  showConversations();
  show(null);
  if (session.partners.length === 1) show(session.partners[0]);
  else at("partner").focus();
  listen(++state.life);
}

// ---- what happens elsewhere: events, read with fetch because EventSource cannot send the token

async function listen(life) {
  let wait = FIRST_WAIT;
  while (life === state.life) {
    const stop = new AbortController();
    let silence = setTimeout(() => stop.abort(), SILENCE);
    try {
      const headers = { Authorization: `Bearer ${state.token}`, "Last-Event-ID": String(state.change) };
      const answer = await fetch("events", { headers, signal: stop.signal, cache: "no-store" });
      if (answer.status === 401) return life === state.life && welcome();
      if (!answer.ok) throw new Error(answer.statusText);
      connected(true);
      wait = FIRST_WAIT;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(silence);
        silence = setTimeout(() => stop.abort(), SILENCE);
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        if (life !== state.life) return stop.abort();
        parts.forEach(event);
      }
    } catch { /* tried again below */ } finally { clearTimeout(silence); }
    if (life !== state.life) return;
    connected(false);
    await pause(wait);
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

function event(block) {
  let id = null, data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) id = Number(line.slice(4));
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (id === null) return;
  state.change = id;
  arrived(JSON.parse(data));
}

function connected(yes) {
  at("connection").textContent = yes ? "connected" : "connection lost, trying again…";
  at("connection").classList.toggle("lost", !yes);
}

function arrived(message) {
  if (!state.partners.includes(message.partner)) {
    state.partners.push(message.partner); // opened in another window
    showConversations();
  }
  if (message.partner === state.partner) place(message);
  else if (!message.mine) {
    const unread = state.unread.get(message.partner) ?? new Set();
    state.unread.set(message.partner, unread.add(message.id));
    showConversations();
  }
}

// ---- conversations

function showConversations() {
  at("nobody").hidden = state.partners.length > 0;
  at("conversations").replaceChildren(...state.partners.toSorted().map((partner) => {
    const button = document.createElement("button");
    button.type = "button";
    const name = document.createElement("span");
    name.textContent = partner;
    button.append(name);
    const unread = state.unread.get(partner)?.size ?? 0;
    if (unread) {
      const count = document.createElement("span");
      count.className = "unread";
      count.textContent = unread;
      count.setAttribute("aria-label", `${unread} unread`);
      button.append(count);
    }
    button.setAttribute("aria-current", String(partner === state.partner));
    button.addEventListener("click", () => show(partner));
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

async function show(partner) {
  state.partner = partner;
  state.unread.delete(partner);
  at("app").classList.toggle("talking", partner !== null);
  at("conversation").hidden = partner === null;
  at("messages").replaceChildren();
  at("earlier").hidden = true;
  at("say-problem").textContent = "";
  showConversations();
  if (partner === null) return;
  at("with").textContent = partner;
  at("text").focus();
  await earlier();
}

async function earlier() {
  const partner = state.partner;
  const places = [...at("messages").children].map((item) => Number(item.dataset.place)).filter(Boolean);
  const before = places.length ? `&before=${Math.min(...places)}` : "";
  try {
    const page = await ask("GET", `messages?partner=${encodeURIComponent(partner)}${before}`);
    if (partner !== state.partner) return;
    const height = at("scroll").scrollHeight;
    page.messages.forEach((message) => place(message, true));
    at("earlier").hidden = !page.more;
    if (before) at("scroll").scrollTop += at("scroll").scrollHeight - height;
    else toEnd();
  } catch (error) { problem("say-problem", error); }
}

// ---- messages

function place(message, old = false) {
  const key = `${message.mine ? "m" : "t"}-${message.id}`;
  let item = [...at("messages").children].find((one) => one.dataset.key === key);
  const nearEnd = at("scroll").scrollHeight - at("scroll").scrollTop - at("scroll").clientHeight < 120;
  if (!item) {
    item = at("message").content.firstElementChild.cloneNode(true);
    item.dataset.key = key;
    item.classList.toggle("mine", message.mine);
    item.querySelector(".text").textContent = message.text;
  }
  item.dataset.place = message.place ?? "";
  item.dataset.at = message.at;
  const time = item.querySelector("time");
  const when = new Date(message.at * 1000);
  time.dateTime = when.toISOString();
  const today = when.toDateString() === new Date().toDateString();
  time.textContent = when.toLocaleString([], today ? { timeStyle: "short" } : { dateStyle: "short", timeStyle: "short" });
  if (message.mine) {
    const ticks = item.querySelector(".ticks");
    // The answer to our own request may be read after the event that says how it went on: a state never goes back.
    const known = Math.max(STATES.indexOf(item.dataset.state), STATES.indexOf(message.state), 0);
    const [sign, meaning] = TICKS[STATES[known]];
    item.dataset.state = STATES[known];
    ticks.textContent = sign;
    ticks.title = meaning;
    ticks.className = `ticks ${STATES[known]}`;
    ticks.setAttribute("role", "img");
    ticks.setAttribute("aria-label", meaning);
  }
  // In the order of writing: what was missed and sent again belongs where it was said.
  const after = [...at("messages").children].findLast((one) => one !== item && Number(one.dataset.at) <= message.at);
  if (after) { if (after.nextElementSibling !== item) after.after(item); }
  else if (at("messages").firstElementChild !== item) at("messages").prepend(item);
  if (!old && (nearEnd || message.mine)) toEnd();
}

function toEnd() { at("scroll").scrollTop = at("scroll").scrollHeight; }

async function say() {
  const text = at("text").value;
  const partner = state.partner;
  if (!text.trim() || !partner) return;
  if ([...text].length > state.maxText) {
    at("say-problem").textContent = `A message has at most ${state.maxText} characters.`;
    return;
  }
  // The id is ours, so that asking twice after a lost answer says it once.
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  at("text").value = "";
  at("say-problem").textContent = "";
  for (let attempt = 0; ; attempt++) {
    try {
      arrived(await ask("POST", "messages", { partner, text, id }));
      return;
    } catch (error) {
      if (error.status === 401) return welcome();
      if (error.status !== 0 || attempt === 2) {
        if (partner === state.partner && !at("text").value) at("text").value = text;
        return problem("say-problem", error);
      }
      await pause(FIRST_WAIT * 2 ** attempt);
    }
  }
}

// ---- small things

function pause(milliseconds) { return new Promise((done) => setTimeout(done, milliseconds)); }

function problem(where, error) {
  if (error.status === 401) return welcome();
  at(where).textContent = error.message;
}

function sure(text) {
  at("question-text").textContent = text;
  const dialog = at("question");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

function onSubmit(form, work) {
  at(form).addEventListener("submit", (submitted) => { submitted.preventDefault(); work(); });
}

onSubmit("claim", async () => {
  at("claim-problem").textContent = "";
  try {
    const { token } = await ask("POST", "session", { user: at("user").value });
    state.token = token;
    localStorage.setItem(KEY, token);
    enter(await ask("GET", "session"));
  } catch (error) { at("claim-problem").textContent = error.message; }
});

onSubmit("open", async () => {
  at("open-problem").textContent = "";
  try {
    const { partner } = await ask("POST", "conversations", { partner: at("partner").value });
    if (!state.partners.includes(partner)) state.partners.push(partner);
    at("partner").value = "";
    await show(partner);
  } catch (error) { problem("open-problem", error); }
});

onSubmit("say", say);

at("text").addEventListener("keydown", (key) => {
  if (key.key === "Enter" && !key.shiftKey && !key.isComposing) { key.preventDefault(); say(); }
});
at("earlier").addEventListener("click", earlier);
at("back").addEventListener("click", () => show(null));
document.addEventListener("keydown", (key) => {
  if (key.key === "Escape" && state.partner && !at("question").open) { show(null); at("partner").focus(); }
});

at("end").addEventListener("click", async () => {
  const partner = state.partner;
  if (!(await sure(`Leave the conversation with ${partner}? What was said is deleted here.`))) return;
  try {
    await ask("DELETE", `conversations?partner=${encodeURIComponent(partner)}`);
    state.partners = state.partners.filter((one) => one !== partner);
    show(null);
  } catch (error) { problem("say-problem", error); }
});

at("leave").addEventListener("click", async () => {
  if (!(await sure(`Give up the name ${state.me}? Somebody else may take it, and your messages are deleted here.`))) return;
  try { await ask("DELETE", "session"); welcome(); } catch (error) { problem("open-problem", error); }
});

begin();
