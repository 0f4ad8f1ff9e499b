//! One name, one thing: a type's name is not used for something else in another place, and traits are small.

use std::collections::BTreeMap;
use std::path::PathBuf;
use tidy::sources::{crates, items, product_files, root};

/// Names that once stood for four to ten things each: each may be defined once at most.
const ONCE: [&str; 14] = [
    "Step",
    "Place",
    "Product",
    "View",
    "Facts",
    "Lowering",
    "Tile",
    "Extents",
    "Machine",
    "Plan",
    "Schedule",
    "Engine",
    "Kernel",
    "Executable",
];

/// The most methods of a trait. The registries of `orch-ir` are tables.
const MOST_METHODS: usize = 8;

/// Where each type of the product code is defined, by its name.
fn types() -> BTreeMap<String, Vec<PathBuf>> {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for name in crates() {
        for path in product_files(&name) {
            for item in items(&path) {
                let ident = match item {
                    syn::Item::Struct(item) => item.ident,
                    syn::Item::Enum(item) => item.ident,
                    syn::Item::Trait(item) => item.ident,
                    syn::Item::Type(item) => item.ident,
                    _ => continue,
                };
                let below = path.strip_prefix(root()).unwrap_or(&path).to_owned();
                found.entry(ident.to_string()).or_default().push(below);
            }
        }
    }
    found
}

#[test]
fn names_that_meant_many_things_mean_one() {
    let types = types();
    let twice = types.iter().filter(|(name, places)| ONCE.contains(&name.as_str()) && places.len() > 1);
    let lines: Vec<String> = twice.map(|(name, places)| format!("{name}: {places:?}")).collect();
    assert!(lines.is_empty(), "these names are defined in several places:\n{}", lines.join("\n"));
    assert!(types.len() > 500, "only {} types were found", types.len());
}

#[test]
fn traits_have_few_methods() {
    let mut large = Vec::new();
    for name in crates().iter().filter(|name| *name != "orch-ir") {
        for path in product_files(name) {
            for item in items(&path) {
                let syn::Item::Trait(item) = item else { continue };
                let methods = item.items.iter().filter(|item| matches!(item, syn::TraitItem::Fn(_))).count();
                if methods > MOST_METHODS {
                    large.push(format!("{} in {} has {methods} methods", item.ident, path.display()));
                }
            }
        }
    }
    assert!(large.is_empty(), "{}", large.join("\n"));
}
