// Colours of the style sheet for components that paint by themselves (canvas).

/** A token as the browser computes it now: "rgb(…)". */
export function colourOf(element: HTMLElement, token: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${token})`;
  element.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
