// Draws what the page carries as data; colours follow the page's own.
function draw() {
  const style = getComputedStyle(document.body);
  const look = { color: style.color, size: 13 };
  const grid = getComputedStyle(document.documentElement).getPropertyValue("--line").trim() || "#8884";
  for (const place of document.querySelectorAll("[data-chart]")) {
    const series = JSON.parse(place.dataset.chart);
    const layout = {
      barmode: "stack", font: look, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 60, r: 10, t: 10, b: 40 }, legend: { orientation: "h", y: 1, yanchor: "bottom" }, bargap: 0.3, showlegend: series.traces.length > 1,
      xaxis: { type: series.x ?? "category", gridcolor: grid, automargin: true },
      yaxis: { title: { text: series.unit }, rangemode: series.from === "anywhere" ? "normal" : "tozero", gridcolor: grid, ...(series.step ? { dtick: series.step } : {}) },
    };
    window.Plotly.newPlot(place, series.traces, layout, { displayModeBar: false, responsive: true });
  }
}
if (window.Plotly) draw();
else window.addEventListener("load", draw);
document.addEventListener("pitstop:refreshed", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
