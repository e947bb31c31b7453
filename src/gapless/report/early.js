"use strict";
// Before the first paint: the theme that was chosen here before, and that scripts run, so that nothing moves later.
(function () {
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var theme = localStorage.getItem("gapless-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (error) {
    // A page opened from a file may have no storage; the system's theme is used then.
  }
})();
