// The tooltip of a chart: the values at an episode, and what was done to the agent about then. Texts are never markup.
window.safePsrlChartTip = (points) => {
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  const add = (tag, text, parent = tip) => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    return element;
  };
  add("b", `episode ${Math.round(points[0].axisValue).toLocaleString("en")}`);
  for (const point of points) {
    const row = add("div", "");
    add("i", "", row).style.background = point.color;
    add("span", point.seriesName, row);
    add("em", point.value[1].toLocaleString("en", { maximumSignificantDigits: 4 }), row);
  }
  for (const text of points[0].data.marks || []) add("p", text);
  return tip;
};
