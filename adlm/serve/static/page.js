// What a page does beyond being read: players, tips, copying, light and dark. All of it can be missing.
"use strict";

(() => {
  const root = document.documentElement;

  function remembered() {
    try { return localStorage.getItem("adlm-theme"); } catch { return null; } // a page from a file may not store
  }

  function dark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function themeButton() {
    const button = document.querySelector(".theme");
    const name = () => { button.setAttribute("aria-label", dark() ? "show it light" : "show it dark"); };
    const stored = remembered();
    if (stored === "dark" || stored === "light") root.dataset.theme = stored;
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("adlm-theme", root.dataset.theme); } catch { /* it lasts as long as the page */ }
      name();
    });
    name();
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");

  function showTip(text, box) {
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(innerWidth - tip.offsetWidth - 8, box.left + box.width / 2 - tip.offsetWidth / 2);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.setProperty("left", `${Math.max(8, left)}px`);
    tip.style.setProperty("top", `${above > 4 ? above : box.bottom + 8}px`);
  }

  const hideTip = () => { tip.hidden = true; };

  // Titles become tips, which the keyboard reaches too.
  function figureTips() {
    for (const element of document.querySelectorAll(".figure[title]")) {
      const text = element.title;
      element.removeAttribute("title");
      element.tabIndex = 0;
      const show = () => showTip(text, element.getBoundingClientRect());
      for (const name of ["pointerenter", "focus"]) element.addEventListener(name, show);
      for (const name of ["pointerleave", "blur"]) element.addEventListener(name, hideTip);
    }
  }

  // The point nearest to the pointer tells its figures.
  function chartTips(chart) {
    const dots = [...chart.querySelectorAll(".dot:not(.key-dot)")].map((dot) => {
      const title = dot.querySelector("title"), text = title.textContent;
      title.remove();
      return { dot, text };
    });
    let near = null;
    const leave = () => { near?.dot.classList.remove("near"); near = null; hideTip(); };
    chart.addEventListener("pointerleave", leave);
    chart.addEventListener("pointermove", (event) => {
      let least = 45 ** 2, found = null;
      for (const each of dots) {
        const box = each.dot.getBoundingClientRect();
        const x = box.left + box.width / 2 - event.clientX, y = box.top + box.height / 2 - event.clientY;
        if (x * x + y * y < least) { least = x * x + y * y; found = each; }
      }
      if (!found) { leave(); return; }
      near?.dot.classList.remove("near");
      near = found;
      near.dot.classList.add("near");
      showTip(near.text, near.dot.getBoundingClientRect());
    });
  }

  function copyButton(box) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      const text = box.querySelector("code").textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(box.querySelector("code")); // to be copied by hand
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    box.append(button);
  }

  function contents() {
    const links = new Map([...document.querySelectorAll(".contents a")].map((a) => [a.hash.slice(1), a]));
    if (!("IntersectionObserver" in window)) return;
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
    }, { rootMargin: "-10% 0px -60% 0px" });
    for (const section of document.querySelectorAll("main section[id]")) watch.observe(section);
  }

  document.body.append(tip);
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  themeButton();
  figureTips();
  contents();
  document.querySelectorAll("svg.chart").forEach(chartTips);
  document.querySelectorAll(".code").forEach(copyButton);
  for (const element of document.querySelectorAll("[data-player]"))
    mountPlayer(element, JSON.parse(document.getElementById(element.dataset.player).textContent));
})();
