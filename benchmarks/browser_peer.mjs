// One peer of browser.py in Node: node browser_peer.mjs FOLDER MODEL INPUTS THREADS
//
// FOLDER has an exported site, or the packages of ``npm install onnxruntime-web``, which then runs MODEL. INPUTS is a
// JSON file: name -> [type, shape, bytes in base64]. For every line of standard input, a number of milliseconds, it runs
// the model for that long and writes the milliseconds of each run as a line of JSON: on the clock, and of the processor.

import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

import { Worker } from "../tilewright/targets/wasm/node/worker.mjs";

const [folder, model, inputs, threads] = process.argv.slice(2);
const given = Object.entries(JSON.parse(fs.readFileSync(inputs)));
const arrays = { float32: Float32Array, int64: BigInt64Array };
const elements = ([type, , data]) => new arrays[type](Uint8Array.from(Buffer.from(data, "base64")).buffer);

async function ours() {
  if (threads > 1) globalThis.Worker = Worker;
  const { load } = await import(pathToFileURL(path.join(folder, "runner.js")));
  const bytes = async (name) => new Uint8Array(fs.readFileSync(path.join(folder, name)));
  const files = { bytes, stream: async (name, take) => take(await bytes(name), 0) };
  const loaded = await load("", { files, threads: Number(threads) });
  const feeds = Object.fromEntries(given.map(([name, value]) => [name, elements(value)]));
  return [() => loaded.run(feeds), ""];
}

async function onnxruntime() {
  const ort = await import(pathToFileURL(createRequire(`${folder}/`).resolve("onnxruntime-web")));
  ort.env.wasm.numThreads = Number(threads);
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
  const feeds = Object.fromEntries(given.map(([n, value]) => [n, new ort.Tensor(value[0], elements(value), value[1])]));
  return [() => session.run(feeds), ort.env.versions.web];
}

const processor = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
};

const [run, version] = await (fs.existsSync(path.join(folder, "runner.js")) ? ours : onnxruntime)();
await run();
console.log(JSON.stringify(version));
for await (const line of readline.createInterface({ input: process.stdin })) {
  const times = [];
  for (const end = performance.now() + Number(line); performance.now() < end || !times.length; ) {
    const before = [performance.now(), processor()];
    await run();
    times.push([performance.now() - before[0], processor() - before[1]]);
  }
  console.log(JSON.stringify(times));
}
process.exit(0);
