// Draws what the page carries as data; colours follow the page's own.
function draw() {
  const style = getComputedStyle(document.body);
  const look = { color: style.color, size: 13 };
  for (const place of document.querySelectorAll("[data-chart]")) {
    const series = JSON.parse(place.dataset.chart);
    const layout = {
      barmode: "stack", font: look, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 40, r: 10, t: 10, b: 40 }, legend: { orientation: "h" }, xaxis: { type: "category" }, yaxis: { title: { text: "incidents" }, dtick: 1 * (series.most > 12 ? Math.ceil(series.most / 12) : 1) },
    };
    window.Plotly.newPlot(place, series.traces, layout, { displayModeBar: false, responsive: true });
  }
}
if (window.Plotly) draw();
else window.addEventListener("load", draw);
