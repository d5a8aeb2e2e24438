// Replaces each static chart by the live one that it is a picture of, when it comes into view.
const options = {
  mode: "vega-lite",
  renderer: "svg",
  ast: true, // expressions are interpreted: the page's policy forbids making code of text
  actions: false,
  logLevel: 1, // vega.Error: a discrete width is meant
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
