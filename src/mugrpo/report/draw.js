// Replaces each static chart with its live version when it comes into view.
const options = {
  mode: "vega-lite",
  renderer: "svg",
  ast: true, // interpret expressions: the page's policy forbids eval
  actions: false,
  logLevel: 1, // vega.Error: no warning about a discrete width, which is intended
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};

async function draw(chart) {
  const live = document.createElement("div");
  live.className = "live unfinished";
  chart.append(live);
  try {
    const spec = JSON.parse(chart.querySelector("script").textContent);
    await vegaEmbed(live, spec, options);
  } catch (error) {
    live.remove(); // the static chart stays
    throw error;
  }
  live.classList.remove("unfinished");
  chart.querySelector(".static").remove();
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        seen.unobserve(target);
        draw(target);
      }
    }
  },
  { rootMargin: "300px" },
);
for (const chart of document.querySelectorAll(".chart")) seen.observe(chart);
