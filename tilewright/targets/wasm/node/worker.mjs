// Workers of pages in Node: a `Worker` like that of a page, and what its thread runs first.

import * as threads from "node:worker_threads";

export class Worker {
  constructor(url) {
    this.thread = new threads.Worker(new URL(import.meta.url), { workerData: url.href });
    this.thread.on("message", (data) => this.onmessage?.({ data }));
    this.thread.on("error", (error) => this.onerror?.({ message: String(error) }));
  }

  postMessage(data) {
    this.thread.postMessage(data);
  }

  terminate() {
    this.thread.terminate();
  }
}

if (!threads.isMainThread) {
  globalThis.self = globalThis;
  self.postMessage = (data) => threads.parentPort.postMessage(data);
  const early = []; // that came before the script could take them
  threads.parentPort.on("message", (data) => (self.onmessage ? self.onmessage({ data }) : early.push(data)));
  await import(threads.workerData);
  for (const data of early) self.onmessage({ data });
}
