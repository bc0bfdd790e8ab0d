// The example page: a picture in, classes out. A model that takes no picture is run on random numbers.

import { arrayOf, load } from "./runner.js";

const TOP = 5;
const INK = 22;
const $ = (id) => document.getElementById(id);

/** Load the model and show it; for `options` see index.html. */
export async function start(options) {
  try {
    const model = await load(import.meta.url, { onProgress: progress });
    $("progress").hidden = true;
    $("title").textContent = document.title = model.name;
    const threads = model.threads > 1 ? `, ${model.threads} threads` : "";
    $("status").textContent = `${model.inputs.map(describe).join(", ")} by ${model.backend}${threads}`;
    const picture = pictureOf(model.inputs);
    const show = async (inputs) => showResult(model, await model.run(inputs), options);
    if (picture) new Canvas(picture, options, (array) => guarded(() => show({ [picture.tensor.name]: array })));
    else $("random").onclick = () => guarded(() => show(randomInputs(model.inputs)));
    $(picture ? "image" : "numbers").hidden = false;
  } catch (error) {
    fail(error);
  }
}

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  $("status").textContent = String(error.message ?? error);
  $("status").className = "error";
}

function progress(done, total) {
  $("progress").value = total ? done / total : 1;
  $("status").textContent = `Loading weights: ${(done / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
}

const describe = (tensor) => `${tensor.name}: ${tensor.dtype}[${tensor.shape.join(", ")}]`;

/** What the only input is as a picture: rows, columns, channels and where these lie; null if it is none. */
function pictureOf(inputs) {
  const [tensor] = inputs;
  if (inputs.length !== 1 || tensor.dtype !== "f32" || tensor.shape.length !== 4 || tensor.shape[0] !== 1) return null;
  const [, a, b, c] = tensor.shape;
  if (a === 1 || a === 3) return { tensor, channels: a, height: b, width: c, first: true };
  if (c === 1 || c === 3) return { tensor, channels: c, height: a, width: b, first: false };
  return null;
}

/** A place to draw in; `take` is called with the numbers of the picture whenever it has changed. */
class Canvas {
  constructor(picture, options, take) {
    Object.assign(this, { picture, options, take, canvas: $("canvas"), pending: false });
    this.context = this.canvas.getContext("2d");
    this.small = new OffscreenCanvas(picture.width, picture.height).getContext("2d", { willReadFrequently: true });
    this.listen();
    this.clear();
  }

  listen() {
    let last = null;
    const place = (e) => {
      const box = this.canvas.getBoundingClientRect();
      const scale = this.canvas.width / box.width;
      return [(e.clientX - box.left) * scale, (e.clientY - box.top) * scale];
    };
    this.canvas.onpointerdown = (e) => {
      this.canvas.setPointerCapture(e.pointerId);
      last = place(e);
    };
    this.canvas.onpointermove = (e) => {
      if (!last) return;
      const next = place(e);
      this.line(last, next);
      last = next;
    };
    this.canvas.onpointerup = () => (last = null);
    $("clear").onclick = () => this.clear();
    $("file").onchange = (e) => e.target.files[0] && guarded(() => this.paint(e.target.files[0]));
    document.ondragover = (e) => {
      e.preventDefault();
      document.body.className = "dropping";
    };
    document.ondragleave = () => (document.body.className = "");
    document.ondrop = (e) => {
      e.preventDefault();
      document.body.className = "";
      if (e.dataTransfer.files[0]) guarded(() => this.paint(e.dataTransfer.files[0]));
    };
  }

  clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.changed();
  }

  line(from, to) {
    Object.assign(this.context, { strokeStyle: "#fff", lineWidth: INK, lineCap: "round" });
    this.context.beginPath();
    this.context.moveTo(...from);
    this.context.lineTo(...to);
    this.context.stroke();
    this.changed();
  }

  /** The middle of a picture, as large as fits. */
  async paint(file) {
    const image = await createImageBitmap(file);
    const side = Math.min(image.width, image.height);
    const [x, y] = [(image.width - side) / 2, (image.height - side) / 2];
    this.context.drawImage(image, x, y, side, side, 0, 0, this.canvas.width, this.canvas.height);
    this.changed();
  }

  /** Run on what there is when the page has time for it. */
  changed() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(async () => {
      this.pending = false;
      await this.take(this.numbers());
    });
  }

  numbers() {
    const { width, height, channels, first } = this.picture;
    this.small.imageSmoothingQuality = "high";
    this.small.drawImage(this.canvas, 0, 0, width, height);
    const pixels = this.small.getImageData(0, 0, width, height).data;
    const numbers = new Float32Array(width * height * channels);
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < channels; c++) {
        const [r, g, b] = pixels.subarray(4 * i, 4 * i + 3);
        const value = channels === 1 ? 0.299 * r + 0.587 * g + 0.114 * b : pixels[4 * i + c];
        const { mean, deviation } = this.options;
        numbers[first ? c * width * height + i : i * channels + c] =
          (value / 255 - mean[c % mean.length]) / deviation[c % deviation.length];
      }
    }
    return numbers;
  }
}

function randomInputs(tensors) {
  const made = tensors.map((tensor) => {
    const array = new (arrayOf(tensor))(tensor.shape.reduce((a, b) => a * b, 1));
    if (/^f(32|64)$/.test(tensor.dtype)) array.forEach((_, i) => (array[i] = 2 * Math.random() - 1));
    return [tensor.name, array];
  });
  return Object.fromEntries(made);
}

function showResult(model, { outputs, milliseconds }, options) {
  $("timing").textContent = `${milliseconds.toFixed(2)} ms`;
  const [tensor] = model.outputs;
  const values = Array.from(outputs[tensor.name], Number);
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]).slice(0, TOP);
  const [low, high] = values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  $("result").replaceChildren(...order.map((i) => row(options.labels?.[i] ?? String(i), values[i], low, high)));
}

/** A class, its value, and a bar. */
function row(label, value, low, high) {
  const bar = document.createElement("i");
  bar.style.width = `${high > low ? (100 * (value - low)) / (high - low) : 0}%`;
  const line = document.createElement("tr");
  for (const content of [label, value.toPrecision(4), bar]) line.insertCell().append(content);
  return line;
}
