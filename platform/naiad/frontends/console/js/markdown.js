"use strict";
// Markdown of language models as nodes. Only elements that are made here can appear; links lead to http(s) alone.

function renderMarkdown(text) {
  const root = document.createDocumentFragment();
  const lines = text.split("\n");
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const fence = /^\s*(```+|~~~+)/.exec(line);
    if (fence) {
      const code = [];
      for (i++; i < lines.length && !lines[i].trimStart().startsWith(fence[1]); i++) code.push(lines[i]);
      i++;
      root.append(copyable(code.join("\n")));
    } else if (/^#{1,6}\s/.test(line)) {
      root.append(h("h4", {}, renderInline(line.replace(/^#+\s+/, ""))));
      i++;
    } else if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      i = renderList(lines, i, root);
    } else if (/^\s*>/.test(line)) {
      const quoted = [];
      for (; i < lines.length && /^\s*>/.test(lines[i]); i++) quoted.push(lines[i].replace(/^\s*>\s?/, ""));
      root.append(h("blockquote", {}, renderMarkdown(quoted.join("\n"))));
    } else if (/^\s*\|.*\|\s*$/.test(line) && /^\s*\|[\s:|-]+\|\s*$/.test(lines[i + 1] || "")) {
      const cells = row => row.trim().slice(1, -1).split("|").map(cell => renderInline(cell.trim()));
      const body = [];
      const head = cells(line);
      for (i += 2; i < lines.length && /^\s*\|.*\|\s*$/.test(lines[i]); i++) body.push(cells(lines[i]));
      root.append(h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map(cell => h("th", {}, cell)))), h("tbody", {}, body.map(row => h("tr", {}, row.map(cell => h("td", {}, cell))))))));
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      root.append(h("hr"));
      i++;
    } else if (!line.trim()) {
      i++;
    } else {
      const paragraph = [];
      for (; i < lines.length && lines[i].trim() && !/^\s*(```|~~~|#{1,6}\s|>|[-*+]\s|\d+[.)]\s)/.test(lines[i]); i++) paragraph.push(lines[i]);
      if (!paragraph.length) paragraph.push(lines[i++]);
      root.append(h("p", {}, paragraph.map((part, at) => [at ? h("br") : null, renderInline(part)])));
    }
  }
  return root;
}

function renderList(lines, start, root) {
  const isNumbered = /^\s*\d/.test(lines[start]);
  const list = h(isNumbered ? "ol" : "ul", isNumbered ? { start: parseInt(lines[start], 10) } : {});
  const levels = [{ indent: /^\s*/.exec(lines[start])[0].length, list }];
  let i = start;
  for (; i < lines.length; i++) {
    const item = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/.exec(lines[i]);
    if (!item) {
      if (lines[i].trim() && /^\s+/.test(lines[i])) { append(levels[levels.length - 1].list.lastChild, [" ", renderInline(lines[i].trim())]); continue; }
      break;
    }
    const indent = item[1].length;
    while (levels.length > 1 && indent < levels[levels.length - 1].indent) levels.pop();
    let level = levels[levels.length - 1];
    if (indent > level.indent + 1 && level.list.lastChild) {
      level = { indent, list: h(/^\d/.test(item[2]) ? "ol" : "ul") };
      levels[levels.length - 1].list.lastChild.append(level.list);
      levels.push(level);
    }
    level.list.append(h("li", {}, renderInline(item[3])));
  }
  root.append(list);
  return i;
}

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^\s*](?:[^*]*[^\s*])?)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>)"']+)/;

function renderInline(text) {
  const parts = [];
  let rest = text;
  for (let found = INLINE.exec(rest); found; found = INLINE.exec(rest)) {
    if (found.index) parts.push(rest.slice(0, found.index));
    const [all, , code, bold, strong, italic, label, link, plain] = found;
    const target = { target: "_blank", rel: "noopener noreferrer" };
    if (code !== undefined) parts.push(h("code", {}, code));
    else if (bold !== undefined || strong !== undefined) parts.push(h("strong", {}, renderInline(bold ?? strong)));
    else if (italic !== undefined) parts.push(h("em", {}, renderInline(italic)));
    else parts.push(h("a", { href: link ?? plain, ...target }, label ?? plain));
    rest = rest.slice(found.index + all.length);
  }
  if (rest) parts.push(rest);
  return parts;
}
