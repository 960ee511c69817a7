"use strict";
// The timeline: a canvas that shows the times from `view.from` to `view.to`, in ns, a row for each lane.
(() => {
  const step = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.querySelector("#timeline canvas");
  const tip = document.getElementById("tip");
  const shown = document.getElementById("window");
  const pen = canvas.getContext("2d");
  const lanes = step.lanes, patterns = step.patterns, kinds = step.kinds;
  const view = { from: 0, to: step.step_ns };
  const LEAST_NS = 100, AXIS = 24, NARROW = 5, FONT = "12px system-ui, sans-serif";
  const row = Math.max(12, Math.min(26, 700 / lanes.length));
  let left = 0, width = 0, colours = {};

  const used = new Set(patterns.flatMap((each) => kinds.map((_, kind) => kind).filter((kind) => each.sums[kind])));
  for (const item of document.querySelectorAll("#kinds li")) item.hidden = !used.has(Number(item.dataset.kind));
  const several = new Set(lanes.map((each) => each.lane)).size > 1;
  const titles = lanes.map((each) => `stage ${each.stage}` + (several ? `, ${each.lane}` : ""));

  function time(ns) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]].find(([size]) => Math.abs(ns) >= size) || [1, "ns"];
    return `${Number((ns / size).toPrecision(4))} ${unit}`;
  }
  const at = (ns) => left + ((ns - view.from) / (view.to - view.from)) * width;
  const when = (x) => view.from + ((x - left) / width) * (view.to - view.from);
  const end = (block) => block[0] + patterns[block[1]].end;

  function firstShown(blocks, ns) { // blocks of a lane follow one another, so that they are sorted by their ends, too
    let low = 0, high = blocks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end(blocks[middle]) < ns) low = middle + 1; else high = middle;
    }
    return low;
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = { ink: read("ink"), quiet: read("quiet"), idle: read("idle"), line: read("line"), back: read("back"), kinds: kinds.map(read) };
  }

  function draw() {
    const box = canvas.parentElement.clientWidth, high = AXIS + row * lanes.length;
    const dots = window.devicePixelRatio || 1;
    canvas.width = Math.round(box * dots);
    canvas.height = Math.round(high * dots);
    canvas.style.height = `${high}px`;
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, box, high);
    pen.font = FONT;
    const every = Math.ceil(14 / row);
    left = Math.ceil(Math.max(...titles.map((text) => pen.measureText(text).width))) + 10;
    width = box - left - 6;
    pen.textBaseline = "middle";
    lanes.forEach((lane, number) => {
      const top = AXIS + number * row;
      pen.fillStyle = colours.ink;
      pen.textAlign = "left";
      if (number % every === 0) pen.fillText(titles[number], 0, top + row / 2);
      pen.fillStyle = colours.idle;
      pen.fillRect(left, top + 1, width, row - 2);
      pen.save();
      pen.beginPath();
      pen.rect(left, top, width, row);
      pen.clip();
      drawLane(lane, top + 1, row - 2);
      pen.restore();
    });
    drawAxis(high);
    shown.textContent = `${time(view.from)} to ${time(view.to)}`;
    canvas.dataset.from = String(Math.round(view.from));
    canvas.dataset.to = String(Math.round(view.to));
  }

  function drawLane(lane, top, high) {
    const blocks = lane.blocks;
    let together = null; // neighbours too narrow to be seen apart, as one
    for (let place = firstShown(blocks, view.from); place < blocks.length && blocks[place][0] <= view.to; place++) {
      const block = blocks[place], pattern = patterns[block[1]];
      const x = at(block[0]), to = at(end(block)), wide = to - x;
      if (wide < NARROW) {
        together ||= { x, from: block[0], sums: kinds.map(() => 0) };
        together.until = end(block);
        pattern.sums.forEach((sum, kind) => { together.sums[kind] += sum; });
        if (to - together.x >= NARROW) together = flush(together, together.until, top, high);
        continue;
      }
      if (together) together = flush(together, together.until, top, high);
      if (pattern.parts.length && wide > 4 * pattern.parts.length) {
        for (const [kind, start, duration] of pattern.parts) {
          pen.fillStyle = colours.kinds[kind];
          const from = at(block[0] + start), until = at(block[0] + start + duration);
          pen.fillRect(from, top, Math.max(until - from - (until - from > 3 ? 0.5 : 0), 0.3), high);
        }
      } else shares(pattern.sums, pattern.end, x, wide - (wide > 3 ? 0.6 : 0), top, high);
      if (block[2] >= 0 && row >= 14) number(block, x, wide, top, high);
    }
    if (together) flush(together, together.until, top, high);
  }

  function flush(together, until, top, high) {
    shares(together.sums, until - together.from, together.x, at(until) - together.x, top, high);
    return null;
  }

  function shares(sums, long, x, wide, top, high) {
    let low = top + high;
    sums.forEach((sum, kind) => {
      const share = (sum / Math.max(1, long)) * high;
      low -= share;
      pen.fillStyle = colours.kinds[kind];
      if (share) pen.fillRect(x, low, Math.max(wide, 0.5), share);
    });
  }

  function number(block, x, wide, top, high) {
    const text = block[2] === block[3] ? String(block[2]) : `${block[2]}-${block[3]}`;
    const from = Math.max(x, left), to = Math.min(x + wide, left + width);
    pen.font = "11px system-ui, sans-serif";
    const space = pen.measureText(text).width + 8;
    if (to - from > space) {
      pen.fillStyle = colours.back;
      pen.globalAlpha = 0.85;
      pen.fillRect((from + to - space) / 2 + 2, top + high / 2 - 7, space - 4, 14);
      pen.globalAlpha = 1;
      pen.fillStyle = colours.ink;
      pen.textAlign = "center";
      pen.fillText(text, (from + to) / 2, top + high / 2 + 0.5);
    }
    pen.font = FONT;
  }

  function drawAxis(high) {
    const rough = ((view.to - view.from) / width) * 90, power = 10 ** Math.floor(Math.log10(rough));
    const gap = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]].find(([size]) => gap >= size / 100) || [1, "ns"];
    pen.textAlign = "center";
    for (let tick = Math.ceil(view.from / gap) * gap; tick <= view.to; tick += gap) {
      const x = at(tick), text = `${Number((tick / size).toPrecision(8))} ${unit}`, half = pen.measureText(text).width / 2;
      pen.fillStyle = colours.line;
      pen.fillRect(x, AXIS - 5, 1, high - AXIS + 5);
      pen.fillStyle = colours.quiet;
      if (x - half >= left - 4 && x + half <= left + width + 6) pen.fillText(text, x, 9);
    }
  }

  function show(from, to) {
    const long = Math.min(step.step_ns, Math.max(Math.min(LEAST_NS, step.step_ns), to - from));
    view.from = Math.min(Math.max(0, from), step.step_ns - long);
    view.to = view.from + long;
    tip.hidden = true;
    draw();
  }
  function zoom(factor, middle) {
    show(middle - (middle - view.from) / factor, middle + (view.to - middle) / factor);
  }
  const move = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
  const centre = () => (view.from + view.to) / 2;
  const actions = {
    in: () => zoom(2, centre()), out: () => zoom(0.5, centre()), left: () => move(-0.5), right: () => move(0.5),
    all: () => show(0, step.step_ns),
  };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", actions[button.dataset.zoom]);
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", 0: "all" };
  canvas.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[action]();
  });
  canvas.addEventListener("wheel", (event) => { // without Ctrl the wheel scrolls the page, as elsewhere
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 300), when(event.offsetX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      move(event.deltaX / width);
    }
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return describe(event);
    const before = [...fingers.values()];
    fingers.set(event.pointerId, event.offsetX);
    const after = [...fingers.values()];
    if (after.length === 1) return move((before[0] - after[0]) / width);
    const [was, is] = [before, after].map(([a, b]) => Math.max(10, Math.abs(a - b)));
    return zoom(is / was, when((after[0] + after[1]) / 2));
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => describe(event));

  function describe(event) {
    const lane = lanes[Math.floor((event.offsetY - AXIS) / row)], ns = when(event.offsetX);
    const block = lane && lane.blocks[firstShown(lane.blocks, ns)];
    tip.hidden = !block || block[0] > ns || event.offsetX < left;
    if (tip.hidden) return;
    const pattern = patterns[block[1]], lines = [`stage ${lane.stage}, rank ${lane.rank}` + (several ? `, ${lane.lane}` : "")];
    if (block[2] >= 0) {
      lines.push(block[2] === block[3] ? `${block[4] ? "backward" : "forward"} pass of micro-batch ${block[2]}` : `micro-batches ${block[2]} to ${block[3]}`);
    }
    lines.push(`${time(block[0])} to ${time(end(block))}: ${time(pattern.end)}`);
    pattern.sums.forEach((sum, kind) => { if (sum) lines.push(`${kinds[kind]} ${time(sum)}`); });
    const part = pattern.parts.find(([, start, duration]) => block[0] + start <= ns && ns < block[0] + start + duration);
    if (part) lines.push(`here: ${step.names[part[3]]}${part[4] < 0 ? "" : ` of ${step.units[part[4]]}`}, ${time(part[2])}`);
    tip.textContent = lines.join("\n");
    const room = canvas.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, event.offsetX + 12))}px`;
    tip.style.top = `${event.offsetY + 16}px`;
  }

  const redraw = () => { readColours(); draw(); };
  addEventListener("resize", redraw);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
  addEventListener("beforeprint", redraw);
  addEventListener("afterprint", redraw);
  redraw();
})();
