// The page: questions and answers, one conversation.

import { loadLanguage } from "./language.js";

const part = (id) => document.getElementById(id);

function say(role) {
  const paragraph = document.createElement("p");
  paragraph.className = role;
  part("talk").append(paragraph);
  return paragraph;
}

function tell(text, kind = "") {
  part("status").textContent = text;
  part("status").className = kind;
}

const show = (error) => tell(String(error.message ?? error), "error");

let language;
let running;
let answered = Promise.resolve();

async function ask(question) {
  say("user").textContent = question;
  const answer = say("assistant");
  running = new AbortController();
  part("send").disabled = true;
  part("stop").disabled = false;
  try {
    const temperature = Number(part("temperature").value);
    let begin, first;
    for await (const piece of language.ask(question, { temperature, signal: running.signal })) {
      begin ??= performance.now();
      first ??= language.length;
      answer.textContent += piece;
      answer.scrollIntoView({ block: "end" });
    }
    const speed = ((language.length - first) / (performance.now() - begin)) * 1000;
    const told = speed > 0 ? `${speed.toFixed(1)} tokens a second, ` : "";
    tell(`${told}room for ${language.left} tokens`);
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
  answered = ask(question);
});
part("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    part("form").requestSubmit();
  }
});
part("stop").addEventListener("click", () => running?.abort());
part("fresh").addEventListener("click", async () => {
  running?.abort();
  await answered;
  language.reset();
  part("talk").replaceChildren();
  tell(`room for ${language.left} tokens`);
});

try {
  language = await loadLanguage("./", { onProgress: (done, total) => (part("progress").value = done / total) });
  part("title").textContent = document.title = language.about.name;
  tell(`${language.model.backend}, ${language.model.threads} thread(s)`);
  part("progress").hidden = true;
  part("form").hidden = false;
} catch (error) {
  show(error);
}
