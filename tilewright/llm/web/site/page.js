// The page: questions and answers, one conversation.

import { loadLanguage } from "./language.js";

const part = (id) => document.getElementById(id);

function say(role) {
  const paragraph = document.createElement("p");
  paragraph.className = role;
  part("talk").append(paragraph);
  return paragraph;
}

function show(error) {
  part("status").textContent = String(error.message ?? error);
  part("status").className = "error";
}

let language;
let running;

async function ask(question) {
  say("user").textContent = question;
  const answer = say("assistant");
  running = new AbortController();
  part("send").disabled = true;
  part("stop").disabled = false;
  const begin = performance.now();
  let pieces = 0;
  try {
    const temperature = Number(part("temperature").value);
    for await (const piece of language.ask(question, { temperature, signal: running.signal })) {
      answer.textContent += piece;
      pieces++;
      answer.scrollIntoView({ block: "end" });
      await new Promise((resolve) => setTimeout(resolve)); // let the page draw
    }
    const seconds = (performance.now() - begin) / 1000;
    part("status").textContent = `${(pieces / seconds).toFixed(1)} pieces a second, room for ${language.left} tokens`;
    part("status").className = "";
  } catch (error) {
    show(error);
  }
  part("send").disabled = false;
  part("stop").disabled = true;
}

part("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = part("question").value.trim();
  if (!question || part("send").disabled) return;
  part("question").value = "";
  ask(question);
});
part("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    part("form").requestSubmit();
  }
});
part("stop").addEventListener("click", () => running?.abort());
part("fresh").addEventListener("click", () => {
  running?.abort();
  language.reset();
  part("talk").replaceChildren();
});

try {
  language = await loadLanguage("./", { onProgress: (done, total) => (part("progress").value = done / total) });
  part("title").textContent = language.model.name;
  part("status").textContent = `${language.model.backend}, ${language.model.threads} thread(s)`;
  part("progress").hidden = true;
  part("form").hidden = false;
} catch (error) {
  show(error);
}
