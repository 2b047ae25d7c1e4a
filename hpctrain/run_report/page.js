"use strict";
// Draws the curves of this page with uPlot. Values are in the tables as well.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const logarithmic = document.getElementById("logarithmic");
  const drawn = new Map();
  const HEIGHT = 240, PARALLEL_HEIGHT = 400;
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

  // A line joins two values. One between two gaps has none: it is a point.
  function isolated(values) {
    // Where another curve has a value and this one has not, there is no gap.
    const own = [...values.keys()].filter(n => values[n] !== undefined);
    const alone = (n, at) => values[n] != null && values[own[at - 1]] == null && values[own[at + 1]] == null;
    return own.filter(alone);
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
      // Hundreds of trials have no points but those that no line goes to.
      points: {
        show: chart.best === undefined ? undefined : false,
        fill: colour("--back"),
        filter: (plot, number, show) => show ? null : isolated(plot.data[number]),
      },
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

  // Each trial is a series, and each parameter a place on the horizontal axis.
  function parallel(chart, width) {
    const last = chart.axes.length - 1, numLines = Math.max(...chart.axes.map(axis => axis.lines.length));
    let pointed = null;
    const styles = {
      best: {stroke: colour("--best"), width: 4},
      first: {stroke: colour("--series-0"), width: 1.5},
      other: {stroke: colour("--others"), width: 1},
      none: {stroke: colour("--others"), width: 1, dash: [3, 4]},
    };
    return {
      width,
      height: PARALLEL_HEIGHT,
      padding: [12, 120, 0, 8],
      legend: {show: false},
      // The nearest trial, however far: the arrow keys move along one height.
      cursor: {x: false, y: false, drag: {x: false, y: false}, points: {show: false}, focus: {prox: 1e6}},
      focus: {alpha: 1},
      hooks: {
        setSeries: [nameNearest, (plot, number) => { pointed = number; plot.redraw(false); }],
        draw: [plot => drawAxes(plot, chart, pointed)],
      },
      scales: {x: {time: false, range: [0, Math.max(1, last)]}, y: {range: [chart.lowest, 1]}},
      series: [{}, ...chart.series.map(one => ({
        label: data.labels[one.run], value: () => one.value ?? "-", points: {show: false},
        alpha: chart.opaque[one.kind] ?? 1, ...styles[one.kind],
      }))],
      axes: [
        {
          stroke: colour("--text"), align: 1, size: 14 + 18 * numLines, gap: 10, ticks: {show: false},
          grid: {stroke: colour("--faded"), width: 1},
          splits: () => chart.axes.map((axis, n) => n),
          values: () => chart.axes.map(axis => axis.lines.join("\n")),
        },
        {show: false},
      ],
    };
  }

  // What the values on each axis are, and the line under the cursor over all others.
  function drawAxes(plot, chart, pointed) {
    const {ctx} = plot, size = uPlot.pxRatio, text = colour("--text"), back = colour("--back");
    const top = value => plot.valToPos(value, "y", true), left = n => plot.valToPos(n, "x", true);
    ctx.save();
    if (pointed) {
      ctx.beginPath();
      plot.data[pointed].forEach((value, n) => ctx.lineTo(left(n), top(value)));
      ctx.strokeStyle = text;
      ctx.lineWidth = 3 * size;
      ctx.stroke();
    }
    ctx.font = `${12 * size}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    chart.axes.forEach((axis, n) => axis.ticks.forEach(([value, name]) => {
      ctx.globalAlpha = 0.8;
      ctx.fillStyle = back;
      ctx.fillRect(left(n) + 5 * size, top(value) - 8 * size, ctx.measureText(name).width + 4 * size, 16 * size);
      ctx.globalAlpha = 1;
      ctx.fillStyle = text;
      ctx.fillRect(left(n) - 4 * size, top(value), 8 * size, size);
      ctx.fillText(name, left(n) + 7 * size, top(value));
    }));
    ctx.restore();
  }

  function nameNearest(plot, number) {
    const place = plot.root.closest("figure").querySelector(".nearest");
    if (!place || !number) return;
    const {label, value} = plot.series[number];
    const shown = value(plot, plot.data[number][plot.cursor.idx]);
    place.textContent = shown === "-" ? label : `${label}: ${shown}`;
  }

  function draw(figure) {
    const place = figure.querySelector(".plot");
    const chart = figure.dataset.chart ? data.charts[Number(figure.dataset.chart)] : data.parallel;
    drawn.get(figure)?.destroy();
    const values = chart.axes
      ? [chart.axes.map((axis, n) => n), ...chart.series.map(one => one.y)]
      : chart.series.length === 1
        ? [chart.series[0].x, chart.series[0].y]
        : uPlot.join(chart.series.map(one => [one.x, one.y]));
    const width = Math.floor(place.getBoundingClientRect().width);
    drawn.set(figure, new uPlot((chart.axes ? parallel : options)(chart, width), values, place));
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
    plot.setCursor({left: plot.valToPos(plot.data[0][point], "x"), top: plot.bbox.height / uPlot.pxRatio / 3});
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
      const plot = drawn.get(entry.target.closest("figure")), width = Math.floor(entry.contentRect.width);
      if (plot && plot.width !== width) plot.setSize({width, height: plot.height});
    }
  });
  figures.forEach(figure => {
    seen.observe(figure);
    sized.observe(figure.querySelector(".plot"));
    figure.querySelector(".plot").addEventListener("keydown", move);
  });
  document.getElementById("controls").hidden = data.charts.length === 0;
  logarithmic.addEventListener("change", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => figures.forEach(draw));
})();
