"use strict";
// Files as values of inputs: bytes as they are for STRING, and bytes or the pixels of a picture for UINT8.

const CHANNELS = [1, 3, 4];

function canTakeFiles(input) {
  return input.datatype === "BYTES" || input.datatype === "UINT8";
}

// Where height, width and channels of a picture are in a shape; null if it has none. Dimensions before them are 1.
function pictureLayout(shape) {
  const isOne = size => size < 0 || size === 1;
  if (shape.length === 2 && shape.every(size => size > 1)) return { channels: 1, order: "HW", height: shape[0], width: shape[1] };
  if (shape.length < 3 || !shape.slice(0, -3).every(isOne)) return null;
  const [first, second, third] = shape.slice(-3);
  const last = CHANNELS.includes(third), isFirst = CHANNELS.includes(first) && !last;
  if (isFirst) return { channels: first, order: "CHW", height: second, width: third };
  if (last || third < 0) return { channels: last ? third : 3, order: "HWC", height: first, width: second };
  if (isOne(first) && second > 1) return { channels: 1, order: "1HW", height: second, width: third };
  return null;
}

// The value of an input: its `shape` and `bytes`, what to say about it, and how Python makes the same array.
async function valueOfFiles(input, files) {
  const read = await Promise.all(files.map(async file => ({ name: file.name, bytes: new Uint8Array(await file.arrayBuffer()), file })));
  if (input.datatype === "BYTES") return stringsOf(input, read);
  const layout = pictureLayout(input.shape);
  if (layout && read.length === 1) {
    const picture = await createImageBitmap(read[0].file).catch(() => null);
    if (picture) return pixelsOf(input, layout, picture, read[0].name);
  }
  if (read.length > 1) throw new Error(`${input.name}: one file is the value of a tensor of UINT8, and ${read.length} were chosen`);
  return bytesOf(input, read[0]);
}

// One element for each file.
function stringsOf({ name, shape }, read) {
  const at = shape.findLastIndex(size => size < 0);
  const sizes = shape.map((size, i) => size > 0 ? size : i === at ? read.length : 1);
  if (sizes.reduce((all, size) => all * size, 1) !== read.length) throw new Error(`${name}: the shape ${JSON.stringify(shape)} has no place for ${count(read.length, "file")}`);
  return {
    shape: sizes, strings: read.map(each => each.bytes), bytes: lengthPrefixed(read.map(each => each.bytes)),
    told: read.map(each => `${each.name}, ${formatBytes(each.bytes.length)}`).join("; "),
    python: `np.array([${read.map(each => `open(${JSON.stringify(each.name)}, "rb").read()`).join(", ")}], np.object_)`,
  };
}

function bytesOf({ name, shape }, { name: file, bytes }) {
  const at = shape.findLastIndex(size => size < 0);
  const others = shape.reduce((all, size) => size > 0 ? all * size : all, 1);
  const sizes = shape.map((size, i) => size > 0 ? size : i === at ? bytes.length / others : 1);
  if (sizes.reduce((all, size) => all * size, 1) !== bytes.length || !sizes.every(Number.isInteger)) throw new Error(`${name}: ${file} has ${count(bytes.length, "byte")}, which do not fill the shape ${JSON.stringify(shape)}`);
  return { shape: sizes, bytes, told: `${file}, ${formatBytes(bytes.length)}`, python: `np.fromfile(${JSON.stringify(file)}, np.uint8)` };
}

function pixelsOf({ shape }, { channels, order, height: tall, width: wide }, picture, file) {
  const height = tall > 0 ? tall : picture.height, width = wide > 0 ? wide : picture.width;
  const canvas = h("canvas", { class: "preview" });
  canvas.height = height;
  canvas.setAttribute("width", width);  // `h` takes a width for a style
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);  // red, green, blue and opacity of each pixel
  const area = height * width;
  const bytes = new Uint8Array(area * channels);
  for (let pixel = 0; pixel < area; pixel++) {
    for (let channel = 0; channel < channels; channel++) {
      // Grey as Pillow's mode L has it (ITU-R 601-2).
      const value = channels === 1 ? (data[4 * pixel] * 19595 + data[4 * pixel + 1] * 38470 + data[4 * pixel + 2] * 7471 + 0x8000) >> 16 : data[4 * pixel + channel];
      bytes[order === "CHW" ? channel * area + pixel : pixel * channels + channel] = value;
    }
  }
  const sizes = { HW: [height, width], "1HW": [1, height, width], HWC: [height, width, channels], CHW: [channels, height, width] }[order];
  const isScaled = height !== picture.height || width !== picture.width;
  const mode = { 1: "L", 3: "RGB", 4: "RGBA" }[channels];
  return {
    shape: [...new Array(shape.length - sizes.length).fill(1), ...sizes], bytes, canvas, needsPillow: true,
    told: `${file}: ${picture.width} × ${picture.height} pixels${isScaled ? `, scaled to ${width} × ${height}` : ""}, ${mode}`,
    python: `np.asarray(Image.open(${JSON.stringify(file)}).convert("${mode}")${isScaled ? `.resize((${width}, ${height}))` : ""})${order === "CHW" && channels > 1 ? ".transpose(2, 0, 1)" : ""}`,
  };
}

// Strings as KServe's binary form has them: a length of four bytes before each.
function lengthPrefixed(strings) {
  const bytes = new Uint8Array(strings.reduce((all, each) => all + 4 + each.length, 0));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const each of strings) {
    view.setUint32(at, each.length, true);
    bytes.set(each, at + 4);
    at += 4 + each.length;
  }
  return bytes;
}

// The elements of a value as JSON writes them: for requests that have no binary form.
function elementsOfFiles({ name, datatype }, { strings, bytes }) {
  if (datatype === "UINT8") return Array.from(bytes, String);
  return strings.map(each => {
    try {
      return JSON.stringify(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(each));
    } catch {
      throw new Error(`${name}: the file is not UTF-8, and a decoupled model gets JSON from this page: use tritonclient, as below`);
    }
  });
}
