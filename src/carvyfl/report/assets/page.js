"use strict";
// Beside the pointer, or at the arrow keys' place, show the row of the chart's own table.
for (const figure of document.querySelectorAll("figure.chart")) {
  const plot = figure.querySelector(".plot");
  const drawing = plot.querySelector("svg");
  const guide = plot.querySelector(".guide");
  const tip = plot.querySelector(".tip");
  const names = [...figure.querySelectorAll("thead th")].map((cell) => cell.textContent);
  const rows = [...figure.querySelectorAll("tbody tr")];
  const places = rows.map((row) => Number(row.dataset.x));
  const width = drawing.viewBox.baseVal.width;
  let shown = -1;

  const hide = () => {
    shown = -1;
    tip.hidden = true;
    guide.setAttribute("visibility", "hidden");
  };

  const show = (index) => {
    const box = drawing.getBoundingClientRect();
    const at = (places[index] / width) * box.width;
    guide.setAttribute("transform", `translate(${places[index]} 0)`);
    guide.setAttribute("visibility", "visible");
    if (index !== shown) {
      shown = index;
      const lines = [...rows[index].cells].map((cell, column) => {
        const line = document.createElement("span");
        line.textContent = `${names[column]}: ${cell.textContent}`;
        return line;
      });
      tip.replaceChildren(...lines);
      tip.hidden = false;
    }
    const room = box.width - tip.offsetWidth;
    const left = at < box.width / 2 ? at + 12 : at - 12 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(left, room))}px`;
  };

  const nearest = (event) => {
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    let best = 0;
    places.forEach((place, index) => {
      if (Math.abs(place - at) < Math.abs(places[best] - at)) best = index;
    });
    show(best);
  };

  plot.addEventListener("pointermove", nearest);
  plot.addEventListener("pointerdown", nearest);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(Math.max(0, Math.min(rows.length - 1, shown + step)));
  });
}
