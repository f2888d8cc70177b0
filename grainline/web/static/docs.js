"use strict";
// The page of the JSON interface: openapi.json as text, route by route. Nothing is loaded from other sites.

let schemas = {};

function element(tag, content, ...children) {
  const node = document.createElement(tag);
  if (content) node.textContent = content;
  node.append(...children);
  return node;
}

const resolved = (schema) => schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema;

// A type in words: "string, 24 hexadecimal digits" needs no schema language.
function kind(schema) {
  schema = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum || schema.const) return (schema.enum ?? [schema.const]).map((one) => JSON.stringify(one)).join(" | ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  const limits = { minimum: "at least", maximum: "at most", maxLength: "characters at most", default: "default" };
  const said = Object.entries(limits).filter(([name]) => name in schema).map(([name, words]) => `${words} ${schema[name]}`);
  return [schema.format === "binary" || schema.contentMediaType ? "file" : schema.type ?? "any", ...said].join(", ");
}

function fields(title, rows) {
  if (!rows.length) return [];
  const lines = rows.map(([name, schema, needed, about]) => element("tr", "",
    element("th", "", element("code", name)), element("td", kind(schema) + (needed ? "" : ", optional")),
    element("td", about ?? schema.description ?? "")));
  return [element("h3", title), element("table", "", ...lines)];
}

function rowsOf(schema, answer = false) {
  const { properties = {}, required = [] } = resolved(schema) ?? {};
  return Object.entries(properties).map(([name, one]) => [name, one, answer || required.includes(name)]);
}

function route(path, method, { description, summary, parameters = [], requestBody, responses }) {
  const [type, body] = Object.entries(requestBody?.content ?? {})[0] ?? [];
  const [, answer] = Object.entries(responses["200"].content ?? {})[0] ?? [];
  const asked = parameters.map(({ name, schema, required }) => [name, schema, required]);
  const example = { "application/json": ` -H "Content-Type: application/json" -d '{"text": "A brown dog runs."}'`,
    "multipart/form-data": " -F image=@dog.jpg" }[type] ?? "";
  return element("section", "", element("h2", "", element("code", `${method.toUpperCase()} ${path}`)),
    element("p", description ?? summary), ...fields("Parameters", asked),
    ...fields(type === "multipart/form-data" ? "Form" : "JSON body", rowsOf(body?.schema)),
    ...fields("Answer", rowsOf(answer?.schema, true)),
    element("pre", `curl -s ${location.origin}${path}${example}`));
}

async function start() {
  const main = document.getElementById("routes");
  try {
    const api = await (await fetch("openapi.json")).json();
    schemas = api.components.schemas;
    document.getElementById("about").textContent = `${api.info.title} ${api.info.version}. ${api.info.description}`;
    const routes = Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, one]) => route(path, method, one)));
    const shared = ["HitOut", "SentenceOut", "HeatMap", "SampleOut", "LimitsOut"].filter((name) => schemas[name]);
    const parts = shared.map((name) => element("section", "", ...fields(name, rowsOf(schemas[name], true))));
    main.replaceChildren(...routes, ...parts);
  } catch {
    main.replaceChildren(element("p", "The server cannot be reached. Is it still running?"));
  }
}
start();
