// Light and dark, and copying a command; a page reads the same without it.
const button = document.getElementById("theme");
let kept = null;
try { kept = localStorage.getItem("trueup-theme"); } catch { /* a page from disk may have no storage */ }
const apply = (theme) => {
  document.documentElement.dataset.theme = theme;
  button.setAttribute("aria-pressed", String(theme === "dark"));
  button.setAttribute("aria-label", theme === "dark" ? "Use light colours" : "Use dark colours");
};
const dark = matchMedia("(prefers-color-scheme: dark)");
apply(kept || (dark.matches ? "dark" : "light"));
dark.addEventListener("change", (event) => kept || apply(event.matches ? "dark" : "light"));
button.addEventListener("click", () => {
  kept = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  apply(kept);
  try { localStorage.setItem("trueup-theme", kept); } catch { /* as above */ }
});
for (const copy of document.querySelectorAll("[data-copy]")) {
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(copy.previousElementSibling.textContent);
    copy.textContent = "Copied";
  });
}
