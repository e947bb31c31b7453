"use strict";
// The page is complete without this script. It adds: a cursor in every picture (by pointer and by keys), one figure at
// a time where there are many, and a switch of themes. It asks no network for anything.
(function () {
  var SVG = "http://www.w3.org/2000/svg";

  // Numbers, written as the page writes them

  function digits(value) {
    var size = Math.abs(value);
    var shown = size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
    return shown.indexOf(".") < 0 ? shown : shown.replace(/0+$/, "").replace(/\.$/, "");
  }
  function duration(ns) {
    if (ns >= 120e9) {
      var seconds = Math.round(ns / 1e9);
      var hours = Math.floor(seconds / 3600);
      var minutes = Math.floor(seconds / 60) % 60;
      return hours ? hours + " h " + minutes + " min" : minutes + " min " + (seconds % 60) + " s";
    }
    var units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
    for (var at = 0; at < units.length; at += 1) {
      if (ns >= units[at][0] * 0.9995) return digits(ns / units[at][0]) + " " + units[at][1];
    }
    return "0 s";
  }
  function count(value) {
    return Number.isInteger(value) || Math.abs(value) >= 100
      ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",")
      : digits(value);
  }
  function written(value, kind) {
    if (value === null) return "none";
    if (kind === "ns") return duration(value);
    if (kind === "rate") return count(value) + "/s";
    return count(value);
  }

  function sums(steps) {
    var before = 0;
    return steps.map(function (step) {
      if (step === null) return null;
      before = Math.round((before + step) * 1000) / 1000;
      return before;
    });
  }
  function element(name, attributes) {
    var made = document.createElementNS(SVG, name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    return made;
  }

  // A cursor over curves: one stop for each x

  function curves(figure, stage, source) {
    var places = source.at || sums(source.time).map(function (us) { return us / source.span; });
    var labels = source.label || sums(source.time).map(function (us) { return duration(us * 1000); });
    var series = source.series.map(function (one) {
      var values = one.minus ? null : sums(one.values);
      return { name: one.name, kind: one.kind, colour: one.colour, box: one.box, axis: one.axis, values: values };
    });
    source.series.forEach(function (one, nth) {
      if (!one.minus) return;
      var from = series[one.minus[0]].values;
      var less = series[one.minus[1]].values;
      series[nth].values = from.map(function (value, at) {
        return value === null || less[at] === null ? null : Math.max(0, value - less[at]);
      });
    });
    var canvas = stage.querySelector("svg");
    var drawn = [];
    function height(one, value) {
      var bend = one.axis[2] === "log" ? function (x) { return Math.log10(Math.max(x, 1e-9)); } : function (x) { return x; };
      var low = bend(one.axis[0]);
      var high = bend(one.axis[1]);
      var place = high > low ? (bend(value) - low) / (high - low) : 0.5;
      return one.box[0] + one.box[1] * (1 - Math.min(1, Math.max(0, place)));
    }
    return {
      length: places.length,
      nearest: function (event) {
        var box = canvas.getBoundingClientRect();
        var wanted = (event.clientX - box.left) / box.width;
        var low = 0;
        var high = places.length - 1;
        while (low < high) {
          var middle = (low + high) >> 1;
          if (places[middle] < wanted) low = middle + 1; else high = middle;
        }
        return low > 0 && wanted - places[low - 1] < places[low] - wanted ? low - 1 : low;
      },
      show: function (at) {
        var x = 100 * places[at] + "%";
        var bottom = Math.max.apply(null, series.map(function (one) { return one.box[0] + one.box[1]; }));
        drawn = [element("line", { "class": "cursor", x1: x, x2: x, y1: series[0].box[0], y2: bottom })];
        series.forEach(function (one) {
          if (one.values[at] === null) return;
          drawn.push(element("circle", { "class": "cursor-dot c" + one.colour, cx: x, cy: height(one, one.values[at]), r: 5 }));
        });
        drawn.forEach(function (part) { canvas.appendChild(part); });
        return labels[at] + ": " + series.map(function (one) {
          return one.name + " " + written(one.values[at], one.kind);
        }).join(", ");
      },
      hide: function () {
        drawn.forEach(function (part) { part.remove(); });
        drawn = [];
      }
    };
  }

  // A cursor over things: one stop for each mark, bar or arrow

  function things(stage) {
    var stops = Array.prototype.slice.call(stage.querySelectorAll("[data-say]"));
    var shown = null;
    function middle(stop) {
      var box = stop.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    }
    return {
      length: stops.length,
      nearest: function (event) {
        var direct = event.target.closest && event.target.closest("[data-say]");
        if (direct) return stops.indexOf(direct);
        var best = -1;
        var least = 40 * 40;
        stops.forEach(function (stop, at) {
          var place = middle(stop);
          var away = Math.pow(place[0] - event.clientX, 2) + Math.pow(place[1] - event.clientY, 2);
          if (away < least) { least = away; best = at; }
        });
        return best;
      },
      show: function (at, byKey) {
        shown = stops[at];
        shown.classList.add("at");
        if (byKey) scrollInto(stage, shown);
        return shown.dataset.say;
      },
      hide: function () {
        if (shown) shown.classList.remove("at");
        shown = null;
      }
    };
  }
  function scrollInto(stage, stop) {
    var inner = stop.getBoundingClientRect();
    var outer = stage.getBoundingClientRect();
    if (inner.left < outer.left) stage.scrollLeft -= outer.left - inner.left + 24;
    if (inner.right > outer.right) stage.scrollLeft += inner.right - outer.right + 24;
    if (inner.bottom > window.innerHeight) window.scrollBy(0, inner.bottom - window.innerHeight + 80);
    if (inner.top < 60) window.scrollBy(0, inner.top - 80);
  }

  function plot(figure) {
    var stage = figure.querySelector(".stage");
    var say = figure.querySelector(".say");
    var holder = figure.querySelector(":scope > script[type='application/json']");
    var cursor = null;
    var at = -1;
    function ready() {
      if (!cursor) cursor = holder ? curves(figure, stage, JSON.parse(holder.textContent)) : things(stage);
      return cursor.length > 0;
    }
    function go(to, byKey) {
      if (to < 0 || to === at) return;
      cursor.hide();
      at = Math.min(cursor.length - 1, to);
      say.textContent = cursor.show(at, byKey);
    }
    function leave() {
      if (!cursor) return;
      cursor.hide();
      at = -1;
      say.textContent = "";
    }
    // With a cursor it is more than a picture: a reader of screens has to pass the arrow keys on.
    stage.setAttribute("role", "application");
    stage.setAttribute("aria-roledescription", "plot");
    stage.addEventListener("keydown", function (event) {
      if (event.altKey || event.ctrlKey || event.metaKey || !ready()) return;
      var jump = Math.max(1, Math.round(cursor.length / 10));
      var to = {
        ArrowRight: at + 1, ArrowLeft: at < 0 ? cursor.length - 1 : Math.max(0, at - 1), Home: 0, End: cursor.length - 1,
        PageDown: Math.min(cursor.length - 1, at + jump), PageUp: Math.max(0, at - jump)
      }[event.key];
      if (event.key === "Escape") leave();
      else if (to === undefined) return;
      else go(Math.min(to, cursor.length - 1), true);
      event.preventDefault();
    });
    stage.addEventListener("pointermove", function (event) { if (ready()) go(cursor.nearest(event), false); });
    stage.addEventListener("pointerdown", function (event) { if (ready()) go(cursor.nearest(event), false); });
    stage.addEventListener("pointerleave", function (event) {
      if (event.pointerType !== "touch" && document.activeElement !== stage) leave();
    });
    stage.addEventListener("blur", leave);
  }

  function choice(holder) {
    var bodies = Array.prototype.slice.call(holder.querySelectorAll(":scope > .option"));
    var select = holder.querySelector("select");
    function show(at) {
      select.selectedIndex = (at + bodies.length) % bodies.length;
      bodies.forEach(function (body, nth) { body.classList.toggle("shown", nth === select.selectedIndex); });
    }
    select.addEventListener("change", function () { show(select.selectedIndex); });
    holder.querySelectorAll(".step").forEach(function (button) {
      button.addEventListener("click", function () { show(select.selectedIndex + Number(button.dataset.by)); });
    });
    show(bodies.findIndex(function (body) { return body.classList.contains("shown"); }));
  }

  function themes() {
    var root = document.documentElement;
    var button = document.getElementById("theme");
    var name = button.querySelector(".chosen");
    var order = ["system", "light", "dark"];
    function label() {
      name.textContent = root.dataset.theme || "system";
      button.setAttribute("aria-label", "Theme: " + name.textContent);
    }
    button.addEventListener("click", function () {
      var next = order[(order.indexOf(root.dataset.theme || "system") + 1) % order.length];
      if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
      try { localStorage.setItem("gapless-theme", next); } catch (error) { /* no storage: it lasts as long as the page */ }
      label();
    });
    label();
  }

  function copying(button) {
    button.addEventListener("click", function () {
      var code = button.parentNode.querySelector("code");
      var range = document.createRange();
      range.selectNodeContents(code);
      var selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      var done = false;
      try { done = document.execCommand("copy"); } catch (error) { done = false; }
      button.textContent = done ? "Copied" : "Selected";
    });
  }

  // The bar at the top shows where the reader is

  function follow() {
    if (!("IntersectionObserver" in window)) return;
    var links = {};
    document.querySelectorAll("nav a").forEach(function (link) { links[link.hash.slice(1)] = link; });
    var watcher = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (!entry.isIntersecting) return;
        Object.keys(links).forEach(function (key) { links[key].removeAttribute("aria-current"); });
        var link = links[entry.target.id];
        if (!link) return;
        link.setAttribute("aria-current", "true");
        var bar = link.closest("nav");
        bar.scrollLeft = link.offsetLeft - bar.offsetLeft - bar.clientWidth / 2 + link.offsetWidth / 2;
      });
    }, { rootMargin: "-20% 0px -70% 0px" });
    document.querySelectorAll("main > section").forEach(function (section) { watcher.observe(section); });
  }

  document.querySelectorAll("figure.plot").forEach(plot);
  document.querySelectorAll(".choice").forEach(choice);
  document.querySelectorAll(".copy").forEach(copying);
  themes();
  follow();
})();
