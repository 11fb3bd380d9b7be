"use strict";
// Text goes in by textContent only: names of files and classes are never markup.
(function () {
  function bytes(text) {
    return Uint8Array.from(atob(text), function (letter) { return letter.charCodeAt(0); });
  }

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // Interpolates values, not colours: a mean of two colours would stand for another value.
  function paint(canvas, view, levels, map, ramp, cells) {
    const grid = levels.subarray(map * view.height * view.width, (map + 1) * view.height * view.width);
    const side = cells ? 1 : Math.max(1, Math.ceil(160 / Math.max(view.height, view.width)));
    const width = view.width * side, height = view.height * side;
    canvas.width = width;
    canvas.height = height;
    canvas.style.imageRendering = cells ? "pixelated" : "auto";
    const context = canvas.getContext("2d"), picture = context.createImageData(width, height);
    for (let y = 0; y < height; y++) {
      const down = Math.min(Math.max((y + 0.5) / side - 0.5, 0), view.height - 1);
      const top = Math.floor(down), below = Math.min(top + 1, view.height - 1), v = down - top;
      for (let x = 0; x < width; x++) {
        const right = Math.min(Math.max((x + 0.5) / side - 0.5, 0), view.width - 1);
        const left = Math.floor(right), next = Math.min(left + 1, view.width - 1), u = right - left;
        const upper = grid[top * view.width + left] * (1 - u) + grid[top * view.width + next] * u;
        const lower = grid[below * view.width + left] * (1 - u) + grid[below * view.width + next] * u;
        const colour = 3 * Math.round(upper * (1 - v) + lower * v), at = 4 * (y * width + x);
        picture.data[at] = ramp[colour];
        picture.data[at + 1] = ramp[colour + 1];
        picture.data[at + 2] = ramp[colour + 2];
        picture.data[at + 3] = 255;
      }
    }
    context.putImageData(picture, 0, 0);
  }

  function openGallery(gallery) {
    const holder = gallery.querySelector(".gallery-data");
    if (!holder) return;
    const data = JSON.parse(holder.textContent), ramp = bytes(data.ramp);
    const viewer = gallery.querySelector(".viewer"), stage = viewer.querySelector(".stage");
    const images = viewer.querySelector(".pick-image"), maps = viewer.querySelector(".pick-map");
    const name = viewer.querySelector(".map-name"), cells = viewer.querySelector(".pick-cells");
    const strength = viewer.querySelector(".pick-strength");
    const many = data.images.length, kinds = data.chosen.length;

    data.images.forEach(function (image, index) {
      const option = make("option", "", image.name);
      option.value = String(index);
      images.append(option);
    });

    function show() {
      const at = Number(images.value), map = Number(maps.value), image = data.images[at];
      const title = data.chosen[map] + " (" + (map + 1) + " of " + kinds + ")";
      name.textContent = title;
      maps.setAttribute("aria-valuetext", "map " + title);
      stage.replaceChildren();
      image.views.forEach(function (view, index) {
        const figure = make("figure"), over = make("div", "over"), picture = make("img");
        const base = gallery.querySelector('.base[data-image="' + at + '"][data-view="' + index + '"]');
        picture.src = base.src;
        picture.alt = base.alt + ", under map " + data.chosen[map];
        const canvas = make("canvas");
        paint(canvas, view, bytes(view.levels), map, ramp, cells.checked);
        over.append(picture, canvas);
        const caption = make("figcaption", "", view.caption);
        caption.append(make("span", "", "raw range " + view.spans[map]));
        figure.append(over, caption);
        stage.append(figure);
      });
    }

    function move(control, steps, count) {
      control.value = String((Number(control.value) + steps + count) % count);
      show();
    }

    function press(className, control, steps, count) {
      viewer.querySelector(className).addEventListener("click", function () { move(control, steps, count); });
    }

    press(".back-image", images, -1, many);
    press(".next-image", images, 1, many);
    press(".back-map", maps, -1, kinds);
    press(".next-map", maps, 1, kinds);
    images.addEventListener("change", show);
    maps.addEventListener("input", show);
    cells.addEventListener("change", show);
    strength.addEventListener("input", function () {
      stage.style.setProperty("--strength", String(Number(strength.value) / 100));
    });
    gallery.querySelectorAll(".still").forEach(function (still) {
      function jump() {
        images.value = still.dataset.image;
        maps.value = still.dataset.map;
        show();
        viewer.scrollIntoView({ block: "nearest" });
      }
      still.tabIndex = 0;
      still.setAttribute("role", "button");
      still.addEventListener("click", jump);
      still.addEventListener("keydown", function (event) {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); jump(); }
      });
    });
    viewer.hidden = false;
    gallery.querySelector(".glance").open = false;
    show();
  }

  // A live page replaces what has changed; scroll position, image and map stay.
  function autoRefresh(seconds) {
    async function refresh() {
      try {
        const response = await fetch(location.href, { cache: "no-store" });
        if (!response.ok) throw new Error(response.statusText);
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        const sections = function (one) {
          return Array.from(one.querySelectorAll("main section")).map(function (section) { return section.id; }).join();
        };
        if (sections(page) !== sections(document)) { location.reload(); return; }
        document.querySelectorAll("[data-live]").forEach(function (old) {
          const now = page.querySelector('[data-live="' + old.dataset.live + '"]');
          if (now) old.replaceWith(document.adoptNode(now));
        });
      } catch (error) {
        const text = document.querySelector(".live-word");
        if (text) {
          text.textContent = "No response: is `lewel watch` still running?";
          text.parentElement.classList.add("lost");
        }
      }
      setTimeout(refresh, 1000 * seconds);
    }
    setTimeout(refresh, 1000 * seconds);
  }

  document.querySelectorAll(".gallery").forEach(openGallery);
  if (document.body.dataset.refresh) autoRefresh(Number(document.body.dataset.refresh));
})();
