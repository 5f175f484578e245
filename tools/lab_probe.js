// What the browser tests ask of JupyterLab's page. Injected before the page's own scripts; nothing here waits for a time.
window.probe = (() => {
  const app = () => window.jupyterapp;
  const panel = () => app()?.shell.currentWidget;
  const cells = () => panel().content.widgets;
  const graphs = (root) => [...root.querySelectorAll(".js-plotly-plot")];
  const views = () => cells().filter((cell) => cell.node.querySelector(".jp-OutputArea .jupyter-widgets"));
  const near = 4; // px that two boxes may share: a box is a little larger than its ink
  const overlap = (a, b) => a.width && b.width && Math.min(a.right, b.right) - Math.max(a.left, b.left) > near &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > near;
  let before = {}; // what the watched widget looked like before a key was pressed

  // all that the figures of a widget draw, and what its sentences say: two that differ look different
  const look = (root) => ({
    figure: JSON.stringify(graphs(root).map((graph) => [...graph.querySelectorAll("path, text, image, rect")].map((mark) => [
      mark.getAttribute("d") ?? mark.getAttribute("transform"), mark.textContent, mark.getAttribute("style"), mark.getAttribute("href")]))),
    sentence: [...root.querySelectorAll(".widget-html")].map((line) => line.textContent).join("\n"),
  });

  return {
    ready: () => Boolean(app() && panel()?.context?.isReady && panel().sessionContext?.isReady &&
      panel().sessionContext.session?.kernel?.status === "idle"),
    run() {
      window.ended = "";
      app().commands.execute("notebook:run-all-cells").then((ok) => (window.ended = String(ok)), (e) => (window.ended = `${e}`));
    },
    // every figure and widget of the page is drawn, and a live figure fills its output
    drawn: () => graphs(document).every((graph) => graph.querySelector(".main-svg") && graph._fullLayout && (!graph.closest(".jupyter-widgets") ||
      Math.abs(graph._fullLayout.width / graph.closest(".jp-OutputArea-output").clientWidth - 0.95) < 0.06)) &&
      ![...document.querySelectorAll(".jp-OutputArea-output")].some((out) => /^Loading widget/.test(out.textContent.trim())),
    outputs: (kind) => cells().flatMap((cell, index) => (cell.model.sharedModel.outputs ?? [])
      .filter((out) => out.output_type === kind || out.name === kind)
      .map((out) => `cell ${index}: ${(out.evalue ?? [].concat(out.text).join("")).slice(0, 300)}`)),
    unrun: () => cells().filter((cell) => cell.model.type === "code" && cell.model.sharedModel.source.trim() &&
      cell.model.executionCount === null).length,
    count: () => ({
      cells: cells().filter((cell) => cell.model.type === "code").length,
      figures: graphs(document).length,
      views: views().length,
    }),
    mark() { // number the outputs, so that a locator finds them
      views().forEach((cell, index) => cell.node.querySelector(".jp-Cell-outputArea").setAttribute("data-view", index));
      cells().filter((cell) => graphs(cell.node).length && !views().includes(cell))
        .forEach((cell, index) => cell.node.querySelector(".jp-Cell-outputArea").setAttribute("data-figure", index));
    },
    // labels (of a bar: plotly keeps them in it, and its axis may end there) that leave their figure or lie on each other, and figures wider than their output
    faults: () => graphs(document).flatMap((graph) => {
      const name = (graph._fullLayout.title.text ?? "").slice(0, 40);
      const box = graph.querySelector(".main-svg").getBoundingClientRect();
      const room = (graph.closest(".jp-OutputArea-output") ?? graph).getBoundingClientRect();
      const texts = (path) => [...graph.querySelectorAll(path)].filter((text) => text.textContent.trim())
        .map((text) => ({
          says: `"${text.textContent.slice(0, 40)}"`, turned: text.getAttribute("transform"), at: text.getBoundingClientRect(),
        }));
      const found = texts("text:not(.bartext)").filter(({ at }) => at.width && (at.left < box.left - near || at.right > box.right + near ||
        at.top < box.top - near || at.bottom > box.bottom + near)).map(({ says }) => `${says} is cut`);
      const labels = texts(".infolayer .gtitle, .gtitle-subtitle, .g-xtitle text, .g-ytitle text, .g-x2title text, .g-y2title text, " +
        ".legendtext, .annotation-text");
      labels.forEach((a, i) => labels.slice(i + 1).forEach((b) => overlap(a.at, b.at) && found.push(`${a.says} lies on ${b.says}`)));
      const ticks = texts(".xtick text").concat(texts(".x2tick text"));
      ticks.forEach((a, i) => i && overlap(ticks[i - 1].at, a.at) && !/rotate\((?!0[,)])/.test(a.turned) &&
        found.push(`${ticks[i - 1].says} lies on ${a.says}`));
      if (box.right > room.right + near) found.push("is wider than its output");
      return found.map((fault) => `${name}: ${fault}`);
    }).concat([...document.querySelectorAll(".jp-OutputArea .widget-readout, .jp-OutputArea .widget-label, .jp-OutputArea .widget-button")]
      .filter((text) => text.scrollWidth > text.clientWidth + near).map((text) => `"${text.textContent}" is cut beside its control`)),
    // the controls of one widget, numbered for a locator; of a row of buttons the first that is not pressed
    controls(root) {
      const rows = new Set();
      const found = [...root.querySelectorAll(
        ".noUi-handle, select, textarea, input[type=text], input[type=checkbox], button:not(.mod-active)")].filter((at) => {
        const row = at.closest(".widget-toggle-buttons") ?? at;
        return !at.closest(".modebar") && !at.closest(".widget-readout") && !at.disabled && !rows.has(row) && rows.add(row);
      });
      return found.map((at, number) => {
        at.setAttribute("data-control", number);
        const label = at.closest(".widget-inline-hbox, .widget-inline-vbox, .jupyter-widgets")?.querySelector(".widget-label");
        const kinds = { "select-one": "select", submit: "button", textarea: "text" };
        const kind = at.matches(".noUi-handle") ? "slider" : kinds[at.type] ?? at.type;
        return [kind, (label?.textContent || at.textContent || at.ariaLabel || at.title || "").trim()];
      });
    },
    keys(at) { // the keys that change this control; Lab takes the arrows of a closed list for itself
      if (at.matches("select")) return ["Space", at.selectedIndex + 1 < at.length ? "ArrowDown" : "ArrowUp", "Enter"];
      if (at.matches("button, [type=checkbox]")) return ["Space"];
      if (!at.matches(".noUi-handle")) return at.matches("textarea") ? ["End", ..." more", "Tab"] : ["End", ..." more", "Enter"];
      const [now, top] = ["now", "max"].map((name) => Number(at.getAttribute(`aria-value${name}`)));
      return [now < top ? "ArrowRight" : "ArrowLeft"];
    },
    watch: (root) => (before = look(root)),
    changed: ([root, part]) => look(root)[part] !== before[part],
    idle: () => panel().sessionContext.session.kernel.status === "idle" && !document.querySelector(".jp-OutputArea button:disabled"),
    problems: () => [...document.querySelectorAll('.jp-OutputArea [role="status"]')].map((line) => line.textContent)
      .filter((text) => text.startsWith("Problem:")),
    // what a reader sees in each output that should be a widget: its visible text, and pictures that are there
    seen: () => cells().filter((cell) => cell.model.sharedModel.outputs?.length).map((cell) => {
      const area = cell.node.querySelector(".jp-Cell-outputArea");
      return {
        text: area.innerText,
        pictures: [...area.querySelectorAll("img")].filter((img) => img.naturalWidth && img.getBoundingClientRect().width).length,
        figures: graphs(area).filter((graph) => graph.getBoundingClientRect().width && graph.querySelector(".main-svg")).length,
      };
    }),
    theme: (name) => app().commands.execute("apputils:change-theme", { theme: name }),
    themed: (light) => document.body.dataset.jpThemeLight === String(light),
    save: () => app().commands.execute("docmanager:save"),
    close: () => panel()?.sessionContext?.shutdown(),
  };
})();
