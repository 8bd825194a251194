// What can be checked of any page by looking at it: names, labels, ids, sizes, contrast. Returns sentences.
() => {
  const found = [];
  const shown = (element) => {
    const style = getComputedStyle(element);
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && style.clipPath === "none";
  };
  const tell = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") ?? ""}"> ${element.textContent.trim().slice(0, 40)}`;
  const named = (element) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(/\s+/).some((id) => document.getElementById(id)?.textContent.trim());
    if (element.getAttribute("aria-label")?.trim()) return true;
    if (element.labels && [...element.labels].some((label) => label.textContent.trim())) return true;
    return /^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName) ? false : Boolean(element.textContent.trim());
  };

  for (const element of document.querySelectorAll("a[href], button, input, select, textarea, summary, [role=img], [role=progressbar], [role=region], dialog[open]"))
    if (shown(element) && !named(element)) found.push(`no accessible name: ${tell(element)}`);
  for (const element of document.querySelectorAll("img:not([alt])")) found.push(`no alt text: ${tell(element)}`);
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) found.push(`id twice: ${id}`);
  if (!document.documentElement.lang) found.push("the document has no language");
  if (!document.title) found.push("the document has no title");
  if (document.querySelectorAll("main").length !== 1) found.push("there is not exactly one main region");
  if (document.querySelectorAll("h1").length < 1) found.push("there is no first heading");
  for (const element of document.querySelectorAll("[style]"))
    if (element.getAttribute("style").includes("url(")) found.push(`an address in a style: ${tell(element)}`);
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) found.push(`the page is ${over} px too wide`);

  // Contrast of text with what is behind it (WCAG 2.2 AA): 4.5, or 3 for large text.
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over_ = (top, bottom) => top.slice(0, 3).map((value, i) => value * top[3] + bottom[i] * (1 - top[3])).concat(1);
  const luminance = ([r, g, b]) =>
    [r, g, b].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)).reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      if (style.backgroundImage !== "none" || Number(style.opacity) < 1) return null;
      layers.push(rgba(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over_(layer, below), [255, 255, 255, 1]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || seen.has(element) || !shown(element) || element.closest(":disabled, svg, .u-wrap, dialog:not([open])")) continue;
    seen.add(element);
    const ground = behind(element);
    if (!ground) continue;
    const style = getComputedStyle(element);
    const [a, b] = [luminance(over_(rgba(style.color), ground)), luminance(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = Number.parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${tell(element)}`);
  }
  return found;
};
