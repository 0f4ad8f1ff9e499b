//! The pages (`README.md`, `ARCHITECTURE.md`, `docs`, `bench`, `fuzz`) name files and code that exist, link to headings
//! that exist, and stay as short as they should be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most bytes of pages that are read first.
const LIMITS: [(&str, usize); 2] = [("README.md", 9_000), ("ARCHITECTURE.md", 10_000)];

/// Most characters of a line of these pages, tables aside.
const LINE_CHARS: usize = 120;

/// Folders at the root: what begins with one of them is a path. `target` and others that builds make are not here.
const FOLDERS: [&str; 7] = [".ci/", "bench/", "crates/", "docs/", "examples/", "fuzz/", "scripts/"];

/// Pages that tell of the past.
const HISTORY: [&str; 1] = ["CHANGELOG.md"];

/// Paths that a command writes, and so are not in the repository.
const WRITTEN: [&str; 1] = ["bench/results/gpu-PRECISION.json"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages, by their paths from the root, in order.
fn pages() -> Vec<String> {
    let mut found = Vec::new();
    markdown_below(&root(), "", &mut found);
    found.sort();
    assert!(found.len() > LIMITS.len(), "only {found:?}");
    found
}

fn markdown_below(folder: &Path, from_root: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{from_root}{name}");
        let is_source = from_root.is_empty() && !FOLDERS.contains(&format!("{name}/").as_str());
        if entry.path().is_dir() && !is_source {
            markdown_below(&entry.path(), &format!("{path}/"), found);
        } else if name.ends_with(".md") && !HISTORY.contains(&path.as_str()) {
            found.push(path);
        }
    }
}

fn text(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).expect("a page is text")
}

/// What stands between backticks, fenced blocks aside, line by line.
fn quoted(text: &str) -> Vec<String> {
    let parts = |line: &str| {
        let parts: Vec<String> = line.split('`').map(str::to_owned).collect();
        assert!(parts.len() % 2 == 1, "a quotation does not end in its line: {line}");
        parts
    };
    prose(text).flat_map(|line| parts(line).into_iter().skip(1).step_by(2)).collect()
}

/// The lines of a page, fenced blocks aside.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    })
}

/// The paths of the repository that a quotation names, alternatives in braces each for itself.
fn paths(quotation: &str) -> Vec<String> {
    let is_path = |word: &String| FOLDERS.iter().any(|folder| word.starts_with(folder));
    let is_pattern = |path: &String| path.contains(['*', '<', '$']) || path.split('/').any(is_placeholder);
    let words = quotation.split([' ', '(', ')']).flat_map(alternatives);
    let words = words.map(|word| word.trim_end_matches(['.', ',', ':', ';']).to_owned());
    words.filter(is_path).filter(|path| !is_pattern(path)).collect()
}

/// A part of a path that stands for others: `NAME`, `NAME.rs`, `NN-title.md`.
fn is_placeholder(part: &str) -> bool {
    let stem = part.split(['.', '-']).next().unwrap_or_default();
    stem.len() > 1
        && stem.chars().all(|c| c.is_ascii_uppercase())
        && !Path::new(part).extension().is_some_and(|extension| extension == "md" && stem.len() > 2)
}

/// `a.{b,c}` as `a.b` and `a.c`.
fn alternatives(path: &str) -> Vec<String> {
    let Some((start, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (inside, end) = rest.split_once('}').unwrap_or((rest, ""));
    inside.split(',').map(|part| format!("{start}{part}{end}")).collect()
}

/// The targets of links, fenced blocks aside.
fn links(text: &str) -> Vec<String> {
    let targets = |line: &str| -> Vec<String> {
        let rests = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        rests.map(|(target, _)| target.to_owned()).collect()
    };
    prose(text).flat_map(targets).collect()
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn quoted_paths_exist() {
    let mut missing = Vec::new();
    for page in pages() {
        for path in quoted(&text(&page)).iter().flat_map(|quotation| paths(quotation)) {
            if !WRITTEN.contains(&path.as_str()) && !root().join(&path).exists() {
                missing.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "pages name what is not there:\n{}", missing.join("\n"));
}

/// The Rust files of a folder, one after the other.
fn sources_below(folder: &Path, found: &mut String) {
    for path in std::fs::read_dir(folder).expect("a crate has sources").flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&std::fs::read_to_string(&path).expect("a source is text"));
        }
    }
}

/// The crate's folder and the names of a path such as `orch_ir::text::{parse, print}`; nothing for anything else.
fn rust_names(quotation: &str) -> Option<(String, Vec<String>)> {
    let (name, rest) = quotation.split_once("::")?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let folder = name
        .strip_prefix("orch_")
        .filter(|rest| rest.chars().all(is_word))
        .map(|rest| format!("orch-{rest}"));
    let names = rest.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    folder.or((name == "orchestrion").then(|| name.to_owned())).map(|folder| (folder, names))
}

#[test]
fn quoted_names_of_the_code_exist() {
    let mut sources = BTreeMap::new();
    let mut missing = Vec::new();
    for page in pages() {
        for quotation in quoted(&text(&page)) {
            let Some((folder, names)) = rust_names(&quotation) else { continue };
            let path = root().join("crates").join(&folder).join("src");
            if !path.is_dir() {
                missing.push(format!("{page}: {quotation}: no crate {folder}"));
                continue;
            }
            let source = sources.entry(folder).or_insert_with(|| {
                let mut text = String::new();
                sources_below(&path, &mut text);
                text
            });
            let words = |source: &str, name: &str| {
                source.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
            };
            let unknown = names.iter().filter(|name| !words(source, name));
            missing.extend(unknown.map(|name| format!("{page}: {quotation}: {name}")));
        }
    }
    assert!(missing.is_empty(), "pages name code that is not there:\n{}", missing.join("\n"));
}

#[test]
fn recipes_name_whole_paths() {
    let mut short = Vec::new();
    for page in pages().iter().filter(|page| page.starts_with("docs/howto/")) {
        for quotation in quoted(&text(page)) {
            let is_source = [".rs", ".cuh", ".prim"].iter().any(|ending| quotation.ends_with(ending));
            if is_source && quotation.contains('/') && paths(&quotation).is_empty() {
                short.push(format!("{page}: {quotation}"));
            }
        }
    }
    assert!(short.is_empty(), "recipes shorten paths:\n{}", short.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&text(&page)) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            if file.contains("://") {
                continue;
            }
            let folder = root().join(&page).parent().expect("a page lies in a folder").to_owned();
            let target = if file.is_empty() { root().join(&page) } else { folder.join(file) };
            let has_heading = || {
                let text = std::fs::read_to_string(&target).unwrap_or_default();
                text.lines().any(|line| line.starts_with('#') && anchor(line) == heading)
            };
            if !target.exists() || !heading.is_empty() && !has_heading() {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn pages_that_are_read_first_are_short() {
    for (page, most) in LIMITS {
        let text = text(page);
        assert!(text.len() <= most, "{page} has {} bytes, at most {most} are allowed", text.len());
        for line in text.lines().filter(|line| !line.starts_with('|')) {
            assert!(line.chars().count() <= LINE_CHARS, "{page}: a line is longer than {LINE_CHARS}: {line}");
        }
    }
}

#[test]
fn every_decision_is_listed_and_has_its_parts() {
    let index = text("docs/decisions/README.md");
    let pages = pages();
    let decisions = pages.iter().filter_map(|page| page.strip_prefix("docs/decisions/"));
    for name in decisions.filter(|name| *name != "README.md") {
        assert!(index.contains(&format!("]({name})")), "{name} is not in the index");
        let text = text(&format!("docs/decisions/{name}"));
        for heading in ["## Context", "## Choice", "## What lost", "## Measured"] {
            assert!(text.lines().any(|line| line == heading), "{name} has no `{heading}`");
        }
    }
}

/// The names of a section's dependencies.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.split("[workspace.dependencies]").nth(1).expect("there are dependencies");
    let lines =
        section.lines().take_while(|line| !line.starts_with('[')).filter(|line| !line.contains("path ="));
    lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name)
}

#[test]
fn every_dependency_has_a_reason() {
    let page = text("docs/dependencies.md");
    let listed =
        |name: &str| page.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{name}`")));
    for name in dependencies(&text("Cargo.toml")) {
        assert!(listed(name), "docs/dependencies.md does not say what `{name}` is for");
    }
}

/// The names between backticks in the first cells of a table's rows.
fn first_cells(section: &str) -> Vec<String> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn the_crate_map_lists_every_crate() {
    let text = text("ARCHITECTURE.md");
    let section = text.split("\n## ").find(|section| section.starts_with("The crates")).expect("a crate map");
    let mut listed = first_cells(section);
    let entries = std::fs::read_dir(root().join("crates")).expect("there are crates").flatten();
    let mut crates: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    listed.sort();
    crates.sort();
    assert_eq!(listed, crates, "left: in ARCHITECTURE.md, right: in crates");
}

#[test]
fn placeholders_and_alternatives_are_understood() {
    assert_eq!(paths("bench/results/cpu.{json,md}"), ["bench/results/cpu.json", "bench/results/cpu.md"]);
    assert_eq!(paths("python3 bench/cpu.py --out bench/results"), ["bench/cpu.py", "bench/results"]);
    assert!(paths("docs/decisions/NN-title.md").is_empty() && paths("crates/orch-ir/src/NAME.rs").is_empty());
    assert_eq!(paths("crates/orch-ir/README.md"), ["crates/orch-ir/README.md"]);
    assert_eq!(anchor("## The crates, in order"), "the-crates-in-order");
}
