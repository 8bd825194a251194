// Runs before the first paint, so that a chosen theme does not flash. Inline scripts are forbidden by our own policy.
try {
  const theme = localStorage.getItem("batuta-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; the system's choice is fine then.
}
