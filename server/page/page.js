// The chat: asks the server's own API, streams answers, and shows what they cost.

import { watch, server } from "./status.js";

const byId = (id) => document.getElementById(id);
const KNOBS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"];
const messages = []; // {role, content, reasoning, stats, error}
let running = null; // the AbortController of the answer that is being made

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Text with its fenced code as blocks; everything stays text, so an answer cannot bring markup.
function fill(place, text) {
  place.replaceChildren();
  text.split(/^```.*$/m).forEach((part, index) => {
    if (index % 2 === 0) place.append(index ? part.replace(/^\n/, "") : part);
    else place.append(element("pre", "", part.replace(/^\n|\n$/g, "")));
  });
}

function show(message) {
  const box = element("div", `message ${message.role}`);
  const thought = element("details", "thought");
  thought.append(element("summary", "", "Thoughts"), element("div"));
  const said = element("div", "said");
  const stats = element("div", "stats");
  box.append(thought, said, stats);
  message.box = box;
  byId("messages").append(box);
  update(message);
}

// Draw a message at the browser's next frame, however many pieces come until then.
function updateSoon(message) {
  if (message.isDue) return;
  message.isDue = true;
  requestAnimationFrame(() => {
    message.isDue = false;
    update(message);
  });
}

function update(message) {
  const [thought, said, stats] = message.box.children;
  const list = byId("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  thought.hidden = !message.reasoning;
  thought.lastChild.textContent = message.reasoning || "";
  if (message.reasoning && !message.content) thought.open = true;
  fill(said, message.content);
  stats.textContent = message.error || message.stats || "";
  stats.classList.toggle("error", Boolean(message.error));
  stats.hidden = !stats.textContent;
  message.box.classList.toggle("busy", message.isBusy === true);
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

function buttons() {
  byId("stop").disabled = running === null;
  byId("send").disabled = running !== null;
  byId("regenerate").disabled = running !== null || !messages.some((m) => m.role === "assistant");
}

function request() {
  const body = { stream: true, stream_options: { include_usage: true } };
  for (const name of KNOBS) {
    if (byId(name).value !== "") body[name] = Number(byId(name).value);
  }
  const said = messages.filter((m) => !m.isBusy && !m.error).map(({ role, content }) => ({ role, content }));
  const system = byId("system").value.trim();
  if (system) said.unshift({ role: "system", content: system });
  if (!server.canChat) return ["v1/completions", { ...body, prompt: said.map((m) => m.content).join("\n") }];
  if (server.canReason) body.chat_template_kwargs = { enable_thinking: byId("thinking").checked };
  return ["v1/chat/completions", { ...body, messages: said }];
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function statsLine(usage, timings, firstSeconds, reason) {
  const cached = usage.prompt_tokens_details.cached_tokens;
  const share = Math.round((100 * cached) / Math.max(1, usage.prompt_tokens));
  return [
    `${usage.completion_tokens} tokens`,
    timings.predicted_per_second ? `${timings.predicted_per_second.toFixed(1)} tokens/s` : "",
    `first after ${firstSeconds.toFixed(2)} s`,
    `prompt ${usage.prompt_tokens}, ${share} % from the cache`,
    reason === "length" ? "cut at the limit" : "",
  ].filter(Boolean).join(" · ");
}

async function take(response, answer, started) {
  let timings = {}, usage = null, first = null, reason = "";
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      const delta = choice.delta || { content: choice.text };
      answer.content += delta.content || "";
      answer.reasoning += delta.reasoning_content || "";
      if (first === null && (delta.content || delta.reasoning_content)) first = performance.now();
      reason = choice.finish_reason || reason;
    }
    timings = event.timings || timings;
    usage = event.usage || usage;
    updateSoon(answer);
  }
  if (usage) answer.stats = statsLine(usage, timings, ((first || performance.now()) - started) / 1000, reason);
}

async function answerNow() {
  const [path, body] = request();
  const answer = { role: "assistant", content: "", reasoning: "", isBusy: true };
  messages.push(answer);
  show(answer);
  running = new AbortController();
  buttons();
  try {
    const started = performance.now();
    const response = await fetch(path, {
      method: "POST", headers: server.headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    await take(response, answer, started);
  } catch (error) {
    if (error.name === "AbortError") answer.stats = "stopped";
    else answer.error = error.message;
  }
  answer.isBusy = false;
  running = null;
  update(answer);
  buttons();
}

function ask(event) {
  event.preventDefault();
  const text = byId("text").value.trim();
  if (!text || running) return;
  byId("text").value = "";
  const message = { role: "user", content: text };
  messages.push(message);
  show(message);
  answerNow();
}

function dropAnswer() {
  while (messages.length && messages[messages.length - 1].role === "assistant") messages.pop().box.remove();
}

byId("ask").addEventListener("submit", ask);
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
});
byId("stop").addEventListener("click", () => running && running.abort());
byId("regenerate").addEventListener("click", () => {
  dropAnswer();
  answerNow();
});
byId("new").addEventListener("click", () => {
  if (running) running.abort();
  messages.length = 0;
  byId("messages").replaceChildren();
  buttons();
  byId("text").focus();
});
watch();
