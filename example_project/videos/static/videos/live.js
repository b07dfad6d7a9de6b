// Keeps the list of videos fresh: fetches it again and replaces the cards that changed.
"use strict";

const list = document.getElementById("cards");
const PAUSE = 1000;

async function refresh() {
  try {
    if (!document.hidden) {
      const response = await fetch(list.dataset.url);
      if (response.ok) {
        replace(await response.text());
      }
    }
  } catch {
    // The server is away for a moment; the next round asks again.
  }
  setTimeout(refresh, PAUSE);
}

function replace(html) {
  const page = document.createElement("template");
  page.innerHTML = html;
  const fresh = page.content.children;
  if (!sameCards(fresh)) {
    list.replaceChildren(...fresh);
    return;
  }
  [...fresh].forEach((card, place) => {
    // Part by part, and never the form: a button must not vanish under the finger.
    [...card.children].forEach((part, index) => {
      const shown = list.children[place].children[index];
      if (part.tagName !== "FORM" && shown.outerHTML !== part.outerHTML) {
        shown.replaceWith(part.cloneNode(true));
      }
    });
  });
}

function sameCards(fresh) {
  return fresh.length === list.children.length && [...fresh].every((card, place) => card.id === list.children[place].id);
}

setTimeout(refresh, PAUSE);
