//! A report as one HTML page, which fetches nothing: data, styles and scripts are in it.
//!
//! The scripts in `assets` are read in the order of [`SCRIPTS`]; each adds to one object, `orchestrion`. What models are named
//! and made of is data: it stands in the page as JSON without `<`, and scripts show it as text.

use super::against::{Comparison, compare};
use super::data::Report;
use orch_ir::message;
use serde_json::{Value, json};

/// Libraries, each with its licence: see `docs/dependencies.md`.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("dagre 3.1.3", include_str!("assets/vendor/dagre.min.js"), include_str!("assets/vendor/dagre.LICENSE")),
    (
        "uPlot 1.6.32",
        include_str!("assets/vendor/uPlot.iife.min.js"),
        include_str!("assets/vendor/uPlot.LICENSE"),
    ),
];

/// Scripts of our own, in the order in which they need each other.
const SCRIPTS: [&str; 9] = [
    include_str!("assets/elements.js"),
    include_str!("assets/plan.js"),
    include_str!("assets/layout.js"),
    include_str!("assets/graph.js"),
    include_str!("assets/details.js"),
    include_str!("assets/charts.js"),
    include_str!("assets/steps.js"),
    include_str!("assets/against.js"),
    include_str!("assets/main.js"),
];

/// Styles.
const STYLES: [&str; 2] = [include_str!("assets/vendor/uPlot.min.css"), include_str!("assets/report.css")];

/// Bytes of a name or a line; longer ones lose their middle.
const LINE_BYTES: usize = 300;

/// Bytes of all sources together, of which each kernel has an equal share, and the share at least and at most.
const SOURCES_BYTES: usize = 1_500_000;
const SOURCE_BYTES: [usize; 2] = [1_000, 60_000];

/// Bytes of a proof's text, or of a searched program.
const TEXT_BYTES: usize = 8_000;

/// Elements of a list of a step; those behind them are left out and counted.
const LIST: usize = 200;

/// The page of a report, or of two, of which the second one is compared with the first.
pub fn page(report: &Report, against: Option<&Report>) -> String {
    let title = message::name(&report.manifest.model.name);
    let comparison: Option<Comparison> = against.map(|second| compare(report, second));
    let data = json!({
        "report": shown(report),
        "against": against.map(shown),
        "comparison": comparison,
    });
    let mut page = String::with_capacity(1 << 20);
    page += "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    page += "<meta name=\"color-scheme\" content=\"light dark\">\n";
    // Nothing is fetched, whatever a name says.
    page += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; \
             style-src 'unsafe-inline'; img-src data:\">\n";
    page += &format!("<title>{} - Orchestrion</title>\n", escaped(&title));
    STYLES.iter().for_each(|style| page += &format!("<style>\n{style}</style>\n"));
    page += "</head>\n<body>\n<noscript>This report needs JavaScript; nothing of it is fetched.</noscript>\n<div id=\"app\"></div>\n";
    page += &format!(
        "<script type=\"application/json\" id=\"data\">{}</script>\n",
        without_markup(&data.to_string())
    );
    for (name, source, licence) in LIBRARIES {
        page += &format!(
            "<script type=\"text/plain\" class=\"licence\" data-name=\"{name}\">\n{licence}</script>\n"
        );
        // A map of the source would be fetched.
        let lines = source.lines().filter(|line| !line.starts_with("//# sourceMappingURL"));
        page += &format!("<script>\n{}\n</script>\n", lines.collect::<Vec<_>>().join("\n"));
    }
    SCRIPTS.iter().for_each(|source| page += &format!("<script>\n{source}</script>\n"));
    page += "</body>\n</html>\n";
    page
}

/// A report as JSON, and, if there is a second one, that one and the comparison under `against` and `comparison`.
pub fn json(report: &Report, against: Option<&Report>) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    if let Some(second) = against {
        value["against"] = serde_json::to_value(second).unwrap_or_default();
        value["comparison"] = serde_json::to_value(compare(report, second)).unwrap_or_default();
    }
    value
}

/// The report as `explain --json` prints it, with long texts cut.
fn shown(report: &Report) -> Value {
    let mut report = report.clone();
    let manifest = &mut report.manifest;
    let share = SOURCES_BYTES / manifest.kernels.len().max(1);
    let source_bytes = share.clamp(SOURCE_BYTES[0], SOURCE_BYTES[1]);
    for kernel in &mut manifest.kernels {
        cut(&mut kernel.source, source_bytes);
    }
    for proof in &mut manifest.proofs {
        cut(&mut proof.program, TEXT_BYTES);
        cut(&mut proof.candidate, TEXT_BYTES);
    }
    for search in manifest.report.searches.iter_mut().flatten() {
        cut(&mut search.program, TEXT_BYTES);
    }
    for step in &mut manifest.steps {
        for list in [&mut step.computes, &mut step.origins] {
            let more = list.len().saturating_sub(LIST);
            list.truncate(LIST);
            if more > 0 {
                list.push(format!("and {more} more"));
            }
        }
        if let crate::manifest::ActionInfo::Host { graph, .. } = &mut step.action {
            cut(graph, TEXT_BYTES);
        }
    }
    let mut value = serde_json::to_value(&report).unwrap_or_default();
    shorten_lines(&mut value, "");
    value
}

/// Texts of several lines, which are cut by themselves.
const TEXTS: [&str; 4] = ["source", "program", "candidate", "graph"];

/// Shortens every text that is no text of several lines.
fn shorten_lines(value: &mut Value, key: &str) {
    match value {
        Value::String(text) if !TEXTS.contains(&key) && text.len() > LINE_BYTES => {
            *text = message::shortened(text, LINE_BYTES);
        }
        Value::Array(all) => all.iter_mut().for_each(|value| shorten_lines(value, key)),
        Value::Object(all) => all.iter_mut().for_each(|(key, value)| shorten_lines(value, key)),
        _ => {}
    }
}

/// Cuts a text behind a line, and says so.
fn cut(text: &mut String, most_bytes: usize) {
    if text.len() <= most_bytes {
        return;
    }
    let whole = text.len();
    let end = (0..=most_bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let end = text[..end].rfind('\n').filter(|&line| line > end / 2).unwrap_or(end);
    text.truncate(end);
    text.push_str(&format!(
        "\n.. cut here: {whole} bytes in all, which `orchestrion explain --json` prints\n"
    ));
}

/// JSON that no parser of HTML takes for markup.
fn without_markup(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// A text in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::manifest;
    use crate::tools::report::{Measurements, report};

    #[test]
    fn hostile_names_are_data() {
        let mut plan = manifest(&[&[][..]; 3]);
        let hostile = "</script><script>alert(1)</script><!--\0\u{2028}&quot;";
        plan.model.name = format!("{hostile}\"onload=alert(1)");
        plan.steps[0].name = hostile.to_owned();
        plan.steps[1].origins = vec![hostile.repeat(20_000); 3];
        plan.steps[2].computes = (0..1_000).map(|number| format!("t{number}: f32[1] = add t0, t1")).collect();
        let first = report(&plan, &Measurements::default());
        let page = page(&first, Some(&first));
        assert!(!page.contains("<script>alert") && !page.contains('\0') && !page.contains("<!--"));
        assert!(page.len() < 600_000, "{} bytes", page.len());
        // What stands between the tags of the data is JSON.
        let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let end = start + page[start..].find("</script>").unwrap();
        let data: Value = serde_json::from_str(&page[start..end]).unwrap();
        assert_eq!(data["report"]["manifest"]["steps"][0]["name"], hostile);
        assert_eq!(data["report"]["measured_us"], json!([null, null, null]));
        let computes = data["report"]["manifest"]["steps"][2]["computes"].as_array().unwrap();
        assert_eq!((computes.len(), &computes[LIST]), (LIST + 1, &json!("and 800 more")));
    }

    #[test]
    fn nothing_is_fetched() {
        let page = page(&report(&manifest(&[]), &Measurements::default()), None);
        for markup in
            [" src=", "<link", "@import", "url(", "sourceMappingURL", "fetch(", "XMLHttpRequest", "import("]
        {
            assert!(!page.contains(markup), "{markup}");
        }
        assert!(page.contains("Permission is hereby granted"));
    }

    #[test]
    fn long_texts_are_cut_at_a_line() {
        let mut text = "abc\n".repeat(1_000);
        cut(&mut text, 99);
        assert!(
            text.starts_with("abc\n")
                && text.contains("\n.. cut here: 4000 bytes in all")
                && text.len() < 200,
            "{text}"
        );
        let mut text = "\u{20ac}".repeat(1_000);
        cut(&mut text, 100);
        assert!(text.starts_with(&"\u{20ac}".repeat(33)));
    }
}
