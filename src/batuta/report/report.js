// Comfort for a page that is complete without it: tooltips, sorting, lines to switch off, the theme.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- theme: #theme=dark or ?theme=dark, else what was chosen before, else the system's
  const root = document.documentElement;
  const remember = (value) => { try { localStorage.setItem("batuta-theme", value); } catch { /* file:// may refuse */ } };
  const recall = () => { try { return localStorage.getItem("batuta-theme"); } catch { return null; } };
  const asked = /[?#&]theme=(light|dark)/.exec(location.search + location.hash);
  const chosen = asked ? asked[1] : recall();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remember(root.dataset.theme);
  });

  // ---- tooltip
  const tip = document.getElementById("tip");
  const show = (event, fill) => {
    tip.replaceChildren();
    fill(tip);
    tip.hidden = false;
    const gap = 14, box = tip.getBoundingClientRect();
    const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    const top = Math.min(event.clientY + gap, innerHeight - box.height - 4);
    tip.style.transform = `translate(${Math.max(left, 4)}px, ${Math.max(top, 4)}px)`;
  };
  const hide = () => { tip.hidden = true; };
  const add = (parent, text, style) => {
    const row = document.createElement("div");
    if (style) {
      const mark = document.createElement("span");
      mark.className = "swatch " + style;
      row.append(mark);
    }
    row.append(text);
    parent.append(row);
    return row;
  };
  addEventListener("scroll", hide, { passive: true });

  // The name of a picture stays for screen readers only: as a tooltip it would cover ours.
  for (const title of all("svg > title")) {
    const svg = title.parentNode;
    svg.setAttribute("aria-label", title.textContent);
    svg.setAttribute("aria-describedby", svg.getAttribute("aria-labelledby").split(" ")[1]);
    svg.removeAttribute("aria-labelledby");
    title.remove();
  }
  // Marks with a <title>: our tooltip comes at once, the browser's after a second.
  for (const title of all("svg g > title")) {
    const mark = title.parentNode, text = title.textContent;
    title.remove();
    mark.setAttribute("aria-label", text.replaceAll("\n", ", "));
    mark.addEventListener("pointermove", (event) => show(event, (box) => {
      const [name, ...rest] = text.split("\n");
      add(box, name).style.fontWeight = "600";
      rest.forEach((line) => add(box, line));
    }));
    mark.addEventListener("pointerleave", hide);
  }

  // ---- values under the pointer: pixels of the drawn line, turned back into values by the axis
  const axis = (text) => {
    const [scale, low, high, start, end, kind] = text.split(" ");
    return { log: scale === "log", low: +low, high: +high, start: +start, end: +end, kind };
  };
  const value = (a, px) => {
    const share = (px - a.start) / (a.end - a.start);
    return a.log ? a.low * (a.high / a.low) ** share : a.low + share * (a.high - a.low);
  };
  const digits = (number) => number.toLocaleString("en", { maximumSignificantDigits: 3 });
  const words = (a, number) => {
    if (a.kind === "percent") return (number * 100).toFixed(1) + " %";
    if (a.kind === "whole") return (Math.round(number) || 0).toLocaleString("en"); // never -0
    if (a.kind !== "seconds") return digits(number);
    for (const [unit, seconds, from] of [["d", 86400, 432000], ["h", 3600, 7200], ["min", 60, 120]])
      if (number >= from) return digits(number / seconds) + " " + unit;
    return digits(number) + " s";
  };
  // "M12 30h4.5v-3…" as corners; a step line is level from each x on
  const corners = (path) => {
    const xs = [], ys = [];
    let x = 0, y = 0;
    for (const [, step, a, b] of path.getAttribute("d").matchAll(/([Mhv])(-?[\d.]+)(?: (-?[\d.]+))?/g)) {
      if (step === "M") { x = +a; y = +b; } else if (step === "h") x += +a; else y += +a;
      if (step === "h") { xs.push(x); ys.push(y); } else if (xs.length && xs.at(-1) === x) ys[ys.length - 1] = y;
      else { xs.push(x); ys.push(y); }
    }
    return { xs, ys };
  };
  const at = ({ xs, ys }, x) => {
    if (x < xs[0] || x > xs.at(-1)) return null;
    let low = 0, high = xs.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return ys[low];
  };
  const pointer = (svg, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const numbers = (text) => text.split(" ").map(Number);
  const plot = ({ dataset }, series) =>
    ({ series, x: axis(dataset.x), y: axis(dataset.y), area: numbers(dataset.area) });
  const follow = (svg, plots) => {
    const lines = new Map();
    const cursor = document.createElementNS(svg.namespaceURI, "path");
    cursor.setAttribute("class", "cursor");
    const leave = () => { cursor.remove(); hide(); };
    svg.addEventListener("pointermove", (event) => {
      const p = pointer(svg, event);
      const here = plots.find(({ area }) => p.x >= area[0] && p.x <= area[2] && p.y >= area[1] && p.y <= area[3]);
      if (!here) return leave();
      cursor.setAttribute("d", `M${p.x} ${here.area[1]}V${here.area[3]}`);
      svg.append(cursor);
      const found = [];
      for (const one of here.series) {
        if (one.classList.contains("off")) continue;
        if (!lines.has(one)) lines.set(one, corners(one.querySelector(".stroke")));
        const height = at(lines.get(one), p.x);
        if (height !== null) found.push({ one, height });
      }
      found.sort((a, b) => a.height - b.height);
      show(event, (box) => {
        add(box, words(here.x, value(here.x, p.x))).style.fontWeight = "600";
        for (const { one, height } of found)
          add(box, `${one.dataset.label}: ${words(here.y, value(here.y, height))}`, one.getAttribute("class").replace("series", ""));
      });
    });
    svg.addEventListener("pointerleave", leave);
  };
  for (const svg of all("svg.lines")) if (svg.dataset.x) follow(svg, [plot(svg, all(".series", svg))]);
  for (const svg of all("svg.strips")) follow(svg, all(".series", svg).map((one) => plot(one, [one])));

  // ---- legends: point to single a line out, click to switch it off
  for (const svg of all("svg.lines")) {
    for (const key of all(".key[data-for]", svg)) {
      const line = svg.querySelector(`[data-series="${key.dataset.for}"]`);
      if (!line) continue;
      key.setAttribute("tabindex", "0");
      key.setAttribute("role", "button");
      key.setAttribute("aria-pressed", "true");
      const focus = (on) => { svg.classList.toggle("focus", on); line.classList.toggle("near", on); };
      const toggle = () => {
        const off = line.classList.toggle("off");
        key.classList.toggle("off", off);
        key.setAttribute("aria-pressed", String(!off));
      };
      key.addEventListener("pointerenter", () => focus(true));
      key.addEventListener("pointerleave", () => focus(false));
      key.addEventListener("click", toggle);
      key.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
      });
    }
  }

  // ---- the life of a job
  for (const svg of all("svg.gantt")) {
    const rows = svg.dataset.rows.split("\n");
    svg.addEventListener("pointermove", (event) => {
      const row = Math.floor((pointer(svg, event).y - +svg.dataset.top) / +svg.dataset.row);
      if (row < 0 || row >= rows.length) return hide();
      const [name, ...rest] = rows[row].split("\t");
      const gpus = event.target.dataset && event.target.dataset.gpus;
      show(event, (box) => {
        add(box, name).style.fontWeight = "600";
        if (gpus) add(box, `holds ${gpus} GPU${gpus === "1" ? "" : "s"} here`, event.target.getAttribute("class"));
        rest.forEach((line) => add(box, line));
      });
    });
    svg.addEventListener("pointerleave", hide);
  }

  // ---- paper cannot be clicked: what is folded is printed too
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));

  // ---- tables: sort by a column, cells without a value last
  for (const table of all("table.sortable")) {
    const heads = all("thead th[data-sort]", table);
    for (const head of heads) {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.append(...head.childNodes);
      head.append(sorter);
      sorter.addEventListener("click", () => {
        const column = +head.dataset.column, up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const keyed = [...table.tBodies[0].rows].map((row) => ({ row, key: row.cells[column].dataset.value }));
        keyed.sort((a, b) => {
          if (a.key === undefined || b.key === undefined) return (a.key === undefined) - (b.key === undefined);
          const order = head.dataset.sort === "text" ? a.key.localeCompare(b.key) : a.key - b.key;
          return up ? order : -order;
        });
        table.tBodies[0].append(...keyed.map(({ row }) => row));
      });
    }
  }
})();
