// The live view: asks /status every second while the page is seen, and draws slots, ranks and facts.

const byId = (id) => document.getElementById(id);
const PERIOD_MS = 1000;
const KINDS = ["weights", "mapped", "cache", "compute"];

export const server = {
  canChat: true,
  canReason: false,
  headers() {
    const key = byId("key").value;
    return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  },
};

let before = null; // {time, tokens} of the last look

function bytes(n) {
  return n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : `${Math.round(n / 2 ** 20)} MiB`;
}

function bar(parts) {
  const made = document.createElement("div");
  made.className = "bar";
  for (const [kind, share] of parts) {
    const part = document.createElement("i");
    part.className = kind;
    part.style.width = `${(100 * share).toFixed(2)}%`;
    made.append(part);
  }
  return made;
}

function row(name, drawn, told) {
  const made = document.createElement("div");
  made.className = "row";
  const left = document.createElement("span"), right = document.createElement("span");
  left.textContent = name;
  right.textContent = told;
  made.append(left, drawn, right);
  return made;
}

function drawFacts(pairs) {
  byId("facts").replaceChildren();
  for (const [name, value] of pairs) {
    if (value === "" || value === null || value === undefined) continue;
    const term = document.createElement("dt"), told = document.createElement("dd");
    term.textContent = name;
    told.textContent = value;
    byId("facts").append(term, told);
  }
}

// What belongs to one of several replicas has its number before it.
function numbered(item, name) {
  return item.replica === undefined ? `${name}` : `${item.replica}: ${name}`;
}

function drawSlots(engine) {
  byId("slots").replaceChildren(...engine.slots.map((slot) => {
    const isFree = slot.state === "free";
    const n = isFree ? slot.n_held : slot.n_past;
    return row(numbered(slot, slot.slot), bar([[isFree ? "held" : slot.state, n / engine.n_ctx]]), isFree ? `${n} kept` : `${slot.state} ${n}`);
  }));
}

function drawRanks(plan) {
  const sizes = plan.map((rank) => KINDS.map((kind) => [kind, rank[`${kind}_bytes`]]));
  const most = Math.max(1, ...sizes.map((parts) => parts.reduce((sum, [, n]) => sum + n, 0)));
  byId("ranks").replaceChildren(...plan.map((rank, index) => {
    const total = sizes[index].reduce((sum, [, n]) => sum + n, 0);
    const made = row(numbered(rank, rank.device), bar(sizes[index].map(([kind, n]) => [kind, n / most])), bytes(total));
    made.title = sizes[index].map(([kind, n]) => `${kind} ${bytes(n)}`).join(", ") + ` (${rank.description})`;
    return made;
  }));
}

function speed(engine) {
  const now = { time: performance.now(), tokens: engine.n_generated_tokens };
  const last = before;
  before = now;
  if (!last || now.tokens < last.tokens) return "";
  return `${((1000 * (now.tokens - last.tokens)) / (now.time - last.time)).toFixed(0)} tokens/s`;
}

function draw(status) {
  byId("state").textContent = status.state;
  byId("state").dataset.state = status.state;
  byId("state").title = status.reason || "";
  byId("model").textContent = status.names.join(", ");
  server.canChat = !status.capabilities.length || status.capabilities.includes("chat");
  server.canReason = status.capabilities.includes("reasoning");
  byId("thinking_label").hidden = !server.canReason;
  const engine = status.engine, replicas = status.replicas;
  const prefix = engine && engine.prefix;
  const reused = prefix && prefix.n_prompt_tokens ? `${Math.round((100 * prefix.n_reused_tokens) / prefix.n_prompt_tokens)} % of prompts` : "";
  drawFacts([
    ["Architecture", status.model.arch],
    ["Context", status.n_ctx ? `${status.n_slots} × ${status.n_ctx} tokens` : ""],
    ["Answers", `${status.n_open} open, ${status.n_finished} done`],
    ["Generated", engine ? `${engine.n_generated_tokens} tokens` : ""],
    ["Speed now", engine ? speed(engine) : ""],
    ["Cache gave", reused],
    ["Transports", engine && engine.transports.length ? engine.transports.join(", ") : ""],
    ["Replicas", replicas.length > 1 ? `${replicas.filter((one) => one.state === "ready").length} of ${replicas.length} answer` : ""],
    ["Restarts", status.n_restarts || ""],
    ["Why", status.reason],
  ]);
  if (engine) drawSlots(engine);
  drawRanks(engine && engine.ranks.length ? engine.ranks : status.plan);
  byId("notes").textContent = status.notes.join("\n");
}

async function look() {
  const response = await fetch("status", { headers: server.headers() });
  if (response.status === 401) {
    byId("key_label").hidden = false;
    throw new Error("needs a key");
  }
  draw(await response.json());
}

export async function watch() {
  byId("key").value = sessionStorage.getItem("key") || "";
  byId("key").addEventListener("change", () => sessionStorage.setItem("key", byId("key").value));
  for (;;) {
    if (document.visibilityState === "visible") {
      try {
        await look();
      } catch (error) {
        byId("state").textContent = error.message === "needs a key" ? error.message : "away";
        byId("state").dataset.state = "away";
      }
    }
    await new Promise((done) => setTimeout(done, PERIOD_MS));
  }
}
