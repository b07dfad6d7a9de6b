// Shows again, every few seconds, the part of the page that changes. Without it the page works as well.
"use strict";
(() => {
    const root = document.querySelector("[data-tasklock-refresh]");
    if (!root) return;

    // One box ticks all others of the page. It is there only where this runs.
    const picks = () => [...root.querySelectorAll(".tasklock-tick input[name]:enabled")];
    const showAll = () => {
        const all = document.getElementById("tasklock-all");
        if (!all) return;
        const boxes = picks();
        const number = boxes.filter((box) => box.checked).length;
        all.hidden = boxes.length === 0;
        all.checked = number > 0 && number === boxes.length;
        all.indeterminate = number > 0 && number < boxes.length;
    };
    root.addEventListener("change", (event) => {
        if (event.target.id === "tasklock-all") for (const box of picks()) box.checked = event.target.checked;
        showAll();
    });
    showAll();

    const seconds = Number(root.dataset.tasklockRefresh);
    if (!(seconds > 0)) return;

    const stale = document.getElementById("tasklock-stale");
    const announcer = document.getElementById("tasklock-announce");
    const pause = document.getElementById("tasklock-pause");
    const refresh = document.getElementById("tasklock-refresh");
    const parts = () => [...document.querySelectorAll("[data-tasklock-live]")];
    let paused = false;
    let busy = false;
    let said = parts().map((part) => part.dataset.tasklockSay).join(" ");

    const typing = () => document.activeElement?.matches("input, select, textarea") ?? false;
    const ticked = () => root.querySelector(".tasklock-tick input[name]:checked") !== null;
    const selecting = () => !(document.getSelection()?.isCollapsed ?? true);
    const resting = () => paused || busy || document.hidden || typing() || ticked() || selecting();

    // Whoever has moved to a link by keyboard stays on it.
    const focused = () => {
        const element = document.activeElement;
        if (!element || !parts().some((part) => part.contains(element))) return () => undefined;
        const { id } = element;
        const href = element.getAttribute("href");
        return () => {
            const again = (id && document.getElementById(id)) ||
                (href && [...root.querySelectorAll("a")].find((link) => link.getAttribute("href") === href));
            if (again) again.focus({ preventScroll: true });
        };
    };

    const show = (text) => {
        const fresh = new DOMParser().parseFromString(text, "text/html");
        const pairs = parts().map((part) => [part, fresh.getElementById(part.id)]);
        if (pairs.some(([, part]) => part === null)) return false;
        const restore = focused();
        const ticks = new Set(picks().filter((box) => box.checked).map((box) => box.value));
        for (const [part, by] of pairs) part.replaceWith(document.adoptNode(by));
        for (const box of picks()) box.checked = ticks.has(box.value); // of the same hold, or message: its value says which
        restore();
        showAll();
        const say = parts().map((part) => part.dataset.tasklockSay).join(" ");
        if (say !== said) announcer.textContent = said = say;
        return true;
    };

    const ask = async (asked) => {
        if (busy || (!asked && resting())) return;
        busy = true;
        let shown = false;
        try {
            const url = new URL(location.href);
            url.searchParams.set("fragment", "1");
            const answer = await fetch(url, {
                credentials: "same-origin",
                cache: "no-store",
                signal: AbortSignal.timeout(10000),
            });
            if (answer.ok && !answer.redirected) {
                const text = await answer.text();
                busy = false; // a box may have been ticked meanwhile
                shown = (!asked && resting()) || show(text);
            }
        } catch {
            // No answer: said below.
        } finally {
            busy = false;
        }
        if (stale.hidden !== shown) {
            stale.hidden = shown;
            announcer.textContent = shown ? said : stale.textContent;
        }
    };

    pause.hidden = false;
    pause.addEventListener("click", () => {
        paused = !paused;
        pause.setAttribute("aria-pressed", String(paused));
    });
    refresh.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        void ask(true);
    });
    document.addEventListener("visibilitychange", () => void ask(false));
    setInterval(() => void ask(false), seconds * 1000);
})();
