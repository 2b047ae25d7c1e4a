"use strict";
// Draws the curves of this page with uPlot. Values are in the tables as well.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const logarithmic = document.getElementById("logarithmic");
  const drawn = new Map();
  const HEIGHT = 240;
  const NUM_COLOURS = 6;

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function format(value) {
    if (value == null) return "-";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(4).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(6)));
  }

  // A label on the axis has the digits in which it differs from its neighbours.
  function ticks(plot, splits) {
    const texts = splits.map(format);
    return splits.map((value, n) => value == null ? "" : texts[n]);
  }

  function room(plot, values, axis, cycle) {
    if (cycle > 1) return plot.axes[axis]._size;
    const longest = Math.max(0, ...(values ?? []).map(text => String(text ?? "").length));
    return 24 + 7.5 * longest;
  }

  function hasOnlyPositive(chart) {
    return chart.series.every(one => one.y.every(value => value == null || value > 0));
  }

  function options(chart, width) {
    const text = colour("--faded"), line = colour("--line");
    const grid = {stroke: line, width: 1};
    const series = chart.series.map(one => ({
      label: data.labels[one.run],
      value: (plot, value) => format(value),
      ...(chart.best === undefined ? {
        stroke: colour(`--series-${one.run % NUM_COLOURS}`),
        dash: one.run < NUM_COLOURS ? undefined : [6, 4],
        width: 1.5,
      } : {
        stroke: colour(one.run === chart.best ? "--best" : "--others"),
        width: one.run === chart.best ? 3 : 1,
        paths: chart.stepped ? uPlot.paths.stepped({align: 1}) : undefined,
      }),
    }));
    return {
      width,
      height: HEIGHT,
      // Hundreds of trials have no legend: the one that is nearest to the cursor is named.
      legend: {live: true, show: chart.best === undefined || chart.series.length === 1},
      cursor: {
        sync: {key: chart.x},
        drag: {x: true, y: false},
        focus: {prox: chart.best === undefined ? -1 : 24},
      },
      focus: {alpha: 1},
      hooks: chart.best === undefined ? {} : {setSeries: [nameNearest]},
      scales: {
        x: {time: false},
        y: {distr: logarithmic.checked && hasOnlyPositive(chart) ? 3 : 1},
      },
      series: [{label: chart.x, value: (plot, value) => format(value)}, ...series],
      axes: [
        {stroke: text, grid, ticks: grid, values: ticks},
        {stroke: text, grid, ticks: grid, values: ticks, size: room},
      ],
    };
  }

  function nameNearest(plot, number) {
    const place = plot.root.closest("figure").querySelector(".nearest");
    if (!place || !number) return;
    const value = plot.data[number][plot.cursor.idx];
    place.textContent = plot.series[number].label + (value == null ? "" : `: ${format(value)}`);
  }

  function draw(figure) {
    const place = figure.querySelector(".plot");
    const chart = data.charts[Number(figure.dataset.chart)];
    drawn.get(figure)?.destroy();
    const values = chart.series.length === 1
      ? [chart.series[0].x, chart.series[0].y]
      : uPlot.join(chart.series.map(one => [one.x, one.y]));
    drawn.set(figure, new uPlot(options(chart, Math.floor(place.getBoundingClientRect().width)), values, place));
  }

  // Arrow keys move the cursor from point to point, as the mouse does.
  function move(event) {
    const plot = drawn.get(event.currentTarget.closest("figure"));
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!plot || !step) return;
    event.preventDefault();
    const last = plot.data[0].length - 1;
    const at = plot.cursor.idx == null ? (step > 0 ? 0 : last) : plot.cursor.idx + step;
    const point = Math.min(last, Math.max(0, at));
    plot.setCursor({left: plot.valToPos(plot.data[0][point], "x"), top: HEIGHT / 3});
  }

  const redraw = () => drawn.forEach((plot, figure) => draw(figure));
  const figures = document.querySelectorAll(".chart");
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries.filter(one => one.isIntersecting && !drawn.has(one.target))) {
      draw(entry.target);
    }
  }, {rootMargin: "400px"});
  const sized = new ResizeObserver(entries => {
    for (const entry of entries) {
      const plot = drawn.get(entry.target), width = Math.floor(entry.contentRect.width);
      if (plot && plot.width !== width) plot.setSize({width, height: HEIGHT});
    }
  });
  figures.forEach(figure => {
    seen.observe(figure);
    sized.observe(figure);
    figure.querySelector(".plot").addEventListener("keydown", move);
  });
  document.getElementById("controls").hidden = figures.length === 0;
  logarithmic.addEventListener("change", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => figures.forEach(draw));
})();
