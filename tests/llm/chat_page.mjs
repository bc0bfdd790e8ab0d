// The parts of an exported page in Node: texts to tokens, and answers of a conversation, as JSON lines.
//
//   node chat_page.mjs FOLDER '{"texts": [...], "questions": [...]}'

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, given] = process.argv.slice(2);
const { texts, questions } = JSON.parse(given);
const bytes = async (name) => new Uint8Array(fs.readFileSync(path.join(folder, name)));
const files = { bytes, stream: async (name, take) => take(await bytes(name), 0) };
const { loadLanguage } = await import(pathToFileURL(path.join(folder, "language.js")));
const language = await loadLanguage("", { files, backend: "wasm" });
for (const text of texts) console.log(JSON.stringify(language.tokenizer.encode(text)));
for (const question of questions) {
  let answer = "";
  for await (const piece of language.ask(question, { temperature: 0, maxTokens: 60 })) answer += piece;
  console.log(JSON.stringify(answer));
}
