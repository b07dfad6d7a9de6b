// Shows again, every few seconds, the parts of the page that change. Without it the page works as well.
"use strict";
(() => {
    const root = document.querySelector("[data-tasklock-refresh]");
    if (!root) return;
    const boxes = () => [...root.querySelectorAll(".tasklock-tick input[name]:enabled")];
    const all = () => document.getElementById("tasklock-all"); // it ticks all others, so it is there only where this runs
    const show = () => { if (all()) all().hidden = boxes().length === 0; };
    root.addEventListener("change", (event) => {
        if (event.target === all()) for (const box of boxes()) box.checked = event.target.checked;
    });
    show();

    // A list that moves under the hand is dangerous, and so is one that is old without saying so.
    const pause = document.getElementById("tasklock-pause");
    const stale = document.getElementById("tasklock-stale");
    const resting = () => pause.getAttribute("aria-pressed") === "true" || document.hidden ||
        boxes().some((box) => box.checked) || !document.getSelection().isCollapsed ||
        document.activeElement?.matches("input, select, textarea, [data-tasklock-live] *");
    const refresh = async () => {
        if (resting()) return;
        const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) }).catch(() => null);
        const text = answer?.ok && !answer.redirected ? await answer.text().catch(() => "") : "";
        const [part, fresh] = [document, new DOMParser().parseFromString(text, "text/html")].map((page) =>
            page.querySelector("[data-tasklock-live]"));
        stale.hidden = fresh !== null;
        if (fresh === null || resting()) return;
        if (fresh.dataset.tasklockSay !== part.dataset.tasklockSay)
            document.getElementById("tasklock-announce").textContent = fresh.dataset.tasklockSay;
        part.replaceWith(document.adoptNode(fresh));
        show();
    };
    pause.addEventListener("click", () =>
        pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true")));
    const seconds = Number(root.dataset.tasklockRefresh);
    if (seconds > 0) setInterval(() => void refresh(), seconds * 1000);
    pause.hidden = !(seconds > 0);
})();
