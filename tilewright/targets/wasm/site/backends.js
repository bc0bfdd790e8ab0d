// What can run a model, the best first.
//
// Each has a `name`, `missing(manifest)`, which says why it cannot run a model here ("" if it can;
// perhaps a promise), and `open(manifest, files, options)`, which gives a session: `threads`, `run(arrays)`, `close()`.
// One may have `slow()`, whether it is here, so that others go first.

import { wasm, wasmThreads } from "./wasm.js";

export const backends = [wasmThreads, wasm];
